"""Where the entries of a stream come from: verified first, then opened, in order, epoch by epoch.

A source believes nothing: each entry it gives is signed by its client and, at its place and under its root, by the hub.
There are two, a live hub (`hubsource`) and a data directory (`dirsource`).
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Protocol

from veen.client import ClientDir
from veen.client.entry import Entry as ReadEntry
from veen.client.evidence import Evidence
from veen.client.trust import HubRecord
from veen.core import DhKey, Mmr, Profile, Receipt, Unavailable, naming
from veen.overlays import At, FoldEntry
from veen.overlays.kept_fold import LogPrefix

PAGE = 500  # entries at a time


class NoEntry(Unavailable):
    """The log does not reach a place, or not yet."""


class EntrySource(Protocol):
    """One hub's word on its streams."""

    @property
    def folder(self) -> ClientDir:
        """Whose keys open the entries, and where what was read is kept."""
        ...

    @property
    def known(self) -> HubRecord:
        """Whose word it is."""
        ...

    @property
    def may_lag(self) -> bool:
        """Whether it may honestly end before what was seen elsewhere, as an older copy does."""
        ...

    def now(self) -> int:
        """The hub's time, as far as it can be told: it is that late at least."""
        ...

    def label(self, stream_id: bytes, epoch: int) -> bytes: ...

    def key(self, stream_id: bytes) -> DhKey | None:
        """What opens the stream; None where this reader has no key of it."""
        ...

    async def epochs(self, stream_id: bytes, first: int | None) -> Sequence[int]:
        """The epochs that may have entries, ascending: from `first` on, or from the hub's beginning."""
        ...

    def read(self, stream_id: bytes, epoch: int, after: Mmr) -> AsyncGenerator[list[ReadEntry], None]:
        """The entries of an epoch that follow on a tree whose root was checked, as far as they go, page by page."""
        ...

    async def root_at(self, stream_id: bytes, bound: LogPrefix) -> bytes | None:
        """The root that the log has at that size, signed by the hub; None where the log does not reach it."""
        ...

    async def receipt(self, stream_id: bytes, at: At) -> Receipt:
        """The hub's word on one place, verified. Raises `NoEntry` where the log does not reach it."""
        ...

    async def evidence(
        self, stream_id: bytes, places: Sequence[At], ends: Sequence[At], claim: str, key: DhKey
    ) -> Evidence:
        """One file that shows these entries to anyone, each tied to what the hub signed for the end of its epoch.

        `ends` has the end for each epoch of `places`.
        """
        ...


def stream_id_of(stream: str | bytes) -> bytes:
    return naming.stream_id(stream) if isinstance(stream, str) else stream


def need_key(source: EntrySource, stream_id: bytes) -> DhKey:
    """The reader key. Without it every entry stays sealed, and no state can be told."""
    key = source.key(stream_id)
    if key is None:
        raise Unavailable(f"there is no reader key of stream {stream_id.hex()[:16]}… here: its state cannot be told")
    return key


def closed_before(profile: Profile, skew_sec: int, epoch: int, now: int) -> bool:
    """Whether nothing more can come before an epoch: then its entries are where they will always be."""
    return profile.epochs_around(now, skew_sec).start >= epoch


def folded(entry: ReadEntry) -> FoldEntry:
    """An entry as an overlay folds it."""
    header = entry.header
    if header is not None and entry.schema is not None:
        header = replace(header, schema=entry.schema)  # of what came with attachments: what they were attached to
    return FoldEntry.of(entry.msg, entry.receipt, header, entry.body, entry.epoch)
