"""Print answers about state to a terminal, a pipe or as JSON, with the log and evidence they are based on."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from veen.cli.kit import output, output_files, read_state, sanitize
from veen.cli.kit.read_state import StateAnswer, StateBasis
from veen.cli.kit.sanitize import line_of, printable, short, text_of
from veen.cli.kit.state_options import FollowOptions, StateOptions
from veen.client.evidence import Evidence
from veen.core import Receipt, cbor
from veen.overlays import AnyOverlay, At, EventFault, FoldStep, Overlay
from veen.state.state_view import StateView, shown
from veen.state.watch import WatchedEntry, watch


def show_answer(found: StateAnswer, basis: StateBasis, options: StateOptions) -> None:
    """Print an answer, and write its evidence to --out."""
    if basis.evidence is not None and options.out is not None:
        output_files.write_new(options.out, basis.evidence.encode())
    if options.as_json:
        output.document({**found.data, **_basis_data(basis, options)})
    else:
        _show(found)
        if basis.evidence is not None:
            _show_evidence(basis, basis.evidence, options)
    for remark in found.remarks:
        output.remark(remark)


def _show(found: StateAnswer) -> None:
    if found.text is not None:
        sys.stdout.write(found.text + "\n")
        return
    if found.facts:
        output.facts(found.facts, False)
    if found.columns:
        output.table(found.columns, found.rows, False)


def _basis_data(basis: StateBasis, options: StateOptions) -> dict[str, object]:
    data: dict[str, object] = {
        "stream": basis.stream,
        "hub_id": basis.hub_id,
        "at": {"epoch": basis.at.epoch, "stream_seq": basis.at.stream_seq},
        "mmr_root": basis.mmr_root,
    }
    made = basis.evidence
    if made is not None:
        data["state_hash"] = basis.state_hash
        data["evidence"] = {
            "entries": [
                {
                    "label": receipt.label,
                    "stream_seq": receipt.stream_seq,
                    "msg_id": receipt.leaf_hash,
                    "hub_ts": receipt.hub_ts,
                    "receipt": receipt.encode(),
                }
                for receipt in _receipts(made)
            ],
            **({"bytes": made.encode()} if options.out is None else {"file": str(options.out)}),
        }
    return data


def _show_evidence(basis: StateBasis, made: Evidence, options: StateOptions) -> None:
    if sys.stdout.isatty():
        sys.stdout.write("\n")
    file = {"evidence": str(options.out)} if options.out else {}
    rows = {"state_hash": basis.state_hash, "log of": shown(basis.at), "mmr_root": basis.mmr_root, **file}
    output.facts(rows, False)
    listed = [("entry", one.stream_seq, output.moment(one.hub_ts), short(one.leaf_hash)) for one in _receipts(made)]
    output.table(("what", "entry", "hub_ts", "msg_id"), listed, False)


def _receipts(made: Evidence) -> list[Receipt]:
    """Return the receipts of the exhibited entries."""
    leaves = {one.msg.leaf_hash() for one in made.exhibits}
    return [receipt for receipt in made.receipts if receipt.leaf_hash in leaves]


def place_data(at: At) -> dict[str, int]:
    return {"epoch": at.epoch, "stream_seq": at.stream_seq}


def step_data(step: FoldStep) -> dict[str, object]:
    """Return the place, time, client and id of a step's entry, for JSON."""
    entry = step.entry
    return {**place_data(entry.at), "hub_ts": entry.hub_ts, "client_id": entry.client_id, "msg_id": entry.msg_id}


FAULT_COLUMNS = ("entry", "kind", "part", "reason")


def fault_rows(faults: Iterable[EventFault]) -> list[tuple[str, str, output.Value, str]]:
    return [
        (shown(one.place), one.kind, None if one.part is None else part_name(one.part), printable(one.reason))
        for one in faults
    ]


def fault_data(faults: Iterable[EventFault]) -> list[dict[str, object]]:
    return [{**place_data(one.place), "kind": one.kind, "reason": one.reason, "part": one.part} for one in faults]


def part_name(part: bytes) -> output.Value:
    """Return the name of a part: its text if it is text, else hex."""
    return line_of(part) if text_of(part) is not None else short(part)


def part_data(kind: AnyOverlay, part: bytes, state: Any) -> dict[str, object]:
    """Return a part of any overlay's state for JSON."""
    return {"part": part, "state": plain_json(kind.plain(part, state))}


def plain_line(kind: AnyOverlay, part: bytes, state: Any) -> str:
    """Return a part of any overlay's state as NAME=VALUE on one line."""
    plain = kind.plain(part, state).items()
    shown_of = {name: _word(plain_cell(value)) for name, value in plain if value is not None and value != part}
    return " ".join(f"{name}={word}" for name, word in shown_of.items())


def _word(cell: output.Value) -> str:
    return ("yes" if cell else "no") if isinstance(cell, bool) else str(cell)


def key_data(key: bytes) -> dict[str, object]:
    """Return a key for JSON: its bytes, and its text or None."""
    return {"key": key, "key_text": text_of(key)}


def plain_json(value: cbor.Value) -> object:
    """Return a plain value for JSON. `output.document` writes the bytes in it as hex."""
    if isinstance(value, Mapping):
        return {str(key): plain_json(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain_json(one) for one in value]
    return value


def plain_cell(value: cbor.Value) -> output.Value:
    """Return a plain value for one table cell."""
    if isinstance(value, bytes):
        return part_name(value)
    if value is None or isinstance(value, bool | int):
        return value
    return printable(value) if isinstance(value, str) else printable(_text(value))


def json_value(value: object) -> str:
    """The `default` of `json.dumps`: bytes as hex."""
    return value.hex() if isinstance(value, bytes) else str(value)


def _text(value: cbor.Value) -> str:
    return json.dumps(plain_json(value), default=json_value, ensure_ascii=False)


S = TypeVar("S")
M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """One change to show: cells for terminals and pipes, data for JSON."""

    cells: tuple[output.Value, ...]
    data: Mapping[str, object]


def follow(
    options: FollowOptions, overlay: Overlay[S, M], lines: Callable[[WatchedEntry[S]], Iterable[ChangeLine]]
) -> None:
    """Print `lines(entry)` for each new entry. A fault is reported on standard error, with its reason."""

    async def print_changes(view: StateView[S, M], name: str) -> None:
        async with aclosing(watch(view)) as coming:
            async for seen in coming:
                for line in lines(seen):
                    _show_event(seen, line, options.as_json)
                for fault in seen.outcomes:
                    if isinstance(fault, EventFault):
                        output.remark(f"entry {shown(fault.place)} not applied: {sanitize.printable(fault.reason)}")

    read_state.with_view(options, overlay, print_changes)


def _show_event(seen: WatchedEntry[S], line: ChangeLine, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(dict(line.data), default=json_value) + "\n")
    else:
        place = (shown(seen.entry.at), output.moment(seen.entry.hub_ts))
        output.table(("entry", "hub_ts", *("" for _ in line.cells)), [(*place, *line.cells)], False)
    sys.stdout.flush()
