"""The export bundle: a range of a stream and its proofs, in one file that is named by its contents. 001, AGB0 §4.4.

Events travel as the hub stores them: sealed MSG and RECEIPT. A carrier of a bundle cannot read it. No field of a bundle
is trusted before `bundle_verify.verify` has checked it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Self

from veen.client.trust import HubRecord
from veen.core import (
    Checkpoint,
    HubIdentity,
    IdentitySignature,
    Malformed,
    MmrProof,
    Msg,
    Profile,
    Receipt,
    Unverified,
    naming,
)
from veen.core.cbor import Bstr, Constant, ListOf, Map, Nested, Text, Uint, VersionField, Wire
from veen.core.cbor.heads import BSTR, MAP, UINT, write_head, write_text
from veen.core.hashing import HASH_BYTES, h, ht
from veen.core.limits import MAX_PEAKS, MAX_TEXT_BYTES, WIRE_VERSION
from veen.core.origin import ForkOrigin


class BundleCode(StrEnum):
    """The check that a bundle failed, in the order of the checks."""

    MALFORMED = "malformed"  # the bytes do not decode as a bundle
    BUNDLE_ID = "bundle_id"  # bundle_id is not the hash of the contents
    SOURCE = "source"  # the hub is not trusted, or its metadata does not verify
    HEADER = "header"  # the header contradicts the contents
    CHECKPOINT = "checkpoint"  # the hub did not sign the checkpoint, or it belongs to another stream
    RECEIPT = "receipt"  # the hub did not sign a receipt, or it belongs to another message
    SIGNATURE = "signature"  # the client signature of a message is invalid
    ORDER = "order"  # events are missing, repeated or out of order
    PROOF = "proof"  # the events are not in the log of the checkpoint
    MAPPING = "mapping"  # no rule maps the export stream to an import stream
    SEALED = "sealed"  # an event cannot be opened
    ATTACHMENT = "attachment"  # an event has attachments, which a bundle does not carry
    DUPLICATE = "duplicate"  # it was imported before
    OVERLAP = "overlap"  # another bundle already delivered some of its events
    PARTIAL = "partial"  # another importer started it and has not finished
    REFUSED = "refused"  # the hub of this zone rejected an event


class BundleFault(Unverified):
    """A rejected bundle: the failed check and, if known, the position of the event, counted from 1."""

    def __init__(self, code: BundleCode, reason: str, position: int | None = None) -> None:
        super().__init__("bundle", reason if position is None else f"event {position}: {reason}")
        self.code = code
        self.position = position


KIND = "veen.bundle.v1"
SUFFIX = ".bundle"
MAX_BUNDLE_BYTES = 1 << 28
MAX_BUNDLE_EVENTS = 1 << 16
_TAG = "veen/bundle"


@dataclass(frozen=True, slots=True)
class Header(Wire):
    """Describes the bundle. Every field is redundant and is checked against the contents."""

    source_hub_id: bytes
    source_profile_id: str  # profile of the source stream, such as SDR0 for a recorder
    export_stream: str
    export_stream_id: bytes
    epoch: int
    export_seq_from: int
    export_seq_to: int
    export_time_from: int
    export_time_to: int

    LAYOUT: ClassVar = Map(
        "bundle header",
        {
            1: Bstr("source_hub_id"),
            2: Text("source_profile_id", MAX_TEXT_BYTES),
            3: Text("export_stream", MAX_TEXT_BYTES),
            4: Bstr("export_stream_id"),
            5: Uint("epoch"),
            6: Uint("export_seq_from", least=1),
            7: Uint("export_seq_to", least=1),
            8: Uint("export_time_from"),
            9: Uint("export_time_to"),
        },
    )

    def flaw(self) -> str | None:
        if self.export_seq_from > self.export_seq_to or self.export_time_from > self.export_time_to:
            return "the range ends before it begins"
        same = naming.stream_id(self.export_stream) == self.export_stream_id
        return None if same else "export_stream_id is not the id of export_stream"

    @property
    def count(self) -> int:
        return self.export_seq_to - self.export_seq_from + 1


@dataclass(frozen=True, slots=True)
class ExportCheckpoint(Wire):
    """The signed state of the log that the events come from."""

    root: bytes
    last_seq: int
    timestamp: int
    hub_public: bytes
    checkpoint: Checkpoint
    receipt: Receipt  # of the last entry: it signs time and root together

    LAYOUT: ClassVar = Map(
        "export checkpoint",
        {
            1: Bstr("root"),
            2: Uint("last_seq", least=1),
            3: Uint("timestamp"),
            4: Bstr("hub_public"),
            5: Nested("checkpoint", Checkpoint),
            6: Nested("receipt", Receipt),
        },
    )

    @property
    def checkpoint_id(self) -> bytes:
        """The digest that the hub signed."""
        return self.checkpoint.signing_digest()


@dataclass(frozen=True, slots=True)
class BundleEvent(Wire):
    """One event: the message its writer signed, and the hub's receipt."""

    msg: Msg
    receipt: Receipt

    LAYOUT: ClassVar = Map("carried event", {1: Nested("msg", Msg), 2: Nested("receipt", Receipt)})


@dataclass(frozen=True, slots=True)
class BundleProof(Wire):
    """Proves that the log of the checkpoint contains the events, in this order and without gaps.

    The peaks before the first event determine every following root, and `growth` connects the last one to the
    checkpoint: O(log n) hashes, however many events.
    """

    peaks_before: tuple[bytes, ...]
    growth: MmrProof

    LAYOUT: ClassVar = Map(
        "bundle proof",
        {1: ListOf("peaks_before", Bstr("peak"), most=MAX_PEAKS), 2: Nested("growth", MmrProof)},
    )


@dataclass(frozen=True, slots=True)
class BundleSource(Wire):
    """The hub metadata needed to verify the hub's signatures, once the hub id is trusted."""

    identity: HubIdentity
    signature: IdentitySignature
    profile: Profile
    origin: ForkOrigin | None = None  # set if the hub is a fork

    LAYOUT: ClassVar = Map(
        "bundle source",
        {
            1: Nested("identity", HubIdentity),
            2: Nested("signature", IdentitySignature),
            3: Nested("profile", Profile),
            4: Nested("origin", ForkOrigin, optional=True),
        },
    )

    @classmethod
    def of(cls, known: HubRecord) -> Self:
        return cls(known.identity, known.signature, known.profile, known.origin)


@dataclass(frozen=True, slots=True)
class Contents(Wire):
    """Everything that `bundle_id` hashes."""

    header: Header
    source: BundleSource
    export_checkpoint: ExportCheckpoint
    events: tuple[BundleEvent, ...]
    proof: BundleProof

    LAYOUT: ClassVar = Map(
        "bundle contents",
        {
            1: Nested("header", Header),
            2: Nested("source", BundleSource),
            3: Nested("export_checkpoint", ExportCheckpoint),
            4: ListOf("events", Nested("event", BundleEvent), most=MAX_BUNDLE_EVENTS, least=1),
            5: Nested("proof", BundleProof),
        },
    )

    def bundle_id(self) -> bytes:
        return ht(_TAG, self.encode())


@dataclass(frozen=True, slots=True)
class Bundle(Wire):
    """The file. The same events under the same checkpoint give the same bytes."""

    bundle_id: bytes
    contents: Contents

    LAYOUT: ClassVar = Map(
        "bundle",
        {1: Constant("kind", KIND), 2: VersionField(), 3: Bstr("bundle_id"), 4: Nested("contents", Contents)},
    )

    @classmethod
    def of(cls, contents: Contents) -> Self:
        return cls(contents.bundle_id(), contents)

    @property
    def header(self) -> Header:
        return self.contents.header

    @property
    def events(self) -> Sequence[BundleEvent]:
        return self.contents.events

    @property
    def name(self) -> str:
        return f"{self.bundle_id.hex()}{SUFFIX}"


# The bytes before the id. Kind and version are constant.
_BEFORE_ID = (
    write_head(MAP, len(Bundle.LAYOUT.kinds))
    + b"\x01"
    + write_text(KIND)
    + b"\x02"
    + write_head(UINT, WIRE_VERSION)
    + b"\x03"
    + write_head(BSTR, HASH_BYTES)
)


def claimed_id(data: bytes) -> bytes:
    """The id that a file claims, else the hash of the file: the audit entry of a failure needs an id."""
    end = len(_BEFORE_ID) + HASH_BYTES
    return data[len(_BEFORE_ID) : end] if data.startswith(_BEFORE_ID) and len(data) >= end else h(data)


def decode(data: bytes) -> Bundle:
    if len(data) > MAX_BUNDLE_BYTES:
        raise Malformed("bundle", f"{len(data)} bytes, the maximum is {MAX_BUNDLE_BYTES}")
    return Bundle.decode(data)
