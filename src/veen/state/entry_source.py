"""Sources of a stream's entries: verified first, then opened, in order, epoch by epoch.

A source verifies for each entry the client's signature and the hub's signature on its place and root. There are two
sources: a live hub (`hub_source`) and a data directory (`directory_source`).
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from veen.client import ClientDir
from veen.client.evidence import Evidence
from veen.client.reader import Entry as ReadEntry
from veen.client.trust import HubRecord
from veen.core import DhKey, Mmr, Profile, Receipt, Unavailable, naming
from veen.overlays import At, FoldEntry
from veen.overlays.kept_fold import LogPrefix

PAGE = 500  # entries per page


class NoEntry(Unavailable):
    """The log has no entry at a place, or not yet."""


class EntrySource(Protocol):
    """The streams of one hub."""

    @property
    def folder(self) -> ClientDir:
        """The client directory with the reader keys and the caches."""
        ...

    @property
    def known(self) -> HubRecord:
        """The record of the hub."""
        ...

    @property
    def may_lag(self) -> bool:
        """Whether the source may legitimately be shorter than what was seen elsewhere, such as an older copy."""
        ...

    def now(self) -> int:
        """The hub's time, as a lower prefix."""
        ...

    def label(self, stream_id: bytes, epoch: int) -> bytes: ...

    def key(self, stream_id: bytes) -> DhKey | None:
        """The reader key of the stream, or None."""
        ...

    async def epochs(self, stream_id: bytes, first: int | None) -> Sequence[int]:
        """The epochs that may have entries, ascending, from `first` or from the hub's start."""
        ...

    def read(self, stream_id: bytes, epoch: int, after: Mmr) -> AsyncGenerator[list[ReadEntry], None]:
        """The entries of an epoch after a verified tree, page by page, up to the current end."""
        ...

    async def root_at(self, stream_id: bytes, prefix: LogPrefix) -> bytes | None:
        """The hub-signed root of the log at the prefix's size, or None if the log is shorter."""
        ...

    async def receipt(self, stream_id: bytes, at: At) -> Receipt:
        """The verified receipt of one place. Raises `NoEntry` if the log is shorter."""
        ...

    async def evidence(
        self, stream_id: bytes, places: Sequence[At], ends: Sequence[At], claim: str, key: DhKey
    ) -> Evidence:
        """An evidence file with these entries, each proven against the hub's signature for the end of its epoch.

        `ends` has the last place of each epoch of `places`.
        """
        ...


def stream_id_of(stream: str | bytes) -> bytes:
    return naming.stream_id(stream) if isinstance(stream, str) else stream


def need_key(source: EntrySource, stream_id: bytes) -> DhKey:
    """The reader key of a stream. Raises `Unavailable` if there is none, because all entries would stay sealed."""
    key = source.key(stream_id)
    if key is None:
        raise Unavailable(f"no reader key of stream {stream_id.hex()[:16]}… here, so its entries cannot be opened")
    return key


def closed_before(profile: Profile, skew_sec: int, epoch: int, now: int) -> bool:
    """Whether no entry can be added to an earlier epoch any more, so that places in this epoch are final."""
    return profile.epochs_around(now, skew_sec).start >= epoch


def folded(entry: ReadEntry) -> FoldEntry:
    """Convert a read entry to the input of a fold."""
    header = entry.header
    if header is not None and entry.schema is not None:
        header = replace(header, schema=entry.schema)  # with attachments: the schema of the wrapped payload
    return FoldEntry.of(entry.msg, entry.receipt, header, entry.body, entry.epoch)


async def all_entries(source: EntrySource, stream_id: bytes) -> AsyncGenerator[ReadEntry, None]:
    """Every entry of a stream, epoch by epoch, up to the current end."""
    for epoch in await source.epochs(stream_id, None):
        async with aclosing(source.read(stream_id, epoch, Mmr())) as pages:
            async for page in pages:
                for entry in page:
                    yield entry
