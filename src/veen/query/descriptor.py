"""QueryDescriptor: a query in normal form, so that the hash of its text identifies it. 001, query-api-spec §4.

`time` is hub_commit_time, from `from` (inclusive) to `to` (exclusive). Unknown fields are rejected, never ignored: a
filter that is not applied would answer another query.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from veen.core import Malformed, canonical_json
from veen.core.canonical_json import Plain
from veen.core.hashing import h
from veen.pipeline.engine import EventQuery, EvidencePolicy
from veen.query.query_errors import QueryCode, QueryFault, invalid

_FORM = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,3}))?Z", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = 1000


def parse_time(text: str) -> int:
    """Milliseconds since 1970. Raises `ValueError` for another format or a time before 1970."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError("not of the form YYYY-MM-DDTHH:MM:SSZ with at most three decimal places")
    moment = datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
    if moment < _EPOCH:
        raise ValueError("before 1970")
    return int((moment - _EPOCH).total_seconds()) * _MS + int((found[2] or "0").ljust(3, "0"))


def time_text(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, _MS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03}Z"


def ceil_seconds(milliseconds: int | None) -> int | None:
    """Round up to a whole second, since hub_commit_time has no fractions."""
    return None if milliseconds is None else -(-milliseconds // _MS)


VERSION = 1
MAX_DESCRIPTOR_BYTES = 32_768
MAX_LISTED = 256
ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$"
_ID = re.compile(ID_PATTERN, re.ASCII)
_REQUIRED = ("scope", "filter", "projection", "evidence")
_KNOWN = {"query_id", "version", *_REQUIRED, "aggregate", "meta"}
_WHOLE_PAYLOAD = "payload.*"
_RESULT = b"veen/query/result/"


@dataclass(frozen=True, slots=True)
class QueryDescriptor:
    """A valid query. The rules of the engine apply too."""

    query_id: str
    scope: tuple[str, ...]
    subject_id: str | None
    event_types: tuple[str, ...] | None
    time_from: int | None  # milliseconds
    time_to: int | None
    projection: tuple[str, ...]
    aggregate: tuple[tuple[str, ...], tuple[str, ...]] | None  # group_by, metrics
    evidence: EvidencePolicy
    meta: str | None = None  # canonical JSON of an object

    def plain(self) -> dict[str, Plain]:
        """The normal form."""
        made: dict[str, Plain] = {
            "query_id": self.query_id,
            "version": VERSION,
            "scope": list(self.scope),
            "filter": {
                "subject_id": self.subject_id,
                "event_type": None if self.event_types is None else list(self.event_types),
                "time": {"from": _time_text(self.time_from), "to": _time_text(self.time_to)},
            },
            "projection": list(self.projection),
            "evidence": policy(self.evidence),
        }
        if self.aggregate is not None:
            made["aggregate"] = {"group_by": list(self.aggregate[0]), "metrics": list(self.aggregate[1])}
        if self.meta is not None:
            made["meta"] = canonical_json.decode(self.meta.encode(), "meta")
        return made

    def text(self) -> str:
        """The normal form as canonical JSON."""
        return canonical_json.encode(self.plain()).decode()

    @property
    def result_id(self) -> str:
        """Derived from the query, which is executed once. The same in every zone."""
        return result_id_of(self.text())

    def query(self) -> EventQuery:
        """The query for the engine."""
        group_by, metrics = self.aggregate or ((), ())
        return EventQuery(
            scope=self.scope,
            subject_id=self.subject_id,
            event_types=self.event_types,
            time_from=ceil_seconds(self.time_from),
            time_to=ceil_seconds(self.time_to),
            projection=self.projection,
            group_by=group_by,
            metrics=metrics,
            evidence=self.evidence,
        )


def result_id_of(text: str) -> str:
    """The id of the result of a query, from its normal form."""
    return f"r-{h(_RESULT + text.encode()).hex()[:32]}"


def decode(text: str) -> QueryDescriptor:
    """Decode a recorded descriptor, which must be in normal form. Raises `Malformed`."""
    try:
        found = normalise(canonical_json.decode(text.encode(), "query descriptor"), "")
    except QueryFault as fault:
        raise Malformed("query descriptor", fault.message) from None
    if found.text() != text:
        raise Malformed("query descriptor", "it is not in normal form")
    return found


def parse(data: bytes) -> Plain:
    """Parse the JSON of a request. Raises `QueryFault`."""
    try:
        return canonical_json.parse(data, "body")
    except Malformed as error:
        raise QueryFault(QueryCode.INVALID_JSON, error.reason) from None


def normalise(value: Plain, new_id: str) -> QueryDescriptor:
    """Normalise a client's query. `new_id` is used if it has no query_id. Raises `QueryFault`."""
    given = _object(value, "a query descriptor", _KNOWN)
    version = given.get("version", VERSION)
    if isinstance(version, bool) or not isinstance(version, int):
        raise invalid("version is not an integer")
    if version != VERSION:
        raise QueryFault(QueryCode.UNSUPPORTED_VERSION, f"version is {version}, supported is {VERSION}")
    missing = [name for name in _REQUIRED if name not in given]
    if missing:
        raise invalid(f"{missing[0]} is missing")
    filters = _object(given["filter"], "filter", {"subject_id", "event_type", "time"})
    window = _object(filters.get("time") or {}, "filter.time", {"from", "to"})
    event_type = filters.get("event_type")
    made = QueryDescriptor(
        query_id=_query_id(given.get("query_id"), new_id),
        scope=tuple(sorted(set(_texts(given["scope"], "scope", least=1)))),
        subject_id=_text_or_none(filters.get("subject_id"), "filter.subject_id"),
        event_types=None if event_type is None else tuple(sorted(set(_texts(event_type, "filter.event_type")))),
        time_from=_time(window.get("from"), "filter.time.from"),
        time_to=_time(window.get("to"), "filter.time.to"),
        projection=_projection(given["projection"]),
        aggregate=_aggregate(given.get("aggregate")),
        evidence=_evidence(given["evidence"]),
        meta=_meta(given.get("meta")),
    )
    if made.time_from is not None and made.time_to is not None and made.time_from > made.time_to:
        raise invalid("filter.time ends before it begins")
    _check(made)
    return made


def policy(evidence: EvidencePolicy) -> dict[str, Plain]:
    """An evidence policy in normal form."""
    if evidence.sample_rate is None:
        return {"mode": evidence.mode}
    return {"mode": evidence.mode, "sample_rate": evidence.sample_rate}


def _check(made: QueryDescriptor) -> None:
    try:
        made.query().check()
        if made.aggregate is not None and not made.aggregate[1]:
            raise invalid("aggregate.metrics is empty; use for example count")
        size = len(made.text().encode())
    except Malformed as error:
        raise invalid(error.reason) from None
    except ValueError as error:  # strings that are not valid Unicode
        raise invalid(str(error)) from None
    _check_size(size)


def _check_size(size: int) -> None:
    if size > MAX_DESCRIPTOR_BYTES:
        raise invalid(f"{size} bytes in normal form, more than {MAX_DESCRIPTOR_BYTES}")


def _object(value: Plain, what: str, known: set[str]) -> Mapping[str, Plain]:
    if not isinstance(value, dict):
        raise invalid(f"{what} is not an object")
    unknown = sorted(value.keys() - known)
    if unknown:
        raise invalid(f"{what} has an unknown field {unknown[0][:64]!r}")
    return value


def _query_id(value: Plain, new_id: str) -> str:
    if value is None and new_id:
        return new_id
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise invalid("query_id is not 1 to 64 letters, digits, dots, colons, hyphens or underscores")
    return value


def _texts(value: Plain, what: str, least: int = 0) -> list[str]:
    if not isinstance(value, list) or not least <= len(value) <= MAX_LISTED:
        raise invalid(f"{what} is not a list of {least} to {MAX_LISTED} strings")
    if not all(isinstance(one, str) and one for one in value):
        raise invalid(f"{what} contains a value that is not a non-empty string")
    return [str(one) for one in value]


def _text_or_none(value: Plain, what: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise invalid(f"{what} is not a string")


def _time(value: Plain, what: str) -> int | None:
    if value is None:
        return None
    try:
        return parse_time(value if isinstance(value, str) else "")
    except ValueError as error:
        raise invalid(f"{what} is {error}") from None


def _projection(value: Plain) -> tuple[str, ...]:
    named = _texts(value, "projection", least=1)
    return tuple("payload" if name == _WHOLE_PAYLOAD else name for name in named)


def _aggregate(value: Plain) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    if value is None:
        return None
    given = _object(value, "aggregate", {"group_by", "metrics"})
    group_by = _texts(given.get("group_by") or [], "aggregate.group_by")
    return tuple(group_by), tuple(_texts(given.get("metrics"), "aggregate.metrics", least=1))


def _evidence(value: Plain) -> EvidencePolicy:
    given = _object(value, "evidence", {"mode", "sample_rate"})
    mode, rate = given.get("mode"), given.get("sample_rate")
    if not isinstance(mode, str):
        raise invalid("evidence.mode is not a string")
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float)):
        raise invalid("evidence.sample_rate is not a number")
    return EvidencePolicy(mode, rate)


def _meta(value: Plain) -> str | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise invalid("meta is not an object")
    try:
        encoded = canonical_json.encode(value)
    except ValueError as error:
        raise invalid(f"meta: {error}") from None
    _check_size(len(encoded))  # before the whole query is encoded
    return encoded.decode()


def _time_text(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else time_text(milliseconds)
