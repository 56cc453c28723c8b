"""The inbox returns each object once, expires data, and evicts data of the largest source first."""

import pytest

from tests.veil.builders import ADDRESS, KEY, corrupted, published
from veil import NATIVE, Inbox, Published, ShardV1, publish
from veil.veil_limits import CACHE_TTL_SECONDS

MADE = published()
K = MADE.of.shape.k


def shards(made: Published = MADE) -> list[ShardV1]:
    return [NATIVE.decode_shard(shard) for shard in made.shards]


def numbered(number: int) -> Published:
    return publish(b"object %d" % number, ADDRESS, KEY)


def deliver(inbox: Inbox, made: Published, count: int, now: float = 0, source: str = "peer") -> list[bytes]:
    found = [inbox.add(shard, now, source) for shard in shards(made)[:count]]
    return [gathered.encoded for gathered in found if gathered]


def test_an_object_is_returned_once_however_many_shards_arrive() -> None:
    inbox = Inbox(NATIVE)
    assert deliver(inbox, MADE, len(MADE.shards)) == [MADE.encoded]
    assert deliver(inbox, MADE, len(MADE.shards)) == []
    assert inbox.is_done(MADE.of)


def test_no_shard_of_a_returned_object_is_kept() -> None:
    inbox = Inbox(NATIVE)
    deliver(inbox, MADE, len(MADE.shards))
    assert (len(inbox), inbox.held_bytes) == (0, 0)
    assert inbox.missing(MADE.of) == ()


def test_memory_stays_flat_over_many_objects_with_all_their_shards() -> None:
    inbox = Inbox(NATIVE, max_done=100)
    for number in range(1_000):
        made = numbered(number)
        assert deliver(inbox, made, len(made.shards), now=number) == [made.encoded]
        assert (len(inbox), inbox.held_bytes) == (0, 0)
        assert inbox.done_count <= 100


def test_an_incomplete_object_expires() -> None:
    inbox = Inbox(NATIVE)
    deliver(inbox, MADE, K - 1, now=1_000)
    inbox.expire(1_000 + CACHE_TTL_SECONDS - 1)
    assert len(inbox) == 1
    inbox.expire(1_000 + CACHE_TTL_SECONDS)
    assert (len(inbox), inbox.held_bytes) == (0, 0)
    assert inbox.add(shards()[K - 1], 1_000 + CACHE_TTL_SECONDS, "peer") is None


def test_returned_objects_are_forgotten_after_their_lifetime() -> None:
    inbox = Inbox(NATIVE)
    deliver(inbox, MADE, K)
    inbox.expire(CACHE_TTL_SECONDS)
    assert inbox.done_count == 0
    assert deliver(inbox, MADE, K, now=CACHE_TTL_SECONDS) == [MADE.encoded]


def test_missing_indices_are_known_for_incomplete_objects() -> None:
    inbox = Inbox(NATIVE)
    assert inbox.missing(MADE.of) == ()
    inbox.add(shards()[3], 0, "peer")
    inbox.add(shards()[7], 0, "peer")
    assert inbox.missing(MADE.of) == (0, 1, 2, 4, 5, 6, 8, 9)


def test_a_full_inbox_drops_the_oldest_shards_of_the_largest_source() -> None:
    room = 20 * 2_048
    inbox = Inbox(NATIVE, max_bytes=room)
    wanted = [numbered(number) for number in range(3)]
    for made in wanted:
        inbox.add(shards(made)[0], 0, "modest")
    floods = [numbered(100 + number) for number in range(500)]
    for number, made in enumerate(floods):
        inbox.add(shards(made)[0], number, "greedy")
        assert inbox.held_bytes <= room
    for made in wanted:
        assert inbox.add(shards(made)[1], 600, "modest") is not None
    assert inbox.missing(floods[0].of) == ()
    assert inbox.missing(floods[-1].of) == (1, 2)


def test_byte_counts_return_to_zero_when_all_objects_are_done() -> None:
    inbox = Inbox(NATIVE, max_bytes=30 * 2_048)
    for number in range(300):
        made = numbered(number)
        parts = shards(made)
        inbox.add(NATIVE.decode_shard(corrupted(made.shards[0])), number, f"liar {number % 7}")
        for part in parts[: number % 3]:
            inbox.add(part, number, f"peer {number % 3}")
    inbox.expire(10 * CACHE_TTL_SECONDS)
    assert (len(inbox), inbox.held_bytes, inbox.done_count) == (0, 0, 0)
    assert not inbox._bytes_by_source
    assert not inbox._parts


def test_false_shards_count_against_the_source_that_sent_them() -> None:
    room = 20 * 2_048
    inbox = Inbox(NATIVE, max_bytes=room)
    wanted = [numbered(number) for number in range(5)]
    for made in wanted:
        inbox.add(shards(made)[0], 0, "modest")
    for number in range(500):
        lie = corrupted(wanted[number % 5].shards[number % 3], -1 - number)
        assert inbox.add(NATIVE.decode_shard(lie), 0, "liar") is None
        assert inbox.held_bytes <= room
    for made in wanted:
        assert inbox.add(shards(made)[1], 0, "modest") is not None


@pytest.mark.parametrize("order", ["poison first", "poison last"])
def test_poison_does_not_stop_delivery(order: str) -> None:
    inbox = Inbox(NATIVE)
    poison = NATIVE.decode_shard(corrupted(MADE.shards[0]))
    good = shards()[1 : K + 1]
    sent = [poison, *good] if order == "poison first" else [*good[:-1], poison, good[-1]]
    found = [inbox.add(shard, 0, "liar" if shard is poison else "peer") for shard in sent]
    assert found[:-1] == [None] * (len(sent) - 1)
    assert found[-1] is not None
    assert found[-1].liars == {"liar"}
