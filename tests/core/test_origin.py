"""The origin of a fork: which hub signed an entry, and that no hub can be inserted."""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

import pytest

from veen.core import Checkpoint, HubIdentity, Profile, SigningKey, Unverified, checkpoint, hub_identity, naming
from veen.core.hub_identity import ForkOrigin, Lineage, OriginHub, OriginRef, lineage

PROFILE = Profile()
LABELS = [sha256(bytes([number])).digest() for number in range(3)]


def key(name: str) -> SigningKey:
    return SigningKey(sha256(name.encode()).digest())


def word(by: SigningKey, label: bytes, upto_seq: int) -> Checkpoint:
    return checkpoint.sign(
        by, label_prev=label, label_curr=label, upto_seq=upto_seq, mmr_root=bytes([upto_seq]) * 32, epoch=0
    )


def hub(name: str, record: HubIdentity, upto: dict[bytes, int], by: dict[bytes, SigningKey] | None = None) -> OriginHub:
    """A forked hub and its checkpoints, by default signed with its own key."""
    signers = by or {}
    kept = [word(signers.get(label, key(name)), label, upto[label]) for label in sorted(upto)]
    return OriginHub(record, hub_identity.sign(record, key(name)), tuple(kept))


def chain() -> tuple[HubIdentity, ForkOrigin]:
    """A fork of a fork: the first hub signed up to 5 and 9, the second continued one label to 8."""
    a, b, c = LABELS
    first = hub_identity.create(key("first"), 0)
    to_second = ForkOrigin((hub("first", first, {a: 5, b: 9}),))
    second = hub_identity.create(key("second"), 0, origin=to_second.ref())
    # The second hub kept less of b than the first had signed, so that checkpoint is still the first one's.
    to_third = ForkOrigin((hub("second", second, {a: 8, b: 4, c: 2}, {b: key("first")}), *to_second.hubs))
    return hub_identity.create(key("third"), 0, origin=to_third.ref()), to_third


def test_each_entry_belongs_to_the_hub_that_signed_it() -> None:
    record, origin = chain()
    found = lineage(record, origin)
    names = {one.hub_id: name for name, one in zip(("third", "second", "first"), found.identities, strict=True)}
    a, b, c = LABELS
    wrote = {
        (label, seq): names[found.identity_at(label, seq).hub_id]
        for label, seq in [(a, 1), (a, 5), (a, 6), (a, 8), (a, 9), (b, 4), (b, 5), (b, 9), (c, 2), (c, 3)]
    }
    assert list(wrote.values()) == [
        "first",
        "first",
        "second",
        "second",
        "third",
        "first",
        "third",
        "third",
        "second",
        "third",
    ]
    assert (found.upto(a), found.upto(b), found.upto(bytes(32))) == (8, 4, 0)
    assert found.labels() == set(LABELS)
    found.verify(PROFILE)


def test_a_hub_that_is_not_a_fork_signed_everything() -> None:
    record = hub_identity.create(key("only"), 0)
    found = lineage(record, None)
    assert found.identity_at(LABELS[0], 1) is record
    assert (found.upto(LABELS[0]), found.checkpoint(LABELS[0]), found.labels()) == (0, None, set())
    found.verify(PROFILE)


def test_the_routing_key_of_a_fork_of_a_fork_is_the_first_hubs() -> None:
    record, origin = chain()
    first = origin.hubs[-1].identity
    assert record.routing_key == first.routing_key == naming.routing_key(first.hub_id)


def test_a_record_does_not_change_where_it_comes_from() -> None:
    record, _ = chain()
    record.check_follows(record)
    for other in (None, OriginRef(bytes(32), bytes(32), bytes(32))):
        with pytest.raises(Unverified):
            replace(record, origin=other).check_follows(record)


def test_a_new_key_keeps_the_origin() -> None:
    record, origin = chain()
    rotated = hub_identity.rotate(record, key("third"), key("fourth"), 9)
    rotated.check_follows(record)
    assert lineage(rotated, origin).identities[0] is rotated


def _without_the_last(origin: ForkOrigin) -> ForkOrigin:
    return ForkOrigin(origin.hubs[:1])


def _another_signature(origin: ForkOrigin) -> ForkOrigin:
    one = origin.hubs[0]
    return ForkOrigin((replace(one, signature=replace(one.signature, sig=bytes(64))), *origin.hubs[1:]))


def _swapped(origin: ForkOrigin) -> ForkOrigin:
    return ForkOrigin(origin.hubs[::-1])


def _a_checkpoint_less(origin: ForkOrigin) -> ForkOrigin:
    one = origin.hubs[1]
    return ForkOrigin((origin.hubs[0], replace(one, checkpoints=one.checkpoints[1:])))


def _a_hub_between(origin: ForkOrigin) -> ForkOrigin:
    record = hub_identity.create(key("stranger"), 0, origin=ForkOrigin(origin.hubs[1:]).ref())
    return ForkOrigin((origin.hubs[0], hub("stranger", record, {LABELS[0]: 6}), *origin.hubs[1:]))


@pytest.mark.parametrize(
    "change", [_without_the_last, _another_signature, _swapped, _a_checkpoint_less, _a_hub_between]
)
def test_another_origin_than_the_one_signed_for_is_refused(change: Callable[[ForkOrigin], ForkOrigin]) -> None:
    record, origin = chain()
    with pytest.raises(Unverified):
        lineage(record, change(origin))


def test_a_missing_origin_and_one_too_many_are_refused() -> None:
    record, origin = chain()
    with pytest.raises(Unverified, match="missing"):
        lineage(record, None)
    with pytest.raises(Unverified, match="not the one in the identity record"):
        lineage(hub_identity.create(key("only"), 0), origin)


@pytest.mark.parametrize("changed", ["hub_id", "routing_key", "digest"])
def test_a_record_that_names_another_origin_is_refused(changed: str) -> None:
    record, origin = chain()
    assert record.origin is not None
    wrong = replace(record.origin, **{changed: bytes(32)})
    with pytest.raises(Unverified):
        lineage(replace(record, origin=wrong), origin)


def test_a_checkpoint_by_the_wrong_hub_is_found() -> None:
    """The second hub signs a prefix that belongs to the first one."""
    a, b, _ = LABELS
    first = hub_identity.create(key("first"), 0)
    to_second = ForkOrigin((hub("first", first, {a: 5, b: 9}),))
    second = hub_identity.create(key("second"), 0, origin=to_second.ref())
    to_third = ForkOrigin((hub("second", second, {a: 8, b: 4}), *to_second.hubs))
    found = lineage(hub_identity.create(key("third"), 0, origin=to_third.ref()), to_third)
    with pytest.raises(Unverified):
        found.verify(PROFILE)


def test_a_hub_whose_own_record_does_not_hold_is_refused() -> None:
    first = hub_identity.create(key("first"), 0)
    forged = replace(first, hub_id=bytes(32))
    origin = ForkOrigin((hub("first", forged, {LABELS[0]: 1}),))
    with pytest.raises(Unverified):
        lineage(hub_identity.create(key("second"), 0, origin=origin.ref()), origin)


def test_a_lineage_of_one_has_kept_nothing() -> None:
    record = hub_identity.create(key("only"), 0)
    assert Lineage((record,)).kept == ()
