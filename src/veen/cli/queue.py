"""`veen queue`: tasks on a stream, each processed at least once by one of several consumers."""

from collections.abc import Callable
from typing import Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, group
from veen.cli.kit import faults_command, output, read_state, render_state, sanitize, send_event, values
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.state_options import ExpiresIn, ReadOptions, SendOptions, read_command, send_command
from veen.client.client import Client
from veen.core import Unavailable
from veen.overlays import Event, FoldStep
from veen.overlays.overlay import Walk
from veen.overlays.queue import QUEUE, Ack, Nack, Put, Task, TaskClaim, TaskRetry, TaskStatus
from veen.state import TaskJob, TaskQueue
from veen.state.state_view import StateAt, shown

QueueReading: TypeAlias = StateAt[Task, Walk]


app = group(
    "queue",
    """Add tasks to a stream; each is processed at least once by one of several consumers.

    A consumer claims a task for some seconds, processes it and acknowledges it. A claim that expires by the hub's clock
    releases the task for the next consumer. A task that failed --max-tries times is a dead letter.
    """,
)

TaskId: TypeAlias = Annotated[str, typer.Argument(metavar="TASK", help="the task, by its 64 hex digits")]
ClaimId: TypeAlias = Annotated[
    str | None,
    typer.Option("--claim", metavar="HEX", help="the claim", show_default="the one that this client holds"),
]


@send_command(app, "add", 'veen queue add "letter 4" --stream letters', "veen queue add @letter.pdf --max-tries 3")
def add(
    options: SendOptions,
    item: Annotated[str, typer.Argument(metavar="ITEM", help="text, hex: and bytes, or @ and a file")],
    max_tries: Annotated[
        int | None,
        typer.Option("--max-tries", metavar="N", min=1, help="then it becomes a dead letter", show_default="no limit"),
    ] = None,
    expires_in: ExpiresIn = None,
) -> None:
    """Add a task.

    Its id is the msg_id of its message.
    """

    event = Put(values.content_of(item), max_tries)
    send_event.send_checked(options, QUEUE, lambda reading: event, {}, expires_in=expires_in, blind=event)


@send_command(app, "take", "veen queue take --stream letters --lease 300", "veen queue take --json")
def take(
    options: SendOptions,
    lease: Annotated[int, durations.whole_option("--lease", least=1, help="how long the claim lasts")] = 60,
) -> None:
    """Claim the first task that is ready, and show it.

    The exit status is 6 if no task is ready.
    """

    async def work(client: Client, name: str) -> TaskJob | None:
        async with TaskQueue.of(client, name, cached=not options.no_cache) as queue:
            return await queue.take(lease)

    if options.blind:
        raise Misuse("this command needs to read the queue before it sends", "leave out --blind")
    job = send_event.run_at_hub(options, QUEUE, work)
    if job is None:
        raise hinted(Unavailable("no task is ready"), "veen queue list lists the tasks")
    rows: dict[str, output.Value] = {
        "task": job.task_id,
        "claim": job.claim_id,
        "until": output.moment(job.until),
        "tries": job.tries,
        "item": sanitize.line_of(job.item),
    }
    text = sanitize.text_of(job.item)
    output.facts(rows, options.as_json, {**rows, "until": job.until, "item": job.item, "text": text})


@send_command(app, "ack", "veen queue ack 9e3c07… --stream letters", "veen queue ack 9e3c07… --claim 1fcc94…")
def ack(options: SendOptions, task: TaskId, claim: ClaimId = None) -> None:
    """Acknowledge that a task is done."""

    _settle(options, task, claim, lambda task_id, claim_id: Ack(task_id, claim_id))


@send_command(app, "fail", 'veen queue fail 9e3c07… --reason "no such address"', "veen queue fail 9e3c07… --json")
def fail(
    options: SendOptions,
    task: TaskId,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="the reason")] = None,
    claim: ClaimId = None,
) -> None:
    """Release a task for the next consumer."""

    _settle(options, task, claim, lambda task_id, claim_id: Nack(task_id, claim_id, reason))


def _settle(options: SendOptions, task: str, claim: str | None, make: Callable[[bytes, bytes], Event]) -> None:
    """End a claim: the one of --claim, or the current one of the task."""

    task_id = values.id_of(task, "a task")
    claim_id = None if claim is None else values.id_of(claim, "a claim")

    def event(reading: QueueReading) -> Event:
        held = reading.state(task_id).claim if claim_id is None else claim_id
        if held is None:
            raise hinted(Unavailable("the task is not claimed"), "veen queue take claims a task that is ready")
        return make(task_id, held)

    blind = None if claim_id is None else make(task_id, claim_id)
    send_event.send_checked(options, QUEUE, event, {"task": task_id}, blind=blind)


@send_command(app, "retry", "veen queue retry 9e3c07… --stream letters", "veen queue retry 9e3c07… --json")
def retry(options: SendOptions, task: TaskId) -> None:
    """Turn a dead letter into a ready task again."""

    event = TaskRetry(values.id_of(task, "a task"))
    send_event.send_checked(options, QUEUE, lambda reading: event, {"task": event.task}, blind=event)


@read_command(app, "list", "veen queue list --stream letters", "veen queue list --status claimed --json")
def list_(
    options: ReadOptions,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="NAME", help="ready, claimed, dead, expired or done", show_default="not done"),
    ] = None,
) -> None:
    """List tasks, in the order in which they were added.

    The status of a task also depends on the time: it is shown for the hub's current time, or with --at for the time of
    that entry.
    """

    if status is not None and status not in set(TaskStatus):
        raise Misuse(f"there is no task status {status!r}", f"give one of {', '.join(TaskStatus)}")
    _list(options, None if status is None else TaskStatus(status))


@read_command(app, "dead", "veen queue dead --stream letters", "veen queue dead --json")
def dead(options: ReadOptions) -> None:
    """List the dead letters: tasks that failed --max-tries times."""

    _list(options, TaskStatus.DEAD)


@read_command(
    app, "show", "veen queue show 9e3c07… --stream letters", "veen queue show 9e3c07… --prove --out task.evidence"
)
def show(options: ReadOptions, task: TaskId) -> None:
    """Show a task and its history."""

    task_id = values.id_of(task, "a task")

    def look(reading: QueueReading) -> StateAnswer:
        found, steps = reading.state(task_id), tuple(reading.history(task_id))
        if found.item is None:
            raise hinted(Unavailable(f"there is no task {task_id.hex()}"), "veen queue list lists the tasks")
        facts = {name: render_state.plain_cell(one) for name, one in QUEUE.plain(task_id, found).items()}
        rows = [
            (shown(one.at), output.moment(one.entry.hub_ts), sanitize.short(one.entry.client_id), _event_name(one))
            for one in steps
        ]
        history = [{**render_state.step_data(one), "event": _event_name(one)} for one in steps]
        data = {**_plain(task_id, found), "history": history}
        columns = ("entry", "hub_ts", "client_id", "event")
        return read_state.StateAnswer(facts, columns, rows, data, (task_id,))

    read_state.show_state(options, QUEUE, look)


def _list(options: ReadOptions, status: TaskStatus | None) -> None:
    def look(reading: QueueReading) -> StateAnswer:
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

    read_state.show_state(options, QUEUE, look)


def _plain(task_id: bytes, task: Task) -> dict[str, object]:
    return {**QUEUE.plain(task_id, task), "text": sanitize.text_of(task.item or b"")}


_EVENT_NAMES = {Put: "put", TaskClaim: "claim", Ack: "ack", Nack: "nack", TaskRetry: "retry"}


def _event_name(step: FoldStep) -> str:
    return next(name for kind, name in _EVENT_NAMES.items() if isinstance(step.event, kind))


faults_command.add(app, "veen queue", QUEUE)
