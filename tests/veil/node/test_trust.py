"""Tiers: set by hand or derived from endorsements, with explanations."""

import pytest

from tests.veil.node.net import FEED, START, Net
from veil import Malformed
from veil.node import Bounds, Destination, NodeConfig, Subscription, Tier
from veil.node.config import DEFAULT_TIERS
from veil.node.trust import FADING_S, MAX_AGE_S, Trust, decode_endorsement, encode_endorsement
from veil.store import MemoryStore, Table
from veil.tags import feed_tag


def key(number: int) -> bytes:
    return bytes([number]) * 32


def trust(bounds: Bounds | None = None, store: MemoryStore | None = None) -> Trust:
    return Trust(store or MemoryStore(), bounds or Bounds(), dict(DEFAULT_TIERS))


def trusting(count: int) -> Trust:
    found = trust()
    for number in range(count):
        found.set_tier(key(number), Tier.TRUSTED)
    return found


TIER_BY_ENDORSERS = [(0, Tier.UNKNOWN), (1, Tier.UNKNOWN), (2, Tier.KNOWN), (3, Tier.TRUSTED)]
ENDORSEMENT = encode_endorsement(key(1), 5)


@pytest.mark.parametrize(("endorsers", "tier"), TIER_BY_ENDORSERS)
def test_two_endorsers_make_a_key_known_and_three_trusted(endorsers: int, tier: Tier) -> None:
    found = trusting(5)
    for number in range(endorsers):
        assert found.add_endorsement(key(number), key(99), START, START)
    assert found.tier(key(99), START) is tier


def test_endorsements_by_untrusted_keys_do_not_count() -> None:
    found = trusting(1)
    for number in range(50, 90):
        found.add_endorsement(key(number), key(99), START, START)
    assert found.tier(key(99), START) is Tier.UNKNOWN
    assert found.score(key(99), START) == 0


def second_hand(found: Trust, *pairs: tuple[int, int]) -> None:
    """Each pair is a key trusted by hand and a key that it endorses, which endorses key 99."""
    for root, number in pairs:
        found.add_endorsement(key(root), key(number), START, START)
        found.add_endorsement(key(number), key(99), START, START)


@pytest.mark.parametrize(
    ("pairs", "score"),
    [
        ([(0, 10)], 0.0),
        ([(0, 10), (1, 11)], 0.3),
        ([(0, 10), (1, 11), (2, 12)], 0.45),
        ([(0, 10), (1, 11), (2, 12), (3, 13)], 0.6),
        ([(0, number) for number in range(10, 30)], 0.0),  # all supported by one trusted key
        ([(0, number) for number in range(10, 30)] + [(1, 40)], 0.3),
        ([(number, 10) for number in range(4)], 0.0),  # one second-hand endorser
        ([(0, 10), (1, 10), (0, 11)], 0.3),  # key 10 uses the vote of 1, so key 11 can use that of 0
        ([(0, 10), (0, 11), (1, 11), (1, 12), (2, 12)], 0.45),
    ],
)
def test_second_hand_endorsers_count_less_and_once_per_trusted_key(pairs: list[tuple[int, int]], score: float) -> None:
    for order in (pairs, pairs[::-1]):
        found = trusting(4)
        second_hand(found, *order)
        assert found.score(key(99), START) == pytest.approx(score)


def test_one_trusted_key_cannot_reach_the_minimum_with_invented_keys() -> None:
    found = trusting(1)
    found.add_endorsement(key(0), key(99), START, START)
    assert found.tier(key(99), START) is Tier.UNKNOWN
    second_hand(found, *((0, number) for number in range(10, 30)))
    assert (found.tier(key(99), START), found.score(key(99), START)) == (Tier.UNKNOWN, 0.0)
    assert "count as 1; at least 2 are needed" in found.explain(key(99), START).reasons[1]


def test_two_trusted_keys_gain_nothing_from_invented_keys() -> None:
    found = trusting(2)
    for root in (0, 1):
        found.add_endorsement(key(root), key(99), START, START)
        second_hand(found, *((root, 10 + 20 * root + number) for number in range(20)))
    assert found.tier(key(99), START) is Tier.KNOWN
    assert found.score(key(99), START) == pytest.approx(2 / 3)


def test_a_key_trusted_by_hand_does_not_also_count_second_hand() -> None:
    found = trusting(4)
    second_hand(found, (0, 2), (1, 3))
    assert found.score(key(99), START) == pytest.approx(2 / 3)


def test_a_second_hand_endorsement_expires_with_the_endorsement_of_its_endorser() -> None:
    found = trusting(3)
    for number in range(3):
        found.add_endorsement(key(number), key(10 + number), START, START)
        found.add_endorsement(key(10 + number), key(99), START + 100, START + 100)
    assert found.score(key(99), START + MAX_AGE_S) > 0
    assert found.score(key(99), START + MAX_AGE_S + 1) == 0


def test_endorsements_by_a_muted_key_do_not_count() -> None:
    found = trusting(4)
    second_hand(found, *((number, 10 + number) for number in range(4)))
    assert found.score(key(99), START) > 0
    for number in range(10, 14):
        found.set_tier(key(number), Tier.MUTED)
    assert found.score(key(99), START) == 0


def test_endorsements_lose_weight_with_age() -> None:
    found = trusting(3)
    for number in range(3):
        found.add_endorsement(key(number), key(99), START, START)
    assert found.tier(key(99), START + FADING_S) is Tier.KNOWN
    assert found.tier(key(99), START + MAX_AGE_S + 1) is Tier.UNKNOWN


@pytest.mark.parametrize("at", [START - MAX_AGE_S - 1, START + FADING_S + 1])
def test_an_endorsement_that_is_too_old_or_in_the_future_is_ignored(at: float) -> None:
    assert not trusting(1).add_endorsement(key(0), key(99), at, START)


def test_a_key_cannot_endorse_itself() -> None:
    assert not trusting(1).add_endorsement(key(0), key(0), START, START)


@pytest.mark.parametrize("tier", [Tier.BLOCKED, Tier.MUTED, Tier.UNKNOWN])
def test_a_tier_set_by_hand_overrides_endorsements(tier: Tier) -> None:
    found = trusting(5)
    for number in range(5):
        found.add_endorsement(key(number), key(99), START, START)
    found.set_tier(key(99), tier)
    assert found.tier(key(99), START) is tier
    found.set_tier(key(99), None)
    assert found.tier(key(99), START) is Tier.TRUSTED


def test_endorsements_are_bounded_by_endorser_and_in_all() -> None:
    store = MemoryStore()
    found = trust(Bounds(endorsers=4, endorsements_per_endorser=3), store)
    for endorser in range(10):
        for subject in range(20, 30):
            found.add_endorsement(key(endorser), key(subject), START + subject, START + 100)
    assert len(list(store.items(Table.ENDORSEMENTS))) == 4 * 3


def test_tiers_and_endorsements_survive_a_restart() -> None:
    store = MemoryStore()
    found = trust(store=store)
    for number in range(3):
        found.set_tier(key(number), Tier.TRUSTED)
        found.add_endorsement(key(number), key(99), START, START)
    assert trust(store=store).tier(key(99), START) is Tier.TRUSTED


def test_an_explanation_has_endorser_counts_and_limits() -> None:
    found = trusting(3)
    assert found.explain(key(99), START).reasons == ("no endorsements",)
    found.add_endorsement(key(0), key(99), START, START)
    assert "2 are needed" in found.explain(key(99), START).reasons[0]
    found.set_tier(key(99), Tier.BLOCKED)
    explained = found.explain(key(99), START)
    assert explained.reasons[0] == "set to blocked by hand"
    assert (explained.forward_quota, explained.rate_bytes_s) == (0.0, 0)


@pytest.mark.parametrize("data", [b"", b"\x83", ENDORSEMENT[:-1], ENDORSEMENT + b"\x00"])
def test_an_invalid_endorsement_is_rejected(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_endorsement(data)


def test_a_key_of_another_length_has_no_tier() -> None:
    with pytest.raises(Malformed):
        Net().add("n").set_tier(b"short", Tier.TRUSTED)


def test_an_endorsement_travels_in_its_signers_own_feed() -> None:
    net = Net()
    for name in ("a", "b", "c"):
        net.add(name)
    subject = net.identities["c"].signing.public_key
    reader = net.nodes["a"]
    for name in ("b", "c"):
        endorser = net.identities[name].signing.public_key
        reader.set_tier(endorser, Tier.TRUSTED)
        reader.subscribe(Subscription.feed(feed_tag(endorser, 3), 3))
        net.connect("a", name)
    net.nodes["b"].endorse(key(99))
    net.nodes["c"].endorse(key(99))
    net.advance(3)
    assert reader.explain(key(99)).tier is Tier.KNOWN
    assert subject != key(99)


def test_an_endorsement_in_another_namespace_does_not_count() -> None:
    net = Net()
    reader = net.add("a")
    for name in ("b", "c", "d"):
        net.add(name)
        endorser = net.identities[name].signing.public_key
        reader.set_tier(endorser, Tier.TRUSTED)
        reader.subscribe(Subscription.feed(feed_tag(endorser, 1), 1))
        net.connect("a", name)
        net.nodes[name].publish(Destination.feed(1), encode_endorsement(key(99), START))
    net.advance(3)
    assert len(net.delivered("a")) == 3
    assert reader.explain(key(99)).score == 0


def test_a_changed_tier_applies_to_a_connected_peer_at_once() -> None:
    net = Net()
    node = net.add("n", NodeConfig(relay_all=True))
    node.connected("fast", "p", key(7))
    assert node.peers()[0].tier is Tier.UNKNOWN
    node.set_tier(key(7), Tier.BLOCKED)
    assert node.peers()[0].tier is Tier.BLOCKED
    node.receive("fast", "p", b"anything")
    assert node.metrics()["frames_refused"] == 1
    assert node.tiers() == {key(7): Tier.BLOCKED}


def test_explain_shows_why_a_tag_is_forwarded_or_not() -> None:
    net = Net()
    node = net.add("n")
    assert node.explain_tag(FEED, 1).reasons == ("not subscribed: kept for a short time, not forwarded",)
    node.subscribe(Subscription.feed(FEED, 1))
    assert node.explain_tag(FEED, 1).reasons[0].startswith("subscribed")
    relay = net.add("r", NodeConfig(relay_all=True))
    assert "relays every tag" in relay.explain_tag(FEED, 1).reasons[0]
