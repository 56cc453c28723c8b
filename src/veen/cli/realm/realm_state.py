"""Options of the commands by which a realm is run: its streams follow from its id, so none is named."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import Annotated, Generic, TypeAlias, TypeVar

import typer

from plumbing.cli.command import Misuse
from veen.cli.kit import open_session, output_files, pinning, read_state, render_state
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.common_options import Cap
from veen.cli.kit.read_state import StateAnswer, StateBasis
from veen.cli.kit.state_options import NoCache, SendOptions, StateOptions
from veen.cli.kit.values import label, moment, realm
from veen.client.client import Client
from veen.core import DhKey, admin
from veen.overlays import Overlay
from veen.overlays.admin import (
    LABEL_CLASSES,
    REVOCATIONS,
    SCHEMAS,
    AdminRecord,
    Authorities,
    AuthorityEvent,
    LabelClass,
    RevocationEvent,
    SchemaDescriptor,
)
from veen.state.directory_source import DirectorySource
from veen.state.entry_source import EntrySource
from veen.state.hub_source import HubSource
from veen.state.state_at import StateAt
from veen.state.state_proof import prove
from veen.state.state_view import StateView


def hub_id(text: str) -> bytes:
    """A hub's id in hex."""
    return _id(text, "the id of a hub")


def schema_id(text: str) -> bytes:
    """A schema's id in hex."""
    return _id(text, "the id of a schema")


def _id(text: str, what: str) -> bytes:
    try:
        return label(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {what}: 64 hex digits") from None


RealmOption: TypeAlias = Annotated[
    bytes | None,
    typer.Option(
        "--realm",
        metavar="NAME|HEX",
        help="the realm, by name or id",
        show_default="the hub's own; where it has none, the one called veen",
        parser=realm,
    ),
]
When: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--when",
        metavar="TIME",
        help="as it is at that time, in seconds since 1970 or as a date",
        show_default="now; with --at, the time of that entry",
        parser=moment,
    ),
]
From: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help="since when, in seconds since 1970 or as a date",
        show_default="now",
        parser=moment,
    ),
]


@dataclass(frozen=True, slots=True)
class RealmReads(StateOptions):
    """Options of a command that tells of a realm. `realm.answer` carries it out."""

    realm: RealmOption = None
    when: When = None


@dataclass(frozen=True, slots=True)
class RealmSays(HubOptions):
    """Options of a command that says something for a realm. `realm.say` carries it out."""

    realm: RealmOption = None
    no_cache: NoCache = False
    cap: Cap = None

    def plain(self) -> SendOptions:
        """The same as a command over one stream has them."""
        left_out = ("stream", "blind")
        return SendOptions(
            **{one.name: getattr(self, one.name) for one in fields(SendOptions) if one.name not in left_out}
        )


S = TypeVar("S")
M = TypeVar("M")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AdminStream(Generic[S, M]):
    """One of a realm's streams: its id, and what folds it."""

    stream_id: Callable[[bytes], bytes]
    overlay: Callable[[bytes], Overlay[S, M]]


REVOKED: AdminStream[tuple[AdminRecord[RevocationEvent], ...], tuple[AdminRecord[RevocationEvent], ...]] = AdminStream(
    admin.revocation_stream, lambda realm_id: REVOCATIONS
)
AUTHORITY: AdminStream[tuple[AdminRecord[AuthorityEvent], ...], tuple[AdminRecord[AuthorityEvent], ...]] = AdminStream(
    admin.fed_admin_stream, Authorities
)
CLASSES: AdminStream[tuple[AdminRecord[LabelClass], ...], tuple[AdminRecord[LabelClass], ...]] = AdminStream(
    admin.label_class_stream, lambda realm_id: LABEL_CLASSES
)
REGISTRY: AdminStream[tuple[AdminRecord[SchemaDescriptor], ...], tuple[AdminRecord[SchemaDescriptor], ...]] = (
    AdminStream(admin.schema_meta_stream, lambda realm_id: SCHEMAS)
)


@dataclass(frozen=True, slots=True)
class Viewed(Generic[S, M]):
    """A view of one of a realm's streams."""

    view: StateView[S, M]
    realm_id: bytes


@dataclass(frozen=True, slots=True)
class Look(Generic[S, M]):
    """A look at one of a realm's streams, and the time that is asked about."""

    view: StateView[S, M]
    reading: StateAt[S, M]
    realm_id: bytes
    now: int

    @property
    def source(self) -> EntrySource:
        return self.view.source

    def label(self, stream_id: bytes) -> bytes:
        """The label of a stream at that time."""
        return self.source.label(stream_id, self.source.known.profile.epoch(self.now))


def answer(asked: RealmReads, stream: AdminStream[S, M], look: Callable[[Look[S, M]], StateAnswer]) -> None:
    """Look at the state that the options name, and show what was found."""
    if asked.out is not None:
        output_files.check_new(asked.out)

    async def work(source: EntrySource) -> tuple[StateAnswer, StateBasis]:
        async with looking(source, asked, stream) as taken:
            found = look(taken)
            return found, await basis(asked, taken.view, taken.reading, found)

    found, made = visiting(asked, work)
    render_state.show_answer(found, made, asked)


def visiting(asked: RealmReads, work: Callable[[EntrySource], Awaitable[T]]) -> T:
    """Do something with the hub or the data directory that the options name."""
    call = asked.call()
    url = call.url() if asked.data_dir is None else ""
    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        if asked.data_dir is None:

            async def met(client: Client) -> T:
                return await work(HubSource(client))

            return call.run_with(folder, url, met)

        async def read(source: EntrySource) -> T:
            return await work(source)

        with read_state.data_dir_hints(asked.data_dir):
            return asyncio.run(read(DirectorySource(asked.data_dir, folder, pinning.pinned_key(asked.pin))))


@asynccontextmanager
async def viewing(source: EntrySource, asked: RealmReads, stream: AdminStream[S, M]) -> AsyncIterator[Viewed[S, M]]:
    """One of the streams of the realm that the options name."""
    realm_id = realm_of(source, asked.realm)
    stream_id, overlay = stream.stream_id(realm_id), stream.overlay(realm_id)
    know(source, stream_id, admin.reader_key(stream_id))
    with read_state.cache_hints(stream_id.hex(), overlay.CLASS):
        async with StateView(source, stream_id, overlay, cached=not asked.no_cache) as view:
            yield Viewed(view, realm_id)


@asynccontextmanager
async def looking(source: EntrySource, asked: RealmReads, stream: AdminStream[S, M]) -> AsyncIterator[Look[S, M]]:
    """The same at the place and the time that the options name."""
    async with viewing(source, asked, stream) as viewed:
        view = viewed.view
        async with view.reading(read_state.parse_place(asked.at, view)) as reading:
            now = asked.when
            if now is None and asked.at is not None and reading.at.stream_seq:
                now = (await source.receipt(view.stream_id, reading.at)).hub_ts
            yield Look(view, reading, viewed.realm_id, present(source) if now is None else now)


def present(source: EntrySource) -> int:
    """The time now: by the hub's clock where one answers, by our own over a directory."""
    return source.now() if isinstance(source, HubSource) else int(time.time())


def realm_of(source: EntrySource, given: bytes | None) -> bytes:
    """The realm that is named, else the hub's own, else the one of those without."""
    return given or source.known.identity.realm_id or admin.GLOBAL_REALM


def know(source: EntrySource, stream_id: bytes, key: DhKey) -> None:
    """Have the reader key of a stream that anyone may read."""
    if source.folder.stream_keys.secret(stream_id) is None:
        source.folder.stream_keys.import_secret(stream_id.hex(), key)


async def basis(asked: RealmReads, view: StateView[S, M], reading: StateAt[S, M], found: StateAnswer) -> StateBasis:
    """The log that an answer is of, with evidence where that was asked for."""
    hub_id, at, name = view.source.known.identity.hub_id, reading.at, view.stream_id.hex()
    root = (await view.source.receipt(view.stream_id, at)).mmr_root if at.stream_seq else None
    if not asked.prove and asked.out is None:
        return StateBasis(hub_id, name, at, root)
    if not found.parts:
        raise Misuse("no entry says so: only the whole log can show it", "leave out --prove and --out")
    made = await prove(view, reading, *found.parts, steps=found.steps)
    return StateBasis(hub_id, name, at, root, reading.state_hash(*found.parts), made)
