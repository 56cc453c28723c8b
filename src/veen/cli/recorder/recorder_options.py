"""The group itself, the options that its commands share, and what is said where a recorder refuses."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer

from plumbing.cli.command import group
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.state_options import FromDirectory

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.core import SigningKey
    from veen.state.entry_source import EntrySource

T = TypeVar("T")

app = group(
    "recorder",
    """Record events with evidence, and replay them.

    An administrator sets a recorder up and makes its checkpoints; producers write to its streams, and to nothing else.
    """,
)

ORDER = (
    "init",
    "enrol",
    "join",
    "map",
    "move",
    "show",
    "send",
    "tail",
    "pipe",
    "ship",
    "otlp",
    "syslog",
    "retry",
    "checkpoint",
    "verify",
    "replay",
    "audit",
)

Issuer: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--issuer",
        metavar="DIR",
        help="whose capabilities the hub takes: a client directory",
        show_default="the administrator's own",
    ),
]
Origin: TypeAlias = Annotated[
    str,
    typer.Option("--origin", metavar="NAME", help="the service that the events are of: one that the producer is for"),
]
Subject: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--subject", metavar="ID", help="whose doing it is where an event does not say", show_default="the origin"
    ),
]


@dataclass(frozen=True, slots=True)
class FromLog(HubOptions):
    """Options of a command that reads the log: at a hub, or in a data directory."""

    data_dir: FromDirectory = None


@contextmanager
def advised() -> Iterator[None]:
    """What to do where the recorder says no."""
    from veen.cli.kit.exit_status import hinted
    from veen.client.submit_queue import Undecided
    from veen.core import Refused
    from veen.recorder.routes import CODE, NotSetUp
    from veen.state.event_sender import EventRefused

    try:
        yield
    except EventRefused as error:
        raise hinted(error, "nothing was sent", "veen recorder show tells what stands") from None
    except Undecided as error:
        raise hinted(error, "do not send it again: veen send --outbox finishes it, and tells the outcome") from None
    except Refused as refused:
        if refused.code == CODE:
            hinted(refused, "nothing was sent", _hint(refused.message))
        raise
    except NotSetUp as error:
        raise hinted(error, "veen recorder init sets one up") from None


def _hint(message: str) -> str:
    if "belong to a producer of" in message:
        return "its administrator makes it one with veen recorder enrol, and veen recorder join takes that in"
    if "lets anyone write" in message:
        return "start the hub with --admission capability; --allow-open tries a recorder out without"
    if "not mapped to a stream" in message:
        return (
            "its administrator maps it, with veen recorder map TYPE STREAM, to a stream that the producer writes to; "
            "or --type names a type that veen recorder show lists"
        )
    if "cannot be the administrator" in message or "cannot be a producer" in message:
        return "use an identity of its own for each: veen keygen makes one"
    return "veen recorder show tells the map, the producers and their streams"


def at_hub(asked: HubOptions, work: "Callable[[Client], Awaitable[T]]") -> T:
    """Meet the hub, and do the work."""
    with advised():
        return asked.call().run(work)


def from_log(asked: FromLog, work: "Callable[[EntrySource], Awaitable[T]]") -> T:
    """Do the work with a hub, or with the data directory that was named."""
    import asyncio

    from veen.cli.kit import open_session, pinning
    from veen.client.client import Client
    from veen.state.directory_source import DirectorySource
    from veen.state.hub_source import HubSource

    call = asked.call()
    with advised():
        if asked.data_dir is None:

            async def met(client: Client) -> T:
                return await work(HubSource(client))

            return call.run(met)
        with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
            source = DirectorySource(asked.data_dir, folder, pinning.pinned_key(asked.pin))

            async def read() -> T:
                return await work(source)

            return asyncio.run(read())


def issuing(issuer: Path | None, asked: HubOptions) -> "SigningKey":
    """The key of whoever issues capabilities."""
    from veen.cli.kit import open_session

    with open_session.open_client_dir(issuer or asked.client, asked.passphrase_file) as folder:
        return folder.identity.id_sign
