"""Event queries and the fields they can name."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from veen.core import Malformed
from veen.pipeline.decoding.decoder import LAST_SEC, RECORD, Plain

ALL = "*"
PAYLOAD = "payload"

Row = Mapping[str, Any]

# The table columns that each field needs.
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
    """The id under which a receipt can be requested."""
    return f"{label.hex()}:{stream_seq}"


def moment(milliseconds: int | None) -> str | None:
    """A time in the format of answers; None if it is outside the calendar."""
    if milliseconds is None or not 0 <= milliseconds // 1000 <= LAST_SEC:
        return None
    seconds, rest = divmod(milliseconds, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03}Z"


_CONVERTERS: dict[str, Callable[[Row], Plain]] = {
    "event_time": lambda row: moment(row["event_time"]),
    "principal_id": lambda row: str(row["client_id"].hex()),
    "hub_commit_time": lambda row: moment(row["hub_ts"] * 1000),
    "hub_commit_seq": lambda row: int(row["stream_seq"]),
    "receipt_id": lambda row: receipt_id(row["label"], row["stream_seq"]),
    "msg_id": lambda row: str(row["msg_id"].hex()),
    "schema": lambda row: str(row["schema"].hex()),
}


def values(row: Row, names: tuple[str, ...]) -> dict[str, Plain]:
    """The values of some fields of an event."""
    payload: Plain = None
    if any(name.split(".")[0] == PAYLOAD for name in names):
        payload = json.loads(row["event"])
        if row["schema"] == RECORD and isinstance(payload, dict):
            payload = payload.get(PAYLOAD)
    return {name: _value(row, name, payload) for name in names}


def _value(row: Row, name: str, payload: Plain) -> Plain:
    if name in COLUMNS_OF and name != PAYLOAD:
        make = _CONVERTERS.get(name)
        found: Plain = row[name] if make is None else make(row)
        return found
    for step in name.split(".")[1:]:
        payload = _step(payload, step)
    return payload


def _step(value: Plain, name: str) -> Plain:
    """One step of a path: a name in an object or a number in a list. A missing value is null."""
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, list) and name.isascii() and name.isdigit() and int(name) < len(value):
        return value[int(name)]
    return None


MODES = ("none", "spot", "full")
_METRIC = re.compile(r"(count|min|max|sum|distinct)(?:\((.+)\))?")


@dataclass(frozen=True, slots=True)
class EvidencePolicy:
    """How much of an answer is verified; `sample_rate` is for `spot` only."""

    mode: str = "none"
    sample_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """A number or value per group."""

    name: str  # as in the query and in the answer
    kind: str
    of: str | None

    @classmethod
    def parse(cls, text: str) -> Self:
        found = _METRIC.fullmatch(text)
        if found is None or (found[2] is None) != (found[1] == "count"):
            raise _bad(f"{text!r} is not a metric", "use count, min(FIELD), max(FIELD), sum(FIELD) or distinct(FIELD)")
        if found[2] is not None:
            check_field(found[2])
        return cls(text, found[1], found[2])


@dataclass(frozen=True, slots=True)
class EventQuery:
    """A query. `time_from` (inclusive) and `time_to` (exclusive) are hub commit times in seconds since 1970."""

    scope: tuple[str, ...]
    subject_id: str | None = None
    event_types: tuple[str, ...] | None = None
    time_from: int | None = None
    time_to: int | None = None
    projection: tuple[str, ...] = (ALL,)
    group_by: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    evidence: EvidencePolicy = field(default_factory=EvidencePolicy)
    limit: int | None = None

    def check(self) -> None:
        """Raise `Malformed` with a hint if the query is invalid."""
        if not self.scope or not all(self.scope):
            raise _bad("scope names no stream", "name at least one stream")
        if not self.metrics:
            if self.group_by:
                raise _bad("group_by needs metrics", "add a metric, for example count")
            if not self.projection:
                raise _bad("projection names no field", f"name at least one field, or {ALL!r}")
        for name in (*self.shown, *self.group_by):
            check_field(name)
        for listed, what in ((self.group_by, "group_by"), (self.metrics, "metrics"), (self.shown, "projection")):
            if len(set(listed)) != len(listed):
                raise _bad(f"{what} contains a duplicate", "name each value once")
        for metric in self.metrics:
            Metric.parse(metric)
        if self.limit is not None and self.limit < 1:
            raise _bad(f"limit is {self.limit}", "set it to 1 or more, or leave it out")
        self._check_evidence()

    @property
    def shown(self) -> tuple[str, ...]:
        """The fields of a row; empty for a grouped query."""
        if self.metrics:
            return ()
        return DEFAULT if self.projection == (ALL,) else self.projection

    @property
    def parsed_metrics(self) -> tuple[Metric, ...]:
        return tuple(Metric.parse(metric) for metric in self.metrics)

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field that the query reads."""
        of_metrics = (metric.of for metric in self.parsed_metrics if metric.of is not None)
        return tuple(dict.fromkeys((*self.shown, *self.group_by, *of_metrics)))

    def _check_evidence(self) -> None:
        mode, rate = self.evidence.mode, self.evidence.sample_rate
        if mode not in MODES:
            raise _bad(f"evidence mode is {mode!r}", f"use one of {', '.join(MODES)}")
        if mode != "spot" and rate is not None:
            raise _bad("sample_rate is only for evidence mode spot", "leave it out, or set the mode to spot")
        if mode == "spot" and (rate is None or isinstance(rate, bool) or not 0 < rate <= 1):
            raise _bad("sample_rate must be above 0 and at most 1", "0.1 verifies a tenth of the rows")


def check_field(name: str) -> None:
    if not is_field(name):
        known = ", ".join(COLUMNS_OF)
        raise _bad(f"unknown field {name!r}", f"use one of {known}, or a path into the payload: payload.NAME")


def _bad(what: str, hint: str) -> Malformed:
    error = Malformed("query", what)
    error.add_note(hint)
    return error
