"""`veen queue`: tasks that are done at least once, by one of several consumers."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, group
from veen.cli.kit import faults_command
from veen.cli.kit.state_options import ExpiresIn, ReadOptions, SendOptions, read_command, send_command

if TYPE_CHECKING:
    from veen.cli.kit.read_state import StateAnswer
    from veen.client.client import Client
    from veen.overlays import Event, FoldStep
    from veen.overlays.overlay import Walk
    from veen.overlays.queue import Queue, Task, TaskStatus
    from veen.state import TaskJob
    from veen.state.state_at import StateAt

    QueueReading: TypeAlias = StateAt[Task, Walk]

app = group(
    "queue",
    """Put tasks on a stream, and have each done at least once by one of several consumers.

    A consumer takes a task for some seconds, does it and acknowledges it. A claim that runs out, by the hub's clock,
    frees the task for the next consumer. A task that was tried often enough without success is a dead letter.
    """,
)

TaskId: TypeAlias = Annotated[str, typer.Argument(metavar="TASK", help="which task, by its 64 hex digits")]
ClaimId: TypeAlias = Annotated[
    str | None,
    typer.Option("--claim", metavar="HEX", help="under which claim", show_default="the one that this client won"),
]


def _overlay() -> "Queue":
    from veen.overlays.queue import QUEUE

    return QUEUE


@send_command(app, "add", 'veen queue add "letter 4" --stream letters', "veen queue add @letter.pdf --max-tries 3")
def add(
    asked: SendOptions,
    item: Annotated[str, typer.Argument(metavar="ITEM", help="text, hex: and bytes, or @ and a file")],
    max_tries: Annotated[
        int | None,
        typer.Option("--max-tries", metavar="N", min=1, help="then it is a dead letter", show_default="never"),
    ] = None,
    expires_in: ExpiresIn = None,
) -> None:
    """Put a task in. Its id is that of its message."""
    from veen.cli.kit import send_event, values
    from veen.overlays.queue import Put

    event = Put(values.content_of(item), max_tries)
    send_event.send_checked(asked, _overlay(), lambda reading: event, {}, expires_in=expires_in, blind=event)


@send_command(app, "take", "veen queue take --stream letters --lease 300", "veen queue take --json")
def take(
    asked: SendOptions,
    lease: Annotated[int, durations.whole_option("--lease", least=1, help="for how long it is ours")] = 60,
) -> None:
    """Claim the first task that is ready, and show it.

    The exit status is 6 where no task is ready.
    """
    from veen.cli.kit import output, sanitize, send_event
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable
    from veen.state import TaskQueue

    async def work(client: "Client", name: str) -> "TaskJob | None":
        async with TaskQueue.of(client, name, cached=not asked.no_cache) as queue:
            return await queue.take(lease)

    if asked.blind:
        raise Misuse("a task cannot be taken without a look at the queue", "leave out --blind")
    job = send_event.run_at_hub(asked, _overlay(), work)
    if job is None:
        raise hinted(Unavailable("no task is ready"), "veen queue list shows which there are")
    rows: dict[str, output.Value] = {
        "task": job.task_id,
        "claim": job.claim_id,
        "until": output.moment(job.until),
        "tries": job.tries,
        "item": sanitize.line_of(job.item),
    }
    text = sanitize.text_of(job.item)
    output.facts(rows, asked.as_json, {**rows, "until": job.until, "item": job.item, "text": text})


@send_command(app, "ack", "veen queue ack 9e3c07… --stream letters", "veen queue ack 9e3c07… --claim 1fcc94…")
def ack(asked: SendOptions, task: TaskId, claim: ClaimId = None) -> None:
    """Say that a task is done."""
    from veen.overlays.queue import Ack

    _settle(asked, task, claim, lambda task_id, claim_id: Ack(task_id, claim_id))


@send_command(app, "fail", 'veen queue fail 9e3c07… --reason "no such address"', "veen queue fail 9e3c07… --json")
def fail(
    asked: SendOptions,
    task: TaskId,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="why")] = None,
    claim: ClaimId = None,
) -> None:
    """Give a task back, for the next consumer."""
    from veen.overlays.queue import Nack

    _settle(asked, task, claim, lambda task_id, claim_id: Nack(task_id, claim_id, reason))


def _settle(asked: SendOptions, task: str, claim: str | None, make: "Callable[[bytes, bytes], Event]") -> None:
    """End a claim: the one that is named, or the one that the task is under."""
    from veen.cli.kit import send_event, values
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable

    task_id = values.id_of(task, "a task")
    claim_id = None if claim is None else values.id_of(claim, "a claim")

    def event(reading: "QueueReading") -> "Event":
        held = reading.state(task_id).claim if claim_id is None else claim_id
        if held is None:
            raise hinted(Unavailable("the task is under no claim"), "veen queue take claims one that is ready")
        return make(task_id, held)

    blind = None if claim_id is None else make(task_id, claim_id)
    send_event.send_checked(asked, _overlay(), event, {"task": task_id}, blind=blind)


@send_command(app, "retry", "veen queue retry 9e3c07… --stream letters", "veen queue retry 9e3c07… --json")
def retry(asked: SendOptions, task: TaskId) -> None:
    """Make a dead letter a task again."""
    from veen.cli.kit import send_event, values
    from veen.overlays.queue import TaskRetry

    event = TaskRetry(values.id_of(task, "a task"))
    send_event.send_checked(asked, _overlay(), lambda reading: event, {"task": event.task}, blind=event)


@read_command(app, "list", "veen queue list --stream letters", "veen queue list --status claimed --json")
def list_(
    asked: ReadOptions,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="NAME", help="ready, claimed, dead, expired or done", show_default="not done"),
    ] = None,
) -> None:
    """List tasks, in the order in which they were put.

    Where a task is depends on the time as well: it is told for the hub's present, or with --at for the time of that
    entry.
    """
    from veen.overlays.queue import TaskStatus

    if status is not None and status not in set(TaskStatus):
        raise Misuse(f"no task is ever {status!r}", f"it is one of {', '.join(TaskStatus)}")
    _list(asked, None if status is None else TaskStatus(status))


@read_command(app, "dead", "veen queue dead --stream letters", "veen queue dead --json")
def dead(asked: ReadOptions) -> None:
    """List the dead letters: tasks that were tried often enough without success."""
    from veen.overlays.queue import TaskStatus

    _list(asked, TaskStatus.DEAD)


@read_command(
    app, "show", "veen queue show 9e3c07… --stream letters", "veen queue show 9e3c07… --prove --out task.evidence"
)
def show(asked: ReadOptions, task: TaskId) -> None:
    """Show a task, and all that happened to it."""
    from veen.cli.kit import output, read_state, render_state, sanitize, values
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable
    from veen.state.state_view import shown

    task_id = values.id_of(task, "a task")

    def look(reading: "QueueReading") -> "StateAnswer":
        found, steps = reading.state(task_id), tuple(reading.history(task_id))
        if found.item is None:
            raise hinted(Unavailable("there is no such task"), "veen queue list shows them")
        facts = {name: render_state.plain_cell(one) for name, one in _overlay().plain(task_id, found).items()}
        rows = [
            (shown(one.at), output.moment(one.entry.hub_ts), sanitize.short(one.entry.client_id), _word(one))
            for one in steps
        ]
        history = [{**render_state.step_data(one), "event": _word(one)} for one in steps]
        data = {**_plain(task_id, found), "history": history}
        columns = ("entry", "hub_ts", "client_id", "event")
        return read_state.StateAnswer(facts, columns, rows, data, (task_id,))

    read_state.show_state(asked, _overlay(), look)


def _list(asked: ReadOptions, status: "TaskStatus | None") -> None:
    from veen.cli.kit import read_state, sanitize
    from veen.overlays.queue import TaskStatus

    def look(reading: "QueueReading") -> "StateAnswer":
        listed = reading.states.items() if status is TaskStatus.DONE else reading.live()
        found = [(task_id, task, task.status(reading.now)) for task_id, task in listed if task.item is not None]
        found = [one for one in found if status in (None, one[2])]
        rows = [
            (task_id, word, task.tries, sanitize.line_of(task.item or b""), task.reason)
            for task_id, task, word in found
        ]
        data = [{**_plain(task_id, task), "status": word} for task_id, task, word in found]
        columns, parts = ("task", "status", "tries", "item", "reason"), tuple(one[0] for one in found)
        return read_state.StateAnswer(columns=columns, rows=rows, data={"tasks": data}, parts=parts)

    read_state.show_state(asked, _overlay(), look)


def _plain(task_id: bytes, task: "Task") -> dict[str, object]:
    from veen.cli.kit import sanitize

    return {**_overlay().plain(task_id, task), "text": sanitize.text_of(task.item or b"")}


def _word(step: "FoldStep") -> str:
    """What a step is, in a word: put, claim, ack, nack, retry."""
    return type(step.event).__name__.lower()


faults_command.add(app, "veen queue", _overlay)
