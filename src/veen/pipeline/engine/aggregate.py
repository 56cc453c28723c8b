"""Partial answers and their merge. The result does not depend on order or grouping."""

import heapq
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from veen.pipeline.decoding.decoder import Plain, to_json
from veen.pipeline.engine.event_query import EventQuery, Metric


def _ignore(held: int, weight: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class QueryWatch:
    """`on` is called regularly with the rows and bytes held; an exception from it stops the query.

    A Spark worker cannot call it. A worker stops by itself at `max_held` or `max_bytes`; `on` sees that at the merge.
    """

    on: Callable[[int, int], None] = _ignore
    max_held: int | None = None
    max_bytes: int | None = None

    def exceeded(self, held: int, weight: int) -> bool:
        too_many = self.max_held is not None and held > self.max_held
        return too_many or (self.max_bytes is not None and weight > self.max_bytes)


UNWATCHED = QueryWatch()


Order = tuple[int, str, int, str]  # hub_ts, stream, stream_seq, label in hex
Source = tuple[str, str, int, str, str]  # stream, label, stream_seq, msg_id, mmr_root of an event
Rank = tuple[int, float | int | str, str]


def weigh(value: Plain) -> int:
    """A lower bound of the JSON size in bytes, close to it. Called for every stored value, so it must be cheap."""
    if isinstance(value, str):
        return len(value) + 2
    if isinstance(value, dict):
        return 2 + sum(len(name) + 3 + weigh(one) for name, one in value.items())
    if isinstance(value, list):
        return 2 + sum(map(weigh, value))
    return 1


def rank(value: Plain) -> Rank:
    """A total order of all values: null, booleans, numbers, strings, then the rest by their JSON text."""
    match value:
        case None:
            return 0, 0, ""
        case bool():
            return 1, int(value), ""
        case int() | float():
            return 2, value, to_json(value)
        case str():
            return 3, value, ""
    return 4, to_json(value), ""


@dataclass(slots=True)
class PartialCounts:
    """The running value of a metric."""

    count: int = 0
    best: Plain = None
    total: Fraction | int = 0
    whole: bool = True  # only integers were added
    values: set[str] = field(default_factory=set)

    def add(self, metric: Metric, value: Plain) -> int:
        """Add a value. Returns the increase in weight."""
        if metric.kind == "count":
            self.count += 1
        elif value is None:
            return 0
        elif metric.kind == "distinct":
            return self._add_distinct({to_json(value)})
        elif metric.kind != "sum":
            return self._take_best(metric, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            self.count += 1
            self.total += value if isinstance(value, int) else Fraction(value)
            self.whole = self.whole and isinstance(value, int)
        return 0

    def merge(self, metric: Metric, other: "PartialCounts") -> int:
        """Merge another value. Returns the increase in weight."""
        self.count += other.count
        self.total += other.total
        self.whole = self.whole and other.whole
        return self._add_distinct(other.values) + (0 if other.best is None else self._take_best(metric, other.best))

    @property
    def weight(self) -> int:
        return sum(map(len, self.values)) + (0 if self.best is None else weigh(self.best))

    def _add_distinct(self, texts: set[str]) -> int:
        new = texts - self.values
        self.values |= new
        return sum(map(len, new))

    def _take_best(self, metric: Metric, value: Plain) -> int:
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
                # The sum is exact in any order, and rounded once.
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
    """Rows or groups from some files."""

    query: EventQuery
    rows: list[tuple[Order, dict[str, Plain], Source]] = field(default_factory=list)
    groups: dict[str, tuple[list[Plain], list[PartialCounts]]] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)  # events behind the groups, if evidence is requested
    read: int = 0
    weight: int = 0  # bytes held
    parsed_metrics: tuple[Metric, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.parsed_metrics = self.query.parsed_metrics  # parsed once instead of for each event

    @property
    def held(self) -> int:
        """The number of rows, groups or source events held, whichever is largest."""
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
        """Add an event to its group."""
        keys = [found[name] for name in self.query.group_by]
        text = to_json(keys)
        group = self.groups.get(text)
        if group is None:
            group = self.groups[text] = keys, [PartialCounts() for _ in self.parsed_metrics]
            self.weight += len(text)
        for metric, tally in zip(self.parsed_metrics, group[1], strict=True):
            self.weight += tally.add(metric, None if metric.of is None else found[metric.of])

    def shorten(self) -> None:
        """Sort the rows, and drop those beyond the limit."""
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
            for metric, mine, theirs in zip(self.parsed_metrics, self.groups[text][1], tallies, strict=True):
                self.weight += mine.merge(metric, theirs)

    def encode(self) -> bytes:
        self.shorten()
        groups = [[keys, [tally.plain() for tally in tallies]] for keys, tallies in self.groups.values()]
        return json.dumps([self.rows, groups, self.sources, self.read]).encode()


def decode(query: EventQuery, data: bytes) -> Partial:
    rows, groups, sources, read = json.loads(data)
    made = Partial(query, [(tuple(order), found, tuple(source)) for order, found, source in rows], read=read)
    made.sources = [tuple(source) for source in sources]
    made.groups = {to_json(keys): (keys, [PartialCounts.of(one) for one in tallies]) for keys, tallies in groups}
    return made


def whole(query: EventQuery, parts: Iterable[Partial], watch: QueryWatch = UNWATCHED) -> Partial:
    """Merge all parts, with rows in order."""
    made = Partial(query)
    for part in parts:
        made.merge(part)
        watch.on(made.held, made.weight)
    made.shorten()
    return made


def grouped(part: Partial) -> list[dict[str, Plain]]:
    """The rows of a grouped answer, by key. Without group_by there is exactly one row, even without events."""
    query = part.query
    groups = list(part.groups.values())
    if not groups and not query.group_by:
        groups = [([], [PartialCounts() for _ in query.metrics])]
    groups.sort(key=lambda group: [rank(key) for key in group[0]])
    made = []
    for keys, tallies in groups[: query.limit]:
        row = dict(zip(query.group_by, keys, strict=True))
        row |= {metric.name: tally.result(metric) for metric, tally in zip(query.parsed_metrics, tallies, strict=True)}
        made.append(row)
    return made
