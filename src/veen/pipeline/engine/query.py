"""What can be asked: which events, which of their fields, and what to make of them. 001, query-api-spec §4."""

import re
from dataclasses import dataclass, field
from typing import Self

from veen.core import Malformed
from veen.pipeline.engine import fields

MODES = ("none", "spot", "full")
_METRIC = re.compile(r"(count|min|max|sum|distinct)(?:\((.+)\))?")


@dataclass(frozen=True, slots=True)
class Evidence:
    """How much of an answer is to be verified; `sample_rate` goes with `spot` only."""

    mode: str = "none"
    sample_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """One number, or one value, for each group."""

    name: str  # as it was asked for, and as the answer has it
    kind: str
    of: str | None

    @classmethod
    def parse(cls, text: str) -> Self:
        found = _METRIC.fullmatch(text)
        if found is None or (found[2] is None) != (found[1] == "count"):
            raise _bad(f"{text!r} is no metric", "there are count, min(FIELD), max(FIELD), sum(FIELD), distinct(FIELD)")
        if found[2] is not None:
            check_field(found[2])
        return cls(text, found[1], found[2])


@dataclass(frozen=True, slots=True)
class Query:
    """A question. Times are those of the hub's commit, in seconds since 1970: from `time_from` to before `time_to`."""

    scope: tuple[str, ...]
    subject_id: str | None = None
    event_types: tuple[str, ...] | None = None
    time_from: int | None = None
    time_to: int | None = None
    projection: tuple[str, ...] = (fields.ALL,)
    group_by: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    evidence: Evidence = field(default_factory=Evidence)
    limit: int | None = None

    def check(self) -> None:
        """Raise `Malformed`, with a hint, over what cannot be asked."""
        if not self.scope or not all(self.scope):
            raise _bad("scope names no stream", "name one stream at least")
        if not self.metrics:
            if self.group_by:
                raise _bad("group_by goes with metrics", "ask for count, at least")
            if not self.projection:
                raise _bad("projection names no field", f"name one field at least, or {fields.ALL!r}")
        for name in (*self.shown, *self.group_by):
            check_field(name)
        for listed, what in ((self.group_by, "group_by"), (self.metrics, "metrics"), (self.shown, "projection")):
            if len(set(listed)) != len(listed):
                raise _bad(f"{what} names something twice", "name it once")
        for metric in self.metrics:
            Metric.parse(metric)
        if self.limit is not None and self.limit < 1:
            raise _bad(f"limit is {self.limit}", "it is 1 at least, or left out")
        self._check_evidence()

    @property
    def shown(self) -> tuple[str, ...]:
        """The fields of a row; none where groups are asked for."""
        if self.metrics:
            return ()
        return fields.DEFAULT if self.projection == (fields.ALL,) else self.projection

    @property
    def asked(self) -> tuple[Metric, ...]:
        return tuple(Metric.parse(metric) for metric in self.metrics)

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field that is looked at."""
        of_metrics = (metric.of for metric in self.asked if metric.of is not None)
        return tuple(dict.fromkeys((*self.shown, *self.group_by, *of_metrics)))

    def _check_evidence(self) -> None:
        mode, rate = self.evidence.mode, self.evidence.sample_rate
        if mode not in MODES:
            raise _bad(f"evidence mode is {mode!r}", f"there are {', '.join(MODES)}")
        if mode != "spot" and rate is not None:
            raise _bad("sample_rate goes with spot", "leave it out, or ask for spot")
        if mode == "spot" and (rate is None or isinstance(rate, bool) or not 0 < rate <= 1):
            raise _bad("sample_rate is not above 0 and at most 1", "0.1 has a tenth of the rows verified")


def check_field(name: str) -> None:
    if not fields.is_field(name):
        known = ", ".join(fields.COLUMNS_OF)
        raise _bad(f"there is no field {name!r}", f"there are {known}, and paths into the payload: payload.NAME")


def _bad(what: str, hint: str) -> Malformed:
    error = Malformed("query", what)
    error.add_note(hint)
    return error
