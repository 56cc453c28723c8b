"""The export bundle: a range of a stream and its proofs, in one file that is named by its contents. 001, AGB0 §4.4.

Events travel as the hub stores them: sealed MSG and RECEIPT. A carrier of a bundle cannot read it. No field of a bundle
is trusted before `bundle_verify.verify` has checked it.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Self

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
from veen.core.cbor import Bstr, Constant, ListOf, Nested, Text, Uint, VersionField, Wire, int_map
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


@int_map("bundle header")
class Header(Wire):
    """Describes the bundle. Every field is redundant and is checked against the contents."""

    source_hub_id: Annotated[bytes, Bstr()]
    source_profile_id: Annotated[str, Text(MAX_TEXT_BYTES)]  # profile of the source stream, such as SDR0 for a recorder
    export_stream: Annotated[str, Text(MAX_TEXT_BYTES)]
    export_stream_id: Annotated[bytes, Bstr()]
    epoch: Annotated[int, Uint()]
    export_seq_from: Annotated[int, Uint(least=1)]
    export_seq_to: Annotated[int, Uint(least=1)]
    export_time_from: Annotated[int, Uint()]
    export_time_to: Annotated[int, Uint()]

    def flaw(self) -> str | None:
        if self.export_seq_from > self.export_seq_to or self.export_time_from > self.export_time_to:
            return "the range ends before it begins"
        same = naming.stream_id(self.export_stream) == self.export_stream_id
        return None if same else "export_stream_id is not the id of export_stream"

    @property
    def count(self) -> int:
        return self.export_seq_to - self.export_seq_from + 1


@int_map("export checkpoint")
class ExportCheckpoint(Wire):
    """The signed state of the log that the events come from."""

    root: Annotated[bytes, Bstr()]
    last_seq: Annotated[int, Uint(least=1)]
    timestamp: Annotated[int, Uint()]
    hub_public: Annotated[bytes, Bstr()]
    checkpoint: Annotated[Checkpoint, Nested(Checkpoint)]
    receipt: Annotated[Receipt, Nested(Receipt)]  # of the last entry: it signs time and root together

    @property
    def checkpoint_id(self) -> bytes:
        """The digest that the hub signed."""
        return self.checkpoint.signing_digest()


@int_map("carried event")
class BundleEvent(Wire):
    """One event: the message its writer signed, and the hub's receipt."""

    msg: Annotated[Msg, Nested(Msg)]
    receipt: Annotated[Receipt, Nested(Receipt)]


@int_map("bundle proof")
class BundleProof(Wire):
    """Proves that the log of the checkpoint contains the events, in this order and without gaps.

    The peaks before the first event determine every following root, and `growth` connects the last one to the
    checkpoint: O(log n) hashes, however many events.
    """

    peaks_before: Annotated[tuple[bytes, ...], ListOf(Bstr(name="peak"), most=MAX_PEAKS)]
    growth: Annotated[MmrProof, Nested(MmrProof)]


@int_map("bundle source")
class BundleSource(Wire):
    """The hub metadata needed to verify the hub's signatures, once the hub id is trusted."""

    identity: Annotated[HubIdentity, Nested(HubIdentity)]
    signature: Annotated[IdentitySignature, Nested(IdentitySignature)]
    profile: Annotated[Profile, Nested(Profile)]
    origin: Annotated[ForkOrigin | None, Nested(ForkOrigin, optional=True)] = None  # set if the hub is a fork

    @classmethod
    def of(cls, known: HubRecord) -> Self:
        return cls(known.identity, known.signature, known.profile, known.origin)


@int_map("bundle contents")
class Contents(Wire):
    """Everything that `bundle_id` hashes."""

    header: Annotated[Header, Nested(Header)]
    source: Annotated[BundleSource, Nested(BundleSource)]
    export_checkpoint: Annotated[ExportCheckpoint, Nested(ExportCheckpoint)]
    events: Annotated[
        tuple[BundleEvent, ...], ListOf(Nested(BundleEvent, name="event"), most=MAX_BUNDLE_EVENTS, least=1)
    ]
    proof: Annotated[BundleProof, Nested(BundleProof)]

    def bundle_id(self) -> bytes:
        return ht(_TAG, self.encode())


@int_map("bundle", Constant(KIND, name="kind"), VersionField())
class Bundle(Wire):
    """The file. The same events under the same checkpoint give the same bytes."""

    bundle_id: Annotated[bytes, Bstr()]
    contents: Annotated[Contents, Nested(Contents)]

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
