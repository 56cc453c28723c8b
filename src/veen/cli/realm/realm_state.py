"""Options and state of the realm commands. The streams of a realm are derived from its id, so there is no --stream."""

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
from veen.overlays.admin_records import AdminRecord
from veen.overlays.authority import Authorities, AuthorityEvent
from veen.overlays.authorization import REVOCATIONS, RevocationEvent
from veen.overlays.stream_catalog import LABEL_CLASSES, SCHEMAS, LabelClass, SchemaDescriptor
from veen.state.directory_source import DirectorySource
from veen.state.entry_source import EntrySource, HubSource
from veen.state.state_proof import prove
from veen.state.state_view import StateAt, StateView


def hub_id(text: str) -> bytes:
    return _id(text, "the id of a hub")


def schema_id(text: str) -> bytes:
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
        show_default="the hub's own, else the realm named veen",
        parser=realm,
    ),
]
When: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--when",
        metavar="TIME",
        help="the state at this time, in seconds since 1970 or as a date",
        show_default="now; with --at, the time of that entry",
        parser=moment,
    ),
]
From: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help="the start, in seconds since 1970 or as a date",
        show_default="now",
        parser=moment,
    ),
]


@dataclass(frozen=True, slots=True)
class RealmReadOptions(StateOptions):
    """Options of a command that shows state of a realm. See `show_realm_state`."""

    realm: RealmOption = None
    when: When = None


@dataclass(frozen=True, slots=True)
class RealmSendOptions(HubOptions):
    """Options of a command that sends events for a realm. See `admin_event.send_events`."""

    realm: RealmOption = None
    no_cache: NoCache = False
    cap: Cap = None

    def plain(self) -> SendOptions:
        """Return the options without the realm, for `send_event.show_sent`."""
        missing = ("stream", "blind")
        return SendOptions(
            **{one.name: getattr(self, one.name) for one in fields(SendOptions) if one.name not in missing}
        )


S = TypeVar("S")
M = TypeVar("M")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AdminStream(Generic[S, M]):
    """One of a realm's streams: its id and its overlay, both derived from the realm id."""

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
class RealmView(Generic[S, M]):
    """A view of one of a realm's streams."""

    view: StateView[S, M]
    realm_id: bytes


@dataclass(frozen=True, slots=True)
class RealmState(Generic[S, M]):
    """The state of one of a realm's streams, and the time that the command is about."""

    view: StateView[S, M]
    reading: StateAt[S, M]
    realm_id: bytes
    now: int

    @property
    def source(self) -> EntrySource:
        return self.view.source

    def label(self, stream_id: bytes) -> bytes:
        """Return the label of a stream at `now`."""
        return self.source.label(stream_id, self.source.known.profile.epoch(self.now))


def show_realm_state(
    options: RealmReadOptions, stream: AdminStream[S, M], look: Callable[[RealmState[S, M]], StateAnswer]
) -> None:
    """Read the state that the options name and show what `look` returns."""
    if options.out is not None:
        output_files.check_new(options.out)

    async def work(source: EntrySource) -> tuple[StateAnswer, StateBasis]:
        async with open_state(source, options, stream) as state:
            found = look(state)
            return found, await basis(options, state.view, state.reading, found)

    found, made = with_source(options, work)
    render_state.show_answer(found, made, options)


def with_source(options: RealmReadOptions, work: Callable[[EntrySource], Awaitable[T]]) -> T:
    """Run `work` with the hub or data directory that the options name."""
    call = options.call()
    url = call.url() if options.data_dir is None else ""
    with open_session.open_client_dir(options.client, options.passphrase_file) as folder:
        if options.data_dir is None:

            async def run(client: Client) -> T:
                return await work(HubSource(client))

            return call.run_with(folder, url, run)

        async def read(source: EntrySource) -> T:
            return await work(source)

        with read_state.data_dir_hints(options.data_dir):
            return asyncio.run(read(DirectorySource(options.data_dir, folder, pinning.pinned_key(options.pin))))


@asynccontextmanager
async def open_view(
    source: EntrySource, options: RealmReadOptions, stream: AdminStream[S, M]
) -> AsyncIterator[RealmView[S, M]]:
    """Open a view of one of the realm's streams."""
    realm_id = realm_of(source, options.realm)
    stream_id, overlay = stream.stream_id(realm_id), stream.overlay(realm_id)
    add_public_reader_key(source, stream_id, admin.reader_key(stream_id))
    with read_state.cache_hints(stream_id.hex(), overlay.CLASS):
        async with StateView(source, stream_id, overlay, cached=not options.no_cache) as view:
            yield RealmView(view, realm_id)


@asynccontextmanager
async def open_state(
    source: EntrySource, options: RealmReadOptions, stream: AdminStream[S, M]
) -> AsyncIterator[RealmState[S, M]]:
    """Open the state of one of the realm's streams, at the place and time that the options name."""
    async with open_view(source, options, stream) as viewed:
        view = viewed.view
        async with view.reading(read_state.parse_place(options.at, view)) as reading:
            now = options.when
            if now is None and options.at is not None and reading.at.stream_seq:
                now = (await source.receipt(view.stream_id, reading.at)).hub_ts
            yield RealmState(view, reading, viewed.realm_id, current_time(source) if now is None else now)


def current_time(source: EntrySource) -> int:
    """Return the hub's time, or for a data directory the time of this machine."""
    return source.now() if isinstance(source, HubSource) else int(time.time())


def realm_of(source: EntrySource, given: bytes | None) -> bytes:
    """Return the given realm, else the hub's own, else the global realm."""
    return given or source.known.identity.realm_id or admin.GLOBAL_REALM


def add_public_reader_key(source: EntrySource, stream_id: bytes, key: DhKey) -> None:
    """Add the reader key of a stream that anyone may read to the client directory."""
    if source.folder.stream_keys.secret(stream_id) is None:
        source.folder.stream_keys.import_secret(stream_id.hex(), key)


async def basis(
    options: RealmReadOptions, view: StateView[S, M], reading: StateAt[S, M], found: StateAnswer
) -> StateBasis:
    """Return the log that an answer was computed from, with evidence if the options request it."""
    hub_id, at, name = view.source.known.identity.hub_id, reading.at, view.stream_id.hex()
    root = (await view.source.receipt(view.stream_id, at)).mmr_root if at.stream_seq else None
    if not options.prove and options.out is None:
        return StateBasis(hub_id, name, at, root)
    if not found.parts:
        raise Misuse("no single entry proves this answer, only the whole log", "leave out --prove and --out")
    made = await prove(view, reading, *found.parts, steps=found.steps)
    return StateBasis(hub_id, name, at, root, reading.state_hash(*found.parts), made)
