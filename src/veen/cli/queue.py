"""`veen queue`: tasks on a stream, each processed at least once by one of several consumers."""

from typing import Annotated, Any, TypeAlias

from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, group, option
from veen.cli.kit import values
from veen.cli.kit.common_options import ExpiresIn
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Column, Moment, Result
from veen.cli.kit.sanitize import line_of, text_of
from veen.cli.kit.state_session import (
    STEP_COLUMNS,
    Answer,
    ReadSession,
    SendSession,
    SentResult,
    add_faults,
    plain_facts,
    read_command,
    send_command,
    step_data,
)
from veen.core import Unavailable
from veen.overlays.queue import QUEUE, Ack, Nack, Put, Task, TaskClaim, TaskRetry, TaskStatus
from veen.state import TaskQueue

app = group(
    "queue",
    """Add tasks to a stream; each is processed at least once by one of several consumers.

    A consumer claims a task for some seconds, processes it and acknowledges it. A claim that expires by the hub's clock
    releases the task for the next consumer. A task that failed --max-tries times is a dead letter.
    """,
)

TaskId: TypeAlias = Annotated[
    bytes, argument("TASK", "the task, by its 64 hex digits", parser=values.id_parser("a task"))
]
ClaimId: TypeAlias = Annotated[
    bytes | None,
    option("--claim HEX", "the claim", default="the one that this client holds", parser=values.id_parser("a claim")),
]
_ITEM: Column = ("item", lambda row: line_of(row["item"] or b""))
_EVENT_NAMES = {Put: "put", TaskClaim: "claim", Ack: "ack", Nack: "nack", TaskRetry: "retry"}


@send_command(app, "add", 'veen queue add "letter 4" --stream letters', "veen queue add @letter.pdf --max-tries 3")
async def add(
    session: SendSession,
    item: Annotated[bytes, argument("ITEM", "text, hex: and bytes, or @ and a file", parser=values.content_of)],
    max_tries: Annotated[
        int | None, option("--max-tries N", "then it becomes a dead letter", default="no limit", min=1)
    ] = None,
    expires_in: ExpiresIn = None,
) -> SentResult:
    """Add a task.

    Its id is the msg_id of its message.
    """
    return await session.send(QUEUE, Put(item, max_tries), {}, expires_in=expires_in)


@send_command(app, "take", "veen queue take --stream letters --lease 300", "veen queue take --json")
async def take(
    session: SendSession,
    lease: Annotated[int, durations.whole_option("--lease", least=1, help="how long the claim lasts")] = 60,
) -> Result:
    """Claim the first task that is ready, and show it.

    The exit status is 6 if no task is ready.
    """
    session.reject_blind("the queue before it sends")
    client, name = await session.at_hub(QUEUE)
    async with TaskQueue.of(client, name, cached=session.cached) as queue:
        job = await queue.take(lease)
    if job is None:
        raise hinted(Unavailable("no task is ready"), "veen queue list lists the tasks")
    claimed = {"task": job.task_id, "claim": job.claim_id, "until": Moment(job.until), "tries": job.tries}
    data = {**claimed, "item": job.item, "text": text_of(job.item)}
    return Result(data, facts=("task", "claim", "until", "tries", _ITEM))


@send_command(app, "ack", "veen queue ack 9e3c07… --stream letters", "veen queue ack 9e3c07… --claim 1fcc94…")
async def ack(session: SendSession, task: TaskId, claim: ClaimId = None) -> SentResult:
    """Acknowledge that a task is done."""
    return await session.send(QUEUE, Ack(task, await _claim(session, task, claim)), {"task": task})


@send_command(app, "fail", 'veen queue fail 9e3c07… --reason "no such address"', "veen queue fail 9e3c07… --json")
async def fail(
    session: SendSession,
    task: TaskId,
    reason: Annotated[str | None, option("--reason TEXT", "the reason")] = None,
    claim: ClaimId = None,
) -> SentResult:
    """Release a task for the next consumer."""
    return await session.send(QUEUE, Nack(task, await _claim(session, task, claim), reason), {"task": task})


async def _claim(session: SendSession, task: bytes, given: bytes | None) -> bytes:
    """The claim of --claim, or the current one of the task."""
    held = given or (await session.open(QUEUE)).state(task).claim
    if held is None:
        raise hinted(Unavailable("the task is not claimed"), "veen queue take claims a task that is ready")
    return held


@send_command(app, "retry", "veen queue retry 9e3c07… --stream letters", "veen queue retry 9e3c07… --json")
async def retry(session: SendSession, task: TaskId) -> SentResult:
    """Turn a dead letter into a ready task again."""
    return await session.send(QUEUE, TaskRetry(task), {"task": task})


@read_command(app, "list", "veen queue list --stream letters", "veen queue list --status claimed --json")
async def list_(
    session: ReadSession,
    status: Annotated[
        str | None, option("--status NAME", "ready, claimed, dead, expired or done", default="not done")
    ] = None,
) -> Answer:
    """List tasks, in the order in which they were added.

    The status of a task also depends on the time: it is shown for the hub's current time, or with --at for the time of
    that entry.
    """
    if status is not None and status not in set(TaskStatus):
        raise Misuse(f"there is no task status {status!r}", f"give one of {', '.join(TaskStatus)}")
    return await _list(session, None if status is None else TaskStatus(status))


@read_command(app, "dead", "veen queue dead --stream letters", "veen queue dead --json")
async def dead(session: ReadSession) -> Answer:
    """List the dead letters: tasks that failed --max-tries times."""
    return await _list(session, TaskStatus.DEAD)


async def _list(session: ReadSession, status: TaskStatus | None) -> Answer:
    state = await session.open(QUEUE)
    listed = state.states.items() if status is TaskStatus.DONE else state.live()
    found = [
        (task_id, {**_plain(task_id, task), "status": task.status(state.now)})
        for task_id, task in listed
        if task.item is not None and status in (None, task.status(state.now))
    ]
    columns = (("task", lambda row: row["task"].hex()), "status", "tries", _ITEM, "reason")
    return Answer(
        {"tasks": [row for _, row in found]},
        rows="tasks",
        columns=columns,
        parts=tuple(task_id for task_id, _ in found),
    )


@read_command(
    app, "show", "veen queue show 9e3c07… --stream letters", "veen queue show 9e3c07… --prove --out task.evidence"
)
async def show(session: ReadSession, task: TaskId) -> Answer:
    """Show a task and its history."""
    state = await session.open(QUEUE)
    found = state.state(task)
    if found.item is None:
        raise hinted(Unavailable(f"there is no task {task.hex()}"), "veen queue list lists the tasks")
    history = [{**step_data(one), "event": _EVENT_NAMES[type(one.event)]} for one in state.history(task)]
    return Answer(
        {**_plain(task, found), "history": history},
        facts=plain_facts(QUEUE.plain(task, found)),
        rows="history",
        columns=(*STEP_COLUMNS, "event"),
        parts=(task,),
    )


def _plain(task_id: bytes, task: Task) -> dict[str, Any]:
    return {**QUEUE.plain(task_id, task), "text": text_of(task.item or b"")}


add_faults(app, "veen queue", lambda session: session.open(QUEUE), example=" --stream NAME")
