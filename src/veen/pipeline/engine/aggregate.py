"""Part of an answer, and how parts become the whole: in any order and grouping, they come to the same."""

import heapq
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from veen.pipeline.decoding.plain_json import Plain, written
from veen.pipeline.engine.event_query import EventQuery, Metric
from veen.pipeline.engine.query_watch import UNWATCHED, QueryWatch

Order = tuple[int, str, int, str]  # hub_ts, stream, stream_seq, label in hex
Source = tuple[str, str, int, str, str]  # stream, label, stream_seq, msg_id, mmr_root: the event that is behind it
Rank = tuple[int, float | int | str, str]


def weigh(value: Plain) -> int:
    """At most as much as the value takes as JSON, and near it; it is asked of every value that is kept."""
    if isinstance(value, str):
        return len(value) + 2
    if isinstance(value, dict):
        return 2 + sum(len(name) + 3 + weigh(one) for name, one in value.items())
    if isinstance(value, list):
        return 2 + sum(map(weigh, value))
    return 1


def rank(value: Plain) -> Rank:
    """One order of all values: nothing, truth values, numbers, texts, then the rest by how they are written."""
    match value:
        case None:
            return 0, 0, ""
        case bool():
            return 1, int(value), ""
        case int() | float():
            return 2, value, written(value)
        case str():
            return 3, value, ""
    return 4, written(value), ""


@dataclass(slots=True)
class PartialCounts:
    """What a metric has come to so far."""

    count: int = 0
    best: Plain = None
    total: Fraction | int = 0
    whole: bool = True  # nothing but integers was added
    values: set[str] = field(default_factory=set)

    def add(self, metric: Metric, value: Plain) -> int:
        """Take a value in. Says how much heavier that makes it."""
        if metric.kind == "count":
            self.count += 1
        elif value is None:
            return 0
        elif metric.kind == "distinct":
            return self._hold({written(value)})
        elif metric.kind != "sum":
            return self._take(metric, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            self.count += 1
            self.total += value if isinstance(value, int) else Fraction(value)
            self.whole = self.whole and isinstance(value, int)
        return 0

    def merge(self, metric: Metric, other: "PartialCounts") -> int:
        """Take in what another came to. Says how much heavier that makes it."""
        self.count += other.count
        self.total += other.total
        self.whole = self.whole and other.whole
        return self._hold(other.values) + (0 if other.best is None else self._take(metric, other.best))

    @property
    def weight(self) -> int:
        return sum(map(len, self.values)) + (0 if self.best is None else weigh(self.best))

    def _hold(self, texts: set[str]) -> int:
        new = texts - self.values
        self.values |= new
        return sum(map(len, new))

    def _take(self, metric: Metric, value: Plain) -> int:
        if self.best is None or (rank(value) < rank(self.best)) == (metric.kind == "min"):
            before, self.best = self.best, value
            return weigh(value) - (0 if before is None else weigh(before))
        return 0

    def result(self, metric: Metric) -> Plain:
        match metric.kind:
            case "count":
                return self.count
            case "distinct":
                return len(self.values)
            case "sum":
                # Added up exactly, whatever the order, and rounded once.
                return None if not self.count else int(self.total) if self.whole else float(self.total)
        return self.best

    def plain(self) -> Plain:
        total: list[Plain] = [str(self.total.numerator), str(self.total.denominator)]
        return [self.count, self.best, total, self.whole, sorted(self.values)]  # type: ignore[list-item]

    @classmethod
    def of(cls, found: Any) -> "PartialCounts":
        count, best, (numerator, denominator), whole, values = found
        return cls(count, best, Fraction(int(numerator), int(denominator)), whole, set(values))


@dataclass(slots=True)
class Partial:
    """Rows or groups of some files."""

    query: EventQuery
    rows: list[tuple[Order, dict[str, Plain], Source]] = field(default_factory=list)
    groups: dict[str, tuple[list[Plain], list[PartialCounts]]] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)  # behind the groups, where evidence is asked for
    read: int = 0
    weight: int = 0  # of what is kept, in bytes
    asked: tuple[Metric, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.asked = self.query.asked  # which is parsed once, and not for each event

    @property
    def held(self) -> int:
        """How many rows or groups are kept, or events behind them, whichever are more."""
        return max(len(self.rows), len(self.groups), len(self.sources))

    def add(self, order: Order, found: dict[str, Plain], source: Source) -> None:
        query = self.query
        if not query.metrics:
            self.rows.append((order, found, source))
            self.weight += weigh(found)
            if query.limit is not None and len(self.rows) > 2 * query.limit + 1_000:
                self.shorten()
            return
        self.count(found)
        if query.evidence.mode != "none":
            self.sources.append(source)

    def count(self, found: dict[str, Plain]) -> None:
        """Take an event into its group."""
        keys = [found[name] for name in self.query.group_by]
        text = written(keys)
        group = self.groups.get(text)
        if group is None:
            group = self.groups[text] = keys, [PartialCounts() for _ in self.asked]
            self.weight += len(text)
        for metric, tally in zip(self.asked, group[1], strict=True):
            self.weight += tally.add(metric, None if metric.of is None else found[metric.of])

    def shorten(self) -> None:
        """In order, and no longer than the answer may be."""
        if self.query.limit is None:
            self.rows.sort(key=lambda row: row[0])
        else:
            self.rows = heapq.nsmallest(self.query.limit, self.rows, key=lambda row: row[0])
            self.weight = sum(weigh(found) for _, found, _ in self.rows)

    def merge(self, other: "Partial") -> None:
        self.rows += other.rows
        self.weight += sum(weigh(found) for _, found, _ in other.rows)
        self.sources += other.sources
        self.read += other.read
        for text, (keys, tallies) in other.groups.items():
            if text not in self.groups:
                self.groups[text] = keys, tallies
                self.weight += len(text) + sum(tally.weight for tally in tallies)
                continue
            for metric, mine, theirs in zip(self.asked, self.groups[text][1], tallies, strict=True):
                self.weight += mine.merge(metric, theirs)

    def encode(self) -> bytes:
        self.shorten()
        groups = [[keys, [tally.plain() for tally in tallies]] for keys, tallies in self.groups.values()]
        return json.dumps([self.rows, groups, self.sources, self.read]).encode()


def decode(query: EventQuery, data: bytes) -> Partial:
    rows, groups, sources, read = json.loads(data)
    made = Partial(query, [(tuple(order), found, tuple(source)) for order, found, source in rows], read=read)
    made.sources = [tuple(source) for source in sources]
    made.groups = {written(keys): (keys, [PartialCounts.of(one) for one in tallies]) for keys, tallies in groups}
    return made


def whole(query: EventQuery, parts: Iterable[Partial], watch: QueryWatch = UNWATCHED) -> Partial:
    """All parts as one, with its rows in order."""
    made = Partial(query)
    for part in parts:
        made.merge(part)
        watch.on(made.held, made.weight)
    made.shorten()
    return made


def grouped(part: Partial) -> list[dict[str, Plain]]:
    """The rows of an answer in groups, by their keys. Without group_by there is one row, also over nothing."""
    query = part.query
    groups = list(part.groups.values())
    if not groups and not query.group_by:
        groups = [([], [PartialCounts() for _ in query.metrics])]
    groups.sort(key=lambda group: [rank(key) for key in group[0]])
    made = []
    for keys, tallies in groups[: query.limit]:
        row = dict(zip(query.group_by, keys, strict=True))
        row |= {metric.name: tally.result(metric) for metric, tally in zip(query.asked, tallies, strict=True)}
        made.append(row)
    return made
