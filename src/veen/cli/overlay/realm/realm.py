"""The state of the admin streams of a realm, which anyone may read: from a hub or a data directory, at any time."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from terminalface.command import Misuse
from veen.cli.client import calling, files, pins
from veen.cli.overlay import asking, telling
from veen.cli.overlay.asking import Answer, Basis
from veen.cli.overlay.realm.options import RealmReads
from veen.client.client import Client
from veen.core import DhKey, admin
from veen.overlays import Overlay
from veen.overlays.admin import (
    LABEL_CLASSES,
    REVOCATIONS,
    SCHEMAS,
    Authorities,
    Authority,
    Descriptor,
    LabelClass,
    Record,
    Revocation,
)
from veen.state.dirsource import DirectorySource
from veen.state.hubsource import HubSource
from veen.state.proving import prove
from veen.state.reading import Reading
from veen.state.source import Source
from veen.state.view import View

S = TypeVar("S")
M = TypeVar("M")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AdminStream(Generic[S, M]):
    """One of a realm's streams: its id, and what folds it."""

    stream_id: Callable[[bytes], bytes]
    overlay: Callable[[bytes], Overlay[S, M]]


REVOKED: AdminStream[tuple[Record[Revocation], ...], tuple[Record[Revocation], ...]] = AdminStream(
    admin.revocation_stream, lambda realm_id: REVOCATIONS
)
AUTHORITY: AdminStream[tuple[Record[Authority], ...], tuple[Record[Authority], ...]] = AdminStream(
    admin.fed_admin_stream, Authorities
)
CLASSES: AdminStream[tuple[Record[LabelClass], ...], tuple[Record[LabelClass], ...]] = AdminStream(
    admin.label_class_stream, lambda realm_id: LABEL_CLASSES
)
REGISTRY: AdminStream[tuple[Record[Descriptor], ...], tuple[Record[Descriptor], ...]] = AdminStream(
    admin.schema_meta_stream, lambda realm_id: SCHEMAS
)


@dataclass(frozen=True, slots=True)
class Viewed(Generic[S, M]):
    """A view of one of a realm's streams."""

    view: View[S, M]
    realm_id: bytes


@dataclass(frozen=True, slots=True)
class Look(Generic[S, M]):
    """A look at one of a realm's streams, and the time that is asked about."""

    view: View[S, M]
    reading: Reading[S, M]
    realm_id: bytes
    now: int

    @property
    def source(self) -> Source:
        return self.view.source

    def label(self, stream_id: bytes) -> bytes:
        """The label of a stream at that time."""
        return self.source.label(stream_id, self.source.known.profile.epoch(self.now))


def answer(asked: RealmReads, stream: AdminStream[S, M], look: Callable[[Look[S, M]], Answer]) -> None:
    """Look at the state that the options name, and show what was found."""
    if asked.out is not None:
        files.check_new(asked.out)

    async def work(source: Source) -> tuple[Answer, Basis]:
        async with looking(source, asked, stream) as taken:
            found = look(taken)
            return found, await basis(asked, taken.view, taken.reading, found)

    found, made = visiting(asked, work)
    telling.tell(found, made, asked)


def visiting(asked: RealmReads, work: Callable[[Source], Awaitable[T]]) -> T:
    """Do something with the hub or the data directory that the options name."""
    call = asked.call()
    url = call.url() if asked.data_dir is None else ""
    with calling.opened(asked.client, asked.passphrase_file) as folder:
        if asked.data_dir is None:

            async def met(client: Client) -> T:
                return await work(HubSource(client))

            return call.run_with(folder, url, met)

        async def read(source: Source) -> T:
            return await work(source)

        with asking.from_directory(asked.data_dir):
            return asyncio.run(read(DirectorySource(asked.data_dir, folder, pins.anchor(asked.pin))))


@asynccontextmanager
async def viewing(source: Source, asked: RealmReads, stream: AdminStream[S, M]) -> AsyncIterator[Viewed[S, M]]:
    """One of the streams of the realm that the options name."""
    realm_id = realm_of(source, asked.realm)
    stream_id, overlay = stream.stream_id(realm_id), stream.overlay(realm_id)
    know(source, stream_id, admin.reader_key(stream_id))
    with asking.advised(stream_id.hex(), overlay.CLASS):
        async with View(source, stream_id, overlay, cached=not asked.no_cache) as view:
            yield Viewed(view, realm_id)


@asynccontextmanager
async def looking(source: Source, asked: RealmReads, stream: AdminStream[S, M]) -> AsyncIterator[Look[S, M]]:
    """The same at the place and the time that the options name."""
    async with viewing(source, asked, stream) as viewed:
        view = viewed.view
        async with view.reading(asking.place(asked.at, view)) as reading:
            now = asked.when
            if now is None and asked.at is not None and reading.at.stream_seq:
                now = (await source.receipt(view.stream_id, reading.at)).hub_ts
            yield Look(view, reading, viewed.realm_id, present(source) if now is None else now)


def present(source: Source) -> int:
    """The time now: by the hub's clock where one answers, by our own over a directory."""
    return source.now() if isinstance(source, HubSource) else int(time.time())


def realm_of(source: Source, given: bytes | None) -> bytes:
    """The realm that is named, else the hub's own, else the one of those without."""
    return given or source.known.identity.realm_id or admin.GLOBAL_REALM


def know(source: Source, stream_id: bytes, key: DhKey) -> None:
    """Have the reader key of a stream that anyone may read."""
    if source.folder.stream_keys.secret(stream_id) is None:
        source.folder.stream_keys.import_secret(stream_id.hex(), key)


async def basis(asked: RealmReads, view: View[S, M], reading: Reading[S, M], found: Answer) -> Basis:
    """The log that an answer is of, with evidence where that was asked for."""
    hub_id, at, name = view.source.known.identity.hub_id, reading.at, view.stream_id.hex()
    root = (await view.source.receipt(view.stream_id, at)).mmr_root if at.stream_seq else None
    if not asked.prove and asked.out is None:
        return Basis(hub_id, name, at, root)
    if not found.parts:
        raise Misuse("no entry says so: only the whole log can show it", "leave out --prove and --out")
    made = await prove(view, reading, *found.parts, steps=found.steps)
    return Basis(hub_id, name, at, root, reading.state_hash(*found.parts), made)
