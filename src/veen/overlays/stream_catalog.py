"""The class of data that a label holds (LCLASS0), and the registry of schemas (META0+). 001, spec-2 §6 and §7.

The last classification of a label in the log counts. It is advisory: a hub may ignore it and still be correct.

A schema id is the 32 bytes in `payload_hdr.schema`: the hash of the name, or of a prefix and the name. The registry
accepts any id, because only the use of a schema shows whether the id is right; `fits` reports a name that does not
match its id. The descriptor with the greatest (`ts`, place) counts. `describe` never goes back behind the registered
`ts`, so clocks need not agree.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from veen.core import cbor, naming
from veen.core.cbor import Bstr, Uint
from veen.overlays.admin_records import AdminRecord, RecordOverlay, Records, States, only
from veen.overlays.event import PROFILE_PREFIX, At, Event, FoldEntry, body_text, event


@event("veen.label.class.v1", keys={"class_": "class"})  # `class` is a Python keyword
class LabelClass(Event):
    """`veen.label.class.v1`. `retention_hint` is in seconds."""

    label: Annotated[bytes, Bstr()]
    class_: Annotated[str, body_text()]
    sensitivity: Annotated[str | None, body_text(optional=True)] = None
    retention_hint: Annotated[int | None, Uint(optional=True)] = None


class LabelClasses(RecordOverlay[LabelClass]):
    """One part per label."""

    CLASS = "label.class"
    EVENTS = (LabelClass,)
    PART = "label"

    def effective(self, records: Records[LabelClass]) -> Records[LabelClass]:
        return (max(records, key=lambda record: record.at),) if records else ()

    def plain(self, part: bytes, state: Records[LabelClass]) -> Mapping[str, cbor.Value]:
        (record,) = state
        event = record.event
        return {
            "label": part,
            "class": event.class_,
            "sensitivity": event.sensitivity,
            "retention_hint": event.retention_hint,
            **record.where(),
        }


LABEL_CLASSES = LabelClasses()


def class_of(states: States[LabelClass], label: bytes) -> LabelClass | None:
    """The classification of a label, or None."""
    record = only(states, label)
    return record.event if record else None


class RateClass(StrEnum):
    """The rate limit of a label relative to the other labels of its hub."""

    HIGHER = "higher"
    DEFAULT = "default"
    TIGHTER = "tighter"


@dataclass(frozen=True, slots=True)
class LabelPolicy:
    """Hints for a hub. None means the hub's own profile or retention applies."""

    pad_block: int | None = None
    rate: RateClass = RateClass.DEFAULT
    retention_sec: int | None = None


# Padding per class: (normal, sensitivity "high").
_PAD_BLOCKS: dict[str, tuple[int, int]] = {"user": (256, 1024), "wallet": (256, 1024), "log": (0, 0), "metric": (0, 0)}
_RATES = {"admin": RateClass.HIGHER, "control": RateClass.HIGHER, "bulk": RateClass.TIGHTER}


def policy(label_class: LabelClass | None) -> LabelPolicy:
    """The hints of §6.2. User data of high sensitivity gets the larger of the two paddings."""
    if label_class is None:
        return LabelPolicy()
    normal, sensitive = _PAD_BLOCKS.get(label_class.class_, (None, None))
    pad_block = sensitive if label_class.sensitivity == "high" else normal
    return LabelPolicy(pad_block, _RATES.get(label_class.class_, RateClass.DEFAULT), label_class.retention_hint)


@event("veen.meta.schema.v1")
class SchemaDescriptor(Event):
    """`veen.meta.schema.v1`. `owner` is the public key of a principal or an organisation."""

    schema_id: Annotated[bytes, Bstr()]
    name: Annotated[str, body_text()]
    version: Annotated[str, body_text()]
    doc_url: Annotated[str | None, body_text(optional=True)] = None
    owner: Annotated[bytes | None, Bstr(optional=True)] = None
    ts: Annotated[int, Uint()] = 0

    def fits(self) -> bool:
        """Whether the id is derived from the name, with or without the prefix."""
        return self.schema_id in (naming.schema_id(self.name), naming.schema_id(PROFILE_PREFIX + self.name))


class Schemas(RecordOverlay[SchemaDescriptor]):
    """One part per schema id."""

    CLASS = "meta.schema"
    EVENTS = (SchemaDescriptor,)
    PART = "schema_id"

    def effective(self, records: Records[SchemaDescriptor]) -> Records[SchemaDescriptor]:
        return (max(records, key=lambda record: (record.event.ts, record.at)),) if records else ()

    def ignored_reason(self, effective: Records[SchemaDescriptor], record: AdminRecord[SchemaDescriptor]) -> str:
        return f"entry {effective[0].stream_seq} has a later ts"

    def plain(self, part: bytes, state: Records[SchemaDescriptor]) -> Mapping[str, cbor.Value]:
        (record,) = state
        event = record.event
        return {
            "schema_id": part,
            "name": event.name,
            "version": event.version,
            "doc_url": event.doc_url,
            "owner": event.owner,
            "ts": event.ts,
            "name_fits": event.fits(),
            **record.where(),
        }


SCHEMAS = Schemas()


def descriptor(states: States[SchemaDescriptor], schema_id: bytes) -> SchemaDescriptor | None:
    """The descriptor registered for an id, or None. §7.2."""
    record = only(states, schema_id)
    return record.event if record else None


def by_name(states: States[SchemaDescriptor], name: str) -> Iterator[SchemaDescriptor]:
    """The descriptors registered under a name. There may be several with different ids."""
    return (found for part in sorted(states) if (found := descriptor(states, part)) and found.name == name)


def describe(
    states: States[SchemaDescriptor],
    name: str,
    version: str,
    *,
    ts: int,
    schema_id: bytes | None = None,
    doc_url: str | None = None,
    owner: bytes | None = None,
) -> SchemaDescriptor:
    """The event that registers a schema. Its `ts` is at least that of the registered descriptor."""
    schema = naming.schema_id(name) if schema_id is None else schema_id
    registered = descriptor(states, schema)
    return SchemaDescriptor(schema, name, version, doc_url, owner, max(ts, registered.ts if registered else 0))


@dataclass(frozen=True, slots=True)
class SchemaUse:
    """How often a stream uses a schema, and its first and last use."""

    count: int
    first: At
    last: At


def uses(
    entries: Iterable[FoldEntry], earlier: Mapping[bytes | None, SchemaUse] | None = None
) -> dict[bytes | None, SchemaUse]:
    """Count the schemas of a stream's entries. The key None counts sealed entries.

    `earlier` is the result for the entries before these.
    """
    found = dict(earlier or {})
    for entry in entries:
        schema = entry.header.schema if entry.header else None
        before = found.get(schema)
        found[schema] = (
            SchemaUse(before.count + 1, before.first, entry.at) if before else SchemaUse(1, entry.at, entry.at)
        )
    return found
