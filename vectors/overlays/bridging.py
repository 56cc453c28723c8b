"""Logs of an air-gap bridge with golden states."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from vectors.form import Doc, secret, signing_key
from vectors.overlays.logs import START, Line, folded, msg_id
from veen.core import msg, receipt
from veen.overlays import AnyOverlay
from veen.overlays.bridge_logs import (
    EXPORTS,
    IMPORTS,
    ORIGINS,
    BridgeResult,
    BundleExported,
    BundleImported,
    BundleIntake,
    EventOrigin,
    TargetRange,
)

A, B, HUB, FILE = (secret(f"bridge {name}") for name in ("bundle a", "bundle b", "hub", "file"))
EXPORT, IMPORT = "export/zone1/doors", "import/zone1/doors"
KEY, LABEL, WRITER, PROFILE = (
    signing_key("bridge hub"),
    secret("bridge label"),
    secret("bridge writer"),
    secret("bridge profile"),
)


def origin(seq: int) -> EventOrigin:
    """The entry with this number in the export stream."""
    ct_hash = secret(f"bridge ciphertext {seq}")
    leaf = msg.leaf_hash(LABEL, PROFILE, ct_hash, WRITER, seq)
    root = secret(f"bridge root {seq}")
    signed = receipt.sign(KEY, label=LABEL, stream_seq=seq, leaf_hash=leaf, mmr_root=root, hub_ts=START + seq)
    return EventOrigin(signed, PROFILE, WRITER, seq, ct_hash)


def intake(bundle: bytes, first: int, last: int, position: int, count: int) -> BundleIntake:
    named = (bundle, HUB, EXPORT, 0, first, last, last - first + 1, IMPORT, position)
    start = first + position - 1
    return BundleIntake(*named, tuple(origin(seq) for seq in range(start, start + count)))


LEFT = BundleExported(A, FILE, HUB, EXPORT, 0, 1, 3, 3, secret("bridge checkpoint"), "ann")
DONE = BundleImported(A, FILE, IMPORT, (TargetRange(0, 5, 6), TargetRange(0, 8, 8)), 3, BridgeResult.SUCCESS, "bob")
FAILED = BundleImported(
    B, FILE, "", (), 0, BridgeResult.FAILURE, "bob", "proof", "it does not follow on the entry before it", 2
)

EXPORT_LOG = (
    Line("a bundle", LEFT),
    Line("the next", replace(LEFT, bundle_id=B, export_seq_from=4, export_seq_to=4, event_count=1)),
    Line("the first once more", LEFT),
    Line("the first with another end", replace(LEFT, export_seq_to=4, event_count=4)),
    Line("a mirrored copy of the first", LEFT, msg_id(1), client=1),
    Line("a body with a key too many", LEFT, body=b"\xa1\x61x\x00"),
    Line("one that does not open", LEFT, sealed=True),
)
IMPORT_LOG = (
    Line("a success without an intake", DONE),
    Line("an intake, in two parts", intake(A, 1, 3, 1, 2)),
    Line("the first part again", intake(A, 1, 3, 1, 2)),
    Line("a success before the second part", DONE),
    Line("the second part, which says otherwise", replace(intake(A, 1, 3, 3, 1), import_stream="import/x")),
    Line("the second part", intake(A, 1, 3, 3, 1)),
    Line("a success with too few events", replace(DONE, event_count=2)),
    Line("the success", DONE),
    Line("the success again", DONE, client=1),
    Line("a failure after it", replace(FAILED, bundle_id=A, error_code="duplicate", reason="it was imported before")),
    Line("a failure of another", FAILED),
    Line("a failure that does not say why", replace(FAILED, reason=None)),
    Line("another, all at once", intake(B, 4, 5, 1, 2)),
    Line("left out without a policy", replace(DONE, bundle_id=B, event_count=1, excluded=(5,))),
    Line("left out by a policy", replace(DONE, bundle_id=B, event_count=1, excluded=(5,), policy="sealed")),
    Line("a body with a key too many", DONE, body=b"\xa1\x61x\x00"),
)
ORIGIN_LOG = (
    Line("two origins", intake(A, 1, 3, 1, 2)),
    Line("one more", intake(A, 1, 3, 3, 1)),
    Line("another bundle that names one of them", intake(B, 3, 4, 1, 2)),
    Line("a mirrored copy", intake(A, 1, 3, 1, 2), msg_id(1), client=1),
    Line("not an intake", DONE),
    Line("a body with a key too many", intake(A, 1, 3, 1, 2), body=b"\xa1\x61x\x00"),
)
LOGS: dict[str, tuple[AnyOverlay, Sequence[Line]]] = {
    "bridge-export.json": (EXPORTS, EXPORT_LOG),
    "bridge-import.json": (IMPORTS, IMPORT_LOG),
    "bridge-origins.json": (ORIGINS, ORIGIN_LOG),
}


def _made(name: str) -> Callable[[], Doc]:
    return lambda: folded(*LOGS[name])


GENERATED: dict[str, Callable[[], Doc]] = {name: _made(name) for name in LOGS}
