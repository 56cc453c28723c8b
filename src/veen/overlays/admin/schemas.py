"""META0+: a registry of schemas, and which of them a stream uses. 001, spec-2 §7.

A schema is known by the 32 bytes that `payload_hdr.schema` carries. Its descriptor is the one with the greatest
(`ts`, place); `describe` goes on from the time that is there, so clocks need not agree.

Two ways to make the 32 bytes from a name are in use: the hash of the name, and the hash of the name after a prefix. The
registry takes any, since only the use of a schema can show that an id is right, and says where the name does not fit.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from veen.core import cbor, naming
from veen.core.cbor import Bstr, Text, Uint
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.admin.admin_records import AdminRecord, RecordOverlay, Records, States, only
from veen.overlays.entry import At, FoldEntry
from veen.overlays.event import Event
from veen.overlays.fields import body

PROFILE_PREFIX = "veen/schema:"  # of the operation profiles: spec-3


@dataclass(frozen=True, slots=True)
class SchemaDescriptor(Event):
    """`veen.meta.schema.v1`. `owner` is the public key of a principal or an organisation."""

    schema_id: bytes
    name: str
    version: str
    doc_url: str | None = None
    owner: bytes | None = None
    ts: int = 0

    SCHEMA: ClassVar = naming.schema_id("veen.meta.schema.v1")
    LAYOUT: ClassVar = body(
        "veen.meta.schema.v1",
        Bstr("schema_id"),
        Text("name", MAX_BODY_BYTES),
        Text("version", MAX_BODY_BYTES),
        Text("doc_url", MAX_BODY_BYTES, optional=True),
        Bstr("owner", optional=True),
        Uint("ts"),
    )

    def fits(self) -> bool:
        """Whether the id follows from the name, in one of the ways in use."""
        return self.schema_id in (naming.schema_id(self.name), naming.schema_id(PROFILE_PREFIX + self.name))


class Schemas(RecordOverlay[SchemaDescriptor]):
    """One part per schema id."""

    CLASS = "meta.schema"
    EVENTS = (SchemaDescriptor,)

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, SchemaDescriptor)
        return (event.schema_id,)

    def effective(self, records: Records[SchemaDescriptor]) -> Records[SchemaDescriptor]:
        return (max(records, key=lambda record: (record.event.ts, record.at)),) if records else ()

    def ignored_reason(self, standing: Records[SchemaDescriptor], record: AdminRecord[SchemaDescriptor]) -> str:
        return f"entry {standing[0].stream_seq} was registered at a later time"

    def plain(self, part: bytes, state: Records[SchemaDescriptor]) -> Mapping[str, cbor.Value]:
        (record,) = state
        said = record.event
        return {
            "schema_id": part,
            "name": said.name,
            "version": said.version,
            "doc_url": said.doc_url,
            "owner": said.owner,
            "ts": said.ts,
            "name_fits": said.fits(),
            **record.where(),
        }


SCHEMAS = Schemas()


def descriptor(states: States[SchemaDescriptor], schema_id: bytes) -> SchemaDescriptor | None:
    """The mapping of §7.2: what is registered for an id."""
    record = only(states, schema_id)
    return record.event if record else None


def by_name(states: States[SchemaDescriptor], name: str) -> Iterator[SchemaDescriptor]:
    """What is registered under a name: more than one where ids compete for it."""
    return (said for part in sorted(states) if (said := descriptor(states, part)) and said.name == name)


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
    """The event that registers a schema, no earlier than what is registered already."""
    schema = naming.schema_id(name) if schema_id is None else schema_id
    there = descriptor(states, schema)
    return SchemaDescriptor(schema, name, version, doc_url, owner, max(ts, there.ts if there else 0))


@dataclass(frozen=True, slots=True)
class SchemaUse:
    """How a stream uses a schema: how often, and between which places."""

    count: int
    first: At
    last: At


def uses(
    entries: Iterable[FoldEntry], earlier: Mapping[bytes | None, SchemaUse] | None = None
) -> dict[bytes | None, SchemaUse]:
    """Which schemas the entries of a stream have; under None, those that could not be opened.

    `earlier` is what the entries before these came to.
    """
    found = dict(earlier or {})
    for entry in entries:
        schema = entry.header.schema if entry.header else None
        before = found.get(schema)
        found[schema] = (
            SchemaUse(before.count + 1, before.first, entry.at) if before else SchemaUse(1, entry.at, entry.at)
        )
    return found
