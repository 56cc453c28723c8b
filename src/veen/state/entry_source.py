"""Sources of a stream's entries: verified first, then opened, in order, epoch by epoch.

A source verifies for each entry the client's signature and the hub's signature on its place and root. There are two
sources: a live hub (`HubSource`) and a data directory (`directory_source`).
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import groupby
from typing import Protocol

from veen.client import ClientDir
from veen.client import evidence as files
from veen.client.client import Client
from veen.client.evidence import Evidence
from veen.client.proofs import exhibit, fetch_checkpoint
from veen.client.reader import Entry as ReadEntry
from veen.client.reader import LabelReader, Opener, ReadRange
from veen.client.tree_follower import PrunedEntries
from veen.client.trust import HubRecord
from veen.core import DhKey, Mmr, Profile, Receipt, Refused, Unavailable, naming
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
        """The epochs that have entries, ascending, from `first` or from the hub's start. Others may be among them."""
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


class HubSource:
    """The hub of a connected client. The caller keeps ownership of the client and closes it."""

    may_lag = False

    def __init__(self, client: Client) -> None:
        self.client = client

    @property
    def folder(self) -> ClientDir:
        return self.client.dir

    @property
    def known(self) -> HubRecord:
        return self.client.session.trust.known

    def now(self) -> int:
        return self.client.session.clock.now()

    def label(self, stream_id: bytes, epoch: int) -> bytes:
        return self.client.label(stream_id, epoch)

    def key(self, stream_id: bytes) -> DhKey | None:
        return self.client.dir.stream_keys.secret(stream_id)

    async def epochs(self, stream_id: bytes, first: int | None) -> Sequence[int]:
        if not self.known.profile.epoch_sec:
            return (0,) if not first else ()
        return [row.epoch for row in await self.client.epochs(stream_id, first or 0)]

    async def read(self, stream_id: bytes, epoch: int, after: Mmr) -> AsyncGenerator[list[ReadEntry], None]:
        follower, wanted = self.client.follower(stream_id, epoch), ReadRange(after.size + 1)
        reader = LabelReader(self.client.session, follower, epoch, Opener(self.key(stream_id)), wanted)
        async with aclosing(reader.pages()) as pages:
            try:
                async for page in pages:
                    yield page
            except PrunedEntries as pruned:
                pruned.add_note(
                    f"this needs every entry of stream {stream_id.hex()[:16]}…: a backup from before still has them. "
                    "`veen retention set --stream NAME --payloads forever` keeps a stream whole"
                )
                raise

    async def root_at(self, stream_id: bytes, prefix: LogPrefix) -> bytes | None:
        follower = self.client.follower(stream_id, prefix.epoch)
        if follower.label != prefix.label:
            return None
        try:
            return (await follower.tree_at(prefix.upto_seq)).root()
        except Refused as refused:
            if refused.code != "E.NOT_FOUND":
                raise
            if follower.tree.size >= prefix.upto_seq:
                raise await self.client.session.recorded(follower.truncated(refused.message)) from None
            return None

    async def receipt(self, stream_id: bytes, at: At) -> Receipt:
        try:
            return await self.client.receipt(stream_id, at.stream_seq, epoch=at.epoch)
        except Refused as refused:
            if refused.code != "E.NOT_FOUND":
                raise
            raise NoEntry(f"the log has no entry {at.stream_seq} yet") from None

    async def evidence(
        self, stream_id: bytes, places: Sequence[At], ends: Sequence[At], claim: str, key: DhKey
    ) -> Evidence:
        contact, upto = self.client.session, {end.epoch: end.stream_seq for end in ends}
        made: list[Evidence] = []
        for epoch, group in groupby(places, lambda place: place.epoch):
            follower = self.client.follower(stream_id, epoch)
            head = await fetch_checkpoint(contact, follower, stream_id, upto[epoch])
            made.append(await exhibit(contact, follower, head, [place.stream_seq for place in group], claim, key))
        return files.joined(self.known, claim, made)


async def all_entries(source: EntrySource, stream_id: bytes) -> AsyncGenerator[ReadEntry, None]:
    """Every entry of a stream, epoch by epoch, up to the current end."""
    for epoch in await source.epochs(stream_id, None):
        async with aclosing(source.read(stream_id, epoch, Mmr())) as pages:
            async for page in pages:
                for entry in page:
                    yield entry


async def stream_end(client: Client, stream_id: bytes, epoch: int) -> int:
    """The last entry of a stream in an epoch; 0 if the hub has none."""
    try:
        return await client.follower(stream_id, epoch).end()
    except Refused as refused:
        if refused.code == "E.NOT_FOUND":
            return 0
        raise
