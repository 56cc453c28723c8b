"""statements.json: what a hub states about itself: hand-overs, recoveries, revocations and lowered limits."""

from collections.abc import Iterable
from dataclasses import replace

from vectors.form import Doc, signer_doc, signing_key
from veen.core import Limits, SigningKey, cosignature, handover, hub_identity, naming, proof, recovery, wire_json
from veen.core.admin import OperatorRevocation
from veen.core.control_stream import HAND_OVER, LIMITS, RECOVERY, REVOCATION
from veen.core.handover import HandOver, LabelSize, ProvedSize
from veen.core.hashing import h
from veen.core.hub_identity import HubIdentity
from veen.core.profile import LoweredLimits
from veen.core.recovery import Recovery, RecoveryStatement

_NAMES = ("hub", "hub-2", "hub-root", "mallory", "witness-1", "witness-2")
OLD, NEW, ROOT, STRANGER, *WITNESSES = (signing_key(name) for name in _NAMES)
BORN, TURN = 1_700_000_000, 1_700_100_000


def _rows() -> tuple[LabelSize, ...]:
    labels = sorted(h(b"label %d" % number) for number in range(5))
    return tuple(LabelSize(label, size, h(b"root of " + label)) for size, label in enumerate(labels, 1))


def statements() -> Doc:
    plain = hub_identity.rotate(hub_identity.create(OLD, BORN), OLD, NEW, TURN)
    rooted = hub_identity.rotate(hub_identity.create(OLD, BORN, root=ROOT), ROOT, NEW, TURN)
    began = hub_identity.create(NEW, TURN, root=ROOT, incarnates=True)
    return {
        "about": "What a hub states about itself on its control stream, and statements that are invalid.",
        "keys": {name: signer_doc(key) for name, key in _SIGNERS.items()},
        "schemas": {row.name: row.schema for row in (HAND_OVER, RECOVERY, REVOCATION, LIMITS)},
        "identities": [
            {"name": name, "hub_identity_json": wire_json.encode(record).decode()}
            for name, record in (("plain", plain), ("rooted", rooted), ("incarnation", began))
        ],
        "rows": [{"cbor": row.encode(), "leaf_hash": row.leaf_hash()} for row in _rows()],
        "proofs": _proofs(),
        "handovers": [
            _handover("of a hub without a root", "plain", plain, _rows()),
            _handover("signed by the root", "rooted", rooted, _rows(), ROOT),
            _handover("without labels", "plain", plain, ()),
        ],
        "unverified_handovers": _unverified_handovers(rooted),
        "recoveries": [
            _recovery("endorsed by the old key", "plain", _stated(plain, _rows(), OLD)),
            _recovery("endorsed by the root", "rooted", _stated(rooted, _rows(), ROOT)),
            _recovery("nothing could be proved", "rooted", _stated(rooted, (), ROOT)),
            _recovery("an incarnation", "incarnation", recovery.incarnate(ROOT, NEW, TURN)),
            _recovery("cosigned by two witnesses as a reset", "rooted", _reset(_stated(rooted, _rows(), ROOT))),
        ],
        "unverified_recoveries": _unverified_recoveries(rooted, began),
        "revocations": [
            _revocation("a client key without an end", OperatorRevocation("client-id", h(b"client"), None, TURN)),
            _revocation("a capability", OperatorRevocation("auth-ref", h(b"token"), "lost", TURN, 3600)),
        ],
        "lowered_limits": _lowered(),
    }


_SIGNERS = dict(zip(_NAMES, (OLD, NEW, ROOT, STRANGER, *WITNESSES), strict=True))


def _proofs() -> list[Doc]:
    """Every row with its proof under the root over all of them."""
    tree, nodes = handover.tree_of_labels(_rows())
    found = []
    for place, row in enumerate(_rows(), 1):
        made = ProvedSize(row, place, proof.prove(nodes.__getitem__, place, tree.size))
        found.append({"place": place, "labels": tree.size, "rows_root": tree.root(), "cbor": made.encode()})
    return found


def _made(record: HubIdentity, rows: Iterable[LabelSize], root: SigningKey | None = None) -> HandOver:
    tree, _ = handover.tree_of_labels(rows)
    made = handover.sign(record.hub_id, OLD, NEW, TURN, tree.size, tree.root())
    return replace(made, root_sig=root.sign(made.signing_digest())) if root else made


def _handover(
    name: str, identity: str, record: HubIdentity, rows: Iterable[LabelSize], root: SigningKey | None = None
) -> Doc:
    made = _made(record, rows, root)
    return {
        "name": name,
        "identity": identity,
        "hub_ts": made.hub_ts,
        "labels": made.labels,
        "rows_root": made.rows_root,
        "digest": made.signing_digest(),
        "cbor": made.encode(),
    }


def _unverified_handovers(record: HubIdentity) -> list[Doc]:
    good = _made(record, _rows(), ROOT)
    digest = good.signing_digest()
    cases = {
        "signed by a stranger for the old key": replace(good, old_sig=STRANGER.sign(digest)),
        "signed by the old key for the new key": replace(good, new_sig=OLD.sign(digest)),
        "signed by the new key for the root": replace(good, root_sig=NEW.sign(digest)),
        "another number of labels": replace(good, labels=good.labels + 1),
        "before the new key": replace(good, hub_ts=TURN - 1),
        "of another hub": replace(good, hub_id=naming.hub_id(STRANGER.public_key)),
        "to a key that does not follow": replace(good, new_pk=STRANGER.public_key),
    }
    return [{"name": name, "identity": "rooted", "cbor": bad.encode()} for name, bad in cases.items()]


def _stated(record: HubIdentity, rows: tuple[LabelSize, ...], endorser: SigningKey) -> RecoveryStatement:
    ids = naming.key_id(OLD.public_key), naming.key_id(NEW.public_key)
    return _signed(Recovery(record.hub_id, *ids, TURN, len(rows), recovery.root_of(rows)), endorser)


def _signed(said: Recovery, endorser: SigningKey) -> RecoveryStatement:
    return RecoveryStatement(said, NEW.sign(said.digest()), endorser.sign(said.digest()))


def _reset(made: RecoveryStatement) -> RecoveryStatement:
    digest = cosignature.reset_digest(made.recovery)
    return replace(made, witness_sigs=tuple(key.sign(digest) for key in WITNESSES))


def _recovery(name: str, identity: str, made: RecoveryStatement) -> Doc:
    said = made.recovery
    return {
        "name": name,
        "identity": identity,
        "recovered_at": said.recovered_at,
        "labels": said.labels,
        "labels_root": said.labels_root,
        "recovery": said.encode(),
        "digest": said.digest(),
        "reset_digest": cosignature.reset_digest(said),
        "witnesses": len(made.witness_sigs or ()),
        "cbor": made.encode(),
    }


def _unverified_recoveries(record: HubIdentity, began: HubIdentity) -> list[Doc]:
    good = _stated(record, _rows(), ROOT)
    said, start = good.recovery, recovery.incarnate(ROOT, NEW, TURN)
    cases = {
        "endorsed by the old key, although there is a root": ("rooted", _signed(said, OLD)),
        "signed by the old key": ("rooted", replace(good, sig=OLD.sign(said.digest()))),
        "from the new key to the old one": (
            "rooted",
            _signed(replace(said, old_key_id=said.new_key_id, new_key_id=said.old_key_id), ROOT),
        ),
        "of another hub": ("rooted", _signed(replace(said, hub_id=naming.hub_id(STRANGER.public_key)), ROOT)),
        "from the root, although the key is not of an incarnation": ("rooted", start),
        "an incarnation with labels": ("incarnation", _signed(replace(start.recovery, labels=1), ROOT)),
        "an incarnation at another time": ("incarnation", recovery.incarnate(ROOT, NEW, TURN + 1)),
    }
    assert began.hub_id == record.hub_id
    return [{"name": name, "identity": identity, "cbor": bad.encode()} for name, (identity, bad) in cases.items()]


def _revocation(name: str, made: OperatorRevocation) -> Doc:
    fields = {"kind": made.kind, "target": made.target, "reason": made.reason, "ts": made.ts, "ttl": made.ttl}
    return {"name": name, **fields, "cbor": made.encode()}


def _lowered() -> list[Doc]:
    """Two changes one after the other."""
    first = LoweredLimits(Limits(), replace(Limits(), max_body_bytes=1024))
    second = LoweredLimits(first.after, replace(first.after, max_hdr_bytes=512, max_attachments_per_msg=2))
    return [
        {"name": name, "before": made.before.encode(), "after": made.after.encode(), "cbor": made.encode()}
        for name, made in (("one limit", first), ("two more limits", second))
    ]
