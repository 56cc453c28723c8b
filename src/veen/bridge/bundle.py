"""The export bundle: a range of a stream and its proofs, in one file that is named by its contents. 001, AGB0 §4.4.

Events travel as the hub stores them: sealed MSG and RECEIPT. A carrier of a bundle cannot read it. No field of a bundle
is trusted before `verify` has checked it.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Self, cast

from veen.client.trust import HubRecord
from veen.core import (
    Checkpoint,
    HubIdentity,
    IdentitySignature,
    Malformed,
    Mmr,
    MmrProof,
    Msg,
    Profile,
    Receipt,
    Unverified,
    naming,
    proof,
    wire_json,
)
from veen.core.cbor import Bstr, Constant, ListOf, Nested, Text, Uint, VersionField, Wire, int_map
from veen.core.cbor.heads import BSTR, MAP, UINT, write_head, write_text
from veen.core.hashing import HASH_BYTES, h, ht
from veen.core.hub_identity import ForkOrigin, Lineage, lineage
from veen.core.limits import MAX_PEAKS, MAX_TEXT_BYTES, WIRE_VERSION
from veen.core.proof import Leaf
from veen.core.receipt import time_fault
from veen.core.strict_json import Json


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


@dataclass(frozen=True, slots=True)
class VerifiedBundle:
    """A bundle that passed every check."""

    bundle: Bundle
    bundle_hash: bytes  # of the file

    def to_json(self) -> dict[str, Json]:
        header, upto = self.bundle.header, self.bundle.contents.export_checkpoint
        return {
            "bundle_id": self.bundle.bundle_id.hex(),
            "bundle_hash": self.bundle_hash.hex(),
            **cast(dict[str, Json], wire_json.to_json(header)),
            "event_count": header.count,
            "export_checkpoint": {
                "id": upto.checkpoint_id.hex(),
                "root": upto.root.hex(),
                "last_seq": upto.last_seq,
                "timestamp": upto.timestamp,
                "hub_public": upto.hub_public.hex(),
            },
        }


def verify(data: bytes, trusted: Collection[bytes]) -> VerifiedBundle:
    """Verify every field of a bundle whose hub is in `trusted`, offline. Raises `BundleFault`. AGB0 §4.5 step 2."""
    try:
        found = decode(data)
    except Malformed as error:
        raise BundleFault(BundleCode.MALFORMED, error.reason) from None
    if found.contents.bundle_id() != found.bundle_id:
        raise BundleFault(BundleCode.BUNDLE_ID, "bundle_id is not the hash of the contents")
    line = _check_source(found.contents, trusted)
    _check_header(found.contents)
    _check_checkpoint(found.contents, line)
    _check_events(found.contents, line)
    _check_proof(found.contents)
    return VerifiedBundle(found, h(data))


@contextmanager
def _faults_as(code: BundleCode, position: int | None = None) -> Iterator[None]:
    """Turn `Unverified` into a fault with this code."""
    try:
        yield
    except Unverified as error:
        raise BundleFault(code, str(error), position) from None


def _check_source(contents: Contents, trusted: Collection[bytes]) -> Lineage:
    source, hub_id = contents.source, contents.header.source_hub_id
    if hub_id not in trusted:
        raise BundleFault(BundleCode.SOURCE, f"hub {hub_id.hex()} is not trusted as a source")
    with _faults_as(BundleCode.SOURCE):
        source.identity.verify(source.signature, hub_id)
        if source.identity.hub_id != hub_id:
            raise Unverified("bundle source", "the hub metadata belongs to another hub than the header names")
        line = lineage(source.identity, source.origin)
        line.verify(source.profile)
    return line


def _check_header(contents: Contents) -> None:
    header, events = contents.header, contents.events
    first, last = events[0].receipt, events[-1].receipt
    claimed = (header.export_seq_from, header.export_seq_to, header.export_time_from, header.export_time_to)
    if claimed != (first.stream_seq, last.stream_seq, first.hub_ts, last.hub_ts):
        raise BundleFault(BundleCode.HEADER, "the ranges in the header do not match the events")
    if header.count != len(events):
        raise BundleFault(BundleCode.ORDER, f"{len(events)} events, but the range in the header has {header.count}")


def _check_checkpoint(contents: Contents, line: Lineage) -> None:
    header, upto, profile = contents.header, contents.export_checkpoint, contents.source.profile
    checkpoint, receipt = upto.checkpoint, upto.receipt
    with _faults_as(BundleCode.CHECKPOINT):
        hub = line.identity_at(checkpoint.label_curr, checkpoint.upto_seq)
        signer = hub.verify_checkpoint(checkpoint, profile)
        checkpoint.check_labels(profile, contents.source.identity.routing_key, header.export_stream_id)
        hub.verify_receipt(receipt)
    if checkpoint.epoch != header.epoch:
        raise BundleFault(BundleCode.CHECKPOINT, f"epoch {checkpoint.epoch}, but the header says {header.epoch}")
    if (upto.root, upto.last_seq, upto.hub_public) != (checkpoint.mmr_root, checkpoint.upto_seq, signer.hub_pk):
        raise BundleFault(BundleCode.CHECKPOINT, "root, last_seq or hub_public differ from the signed checkpoint")
    signed = (receipt.label, receipt.stream_seq, receipt.mmr_root, receipt.hub_ts)
    if signed != (checkpoint.label_curr, upto.last_seq, upto.root, upto.timestamp):
        raise BundleFault(BundleCode.CHECKPOINT, "the receipt does not match the last entry or the timestamp")
    if header.export_seq_to > upto.last_seq:
        raise BundleFault(BundleCode.CHECKPOINT, f"ends at {upto.last_seq}, before the last event")


def _check_events(contents: Contents, line: Lineage) -> None:
    """Check each event alone, then its place: appending it must give the root that the hub signed for it."""
    header = contents.header
    label = naming.label(contents.source.identity.routing_key, header.export_stream_id, header.epoch)
    profile_id = contents.source.profile.profile_id()
    try:
        tree = Mmr(header.export_seq_from - 1, contents.proof.peaks_before)
    except ValueError as error:
        raise BundleFault(BundleCode.PROOF, str(error)) from None
    before = 0
    for position, event in enumerate(contents.events, 1):
        receipt = event.receipt
        _check_event(event, line, label, profile_id, position)
        if receipt.stream_seq != tree.size + 1:
            raise BundleFault(BundleCode.ORDER, f"entry {receipt.stream_seq} follows entry {tree.size}", position)
        _check_time(before, receipt.hub_ts, position)
        tree.append(receipt.leaf_hash)
        if tree.root() != receipt.mmr_root:
            raise BundleFault(BundleCode.PROOF, "does not extend the tree of the entry before it", position)
        before = receipt.hub_ts
    _check_time(before, contents.export_checkpoint.receipt.hub_ts, None)


def _check_time(before: int, hub_ts: int, position: int | None) -> None:
    fault = time_fault(before, hub_ts)
    if fault:
        raise BundleFault(BundleCode.ORDER, fault, position)


def _check_event(event: BundleEvent, line: Lineage, label: bytes, profile_id: bytes, position: int) -> None:
    message, receipt = event.msg, event.receipt
    if receipt.label != label or message.profile_id != profile_id:
        raise BundleFault(BundleCode.RECEIPT, "belongs to another stream, epoch or profile", position)
    with _faults_as(BundleCode.RECEIPT, position):
        line.identity_at(label, receipt.stream_seq).verify_receipt(receipt)
        receipt.check_binds(message)
    with _faults_as(BundleCode.SIGNATURE, position):
        message.verify_signature()


def _check_proof(contents: Contents) -> None:
    with _faults_as(BundleCode.PROOF):
        last, head = contents.events[-1].receipt, contents.export_checkpoint.checkpoint
        proof.verify_inclusion(contents.proof.growth, Leaf.of(last), head)
        proof.verify_consistency(contents.proof.growth, last, head)
