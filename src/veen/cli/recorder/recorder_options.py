"""Shared by the commands of `veen recorder`: options, sessions, and hints for errors."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from plumbing.cli.command import option
from veen.cli.kit import open_session, pinning
from veen.cli.kit.common_options import FromDirectory, HubOptions
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Moment
from veen.client.client import Client
from veen.client.sender import Sent, Undecided
from veen.core import SigningKey
from veen.recorder.routes import NotAProducer, NotSetUp, OpenHub, ProducerRoleConflict, RecorderRefused, UnmappedType
from veen.state.directory_source import DirectorySource
from veen.state.entry_source import EntrySource, HubSource
from veen.state.event_sender import EventRefused

T = TypeVar("T")

Issuer: TypeAlias = Annotated[
    Path | None,
    option("--issuer DIR", "client directory of an issuer that the hub trusts", show_default="the administrator"),
]
Origin: TypeAlias = Annotated[
    str, option("--origin NAME", "the service that the events come from; an origin of the producer")
]
Subject: TypeAlias = Annotated[
    str | None, option("--subject ID", "subject of events that do not name one", show_default="the origin")
]


@dataclass(frozen=True, slots=True)
class FromLog(HubOptions):
    """Options of a command that reads the log from a hub or a data directory."""

    data_dir: FromDirectory = None


_HINTS: dict[type[RecorderRefused], str] = {
    NotAProducer: "the administrator enrols the client with veen recorder enrol; then run veen recorder join",
    OpenHub: "start the hub with --admission capability; for a trial, --allow-open works without it",
    UnmappedType: "the administrator maps the type with veen recorder map TYPE STREAM to a stream of the producer; "
    "or give --type with a type that veen recorder show lists",
    ProducerRoleConflict: "use separate identities for administrator and producer: veen keygen creates one",
    RecorderRefused: "veen recorder show lists the event types, the producers and their streams",
}


@contextmanager
def with_hints() -> Iterator[None]:
    """Add hints to the errors of a recorder."""
    try:
        yield
    except EventRefused as error:
        raise hinted(error, "nothing was sent", "veen recorder show shows the current setup") from None
    except Undecided as error:
        raise hinted(error, "do not send it again: veen send --outbox sends it and shows the outcome") from None
    except RecorderRefused as refused:
        hint = next(_HINTS[kind] for kind in type(refused).__mro__ if kind in _HINTS)
        raise hinted(refused, "nothing was sent", hint) from None
    except NotSetUp as error:
        raise hinted(error, "veen recorder init sets up a recorder") from None


def at_hub(asked: HubOptions, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run `work` with a session at the hub."""
    with with_hints():
        return asked.call().run(work)


def from_log(asked: FromLog, work: Callable[[EntrySource], Awaitable[T]]) -> T:
    """Run `work` on the log of a hub, or of a data directory."""
    call = asked.call()
    with with_hints():
        if asked.data_dir is None:

            async def from_hub(client: Client) -> T:
                return await work(HubSource(client))

            return call.run(from_hub)
        with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
            source = DirectorySource(asked.data_dir, folder, pinning.pinned_key(asked.pin))

            async def read() -> T:
                return await work(source)

            return asyncio.run(read())


def sent_data(sent: Sent) -> dict[str, Any]:
    return {"stream_seq": sent.stream_seq, "msg_id": sent.msg_id, "hub_ts": Moment(sent.receipt.hub_ts)}


def issuer_key(issuer: Path | None, asked: HubOptions) -> SigningKey:
    """The key that signs capabilities."""
    with open_session.open_client_dir(issuer or asked.client, asked.passphrase_file) as folder:
        return folder.identity.id_sign
