"""The table `state`: the parts of a folded state, bound to the log that it was computed from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from veen.client.local_files import DISK
from veen.core import Malformed, Unverified
from veen.overlays import AnyOverlay, state_hash
from veen.pipeline.decoding.plain_json import plain, to_json
from veen.pipeline.folding.summaries import name_of
from veen.pipeline.tables import layout
from veen.pipeline.tables.commit import Commit, FileRef, TablesView
from veen.pipeline.tables.layout import Table
from veen.pipeline.tables.store import Tables

_META = b"veen"
_PLAIN_FILE = 0o644


@dataclass(frozen=True, slots=True)
class TableBound:
    """The last folded entry of a label, and the root of the log there."""

    epoch: int
    label: bytes
    upto_seq: int
    mmr_root: bytes


@dataclass(frozen=True, slots=True)
class StateTable:
    """States and the ends of the labels that they cover."""

    bounds: tuple[TableBound, ...]
    states: Mapping[bytes, Any]


NOTHING = StateTable((), {})


def write(
    tables: Tables, overlay: AnyOverlay, stream: str, bounds: Sequence[TableBound], states: Mapping[bytes, Any]
) -> FileRef:
    """Replace the previous state of a stream."""
    last, name, hashed = bounds[-1], name_of(overlay), state_hash(overlay, states)
    place = (last.label, last.epoch, last.upto_seq, last.mmr_root, overlay.CLASS)
    rows = [
        (*place, part, overlay.encode_state(states[part]), to_json(plain(overlay.plain(part, states[part]))))
        for part in sorted(states)
    ]
    bound = [[one.epoch, one.label.hex(), one.upto_seq, one.mmr_root.hex()] for one in bounds]
    meta = json.dumps({"bounds": bound, "state_hash": hashed.hex(), "overlay": name}, sort_keys=True)
    data = layout.parquet(Table.STATE, layout.arrow(Table.STATE, rows).replace_schema_metadata({_META: meta}))
    folder = f"{Table.STATE}/stream={layout.escaped(stream)}/overlay={layout.escaped(name)}"
    file = FileRef(
        Table.STATE,
        f"{folder}/{last.label.hex()}-{last.upto_seq:012}.parquet",
        stream,
        "",
        last.label,
        1,
        last.upto_seq,
        len(rows),
        len(data),
        sha256(data).digest(),
        overlay=name,
        state_hash=hashed,
    )
    with tables.writing() as view, tables.staging() as staging:
        known = view.files.get(file.path)
        if known == file:
            return file
        DISK.write_file(staging / "state.parquet", data, _PLAIN_FILE)
        gone = tuple(one.path for one in of(view, overlay, stream) if one.path != file.path)
        tables.publish(Commit(view.number + 1, "state", (), (file,), gone), {file.path: staging / "state.parquet"})
    return file


def of(view: TablesView, overlay: AnyOverlay, stream: str) -> list[FileRef]:
    """The state files of a stream under an overlay."""
    return [one for one in view.of(Table.STATE, [stream]) if one.overlay == name_of(overlay)]


def read(tables: Tables, view: TablesView, overlay: AnyOverlay, stream: str) -> StateTable:
    """The stored state, or `NOTHING`. Raises `Unverified` if the file is not the one that was written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in of(view, overlay, stream):
        data = _bytes(tables.root / file.path)
        if sha256(data).digest() != file.sha256:
            raise Unverified(file.path, "its bytes differ from those committed; run veen pipeline verify for details")
        table = pq.read_table(pa.BufferReader(data))
        try:
            bounds = [
                TableBound(epoch, bytes.fromhex(label), upto, bytes.fromhex(root))
                for epoch, label, upto, root in json.loads(table.schema.metadata[_META])["bounds"]
            ]
        except (KeyError, TypeError, ValueError):
            raise Malformed(file.path, "it has no valid bounds") from None
        rows = zip(table["part"].to_pylist(), table["state"].to_pylist(), strict=True)
        return StateTable(tuple(bounds), {part: overlay.decode_state(part, state) for part, state in rows})
    return NOTHING


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unverified(str(path), f"the state file cannot be read: {error.strerror}") from None
