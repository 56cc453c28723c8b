"""retention.json: manifests, tombstones of entries and attachments, and the same with a change."""

from dataclasses import replace

from vectors.form import Doc, signer_doc, signing_key
from veen.core import hub_identity, wire_json
from veen.core.hashing import h
from veen.core.retention import (
    AttachmentTombstone,
    Level,
    Manifest,
    Segment,
    Tombstone,
    sign_attachment_tombstone,
    sign_manifest,
)

HUB = signing_key("hub")
BORN, PRUNED_AT = 1_700_000_000, 1_700_100_000
LABEL, COID = h(b"a label"), h(b"a sealed attachment")


def retention() -> Doc:
    identity = hub_identity.create(HUB, BORN)
    levels = (Level.RECEIPTS, Level.PAYLOADS, Level.PAYLOADS, Level.WHOLE)
    rows = tuple(_segment(number, level) for number, level in enumerate(levels))
    manifest = sign_manifest(HUB, identity.hub_id, LABEL, 0, PRUNED_AT, rows)
    stones = [manifest.tombstone(place) for place, level in enumerate(levels) if level]
    gone = sign_attachment_tombstone(HUB, identity.hub_id, COID, PRUNED_AT, 7)
    return {
        "about": "What a hub signs about entries and attachments that it pruned, and invalid statements.",
        "hub": signer_doc(HUB),
        "hub_identity_json": wire_json.encode(identity).decode(),
        "coid": COID,
        "segments": [{"cbor": row.encode(), "leaf_hash": row.leaf_hash()} for row in rows],
        "manifest": {"cbor": manifest.encode(), "segments_root": stones[0].segments_root},
        "tombstones": [{"place": one.place, "cbor": one.encode()} for one in stones],
        "attachment_tombstone": gone.encode(),
        "refused": _refused(manifest, stones[1], gone),
    }


def _segment(number: int, level: Level) -> Segment:
    start, end = 1 + 7 * number, 7 + 7 * number
    root, hashes = h(b"root %d" % end), h(b"hashes %d" % end)
    row = Segment(start, end, root, hashes, 4_096, BORN + end, level)
    left = h(b"what is left of %d" % end)
    return replace(row, artifact_hash=left, pruned_at=PRUNED_AT, event_seq=3 + number) if level else row


def _refused(manifest: Manifest, stone: Tombstone, gone: AttachmentTombstone) -> list[Doc]:
    first, *others = manifest.segments
    cases: dict[str, tuple[str, Manifest | Tombstone | AttachmentTombstone]] = {
        "a manifest for another label": ("manifest", replace(manifest, label=COID)),
        "a manifest at another time": ("manifest", replace(manifest, hub_ts=PRUNED_AT + 1)),
        "a manifest without its last row": ("manifest", replace(manifest, segments=manifest.segments[:-1])),
        "a manifest with a changed row": (
            "manifest",
            replace(manifest, segments=(replace(first, level=Level.PAYLOADS), *others)),
        ),
        "a tombstone at another place": ("tombstone", replace(stone, place=1)),
        "a tombstone of another range": ("tombstone", replace(stone, segment=replace(stone.segment, end_seq=15))),
        "a tombstone in a smaller tree": ("tombstone", replace(stone, segments=3)),
        "a tombstone of another attachment": ("attachment tombstone", replace(gone, coid=LABEL)),
        "a tombstone of an attachment with another event": ("attachment tombstone", replace(gone, event_seq=8)),
    }
    return [{"name": name, "kind": kind, "cbor": wire.encode()} for name, (kind, wire) in cases.items()]
