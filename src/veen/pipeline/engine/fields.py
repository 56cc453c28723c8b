"""The fields of an event, by the names that a query gives them."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from veen.pipeline.decoding.decoder import LAST_SEC, RECORD
from veen.pipeline.decoding.plain import Plain

ALL = "*"
PAYLOAD = "payload"

Row = Mapping[str, Any]

# What each field is made from.
COLUMNS_OF: dict[str, tuple[str, ...]] = {
    "stream": (),
    "subject_id": ("subject_id",),
    "event_type": ("event_type",),
    "event_time": ("event_time",),
    "origin": ("origin",),
    "principal_id": ("client_id",),
    "hub_commit_time": ("hub_ts",),
    "hub_commit_seq": ("stream_seq",),
    "receipt_id": ("label", "stream_seq"),
    "msg_id": ("msg_id",),
    "overlay": ("overlay",),
    "schema": ("schema",),
    PAYLOAD: ("event", "schema"),
}
DEFAULT = (
    "subject_id",
    "principal_id",
    "event_time",
    "origin",
    "event_type",
    "payload",
    "receipt_id",
    "stream",
    "hub_commit_time",
    "hub_commit_seq",
)


def is_field(name: str) -> bool:
    head, _, path = name.partition(".")
    return name in COLUMNS_OF or (head == PAYLOAD and all(path.split(".")))


def columns(name: str) -> tuple[str, ...]:
    return COLUMNS_OF[name if name in COLUMNS_OF else PAYLOAD]


def receipt_id(label: bytes, stream_seq: int) -> str:
    """What a receipt is asked for by."""
    return f"{label.hex()}:{stream_seq}"


def moment(milliseconds: int | None) -> str | None:
    """A time in the one form that answers have; None for what no calendar has."""
    if milliseconds is None or not 0 <= milliseconds // 1000 <= LAST_SEC:
        return None
    seconds, rest = divmod(milliseconds, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03}Z"


_MADE: dict[str, Callable[[Row], Plain]] = {
    "event_time": lambda row: moment(row["event_time"]),
    "principal_id": lambda row: str(row["client_id"].hex()),
    "hub_commit_time": lambda row: moment(row["hub_ts"] * 1000),
    "hub_commit_seq": lambda row: int(row["stream_seq"]),
    "receipt_id": lambda row: receipt_id(row["label"], row["stream_seq"]),
    "msg_id": lambda row: str(row["msg_id"].hex()),
    "schema": lambda row: str(row["schema"].hex()),
}


def values(row: Row, names: tuple[str, ...]) -> dict[str, Plain]:
    """Some fields of an event."""
    payload: Plain = None
    if any(name.split(".")[0] == PAYLOAD for name in names):
        payload = json.loads(row["event"])
        if row["schema"] == RECORD and isinstance(payload, dict):
            payload = payload.get(PAYLOAD)
    return {name: _value(row, name, payload) for name in names}


def _value(row: Row, name: str, payload: Plain) -> Plain:
    if name in COLUMNS_OF and name != PAYLOAD:
        make = _MADE.get(name)
        found: Plain = row[name] if make is None else make(row)
        return found
    for step in name.split(".")[1:]:
        payload = _step(payload, step)
    return payload


def _step(value: Plain, name: str) -> Plain:
    """One step of a path: a name in an object, a number in a list. What is not there is null."""
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, list) and name.isascii() and name.isdigit() and int(name) < len(value):
        return value[int(name)]
    return None
