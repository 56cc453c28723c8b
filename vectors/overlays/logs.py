"""The format of a log and its states."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vectors.form import Doc, secret
from veen.core import PayloadHdr
from veen.overlays import AnyOverlay, Event, FoldEntry, encode_states, first_places, fold, state_hash, summarise

START = 1_700_000_000
LABEL = secret("overlay label")
CLIENTS = tuple(secret(f"overlay client {number}") for number in range(3))


@dataclass(frozen=True, slots=True)
class Line:
    """A planned entry: its event or raw bytes, its writer, and the time since the entry before."""

    note: str
    event: Event
    parent_id: bytes | None = None
    client: int = 0
    after: int = 1
    body: bytes | None = None
    sealed: bool = False
    expires_at: int | None = None


def msg_id(number: int) -> bytes:
    """The id of the entry with this number."""
    return secret(f"overlay message {number}")


def entries(lines: Sequence[Line]) -> list[FoldEntry]:
    hub_ts, listed = START, []
    for stream_seq, line in enumerate(lines, 1):
        hub_ts += line.after
        header = PayloadHdr(line.event.SCHEMA, line.parent_id, expires_at=line.expires_at)
        opened = (None, None) if line.sealed else (header, line.event.encode() if line.body is None else line.body)
        client_id = CLIENTS[line.client]
        listed.append(FoldEntry(LABEL, 0, stream_seq, hub_ts, client_id, None, msg_id(stream_seq), *opened))
    return listed


def folded(overlay: AnyOverlay, lines: Sequence[Line]) -> Doc:
    """A log, the state after each entry, and the faults of entries that changed nothing."""
    log = entries(lines)
    whole, summary = fold(overlay, log), summarise(overlay, log, first_places(overlay, log))
    return {
        "class": overlay.CLASS,
        "label": LABEL,
        "entries": [_entry_doc(line.note, entry) for line, entry in zip(lines, log, strict=True)],
        "states": [_state_doc(overlay, log[:upto]) for upto in range(len(log) + 1)],
        "faults": [
            {"stream_seq": fault.stream_seq, "kind": fault.kind, "part": fault.part}
            | ({"reason": fault.reason} if fault.kind == "refused" else {})
            for fault in whole.faults
        ],
        "summaries": [
            {"part": part, "cbor": overlay.encode_summary(summary.parts[part])} for part in sorted(summary.parts)
        ],
    }


def _entry_doc(note: str, entry: FoldEntry) -> Doc:
    header = None
    if entry.header is not None:
        shown = ("schema", "parent_id", "expires_at")
        found: dict[str, Any] = {name: getattr(entry.header, name) for name in shown}
        header = {name: value for name, value in found.items() if value is not None}
    return {
        "note": note,
        "stream_seq": entry.stream_seq,
        "hub_ts": entry.hub_ts,
        "client_id": entry.client_id,
        "msg_id": entry.msg_id,
        "payload_hdr": header,
        "body": entry.body,
        "cbor": entry.encode(),
    }


def _state_doc(overlay: AnyOverlay, log: list[FoldEntry]) -> Doc:
    states = fold(overlay, log).states
    return {
        "upto_seq": len(log),
        "state": encode_states(overlay, states),
        "state_hash": state_hash(overlay, states),
    }
