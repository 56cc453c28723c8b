"""The audit events of a bridge, logged on one stream per zone. 001, AGB0 §4.5–4.6.

An imported message has exactly the payload bytes of the original and names the original as its `parent_id`. The intake,
which is logged before the message, contains the original's receipt and writer.
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import ClassVar, Self

from veen.core import Msg, Receipt, naming
from veen.core.cbor import Array, Bstr, ListOf, Nested, Text, Uint, Wire
from veen.core.limits import MAX_BODY_BYTES, MAX_TEXT_BYTES
from veen.overlays.event import Event
from veen.overlays.fields import body

ONLINE_LOG = "bridge/online/log"
OFFLINE_LOG = "bridge/offline/log"
MAX_RANGES = 1_000


class BridgeResult(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class BundleExported(Event):
    """`bridge.export.v1`: a bundle was made."""

    bundle_id: bytes
    bundle_hash: bytes  # of the whole file
    source_hub_id: bytes
    export_stream: str
    epoch: int
    export_seq_from: int
    export_seq_to: int
    event_count: int
    export_checkpoint_id: bytes
    operator: str

    NAME: ClassVar = "bridge.export.v1"
    SCHEMA: ClassVar = naming.schema_id(NAME)
    LAYOUT: ClassVar = body(
        NAME,
        Bstr("bundle_id"),
        Bstr("bundle_hash"),
        Bstr("source_hub_id"),
        Text("export_stream", MAX_TEXT_BYTES),
        Uint("epoch"),
        Uint("export_seq_from", least=1),
        Uint("export_seq_to", least=1),
        Uint("event_count", least=1),
        Bstr("export_checkpoint_id"),
        Text("operator", MAX_TEXT_BYTES),
    )

    def flaw(self) -> str | None:
        return range_flaw(self.export_seq_from, self.export_seq_to, self.event_count)


@dataclass(frozen=True, slots=True)
class EventOrigin(Wire):
    """The receipt of an imported event's original, and the inputs of its leaf_hash.

    `client_id` is an input of `leaf_hash`, so the hub's signature on the receipt also covers the writer of the
    original.
    """

    receipt: Receipt
    profile_id: bytes
    client_id: bytes
    client_seq: int
    ct_hash: bytes

    LAYOUT: ClassVar = Array(
        "origin",
        Nested("receipt", Receipt),
        Bstr("profile_id"),
        Bstr("client_id"),
        Uint("client_seq"),
        Bstr("ct_hash"),
    )

    def flaw(self) -> str | None:
        found = naming.leaf_hash(self.receipt.label, self.profile_id, self.ct_hash, self.client_id, self.client_seq)
        return None if found == self.receipt.leaf_hash else "the receipt does not match this client's message"

    @classmethod
    def of(cls, message: Msg, receipt: Receipt) -> Self:
        return cls(receipt, message.profile_id, message.client_id, message.client_seq, message.ct_hash)

    @property
    def msg_id(self) -> bytes:
        return self.receipt.leaf_hash


ORIGIN_BYTES = 400  # approximate encoded size of one origin
MAX_ORIGINS = MAX_BODY_BYTES // ORIGIN_BYTES


@dataclass(frozen=True, slots=True)
class BundleIntake(Event):
    """`bridge.intake.v1`: a bundle was verified and its events are about to be written. Lists some of their origins.

    `position` is the position of the first listed origin in the bundle, from 1. A bundle with a logged intake but no
    logged import is partially imported.
    """

    bundle_id: bytes
    source_hub_id: bytes
    export_stream: str
    epoch: int
    export_seq_from: int
    export_seq_to: int
    event_count: int
    import_stream: str
    position: int
    origins: tuple[EventOrigin, ...]

    NAME: ClassVar = "bridge.intake.v1"
    SCHEMA: ClassVar = naming.schema_id(NAME)
    LAYOUT: ClassVar = body(
        NAME,
        Bstr("bundle_id"),
        Bstr("source_hub_id"),
        Text("export_stream", MAX_TEXT_BYTES),
        Uint("epoch"),
        Uint("export_seq_from", least=1),
        Uint("export_seq_to", least=1),
        Uint("event_count", least=1),
        Text("import_stream", MAX_TEXT_BYTES),
        Uint("position", least=1),
        ListOf("origins", Nested("origin", EventOrigin), most=MAX_ORIGINS, least=1),
    )

    def flaw(self) -> str | None:
        flaw = range_flaw(self.export_seq_from, self.export_seq_to, self.event_count)
        if flaw is not None:
            return flaw
        if self.position + len(self.origins) - 1 > self.event_count:
            return "there are more origins than events in the bundle"
        first = self.export_seq_from + self.position - 1
        seqs = [one.receipt.stream_seq for one in self.origins]
        return None if seqs == list(range(first, first + len(seqs))) else "the origins do not match position"


@dataclass(frozen=True, slots=True)
class TargetRange(Wire):
    """The places of imported events in the import stream, in one epoch."""

    epoch: int
    seq_from: int
    seq_to: int

    LAYOUT: ClassVar = Array("target range", Uint("epoch"), Uint("seq_from", least=1), Uint("seq_to", least=1))

    def flaw(self) -> str | None:
        return None if self.seq_from <= self.seq_to else "the range ends before it begins"


@dataclass(frozen=True, slots=True)
class BundleImported(Event):
    """`bridge.import.v1`: the result of an import. A failure has the reason and the position of the failing event.

    `excluded` lists the source sequence numbers that the importer's `policy` left out.
    """

    bundle_id: bytes
    bundle_hash: bytes
    import_stream: str
    targets: tuple[TargetRange, ...]
    event_count: int
    result: str
    operator: str
    error_code: str | None = None
    reason: str | None = None
    position: int | None = None
    excluded: tuple[int, ...] | None = None
    policy: str | None = None

    NAME: ClassVar = "bridge.import.v1"
    SCHEMA: ClassVar = naming.schema_id(NAME)
    LAYOUT: ClassVar = body(
        NAME,
        Bstr("bundle_id"),
        Bstr("bundle_hash"),
        Text("import_stream", MAX_TEXT_BYTES),
        ListOf("targets", Nested("target range", TargetRange), most=MAX_RANGES),
        Uint("event_count"),
        Text("result", MAX_TEXT_BYTES),
        Text("operator", MAX_TEXT_BYTES),
        Text("error_code", MAX_TEXT_BYTES, optional=True),
        Text("reason", MAX_TEXT_BYTES, optional=True),
        Uint("position", least=1, optional=True),
        ListOf("excluded", Uint("seq", least=1), most=MAX_BODY_BYTES, least=1, optional=True),
        Text("policy", MAX_TEXT_BYTES, optional=True),
    )

    def flaw(self) -> str | None:
        if self.result not in BridgeResult.__members__.values():
            return f"unknown result {self.result!r}"
        if self.result == BridgeResult.SUCCESS and self.error_code is not None:
            return "a successful import must not have an error_code"
        if any(a >= b for a, b in pairwise(self.excluded or ())):
            return "excluded is not in ascending order"
        return None


def range_flaw(first: int, last: int, count: int) -> str | None:
    """Why a range of a stream is invalid, or None."""
    if first > last:
        return "the range ends before it begins"
    return None if last - first + 1 == count else f"event_count is {count}, but the range is {first} to {last}"
