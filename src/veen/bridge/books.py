"""The books of a reconciliation, each read from whoever has it: a hub, a copy of its data, or bundles themselves."""

from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import aclosing
from pathlib import Path

from veen.bridge import bundle as bundles
from veen.bridge import verifying
from veen.bridge.bundle import SUFFIX
from veen.bridge.reconciling import Arrived, Books
from veen.client import durable
from veen.core import Mmr, naming
from veen.overlays.bridging import (
    EXPORTS,
    IMPORTS,
    OFFLINE_LOG,
    ONLINE_LOG,
    ORIGINS,
    Exported,
    ImportStates,
    Traced,
)
from veen.overlays.entry import At
from veen.state import View
from veen.state.source import Source


async def exports_of(source: Source, log: str = ONLINE_LOG) -> list[Exported]:
    """What left a zone, by its own audit log."""
    async with View(source, log, EXPORTS) as view, view.reading() as reading:
        return [state for state in dict(reading.states).values() if state is not None]


def exports_in(folder: Path, trusted: Collection[bytes]) -> list[Exported]:
    """What left a zone, by the bundles that are there: each is verified first. Raises `BundleFault`."""
    found = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        one = verifying.verify(durable.read_file(path, bundles.MAX_BUNDLE_BYTES), trusted)
        found.append(exported(one, path.name))
    return found


def exported(found: verifying.Verified, operator: str) -> Exported:
    """What the audit log of the zone it is from says of a bundle."""
    bundle, header = found.bundle, found.bundle.header
    return Exported(
        bundle.bundle_id,
        found.bundle_hash,
        header.source_hub_id,
        header.export_stream,
        header.epoch,
        header.export_seq_from,
        header.export_seq_to,
        header.count,
        bundle.contents.export_checkpoint.checkpoint_id,
        operator,
    )


async def books(target: Source, exports: Iterable[Exported], log: str = OFFLINE_LOG) -> Books:
    """What came in, beside what left. The reader needs the keys of the audit log and of every import stream."""
    async with View(target, log, IMPORTS) as view, view.reading() as reading:
        imports: ImportStates = dict(reading.states)
    async with View(target, log, ORIGINS) as view_of, view_of.reading() as origins:
        traced: dict[bytes, Traced] = {part: one for part, one in dict(origins.states).items() if one is not None}
    streams = sorted({one.import_stream for one in imports.values() if one.import_stream})
    arrived = [one for stream in streams async for one in _arrived(target, stream)]
    return Books(tuple(exports), imports, traced, tuple(arrived))


async def _arrived(source: Source, stream: str) -> AsyncIterator[Arrived]:
    stream_id = naming.stream_id(stream)
    for epoch in await source.epochs(stream_id, None):
        async with aclosing(source.read(stream_id, epoch, Mmr())) as pages:
            async for page in pages:
                for entry in page:
                    parent = entry.header.parent_id if entry.header else None
                    yield Arrived(stream, At(epoch, entry.stream_seq), entry.msg_id, parent, entry.hub_ts)
