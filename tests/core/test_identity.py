"""A hub's identity: its keys over time, what each may sign, and the signed record. Spec §8.4."""

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from veen.core import checkpoint, hub_identity, receipt, wire_json
from veen.core.checkpoint import Checkpoint
from veen.core.errors import Fault, Malformed, Unverified
from veen.core.hashing import U64_MAX
from veen.core.hub_identity import ANCHORINGS, HubIdentity, HubKey, IdentitySignature
from veen.core.limits import MAX_HUB_KEYS
from veen.core.profile import Profile
from veen.core.receipt import Receipt
from veen.core.signing import SIGNATURE_BYTES, SigningKey

FIRST, SECOND, THIRD, STRANGER = (SigningKey(bytes([number]) * 32) for number in range(1, 5))
ROOT = SigningKey(b"r" * 32)
BORN, SECOND_FROM, THIRD_FROM, OVERLAP = 1_000, 2_000, 3_000, 100
EPOCH_SEC = 500
EPOCHS = Profile(epoch_sec=EPOCH_SEC)

ONE = hub_identity.create(FIRST, BORN)
TWO = hub_identity.rotate(ONE, FIRST, SECOND, SECOND_FROM, OVERLAP)
THREE = hub_identity.rotate(TWO, SECOND, THIRD, THIRD_FROM)


def ht(tag: str, data: bytes) -> bytes:
    return sha256(tag.encode() + b"\x00" + data).digest()


def endorsement(signer: SigningKey, key: SigningKey, valid_from: int, hub: HubIdentity = ONE) -> bytes:
    """By the formula, without `rotate`."""
    return signer.sign(ht("veen/hub-key", hub.hub_id + key.public_key + valid_from.to_bytes(8, "big")))


def hub_key(key: SigningKey, valid_from: int, valid_until: int | None = None, by: bytes | None = None) -> HubKey:
    return HubKey(ht("veen/hub-key-id", key.public_key), key.public_key, valid_from, valid_until, by)


def hub(*keys: HubKey) -> HubIdentity:
    return HubIdentity(ht("veen/hub-id", keys[0].hub_pk), keys)


def receipt_by(key: SigningKey, hub_ts: int) -> Receipt:
    return receipt.sign(key, label=bytes(32), stream_seq=1, leaf_hash=b"l" * 32, mmr_root=b"m" * 32, hub_ts=hub_ts)


def checkpoint_by(key: SigningKey, epoch: int) -> Checkpoint:
    return checkpoint.sign(key, label_prev=bytes(32), label_curr=bytes(32), upto_seq=1, mmr_root=b"m" * 32, epoch=epoch)


def damaged(change: Callable[[Any], object], record: HubIdentity = TWO) -> bytes:
    """The record's canonical text after a change, still canonical."""
    found = json.loads(wire_json.encode(record))
    change(found)
    return json.dumps(found, sort_keys=True, separators=(",", ":")).encode()


# Incarnations


def incarnation(key: SigningKey, valid_from: int) -> HubIdentity:
    return hub_identity.create(key, valid_from, root=ROOT, incarnates=True)


def test_a_root_begins_its_hub_again_with_a_key_that_is_marked() -> None:
    began = incarnation(SECOND, SECOND_FROM)
    began.verify(hub_identity.sign(began, SECOND), began.hub_id)
    assert [key.role for key in began.hub_keys] == ["root", "incarnation"]
    assert began.newest.hub_pk == SECOND.public_key
    plain = hub_identity.create(SECOND, SECOND_FROM, root=ROOT)
    assert plain.hub_id == began.hub_id
    assert began.newest.endorsement == ROOT.sign(
        ht("veen/hub-incarnation", began.hub_id + SECOND.public_key + SECOND_FROM.to_bytes(8, "big"))
    )
    unmarked = replace(began, hub_keys=(began.hub_keys[0], replace(began.hub_keys[1], role=None)))
    with pytest.raises(Unverified):
        unmarked.verify_chain()  # the mark is signed
    rotated = hub_identity.rotate(began, ROOT, THIRD, THIRD_FROM)
    rotated.verify_chain()
    rotated.check_follows(began)


@pytest.mark.parametrize("before", [False, True])
def test_an_incarnation_follows_all_keys_of_the_one_before(before: bool) -> None:
    known = hub_identity.create(FIRST, BORN, root=ROOT, incarnates=before)
    rotated = hub_identity.rotate(known, ROOT, THIRD, THIRD_FROM)
    assert incarnation(SECOND, BORN + 1).begins_after(known)
    assert not incarnation(SECOND, BORN).begins_after(known)
    assert not incarnation(SECOND, THIRD_FROM).begins_after(rotated)
    assert incarnation(SECOND, THIRD_FROM + 1).begins_after(rotated)
    assert not known.begins_after(incarnation(SECOND, SECOND_FROM))
    assert known.is_other_incarnation(incarnation(SECOND, SECOND_FROM))


def test_other_records_are_no_incarnations_of_a_hub() -> None:
    known = hub_identity.create(FIRST, BORN, root=ROOT)
    assert not hub_identity.create(SECOND, SECOND_FROM, root=ROOT).begins_after(known)
    assert not hub_identity.create(SECOND, SECOND_FROM, root=STRANGER, incarnates=True).begins_after(known)
    assert not hub_identity.rotate(known, ROOT, SECOND, SECOND_FROM).is_other_incarnation(known)
    assert not incarnation(FIRST, BORN).is_other_incarnation(incarnation(FIRST, BORN))


def test_only_the_first_signing_key_after_a_root_can_begin_an_incarnation() -> None:
    began = hub_identity.rotate(incarnation(SECOND, SECOND_FROM), ROOT, THIRD, THIRD_FROM)
    root, first, last = began.hub_keys
    for keys in ((root, first, replace(last, role="incarnation")), (replace(ONE.hub_keys[0], role="incarnation"),)):
        with pytest.raises(ValueError, match="only the key after the root"):
            replace(began, hub_keys=keys).encode()


# The name of a hub, and the chain of its keys


def test_hub_id_is_the_tagged_hash_of_the_first_key() -> None:
    assert ONE.hub_id == sha256(b"veen/hub-id\x00" + FIRST.public_key).digest()


def test_hub_id_does_not_change_when_keys_are_added() -> None:
    assert ONE.hub_id == TWO.hub_id == THREE.hub_id


def test_a_rotation_keeps_the_old_keys_and_closes_the_newest() -> None:
    first, second, third = THREE.hub_keys
    assert [key.hub_pk for key in THREE.hub_keys] == [FIRST.public_key, SECOND.public_key, THIRD.public_key]
    assert (first.valid_from, first.valid_until) == (BORN, SECOND_FROM + OVERLAP)
    assert (second.valid_from, second.valid_until) == (SECOND_FROM, THIRD_FROM)
    assert (third.valid_from, third.valid_until) == (THIRD_FROM, None)
    assert THREE.newest is third


def test_each_key_carries_the_endorsement_of_the_one_before_it() -> None:
    assert [key.endorsement for key in THREE.hub_keys] == [
        None,
        endorsement(FIRST, SECOND, SECOND_FROM),
        endorsement(SECOND, THIRD, THIRD_FROM),
    ]


@pytest.mark.parametrize("record", [ONE, TWO, THREE])
def test_an_honest_chain_verifies(record: HubIdentity) -> None:
    record.verify_chain()


def test_a_hub_id_that_is_not_the_first_keys_is_refused() -> None:
    with pytest.raises(Unverified, match="hub_id"):
        replace(TWO, hub_id=ht("veen/hub-id", SECOND.public_key)).verify_chain()


def test_a_hub_id_without_its_tag_is_refused() -> None:
    with pytest.raises(Unverified, match="hub_id"):
        replace(ONE, hub_id=sha256(FIRST.public_key).digest()).verify_chain()


def test_a_chain_without_its_first_key_is_refused() -> None:
    with pytest.raises(Unverified, match="hub_id"):
        replace(THREE, hub_keys=THREE.hub_keys[1:]).verify_chain()


def test_a_chain_without_a_key_in_the_middle_is_refused() -> None:
    with pytest.raises(Unverified):
        replace(THREE, hub_keys=(THREE.hub_keys[0], THREE.hub_keys[2])).verify_chain()


BAD_ENDORSEMENTS = {
    "none": None,
    "zero bytes": bytes(SIGNATURE_BYTES),
    "by the new key itself": endorsement(SECOND, SECOND, SECOND_FROM),
    "by a stranger": endorsement(STRANGER, SECOND, SECOND_FROM),
    "for another key": endorsement(FIRST, THIRD, SECOND_FROM),
    "for an earlier valid_from": endorsement(FIRST, SECOND, SECOND_FROM - 1),
    "for a later valid_from": endorsement(FIRST, SECOND, SECOND_FROM + 1),
    "for another hub": endorsement(FIRST, SECOND, SECOND_FROM, hub_identity.create(STRANGER, BORN)),
    "under another tag": FIRST.sign(ht("veen/sig", ONE.hub_id + SECOND.public_key + SECOND_FROM.to_bytes(8, "big"))),
}


@pytest.mark.parametrize("by", BAD_ENDORSEMENTS.values(), ids=BAD_ENDORSEMENTS.keys())
def test_a_key_without_the_right_endorsement_is_refused(by: bytes | None) -> None:
    record = hub(hub_key(FIRST, BORN), hub_key(SECOND, SECOND_FROM, by=by))
    with pytest.raises(Unverified) as caught:
        record.verify_chain()
    assert caught.value.what == f"hub key {record.newest.key_id.hex()[:16]}"


def test_a_third_key_endorsed_by_the_first_is_refused() -> None:
    stale = endorsement(FIRST, THIRD, THIRD_FROM)
    with pytest.raises(Unverified):
        replace(THREE, hub_keys=(*THREE.hub_keys[:2], hub_key(THIRD, THIRD_FROM, by=stale))).verify_chain()


def test_a_key_moved_to_another_time_is_refused() -> None:
    moved = replace(TWO.newest, valid_from=SECOND_FROM + 1)
    with pytest.raises(Unverified):
        replace(TWO, hub_keys=(TWO.hub_keys[0], moved)).verify_chain()


@pytest.mark.parametrize("old", [FIRST, THIRD, STRANGER])
def test_only_the_newest_key_endorses_the_next(old: SigningKey) -> None:
    with pytest.raises(ValueError, match="only the newest key"):
        hub_identity.rotate(TWO, old, THIRD, THIRD_FROM)


@pytest.mark.parametrize("valid_from", [0, BORN, SECOND_FROM - 1, SECOND_FROM])
def test_a_new_key_must_start_after_the_one_before_it(valid_from: int) -> None:
    with pytest.raises(ValueError, match="must be after"):
        hub_identity.rotate(TWO, SECOND, THIRD, valid_from)


# Signers of receipts


ACTIVE = [
    (FIRST, BORN),
    (FIRST, SECOND_FROM - 1),
    (FIRST, SECOND_FROM),
    (FIRST, SECOND_FROM + OVERLAP - 1),
    (SECOND, SECOND_FROM),
    (SECOND, SECOND_FROM + OVERLAP),
    (SECOND, THIRD_FROM - 1),
    (THIRD, THIRD_FROM),
    (THIRD, U64_MAX),
]
INACTIVE = [
    (FIRST, 0),
    (FIRST, BORN - 1),
    (FIRST, SECOND_FROM + OVERLAP),
    (FIRST, THIRD_FROM),
    (FIRST, U64_MAX),
    (SECOND, BORN),
    (SECOND, SECOND_FROM - 1),
    (SECOND, THIRD_FROM),
    (THIRD, SECOND_FROM),
    (THIRD, THIRD_FROM - 1),
    (STRANGER, BORN),
    (STRANGER, SECOND_FROM),
    (STRANGER, U64_MAX),
]


@pytest.mark.parametrize(("key", "hub_ts"), ACTIVE)
def test_a_receipt_by_a_key_active_at_its_time_is_that_keys(key: SigningKey, hub_ts: int) -> None:
    assert THREE.verify_receipt(receipt_by(key, hub_ts)).hub_pk == key.public_key


@pytest.mark.parametrize(("key", "hub_ts"), INACTIVE)
def test_a_receipt_by_a_key_not_active_at_its_time_is_refused(key: SigningKey, hub_ts: int) -> None:
    with pytest.raises(Unverified) as caught:
        THREE.verify_receipt(receipt_by(key, hub_ts))
    assert caught.value.what == "receipt"


def test_a_receipt_moved_to_a_time_when_its_key_was_active_is_refused() -> None:
    late = receipt_by(FIRST, THIRD_FROM)
    with pytest.raises(Unverified):
        THREE.verify_receipt(replace(late, hub_ts=BORN))


@pytest.mark.parametrize("hub_ts", [BORN, SECOND_FROM - 1, SECOND_FROM + OVERLAP - 1])
def test_an_old_receipt_still_verifies_after_its_key_is_archived(hub_ts: int) -> None:
    old = receipt_by(FIRST, hub_ts)
    assert ONE.verify_receipt(old).hub_pk == FIRST.public_key
    assert THREE.verify_receipt(old).hub_pk == FIRST.public_key


GAP = hub(hub_key(FIRST, 100, 200), hub_key(SECOND, 300))


@pytest.mark.parametrize("hub_ts", [200, 250, 299])
@pytest.mark.parametrize("key", [FIRST, SECOND])
def test_in_a_gap_between_two_keys_no_receipt_is_valid(key: SigningKey, hub_ts: int) -> None:
    with pytest.raises(Unverified):
        GAP.verify_receipt(receipt_by(key, hub_ts))


def test_a_gap_begins_with_valid_until_and_ends_with_valid_from() -> None:
    assert GAP.verify_receipt(receipt_by(FIRST, 199)) is GAP.hub_keys[0]
    assert GAP.verify_receipt(receipt_by(SECOND, 300)) is GAP.hub_keys[1]


# The signing key


@pytest.mark.parametrize(
    ("hub_ts", "expected"),
    [
        (BORN, FIRST),
        (SECOND_FROM - 1, FIRST),
        (SECOND_FROM, SECOND),
        (SECOND_FROM + OVERLAP, SECOND),
        (THIRD_FROM - 1, SECOND),
        (THIRD_FROM, THIRD),
        (U64_MAX, THIRD),
    ],
)
def test_of_the_active_keys_the_last_to_start_signs(hub_ts: int, expected: SigningKey) -> None:
    assert THREE.signing_key_at(hub_ts).hub_pk == expected.public_key


def test_of_two_keys_that_start_together_the_greater_signs() -> None:
    lesser, greater = sorted((FIRST, SECOND), key=lambda key: key.public_key)
    record = hub(hub_key(lesser, BORN), hub_key(greater, BORN))
    assert record.signing_key_at(BORN).hub_pk == greater.public_key


def test_before_the_first_key_there_is_none_to_sign_with() -> None:
    with pytest.raises(Unverified, match=f"no key is active at {BORN - 1}"):
        ONE.signing_key_at(BORN - 1)


def test_in_a_gap_there_is_no_key_to_sign_with() -> None:
    with pytest.raises(Unverified, match="no key is active at 200"):
        GAP.signing_key_at(200)


# Signers of checkpoints


# FIRST signs in [1000, 2100), SECOND in [2000, 3000), THIRD from 3000; epoch n is [500n, 500n + 500).
@pytest.mark.parametrize(("key", "epoch"), [(FIRST, 2), (FIRST, 4), (SECOND, 4), (SECOND, 5), (THIRD, 6), (THIRD, 999)])
def test_a_checkpoint_by_a_key_active_at_any_moment_of_its_epoch_is_that_keys(key: SigningKey, epoch: int) -> None:
    assert THREE.verify_checkpoint(checkpoint_by(key, epoch), EPOCHS).hub_pk == key.public_key


@pytest.mark.parametrize(
    ("key", "epoch"),
    [(FIRST, 0), (FIRST, 1), (FIRST, 5), (SECOND, 3), (SECOND, 6), (THIRD, 5), (THIRD, 0), (STRANGER, 4)],
)
def test_a_checkpoint_by_a_key_not_active_during_its_epoch_is_refused(key: SigningKey, epoch: int) -> None:
    with pytest.raises(Unverified) as caught:
        THREE.verify_checkpoint(checkpoint_by(key, epoch), EPOCHS)
    assert caught.value.what == "checkpoint"


@pytest.mark.parametrize("start", [BORN - 1, BORN, BORN + EPOCH_SEC - 1])
def test_the_last_second_of_an_epoch_still_counts(start: int) -> None:
    record = hub_identity.create(FIRST, start)
    epoch = start // EPOCH_SEC
    assert record.verify_checkpoint(checkpoint_by(FIRST, epoch), EPOCHS) is record.newest
    with pytest.raises(Unverified):
        record.verify_checkpoint(checkpoint_by(FIRST, epoch - 1), EPOCHS)


@pytest.mark.parametrize("key", [FIRST, SECOND, THIRD])
def test_without_epochs_any_key_the_hub_ever_had_may_have_signed_a_checkpoint(key: SigningKey) -> None:
    assert THREE.verify_checkpoint(checkpoint_by(key, 0), Profile(epoch_sec=0)).hub_pk == key.public_key


def test_without_epochs_a_strangers_checkpoint_is_refused() -> None:
    with pytest.raises(Unverified):
        THREE.verify_checkpoint(checkpoint_by(STRANGER, 0), Profile(epoch_sec=0))


def test_an_altered_checkpoint_is_refused() -> None:
    with pytest.raises(Unverified):
        THREE.verify_checkpoint(replace(checkpoint_by(FIRST, 3), upto_seq=2), EPOCHS)


# The signature over the record


def test_the_record_is_signed_over_its_canonical_text_by_the_newest_key() -> None:
    signature = hub_identity.sign(TWO, SECOND)
    digest = ht("veen/hub-identity", wire_json.encode(TWO))
    assert signature == IdentitySignature(ht("veen/hub-key-id", SECOND.public_key), SECOND.sign(digest))
    signature.verify(TWO)


@pytest.mark.parametrize("key", [FIRST, THIRD, STRANGER])
def test_a_record_signed_by_another_key_than_the_newest_is_refused(key: SigningKey) -> None:
    signature = hub_identity.sign(TWO, key)
    with pytest.raises(Unverified, match="another key"):
        signature.verify(TWO)


@pytest.mark.parametrize("key", [FIRST, STRANGER])
def test_a_signature_that_claims_to_be_the_newest_keys_is_refused(key: SigningKey) -> None:
    claimed = replace(hub_identity.sign(TWO, key), key_id=TWO.newest.key_id)
    with pytest.raises(Unverified, match="does not verify"):
        claimed.verify(TWO)


@pytest.mark.parametrize(
    "changed",
    [
        replace(TWO, anchoring="certificate"),
        replace(TWO, hub_id=bytes(32)),
        replace(TWO, hub_keys=(replace(TWO.hub_keys[0], valid_until=THIRD_FROM), TWO.newest)),
    ],
)
def test_a_record_changed_after_signing_is_refused(changed: HubIdentity) -> None:
    signature = hub_identity.sign(TWO, SECOND)
    with pytest.raises(Unverified):
        signature.verify(changed)


def test_a_root_key_signs_in_place_of_the_newest() -> None:
    hub_identity.sign(TWO, ROOT).verify(TWO, ROOT.public_key)


def test_where_a_root_key_is_configured_the_newest_key_is_not_enough() -> None:
    signature = hub_identity.sign(TWO, SECOND)
    with pytest.raises(Unverified):
        signature.verify(TWO, ROOT.public_key)


def test_where_no_root_key_is_configured_a_root_signature_is_refused() -> None:
    signature = hub_identity.sign(TWO, ROOT)
    with pytest.raises(Unverified):
        signature.verify(TWO)


# Pinning


PINS = {
    "hub_id": ONE.hub_id,
    "the first key": sha256(FIRST.public_key).digest(),
    "the second key": sha256(SECOND.public_key).digest(),
    "the third key": sha256(THIRD.public_key).digest(),
}
OTHER_PINS = {
    "empty": b"",
    "zero bytes": bytes(32),
    "a key itself": FIRST.public_key,
    "the beginning of hub_id": ONE.hub_id[:-1],
    "the hub_id of a later key": ht("veen/hub-id", SECOND.public_key),
    "a key_id": ht("veen/hub-key-id", FIRST.public_key),
    "a stranger": sha256(STRANGER.public_key).digest(),
}


@pytest.mark.parametrize("pin", PINS.values(), ids=PINS.keys())
def test_a_hub_is_known_by_its_id_and_by_the_fingerprint_of_each_key(pin: bytes) -> None:
    THREE.check_pinned(pin)


@pytest.mark.parametrize("pin", OTHER_PINS.values(), ids=OTHER_PINS.keys())
def test_a_hub_with_another_pin_is_refused(pin: bytes) -> None:
    with pytest.raises(Unverified, match="not the hub that was entered"):
        THREE.check_pinned(pin)


def test_a_key_added_later_is_not_yet_a_pin_of_the_earlier_record() -> None:
    with pytest.raises(Unverified):
        ONE.check_pinned(sha256(SECOND.public_key).digest())


# The record as a file


@pytest.mark.parametrize("record", [ONE, TWO, THREE])
def test_a_record_is_read_back_from_its_canonical_text(record: HubIdentity) -> None:
    assert wire_json.decode_canonical(HubIdentity, wire_json.encode(record)) == record


def test_a_record_is_spelled_in_one_way() -> None:
    key = FIRST.public_key
    assert (
        wire_json.encode(ONE)
        == (
            f'{{"anchoring":"data-directory","hub_id":"{ONE.hub_id.hex()}","hub_keys":[{{'
            f'"hub_pk":"{key.hex()}","key_id":"{ht("veen/hub-key-id", key).hex()}","valid_from":1000}}]}}'
        ).encode()
    )


def test_a_signature_is_read_back_from_its_canonical_text() -> None:
    signature = hub_identity.sign(ONE, FIRST)
    assert wire_json.decode_canonical(IdentitySignature, wire_json.encode(signature)) == signature


@pytest.mark.parametrize("anchoring", ANCHORINGS)
def test_each_anchoring_of_the_specification_is_known(anchoring: str) -> None:
    record = hub_identity.create(FIRST, BORN, anchoring)
    assert wire_json.decode_canonical(HubIdentity, wire_json.encode(record)).anchoring == anchoring


def test_the_key_map_gives_the_key_for_every_key_id() -> None:
    expected = {ht("veen/hub-key-id", key.public_key).hex(): key.public_key.hex() for key in (FIRST, SECOND, THIRD)}
    assert json.loads(THREE.key_map()) == expected
    assert THREE.key_map() == json.dumps(expected, sort_keys=True, separators=(",", ":")).encode()


TEXT = wire_json.encode(TWO)
SPELLINGS = {
    "a final newline": TEXT + b"\n",
    "white space": TEXT.replace(b":", b": "),
    "an escape": TEXT.replace(b"data-directory", b"data\\u002ddirectory"),
    "names in another order": json.dumps(dict(reversed(json.loads(TEXT).items())), separators=(",", ":")).encode(),
}


@pytest.mark.parametrize("text", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_another_spelling_of_the_same_record_is_refused(text: bytes) -> None:
    assert wire_json.decode(HubIdentity, text) == TWO
    with pytest.raises(Malformed, match="not in canonical form"):
        wire_json.decode_canonical(HubIdentity, text)


DAMAGE: dict[str, Callable[[Any], object]] = {
    "keys out of order": lambda r: r["hub_keys"].reverse(),
    "a key twice": lambda r: r["hub_keys"].append({**r["hub_keys"][0], "valid_from": 9_000}),
    "the same entry twice": lambda r: r["hub_keys"].append(r["hub_keys"][-1]),
    "no keys": lambda r: r["hub_keys"].clear(),
    "keys as an object": lambda r: r.update(hub_keys={}),
    "an unknown anchoring": lambda r: r.update(anchoring="gossip"),
    "an anchoring in capitals": lambda r: r.update(anchoring="Fingerprint"),
    "an empty anchoring": lambda r: r.update(anchoring=""),
    "an anchoring that is null": lambda r: r.update(anchoring=None),
    "the key_id of another key": lambda r: r["hub_keys"][0].update(key_id=r["hub_keys"][1]["key_id"]),
    "a key_id without its tag": lambda r: r["hub_keys"][0].update(key_id=sha256(FIRST.public_key).hexdigest()),
    "a short key_id": lambda r: r["hub_keys"][0].update(key_id="00" * 31),
    "a long hub_pk": lambda r: r["hub_keys"][0].update(hub_pk="00" * 33),
    "a short endorsement": lambda r: r["hub_keys"][1].update(endorsement="00" * 63),
    "an empty endorsement": lambda r: r["hub_keys"][1].update(endorsement=""),
    "an endorsement that is null": lambda r: r["hub_keys"][0].update(endorsement=None),
    "uppercase hex": lambda r: r.update(hub_id=r["hub_id"].upper()),
    "a short hub_id": lambda r: r.update(hub_id="00" * 31),
    "a negative valid_from": lambda r: r["hub_keys"][0].update(valid_from=-1),
    "a valid_from above 64 bits": lambda r: r["hub_keys"][1].update(valid_from=U64_MAX + 1),
    "a fractional valid_from": lambda r: r["hub_keys"][0].update(valid_from=1000.0),
    "a valid_from that is true": lambda r: r["hub_keys"][0].update(valid_from=True),
    "a valid_until that is null": lambda r: r["hub_keys"][1].update(valid_until=None),
    "a valid_until as text": lambda r: r["hub_keys"][1].update(valid_until="3000"),
    "an unknown name": lambda r: r.update(extra=1),
    "an unknown name in a key": lambda r: r["hub_keys"][0].update(extra=1),
    "no hub_id": lambda r: r.pop("hub_id"),
    "no hub_keys": lambda r: r.pop("hub_keys"),
    "no anchoring": lambda r: r.pop("anchoring"),
    "no key_id": lambda r: r["hub_keys"][0].pop("key_id"),
    "no hub_pk": lambda r: r["hub_keys"][0].pop("hub_pk"),
    "no valid_from": lambda r: r["hub_keys"][0].pop("valid_from"),
}


@pytest.mark.parametrize("change", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_record_that_breaks_its_table_is_malformed(change: Callable[[Any], object]) -> None:
    text = damaged(change)
    with pytest.raises(Malformed) as caught:
        wire_json.decode_canonical(HubIdentity, text)
    assert caught.value.what == "hub identity"
    assert caught.value.reason != "not in canonical form"


def test_a_repeated_name_is_rejected() -> None:
    with pytest.raises(Malformed, match="twice"):
        wire_json.decode(HubIdentity, TEXT.replace(b"{", b'{"anchoring":"fingerprint",', 1))


def swap_keys(found: Any) -> None:
    """Swap the keys, but not the endorsement."""
    first, second = found["hub_keys"]
    for name in ("hub_pk", "key_id"):
        first[name], second[name] = second[name], first[name]


def test_two_keys_that_start_together_are_ordered_by_their_bytes() -> None:
    lesser, greater = sorted((FIRST, SECOND), key=lambda key: key.public_key)
    record = hub(hub_key(lesser, BORN), hub_key(greater, BORN, by=bytes(SIGNATURE_BYTES)))
    assert wire_json.decode_canonical(HubIdentity, wire_json.encode(record)) == record
    swapped = damaged(swap_keys, record)
    with pytest.raises(Malformed, match="order"):
        wire_json.decode_canonical(HubIdentity, swapped)


def of_keys(count: int) -> bytes:
    """The text of a record with this many keys, in order and without valid endorsements."""

    def add(found: Any) -> None:
        for number in range(1, count):
            pk = number.to_bytes(32, "big")
            named = {"hub_pk": pk.hex(), "key_id": ht("veen/hub-key-id", pk).hex(), "valid_from": BORN + number}
            found["hub_keys"].append({**named, "endorsement": "00" * SIGNATURE_BYTES})

    return damaged(add, ONE)


def test_a_record_may_hold_as_many_keys_as_the_limit() -> None:
    assert len(wire_json.decode_canonical(HubIdentity, of_keys(MAX_HUB_KEYS)).hub_keys) == MAX_HUB_KEYS


def test_one_key_above_the_limit_is_refused() -> None:
    with pytest.raises(Malformed) as caught:
        wire_json.decode_canonical(HubIdentity, of_keys(MAX_HUB_KEYS + 1))
    assert caught.value.fault is Fault.SIZE


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"null", b'"hub"', TEXT[:-1], TEXT + TEXT, b"\xef\xbb\xbf" + TEXT])
def test_bytes_that_are_not_a_record_are_malformed(text: bytes) -> None:
    with pytest.raises(Malformed):
        wire_json.decode_canonical(HubIdentity, text)


@pytest.mark.parametrize("wrong", [hub(TWO.hub_keys[1], TWO.hub_keys[0]), replace(TWO, anchoring="gossip")])
def test_an_invalid_record_has_no_cbor_either(wrong: HubIdentity) -> None:
    with pytest.raises(ValueError, match="hub identity"):
        wrong.encode()


# Invalid rotations and creations


def test_a_key_is_not_rotated_to_itself() -> None:
    with pytest.raises(ValueError, match="twice"):
        hub_identity.rotate(ONE, FIRST, FIRST, SECOND_FROM)


@pytest.mark.parametrize("overlap", [BORN - SECOND_FROM, BORN - SECOND_FROM - 1, -SECOND_FROM - 1])
def test_a_window_that_would_end_before_it_begins_is_refused(overlap: int) -> None:
    with pytest.raises(ValueError, match="valid_until"):
        hub_identity.rotate(ONE, FIRST, SECOND, SECOND_FROM, overlap)


def test_a_key_cannot_start_after_the_last_second_there_is() -> None:
    with pytest.raises(ValueError, match="must be after"):
        hub_identity.rotate(ONE, FIRST, SECOND, U64_MAX + 1)


def test_an_unknown_anchoring_is_refused_on_create_and_on_sign() -> None:
    with pytest.raises(ValueError, match="anchoring"):
        hub_identity.create(FIRST, BORN, "gossip")
    flawed = replace(ONE, anchoring="gossip")
    with pytest.raises(ValueError, match="anchoring"):
        hub_identity.sign(flawed, FIRST)


@pytest.mark.parametrize("until", [0, BORN - 1, BORN])
def test_an_empty_window_does_not_decode(until: int) -> None:
    text = wire_json.encode(ONE).replace(b'"valid_from":', b'"valid_until":%d,"valid_from":' % until)
    with pytest.raises(Malformed, match="valid_until"):
        wire_json.decode(HubIdentity, text)


def test_a_first_key_with_an_endorsement_does_not_decode() -> None:
    text = wire_json.encode(ONE).replace(b'"hub_pk":', b'"endorsement":"' + b"00" * SIGNATURE_BYTES + b'","hub_pk":')
    with pytest.raises(Malformed, match="endorsement"):
        wire_json.decode(HubIdentity, text)


def test_without_epochs_even_a_key_of_the_last_second_counts() -> None:
    late = hub_identity.create(FIRST, U64_MAX)
    signed = checkpoint.sign(FIRST, label_prev=bytes(32), label_curr=bytes(32), upto_seq=1, mmr_root=bytes(32), epoch=0)
    assert late.verify_checkpoint(signed, Profile()) == late.newest


# Full verification


def test_a_record_is_the_pinned_hubs_if_pin_chain_and_signature_hold() -> None:
    THREE.verify(hub_identity.sign(THREE, THIRD), ONE.hub_id)


def test_a_record_that_puts_the_pinned_key_behind_a_strangers_is_refused() -> None:
    """The stranger's first key can endorse the pinned key, but the pinned key must sign the whole record."""
    stolen = hub_identity.rotate(hub_identity.create(ROOT, BORN), ROOT, FIRST, SECOND_FROM)
    stolen.check_pinned(sha256(FIRST.public_key).digest())
    with pytest.raises(Unverified):
        stolen.verify(hub_identity.sign(stolen, ROOT), sha256(FIRST.public_key).digest())


def test_a_valid_record_of_another_hub_is_rejected() -> None:
    with pytest.raises(Unverified, match="not the hub that was entered"):
        THREE.verify(hub_identity.sign(THREE, THIRD), bytes(32))


# Continuity


def test_a_record_continues_the_one_before_it() -> None:
    TWO.check_follows(ONE)
    THREE.check_follows(ONE)
    THREE.check_follows(TWO)
    THREE.check_follows(THREE)


def test_a_retired_key_cannot_start_another_history() -> None:
    """The holder of the retired first key can endorse another key, but not continue the record known to clients."""
    stolen = hub_identity.rotate(ONE, FIRST, ROOT, SECOND_FROM, OVERLAP)
    stolen.verify(hub_identity.sign(stolen, ROOT), ONE.hub_id)
    with pytest.raises(Unverified, match="continue"):
        stolen.check_follows(TWO)


def test_a_record_that_lost_keys_does_not_continue() -> None:
    with pytest.raises(Unverified, match="continue"):
        TWO.check_follows(THREE)


def test_another_hubs_record_does_not_continue() -> None:
    with pytest.raises(Unverified, match="continue"):
        hub_identity.create(SECOND, BORN).check_follows(ONE)


def test_a_hub_does_not_change_its_realm() -> None:
    """The realm is part of the identity: otherwise a hub's rejections would depend on when they are checked."""
    here, there = bytes(32), b"\x01" * 32
    born = hub_identity.create(FIRST, BORN, realm_id=here)
    assert born.realm_id == here
    later = hub_identity.rotate(born, FIRST, SECOND, SECOND_FROM, OVERLAP)
    assert later.realm_id == here
    later.check_follows(born)
    for realm_id in (None, there):
        with pytest.raises(Unverified, match="continue"):
            replace(later, realm_id=realm_id).check_follows(born)
    with pytest.raises(Unverified, match="continue"):
        replace(TWO, realm_id=here).check_follows(ONE)
    with pytest.raises(Unverified):
        replace(born, realm_id=there).verify(hub_identity.sign(born, FIRST), born.hub_id)


def test_a_closed_key_keeps_its_end() -> None:
    first, second = TWO.hub_keys
    assert first.valid_until is not None
    longer = replace(TWO, hub_keys=(replace(first, valid_until=first.valid_until + 1), second))
    with pytest.raises(Unverified, match="valid_until of a closed key has changed"):
        longer.check_follows(TWO)


# The root key

ROOTED = hub_identity.create(FIRST, BORN, root=ROOT)


def test_a_hub_with_a_root_is_named_by_the_root_and_signs_with_other_keys() -> None:
    assert ROOTED.hub_id == ht("veen/hub-id", ROOT.public_key)
    assert ROOTED.root is not None
    assert (ROOTED.root.hub_pk, ROOTED.newest.hub_pk) == (ROOT.public_key, FIRST.public_key)
    assert ROOTED.newest.endorsement == endorsement(ROOT, FIRST, BORN, ROOTED)
    ROOTED.verify(hub_identity.sign(ROOTED, FIRST), ROOTED.hub_id)
    assert list(json.loads(ROOTED.key_map())) == [ht("veen/hub-key-id", FIRST.public_key).hex()]


@pytest.mark.parametrize("hub_ts", [0, BORN - 1, BORN, U64_MAX])
def test_a_root_never_signs_for_the_log(hub_ts: int) -> None:
    with pytest.raises(Unverified, match="no key of the hub"):
        ROOTED.verify_receipt(receipt_by(ROOT, hub_ts))
    with pytest.raises(Unverified, match="no key of the hub"):
        ROOTED.verify_checkpoint(checkpoint_by(ROOT, 0), Profile())
    if hub_ts < BORN:
        with pytest.raises(Unverified, match="no key is active"):
            ROOTED.signing_key_at(hub_ts)
    else:
        assert ROOTED.signing_key_at(hub_ts).hub_pk == FIRST.public_key


def test_only_the_root_endorses_the_keys_of_a_hub_that_has_one() -> None:
    with pytest.raises(ValueError, match="root key can endorse"):
        hub_identity.rotate(ROOTED, FIRST, SECOND, SECOND_FROM)
    rotated = hub_identity.rotate(ROOTED, ROOT, SECOND, SECOND_FROM, OVERLAP)
    rotated.verify(hub_identity.sign(rotated, SECOND), ROOTED.hub_id)
    rotated.check_follows(ROOTED)
    stolen = hub_identity.add_key(
        ROOTED, SECOND.public_key, SECOND_FROM, endorsement(FIRST, SECOND, SECOND_FROM, ROOTED), SECOND_FROM
    )
    with pytest.raises(Unverified, match="hub key"):
        stolen.verify(hub_identity.sign(stolen, SECOND), ROOTED.hub_id)
    with pytest.raises(Unverified, match="signed by another key"):
        rotated.verify(hub_identity.sign(rotated, FIRST), ROOTED.hub_id)


def test_a_record_cannot_drop_replace_or_demote_the_root_it_continues() -> None:
    rotated = hub_identity.rotate(ROOTED, ROOT, SECOND, SECOND_FROM)
    demoted = replace(rotated, hub_keys=(replace(rotated.hub_keys[0], role=None), *rotated.hub_keys[1:]))
    dropped = replace(rotated, hub_keys=rotated.hub_keys[1:])
    replaced = replace(hub_identity.create(FIRST, BORN, root=STRANGER), hub_id=ROOTED.hub_id)
    for record in (demoted, dropped, replaced):
        with pytest.raises(Unverified, match="continue"):
            record.check_follows(ROOTED)


def test_an_older_hub_adopts_a_root_that_its_first_key_endorses() -> None:
    adopted = hub_identity.adopt_root(TWO, FIRST, ROOT.public_key, THIRD_FROM)
    adopted.verify(hub_identity.sign(adopted, SECOND), ONE.hub_id)
    adopted.check_follows(TWO)
    assert adopted.newest.hub_pk == SECOND.public_key
    after = hub_identity.rotate(adopted, ROOT, THIRD, THIRD_FROM + 1)
    after.verify(hub_identity.sign(after, THIRD), ONE.hub_id)
    assert [key.valid_until for key in after.hub_keys] == [SECOND_FROM + OVERLAP, THIRD_FROM + 1, None, None]
    with pytest.raises(ValueError, match="already has a root"):
        hub_identity.adopt_root(adopted, FIRST, STRANGER.public_key, THIRD_FROM + 1)
    with pytest.raises(ValueError, match="only the first key"):
        hub_identity.adopt_root(TWO, SECOND, ROOT.public_key, THIRD_FROM)


@pytest.mark.parametrize("tag", ["veen/hub-key", "veen/hub-root"])
@pytest.mark.parametrize("signer", [FIRST, SECOND, STRANGER])
def test_a_root_needs_the_first_keys_endorsement_under_its_own_tag(tag: str, signer: SigningKey) -> None:
    data = TWO.hub_id + ROOT.public_key + THIRD_FROM.to_bytes(8, "big")
    root = replace(hub_key(ROOT, THIRD_FROM, by=signer.sign(ht(tag, data))), role="root")
    record = replace(TWO, hub_keys=(*TWO.hub_keys, root))
    if (tag, signer) == ("veen/hub-root", FIRST):
        record.verify_chain()
    else:
        with pytest.raises(Unverified, match="hub key"):
            record.verify_chain()


def test_records_without_a_root_keep_their_bytes() -> None:
    assert b"role" not in wire_json.encode(THREE)
