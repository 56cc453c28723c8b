"""bundle.json: export bundles of an air-gap bridge, and invalid bundles with the fault of each."""

from collections.abc import Callable
from dataclasses import replace

from vectors.form import Doc, dh_key, reader_doc, signer_doc, signing_key
from vectors.hub import Log, ModelHub
from veen.bridge.bundle import (
    Bundle,
    BundleCode,
    BundleEvent,
    BundleProof,
    BundleSource,
    Contents,
    ExportCheckpoint,
    Header,
)
from veen.core import PayloadHdr, Place, Profile, Sealer, checkpoint, hub_identity, msg, naming
from veen.core.hashing import h

STREAM = "export/zone1/doors"
STREAM_ID = naming.stream_id(STREAM)
HUB, WRITER, READER = signing_key("bundle/hub"), signing_key("bundle/writer"), dh_key("bundle/reader")
PROFILE = Profile()
START = 1_700_000_000
ENTRIES = 6


def _hub() -> tuple[ModelHub, Log, list[BundleEvent]]:
    """A hub with six events in one stream, one second apart."""
    hub = ModelHub(HUB, PROFILE)
    label = hub.open_label(STREAM_ID)
    carried = []
    for number in range(1, ENTRIES + 1):
        place = Place(PROFILE.profile_id(), label, WRITER.public_key, number, number - 1)
        sealer = Sealer(READER.public_key, place, dh_key(f"bundle/ephemeral/{number}"))
        sealed = sealer.seal(PayloadHdr(naming.schema_id("test.v1")), b"event %d" % number, PROFILE.pad_block)
        fields = {"profile_id": place.profile_id, "label": label, "client_seq": number, "prev_ack": number - 1}
        made = msg.sign(WRITER, **fields, auth_ref=None, ciphertext=sealed)  # type: ignore[arg-type]
        carried.append(BundleEvent(made, hub.submit(made.encode(), START + number)))
    return hub, hub.logs[label], carried


def bundle(first: int, last: int, upto: int) -> Bundle:
    """The events from `first` to `last`, under the checkpoint of the first `upto`."""
    hub, log, carried = _hub()
    record = hub_identity.create(HUB, START)
    head, end = carried[upto - 1].receipt, carried[last - 1].receipt
    signed = checkpoint.sign(
        HUB, label_prev=head.label, label_curr=head.label, upto_seq=upto, mmr_root=head.mmr_root, epoch=0
    )
    times = carried[first - 1].receipt.hub_ts, end.hub_ts
    contents = Contents(
        Header(hub.hub_id, "SDR0", STREAM, STREAM_ID, 0, first, last, *times),
        BundleSource(record, hub_identity.sign(record, HUB), PROFILE),
        ExportCheckpoint(head.mmr_root, upto, head.hub_ts, HUB.public_key, signed, head),
        tuple(carried[first - 1 : last]),
        BundleProof(tuple(log.peaks(first - 1)), log.proof(last, upto)),
    )
    return Bundle.of(contents)


def _swapped(contents: Contents) -> Contents:
    first, second, *rest = contents.events
    return replace(contents, events=(first, replace(second, receipt=rest[0].receipt), *rest))


def _without(contents: Contents) -> Contents:
    return replace(contents, events=(contents.events[0], *contents.events[2:]))


def _redated(contents: Contents) -> Contents:
    return replace(contents, export_checkpoint=replace(contents.export_checkpoint, timestamp=START))


def _other_peaks(contents: Contents) -> Contents:
    return replace(contents, proof=replace(contents.proof, peaks_before=(bytes(32),)))


def _unsigned(contents: Contents) -> Contents:
    first, *rest = contents.events
    return replace(contents, events=(replace(first, msg=replace(first.msg, sig=bytes(64))), *rest))


def _header(contents: Contents) -> Contents:
    return replace(contents, header=replace(contents.header, export_seq_from=1))


REFUSED: dict[str, tuple[Callable[[Contents], Contents], BundleCode]] = {
    "a receipt of another event": (_swapped, BundleCode.RECEIPT),
    "an event left out": (_without, BundleCode.ORDER),
    "a checkpoint of another time": (_redated, BundleCode.CHECKPOINT),
    "peaks of another tree": (_other_peaks, BundleCode.PROOF),
    "a message that its client did not sign": (_unsigned, BundleCode.SIGNATURE),
    "a header with another beginning": (_header, BundleCode.HEADER),
}


def bundles() -> Doc:
    made = {
        "all of a log": bundle(1, ENTRIES, ENTRIES),
        "from the middle, under its own checkpoint": bundle(3, 5, 5),
        "from the middle, under a later checkpoint": bundle(3, 5, 6),
        "one event": bundle(4, 4, 4),
    }
    middle = made["from the middle, under its own checkpoint"]
    wrong_id = replace(middle, bundle_id=bytes(32)).encode()
    return {
        "hub": signer_doc(HUB),
        "hub_id": naming.hub_id(HUB.public_key),
        "writer": signer_doc(WRITER),
        "reader": reader_doc(READER),
        "stream": STREAM,
        "bundles": [
            {
                "name": name,
                "cbor": one.encode(),
                "bundle_id": one.bundle_id,
                "bundle_hash": h(one.encode()),
                "export_seq_from": one.header.export_seq_from,
                "export_seq_to": one.header.export_seq_to,
                "last_seq": one.contents.export_checkpoint.last_seq,
                "root": one.contents.export_checkpoint.root,
                "checkpoint_id": one.contents.export_checkpoint.checkpoint_id,
                "bodies": [
                    b"event %d" % number for number in range(one.header.export_seq_from, one.header.export_seq_to + 1)
                ],
            }
            for name, one in made.items()
        ],
        "refused": [
            {"name": "another id", "cbor": wrong_id, "error_code": str(BundleCode.BUNDLE_ID)},
            {
                "name": "a byte after the end",
                "cbor": middle.encode() + b"\x00",
                "error_code": str(BundleCode.MALFORMED),
            },
            *(
                {"name": name, "cbor": Bundle.of(change(middle.contents)).encode(), "error_code": str(code)}
                for name, (change, code) in REFUSED.items()
            ),
        ],
    }
