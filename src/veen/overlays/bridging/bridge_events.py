"""What a bridge writes down of itself, in each zone on a stream of its own. 001, AGB0 §4.5–4.6.

An imported message has the payload of the original, byte for byte, and names it as its `parent_id`. What else belongs
to it is in the intake that was logged before it: the original's receipt and who wrote it.
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
    """How an import ended."""

    SUCCESS = "success"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class BundleExported(Event):
    """`bridge.export.v1`: a bundle was made."""

    bundle_id: bytes
    bundle_hash: bytes  # of the file, byte for byte
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
    """Where an imported event comes from: the receipt of the original, and what its leaf_hash is made of.

    The hub that signed the receipt signed for who wrote the original: `client_id` is part of `leaf_hash`.
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
        return None if found == self.receipt.leaf_hash else "the receipt is not that of this client's message"

    @classmethod
    def of(cls, message: Msg, receipt: Receipt) -> Self:
        return cls(receipt, message.profile_id, message.client_id, message.client_seq, message.ct_hash)

    @property
    def msg_id(self) -> bytes:
        return self.receipt.leaf_hash


# An origin takes about this much of a body.
ORIGIN_BYTES = 400
MAX_ORIGINS = MAX_BODY_BYTES // ORIGIN_BYTES


@dataclass(frozen=True, slots=True)
class BundleIntake(Event):
    """`bridge.intake.v1`: a bundle was verified and its events are about to be written; some of their origins.

    `position` is that of the first origin in the bundle, from 1. A bundle whose intake is logged and whose import is
    not is half imported.
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
        wrong = range_flaw(self.export_seq_from, self.export_seq_to, self.event_count)
        if wrong is not None:
            return wrong
        if self.position + len(self.origins) - 1 > self.event_count:
            return "it has more origins than the bundle has events"
        first = self.export_seq_from + self.position - 1
        seqs = [one.receipt.stream_seq for one in self.origins]
        return None if seqs == list(range(first, first + len(seqs))) else "its origins are not those at its position"


@dataclass(frozen=True, slots=True)
class TargetRange(Wire):
    """Where events went to: places of the import stream, in one epoch."""

    epoch: int
    seq_from: int
    seq_to: int

    LAYOUT: ClassVar = Array("target range", Uint("epoch"), Uint("seq_from", least=1), Uint("seq_to", least=1))

    def flaw(self) -> str | None:
        return None if self.seq_from <= self.seq_to else "it ends before it begins"


@dataclass(frozen=True, slots=True)
class BundleImported(Event):
    """`bridge.import.v1`: how an import ended. Of a failure: what is wrong, and at which event of the bundle.

    `excluded` are source numbers that a policy of the importer left out, which it names.
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
            return f"there is no result {self.result!r}"
        if self.result == BridgeResult.SUCCESS and self.error_code is not None:
            return "a success has no error_code"
        if any(a >= b for a, b in pairwise(self.excluded or ())):
            return "what is excluded is not in order"
        return None


def range_flaw(first: int, last: int, count: int) -> str | None:
    """Why a range of a stream is none."""
    if first > last:
        return "it ends before it begins"
    return None if last - first + 1 == count else f"{count} events are not those from {first} to {last}"
