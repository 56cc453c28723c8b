"""The audit events of a bridge, logged on one stream per zone. 001, AGB0 §4.5–4.6.

An imported message has exactly the payload bytes of the original and names the original as its `parent_id`. The intake,
which is logged before the message, contains the original's receipt and writer.
"""

from enum import StrEnum
from itertools import pairwise
from typing import Annotated, ClassVar, Self

from veen.core import Msg, Receipt, naming
from veen.core.cbor import Bstr, ListOf, Nested, Text, Uint, Wire, array
from veen.core.limits import MAX_BODY_BYTES, MAX_TEXT_BYTES
from veen.overlays.event import Event, event

ONLINE_LOG = "bridge/online/log"
OFFLINE_LOG = "bridge/offline/log"
MAX_RANGES = 1_000


class BridgeResult(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"


@event("bridge.export.v1")
class BundleExported(Event):
    """`bridge.export.v1`: a bundle was made."""

    bundle_id: Annotated[bytes, Bstr()]
    bundle_hash: Annotated[bytes, Bstr()]  # of the whole file
    source_hub_id: Annotated[bytes, Bstr()]
    export_stream: Annotated[str, Text(MAX_TEXT_BYTES)]
    epoch: Annotated[int, Uint()]
    export_seq_from: Annotated[int, Uint(least=1)]
    export_seq_to: Annotated[int, Uint(least=1)]
    event_count: Annotated[int, Uint(least=1)]
    export_checkpoint_id: Annotated[bytes, Bstr()]
    operator: Annotated[str, Text(MAX_TEXT_BYTES)]

    NAME: ClassVar = "bridge.export.v1"

    def flaw(self) -> str | None:
        return range_flaw(self.export_seq_from, self.export_seq_to, self.event_count)


@array("origin")
class EventOrigin(Wire):
    """The receipt of an imported event's original, and the inputs of its leaf_hash.

    `client_id` is an input of `leaf_hash`, so the hub's signature on the receipt also covers the writer of the
    original.
    """

    receipt: Annotated[Receipt, Nested(Receipt)]
    profile_id: Annotated[bytes, Bstr()]
    client_id: Annotated[bytes, Bstr()]
    client_seq: Annotated[int, Uint()]
    ct_hash: Annotated[bytes, Bstr()]

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


@event("bridge.intake.v1")
class BundleIntake(Event):
    """`bridge.intake.v1`: a bundle was verified and its events are about to be written. Lists some of their origins.

    `position` is the position of the first listed origin in the bundle, from 1. A bundle with a logged intake but no
    logged import is partially imported.
    """

    bundle_id: Annotated[bytes, Bstr()]
    source_hub_id: Annotated[bytes, Bstr()]
    export_stream: Annotated[str, Text(MAX_TEXT_BYTES)]
    epoch: Annotated[int, Uint()]
    export_seq_from: Annotated[int, Uint(least=1)]
    export_seq_to: Annotated[int, Uint(least=1)]
    event_count: Annotated[int, Uint(least=1)]
    import_stream: Annotated[str, Text(MAX_TEXT_BYTES)]
    position: Annotated[int, Uint(least=1)]
    origins: Annotated[tuple[EventOrigin, ...], ListOf(Nested(EventOrigin, name="origin"), most=MAX_ORIGINS, least=1)]

    NAME: ClassVar = "bridge.intake.v1"

    def flaw(self) -> str | None:
        flaw = range_flaw(self.export_seq_from, self.export_seq_to, self.event_count)
        if flaw is not None:
            return flaw
        if self.position + len(self.origins) - 1 > self.event_count:
            return "there are more origins than events in the bundle"
        first = self.export_seq_from + self.position - 1
        seqs = [one.receipt.stream_seq for one in self.origins]
        return None if seqs == list(range(first, first + len(seqs))) else "the origins do not match position"


@array("target range")
class TargetRange(Wire):
    """The places of imported events in the import stream, in one epoch."""

    epoch: Annotated[int, Uint()]
    seq_from: Annotated[int, Uint(least=1)]
    seq_to: Annotated[int, Uint(least=1)]

    def flaw(self) -> str | None:
        return None if self.seq_from <= self.seq_to else "the range ends before it begins"


@event("bridge.import.v1")
class BundleImported(Event):
    """`bridge.import.v1`: the result of an import. A failure has the reason and the position of the failing event.

    `excluded` lists the source sequence numbers that the importer's `policy` left out.
    """

    bundle_id: Annotated[bytes, Bstr()]
    bundle_hash: Annotated[bytes, Bstr()]
    import_stream: Annotated[str, Text(MAX_TEXT_BYTES)]
    targets: Annotated[tuple[TargetRange, ...], ListOf(Nested(TargetRange, name="target range"), most=MAX_RANGES)]
    event_count: Annotated[int, Uint()]
    result: Annotated[str, Text(MAX_TEXT_BYTES)]
    operator: Annotated[str, Text(MAX_TEXT_BYTES)]
    error_code: Annotated[str | None, Text(MAX_TEXT_BYTES, optional=True)] = None
    reason: Annotated[str | None, Text(MAX_TEXT_BYTES, optional=True)] = None
    position: Annotated[int | None, Uint(least=1, optional=True)] = None
    excluded: Annotated[
        tuple[int, ...] | None, ListOf(Uint(name="seq", least=1), most=MAX_BODY_BYTES, least=1, optional=True)
    ] = None
    policy: Annotated[str | None, Text(MAX_TEXT_BYTES, optional=True)] = None

    NAME: ClassVar = "bridge.import.v1"

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
