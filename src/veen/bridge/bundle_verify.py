"""Verifies a bundle offline, from its bytes and a set of trusted hub ids. 001, AGB0 §4.5 step 2."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from veen.bridge import bundle as bundles
from veen.bridge.bundle import Bundle, BundleCode, BundleEvent, BundleFault, Contents
from veen.core import Malformed, Mmr, Unverified, naming, proof
from veen.core.hashing import h
from veen.core.origin import Lineage, lineage
from veen.core.proof import Leaf
from veen.core.receipt import time_fault
from veen.core.strict_json import Json


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
            "source_hub_id": header.source_hub_id.hex(),
            "source_profile_id": header.source_profile_id,
            "export_stream": header.export_stream,
            "export_stream_id": header.export_stream_id.hex(),
            "epoch": header.epoch,
            "export_seq_from": header.export_seq_from,
            "export_seq_to": header.export_seq_to,
            "export_time_from": header.export_time_from,
            "export_time_to": header.export_time_to,
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
    """Verify every field of a bundle whose hub is in `trusted`. Raises `BundleFault`."""
    try:
        found = bundles.decode(data)
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
