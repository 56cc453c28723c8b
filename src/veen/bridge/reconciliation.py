"""Reconciliation: compare what left one zone with what arrived in the other.

Each side can be read from a hub, from a copy of its data directory, or (exports) from the bundle files.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from veen.bridge import bundle as bundles
from veen.bridge.bundle import SUFFIX, VerifiedBundle
from veen.client import local_files
from veen.core import naming
from veen.core.strict_json import Json
from veen.overlays import bridge_logs
from veen.overlays.event import At, Ranges, join_ranges
from veen.overlays.operations.mirror import missing as missing_of
from veen.state.entry_source import EntrySource, all_entries
from veen.state.state_view import read_states


@dataclass(frozen=True, slots=True)
class ImportedEntry:
    """An entry of an import stream, its place, and the original it names."""

    stream: str
    at: At
    msg_id: bytes
    parent_id: bytes | None
    hub_ts: int


@dataclass(frozen=True, slots=True)
class Region:
    """How far one stream of one epoch is identical in both zones: from its first entry to `consistent_upto_seq`.

    `gaps` are the numbers up to the last exported or imported one that have not been imported.
    """

    source_hub_id: bytes
    export_stream: str
    epoch: int
    consistent_upto_seq: int
    consistent_upto_time: int | None  # hub_ts of that entry at the source hub
    exported: Ranges
    imported: Ranges
    gaps: Ranges


@dataclass(frozen=True, slots=True)
class MissingBundle:
    """A bundle that was exported and not imported, or only in part."""

    bundle_id: bytes
    export_stream: str
    epoch: int
    export_seq_from: int
    export_seq_to: int
    reason: str
    lacking: tuple[int, ...] = ()  # numbers of a partial import that the import stream lacks


@dataclass(frozen=True, slots=True)
class DuplicateEvent:
    """One original that occurs more than once in an import stream, and its places."""

    origin_msg_id: bytes
    import_stream: str
    places: tuple[At, ...]


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """The result. It is clean if all lists except `regions` are empty and no region has gaps."""

    missing: tuple[MissingBundle, ...]
    partial: tuple[MissingBundle, ...]
    duplicates: tuple[DuplicateEvent, ...]
    unexplained: tuple[ImportedEntry, ...]  # import stream entries whose origin no intake names
    unannounced: tuple[bytes, ...]  # imported bundles that the source zone's log does not list as exported
    regions: tuple[Region, ...]
    events: int

    @property
    def clean(self) -> bool:
        found = (self.missing, self.partial, self.duplicates, self.unexplained, self.unannounced)
        return not any(found) and not any(region.gaps for region in self.regions)

    def to_json(self) -> dict[str, Json]:
        return {
            "clean": self.clean,
            "events": self.events,
            "missing": _json(self.missing),
            "partial": _json(self.partial),
            "duplicates": _json(self.duplicates),
            "unexplained": [
                {"import_stream": one.stream, "epoch": one.at.epoch, "stream_seq": one.at.stream_seq}
                for one in self.unexplained
            ],
            "unannounced": [one.hex() for one in self.unannounced],
            "regions": _json(self.regions),
        }


def _json(records: Iterable[Region | MissingBundle | DuplicateEvent]) -> Json:
    """The fields of each record; bytes become hex, and places and ranges become lists."""
    return [{name: _json_value(value) for name, value in asdict(record).items()} for record in records]


def _json_value(value: object) -> Any:
    if isinstance(value, tuple):
        return [_json_value(one) for one in value]
    return value.hex() if isinstance(value, bytes) else value


@dataclass(frozen=True, slots=True)
class ReconcileInput:
    """Everything that is compared. `exports` come from the source zone, the rest from the import zone."""

    exports: Sequence[bridge_logs.BundleExported]
    imports: bridge_logs.ImportStates
    traced: Mapping[bytes, bridge_logs.Traced]  # by the msg_id of the original
    arrived: Sequence[ImportedEntry]


def reconcile(books: ReconcileInput) -> ReconcileReport:
    arrivals: dict[tuple[str, bytes], list[At]] = defaultdict(list)
    for one in books.arrived:
        if one.parent_id is not None:
            arrivals[one.stream, one.parent_id].append(one.at)
    present = {parent for _, parent in arrivals}
    carried: dict[bytes, dict[int, bridge_logs.EventOrigin]] = defaultdict(dict)
    for traced in books.traced.values():
        carried[traced.bundle_id][traced.origin.receipt.stream_seq] = traced.origin
    lacking = {
        bundle_id: _lacking(standing, carried[bundle_id], present)
        for bundle_id, standing in books.imports.items()
        if standing.announced
    }
    missing, partial = _missing_and_partial(books, lacking)
    left = {one.bundle_id for one in books.exports}
    return ReconcileReport(
        missing,
        partial,
        tuple(
            DuplicateEvent(parent, stream, tuple(sorted(places)))
            for (stream, parent), places in arrivals.items()
            if len(places) > 1
        ),
        tuple(one for one in books.arrived if one.parent_id is None or one.parent_id not in books.traced),
        tuple(sorted(set(lacking) - left)),
        tuple(_regions(books, lacking, carried)),
        len(books.arrived),
    )


def _missing_and_partial(
    books: ReconcileInput, lacking: Mapping[bytes, tuple[int, ...]]
) -> tuple[tuple[MissingBundle, ...], tuple[MissingBundle, ...]]:
    missing, partial = [], []
    for one in books.exports:
        standing = books.imports.get(one.bundle_id, bridge_logs.NOTHING)
        named = (one.bundle_id, one.export_stream, one.epoch, one.export_seq_from, one.export_seq_to)
        if not standing.announced:
            why = f"rejected: {standing.reason}" if standing.failures else "the import log does not mention it"
            missing.append(MissingBundle(*named, why))
        elif not standing.imported or lacking[one.bundle_id]:
            why = "logged as imported, but events are missing" if standing.imported else "import started, not finished"
            partial.append(MissingBundle(*named, why, lacking[one.bundle_id]))
    return tuple(missing), tuple(partial)


def _lacking(
    standing: bridge_logs.ImportStatus, origins: Mapping[int, bridge_logs.EventOrigin], present: set[bytes]
) -> tuple[int, ...]:
    """The numbers of a bundle whose events the import stream lacks, except those that the policy excluded."""
    return tuple(
        seq
        for seq in range(standing.export_seq_from, standing.export_seq_to + 1)
        if seq not in standing.excluded and (seq not in origins or origins[seq].msg_id not in present)
    )


_Key = tuple[bytes, str, int]


def _regions(
    books: ReconcileInput,
    lacking: Mapping[bytes, tuple[int, ...]],
    carried: Mapping[bytes, Mapping[int, bridge_logs.EventOrigin]],
) -> Iterator[Region]:
    """By hub, stream and epoch: exported ranges, imported ranges, and where they start to differ."""
    exported_by_key: dict[_Key, list[tuple[int, int]]] = defaultdict(list)
    imported_by_key: dict[_Key, list[tuple[int, int]]] = defaultdict(list)
    times: dict[_Key, dict[int, int]] = defaultdict(dict)
    for one in books.exports:
        exported_by_key[one.source_hub_id, one.export_stream, one.epoch].append(
            (one.export_seq_from, one.export_seq_to)
        )
    for bundle_id, absent in lacking.items():
        standing = books.imports[bundle_id]
        if standing.source_hub_id is None or not standing.imported:
            continue
        key = standing.source_hub_id, standing.export_stream, standing.epoch
        seqs = range(standing.export_seq_from, standing.export_seq_to + 1)
        imported_by_key[key] += [(seq, seq) for seq in seqs if seq not in absent]
        times[key].update((seq, origin.receipt.hub_ts) for seq, origin in carried[bundle_id].items())
    for key in sorted({*exported_by_key, *imported_by_key}):
        exported, imported = join_ranges(exported_by_key[key]), join_ranges(imported_by_key[key])
        last = max((end for _, end in (*exported, *imported)), default=0)
        upto = imported[0][1] if imported and imported[0][0] == 1 else 0
        yield Region(*key, upto, times[key].get(upto), exported, imported, missing_of(imported, last))


async def exports_of(source: EntrySource, log: str = bridge_logs.ONLINE_LOG) -> list[bridge_logs.BundleExported]:
    """The exports that a zone's own audit log lists."""
    states = await read_states(source, log, bridge_logs.EXPORTS)
    return [state for state in states.values() if state is not None]


def exports_in(folder: Path, trusted: Collection[bytes]) -> list[bridge_logs.BundleExported]:
    """The exports that the bundle files in a folder show. Each is verified first. Raises `BundleFault`."""
    found = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        one = bundles.verify(local_files.read_file(path, bundles.MAX_BUNDLE_BYTES), trusted)
        found.append(exported(one, path.name))
    return found


def exported(found: VerifiedBundle, operator: str) -> bridge_logs.BundleExported:
    """The audit event that announces a bundle in its source zone."""
    bundle, header = found.bundle, found.bundle.header
    return bridge_logs.BundleExported(
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


async def read_input(
    target: EntrySource, exports: Iterable[bridge_logs.BundleExported], log: str = bridge_logs.OFFLINE_LOG
) -> ReconcileInput:
    """Read the import side. The reader needs the keys of the audit log and of every import stream."""
    imports = await read_states(target, log, bridge_logs.IMPORTS)
    origins = await read_states(target, log, bridge_logs.ORIGINS)
    traced = {part: one for part, one in origins.items() if one is not None}
    streams = sorted({one.import_stream for one in imports.values() if one.import_stream})
    arrived = [one for stream in streams async for one in _imported_entries(target, stream)]
    return ReconcileInput(tuple(exports), imports, traced, tuple(arrived))


async def _imported_entries(source: EntrySource, stream: str) -> AsyncIterator[ImportedEntry]:
    async with aclosing(all_entries(source, naming.stream_id(stream))) as entries:
        async for entry in entries:
            parent = entry.header.parent_id if entry.header else None
            yield ImportedEntry(stream, At(entry.epoch, entry.stream_seq), entry.msg_id, parent, entry.hub_ts)
