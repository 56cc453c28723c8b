"""identity.json: a hub that changed its key twice, and when each of its signatures is valid."""

from dataclasses import replace

from vectors.form import Doc, profile_doc, signer_doc, signing_key
from veen.core import (
    HubIdentity,
    Profile,
    SigningKey,
    checkpoint,
    hub_identity,
    naming,
    receipt,
    strict_json,
    wire_json,
)
from veen.core.errors import Unverified
from veen.core.hashing import h, ht, u64be
from veen.core.hub_identity import HubKey

FIRST, SECOND, THIRD, STRANGER = (signing_key(name) for name in ("hub", "hub-2", "hub-3", "mallory"))
ROOT = signing_key("hub-root")
BORN, TURN_1, TURN_2, OVERLAP = 1_700_000_000, 1_700_100_000, 1_700_200_000, 600
PROFILE = Profile(epoch_sec=3600, pad_block=256)
SIGNERS = {"hub": FIRST, "hub-2": SECOND, "hub-3": THIRD, "mallory": STRANGER}
MOMENTS = (
    BORN - 1,
    BORN,
    TURN_1 - 1,
    TURN_1,
    TURN_1 + 1,
    TURN_2 - 1,
    TURN_2,
    TURN_2 + OVERLAP - 1,
    TURN_2 + OVERLAP,
    TURN_2 + 10 * OVERLAP,
)


def identities() -> Doc:
    created = hub_identity.create(FIRST, BORN)
    once = hub_identity.rotate(created, FIRST, SECOND, TURN_1)
    twice = hub_identity.rotate(once, SECOND, THIRD, TURN_2, OVERLAP)
    stages = [("created", created, FIRST), ("rotated once", once, SECOND), ("rotated twice", twice, THIRD)]
    rooted = hub_identity.create(FIRST, BORN, root=ROOT)
    adopted = hub_identity.adopt_root(once, FIRST, ROOT.public_key, TURN_2)
    with_root = [
        ("created with a root", rooted, FIRST),
        ("rotated with a root", hub_identity.rotate(rooted, ROOT, SECOND, TURN_1), SECOND),
        ("adopted a root", adopted, SECOND),
        ("rotated with an adopted root", hub_identity.rotate(adopted, ROOT, THIRD, TURN_2 + 1), THIRD),
    ]
    return {
        "about": "A hub's identity record, its two rotations, and which receipts and checkpoints hold under it.",
        "keys": {name: signer_doc(key) for name, key in {**SIGNERS, "hub-root": ROOT}.items()},
        "profile": profile_doc(PROFILE),
        "hub_id": twice.hub_id,
        "records": [_record(name, record, key) for name, record, key in stages],
        "records_with_a_root": [
            {**_record(name, record, key), "hub_id": record.hub_id} for name, record, key in with_root
        ],
        "receipts": _receipts(twice),
        "checkpoints": _checkpoints(twice),
        "unverified_records": _unverified(twice),
        "unverified_signatures": _unverified_signatures(once, twice),
    }


def _record(name: str, record: HubIdentity, newest: SigningKey) -> Doc:
    text = wire_json.encode(record)
    return {
        "name": name,
        "hub_identity_json": text.decode(),
        "digest": ht("veen/hub-identity", text),
        "hub_identity_sig": wire_json.encode(hub_identity.sign(record, newest)).decode(),
        "hub_key_map": record.key_map().decode(),
        "signing_key_at": [{"hub_ts": at, "key_id": _key_at(record, at)} for at in MOMENTS],
        "pins": [record.hub_id, *(h(key.hub_pk) for key in record.hub_keys)],
        "endorsements": [
            {
                "hub_pk": key.hub_pk,
                "valid_from": key.valid_from,
                "digest": ht(
                    "veen/hub-root" if key.role else "veen/hub-key", record.hub_id + key.hub_pk + u64be(key.valid_from)
                ),
                "signed_by": _endorser(record, at).hub_pk,
                "endorsement": key.endorsement,
            }
            for at, key in enumerate(record.hub_keys)
            if at
        ],
    }


def _endorser(record: HubIdentity, at: int) -> HubKey:
    """The root if there is one before, else the previous key; the first key for the root itself."""
    before = record.hub_keys[:at]
    roots = [key for key in before if key.role]
    return before[0] if record.hub_keys[at].role else [*before, *roots][-1]


def _key_at(record: HubIdentity, hub_ts: int) -> bytes | None:
    try:
        return record.signing_key_at(hub_ts).key_id
    except Unverified:
        return None


def _receipts(record: HubIdentity) -> list[Doc]:
    """A receipt by every key at every moment; only the times in the record decide."""
    active = {key.hub_pk: key for key in record.hub_keys}
    found = []
    for hub_ts in MOMENTS:
        for name, key in SIGNERS.items():
            made = receipt.sign(
                key, label=h(b"label"), stream_seq=1, leaf_hash=h(b"leaf"), mmr_root=h(b"leaf"), hub_ts=hub_ts
            )
            counts = key.public_key in active and active[key.public_key].active_at(hub_ts)
            found.append({"signed_by": name, "hub_ts": hub_ts, "verifies": counts, "cbor": made.encode()})
    return found


def _checkpoints(record: HubIdentity) -> list[Doc]:
    """A checkpoint is valid if its key was active at any time of its epoch."""
    found = []
    turns = [at // PROFILE.epoch_sec for at in (BORN, TURN_1, TURN_2, TURN_2 + OVERLAP)]
    for epoch in sorted({turn + step for turn in turns for step in (-1, 0, 1)}):
        start, end = epoch * PROFILE.epoch_sec, (epoch + 1) * PROFILE.epoch_sec
        for name, key in SIGNERS.items():
            made = checkpoint.sign(
                key,
                label_prev=h(b"label"),
                label_curr=h(b"label"),
                upto_seq=1,
                mmr_root=h(b"leaf"),
                epoch=epoch,
            )
            counts = any(
                known.hub_pk == key.public_key and known.active_between(start, end) for known in record.hub_keys
            )
            found.append({"signed_by": name, "epoch": epoch, "verifies": counts, "cbor": made.encode()})
    return found


def _unverified(record: HubIdentity) -> list[Doc]:
    first, second, third = record.hub_keys
    forged = STRANGER.sign(ht("veen/hub-key", record.hub_id + third.hub_pk + u64be(third.valid_from)))
    cases = {
        "an endorsement by a stranger": replace(record, hub_keys=(first, second, replace(third, endorsement=forged))),
        "an endorsement missing": replace(record, hub_keys=(first, second, replace(third, endorsement=None))),
        "valid_from moved after the endorsement": replace(
            record, hub_keys=(first, second, replace(third, valid_from=third.valid_from + 1))
        ),
        "the middle key left out": replace(record, hub_keys=(first, third)),
        "the first key left out": replace(record, hub_keys=(second, third)),
        "another hub_id": replace(record, hub_id=naming.hub_id(second.hub_pk)),
    }
    # Through `to_json`, because the encoder rejects some of these.
    return [
        {"name": name, "hub_identity_json": strict_json.encode(wire_json.to_json(bad)).decode()}
        for name, bad in cases.items()
    ]


def _unverified_signatures(once: HubIdentity, twice: HubIdentity) -> list[Doc]:
    """The newest key must sign exactly this record."""
    by_third = hub_identity.sign(twice, THIRD)
    cases = {
        "by the key before": hub_identity.sign(twice, SECOND),
        "by a stranger": hub_identity.sign(twice, STRANGER),
        "by a stranger under the newest key's name": replace(by_third, sig=hub_identity.sign(twice, STRANGER).sig),
        "over the record before the last rotation": hub_identity.sign(once, THIRD),
    }
    return [
        {
            "name": name,
            "hub_identity_json": wire_json.encode(twice).decode(),
            "hub_identity_sig": wire_json.encode(bad).decode(),
        }
        for name, bad in cases.items()
    ]
