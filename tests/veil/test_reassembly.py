"""Any k shards restore an object, and false shards cannot prevent it."""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.veil.builders import corrupted, published, restore
from veil import NATIVE, ErasureMode, Published, Reassembled, Reassembly, ShardSet
from veil.codec import NativeForm
from veil.profiles import SHAPES, Shape
from veil.veil_limits import ATTEMPTS_PER_SHARD, MAX_RIVALS

MADE = published()  # six of ten
LARGE = published(200_000)  # ten of sixteen
K, N = MADE.of.shape.k, MADE.of.shape.n


class CountingForm(NativeForm):
    """The native form with a count of restore attempts, which fails above a bound."""

    def __init__(self, most: int = 10_000) -> None:
        self.tries = 0
        self.most = most

    def restore(self, of: ShardSet, payloads: Mapping[int, bytes]) -> bytes:
        self.tries += 1
        assert self.tries <= self.most
        return super().restore(of, payloads)


def feed(reassembly: Reassembly, *sent: tuple[bytes, str]) -> Reassembled | None:
    found = None
    for shard, source in sent:
        assert found is None, "whole before the last shard"
        found = reassembly.add(NATIVE.decode_shard(shard), source)
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mode", ErasureMode)
def test_k_shards_in_any_order_are_enough_and_fewer_are_not(shape: Shape, mode: ErasureMode) -> None:
    made = published(900, mode, shape)
    order = Random(shape.bucket_size).sample(made.shards, shape.k)
    assert restore(made.of, order[:-1]) is None
    found = restore(made.of, order)
    assert found == Reassembled(made.of, made.encoded, frozenset())


def test_every_choice_of_k_is_enough() -> None:
    for chosen in combinations(MADE.shards, K):
        found = restore(MADE.of, chosen)
        assert found is not None
        assert found.encoded == MADE.encoded


def test_work_is_bounded_by_what_arrives() -> None:
    form = CountingForm()
    reassembly = Reassembly(LARGE.of, form)
    rng = Random(2)
    for number in range(80):
        shard = corrupted(LARGE.shards[number % len(LARGE.shards)], -1 - rng.randrange(9_000))
        before = form.tries
        form.most = (number + 1) * ATTEMPTS_PER_SHARD
        assert reassembly.add(NATIVE.decode_shard(shard), number) is None
        if number > 3 * LARGE.of.shape.n:
            assert form.tries - before <= ATTEMPTS_PER_SHARD
    assert form.tries > 0


def test_the_same_shard_many_times_is_one_shard() -> None:
    reassembly = Reassembly(MADE.of, NATIVE)
    assert feed(reassembly, *[(MADE.shards[0], "a"), (MADE.shards[1], "b")] * 50) is None
    assert reassembly.indices == {0, 1}
    assert reassembly.held_bytes == 2 * len(NATIVE.decode_shard(MADE.shards[0]).payload)


@pytest.mark.parametrize("made", [MADE, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("place", ["first", "last"])
def test_one_false_shard_costs_one_good_one_and_no_more(made: Published, place: str) -> None:
    k = made.of.shape.k
    for index in range(made.of.shape.n):
        poison = corrupted(made.shards[index])
        good = [shard for shard in made.shards if shard != made.shards[index]][:k]
        sent = [poison, *good] if place == "first" else [*good[:-1], poison, good[-1]]
        reassembly = Reassembly(made.of, NATIVE)
        found = feed(reassembly, *((shard, "liar" if shard is poison else "honest") for shard in sent))
        assert found is not None
        assert found.encoded == made.encoded
        assert found.liars == {"liar"}


@pytest.mark.parametrize("made", [MADE, LARGE], ids=["small", "large"])
def test_two_poisoned_shards_cost_two_good_ones_from_anyone(made: Published) -> None:
    k = made.of.shape.k
    sent = [corrupted(made.shards[0]), *made.shards[2:5], corrupted(made.shards[1]), *made.shards[5 : 2 + k]]
    found = feed(Reassembly(made.of, NATIVE), *((shard, f"peer {number}") for number, shard in enumerate(sent)))
    assert found is not None
    assert found.liars == {"peer 0", "peer 4"}


def test_a_poisoned_shard_for_an_index_does_not_keep_the_good_one_out() -> None:
    sent = [(corrupted(shard), "liar") for shard in MADE.shards]
    found = feed(Reassembly(MADE.of, NATIVE), *sent, *((shard, "honest") for shard in MADE.shards[:K]))
    assert found is not None
    assert found.encoded == MADE.encoded
    assert found.liars == {"liar"}


def test_many_dishonest_sources_cannot_block_one_honest_source() -> None:
    rng = Random(1)
    reassembly = Reassembly(LARGE.of, NATIVE)
    for source in range(8):
        for shard in LARGE.shards:
            assert reassembly.add(NATIVE.decode_shard(corrupted(shard, -1 - rng.randrange(9_000))), source) is None
    assert feed(reassembly, *((shard, "slow") for shard in LARGE.shards[:2])) is None
    found = feed(reassembly, *((shard, "honest") for shard in LARGE.shards[3 : 3 + LARGE.of.shape.k]))
    assert found is not None
    assert found.encoded == LARGE.encoded
    assert found.liars
    assert found.liars <= set(range(8))


def test_shards_of_trusted_sources_are_not_evicted_by_many_others() -> None:
    reassembly = Reassembly(MADE.of, NATIVE)
    for shard in MADE.shards[: K - 1]:
        reassembly.add(NATIVE.decode_shard(shard), "friend", 2)
    for liar in range(3 * MAX_RIVALS):
        for shard in MADE.shards[: K - 1]:
            reassembly.add(NATIVE.decode_shard(corrupted(shard, -1 - liar)), liar)
    found = reassembly.add(NATIVE.decode_shard(MADE.shards[K - 1]), "friend", 2)
    assert found is not None
    assert found.encoded == MADE.encoded


def test_the_shards_of_a_source_can_be_dropped() -> None:
    reassembly = Reassembly(MADE.of, NATIVE)
    feed(reassembly, (MADE.shards[0], "a"), (MADE.shards[1], "b"), (MADE.shards[2], "a"))
    reassembly.forget("a")
    assert reassembly.indices == {1}
    reassembly.clear()
    assert reassembly.held_bytes == 0


def test_a_shard_counts_for_every_source_that_sent_it() -> None:
    """A dishonest source may be the first to send good shards; they still count for the honest source."""
    reassembly = Reassembly(LARGE.of, NATIVE)
    k = LARGE.of.shape.k
    rng = Random(3)
    for liar in range(4):
        for shard in LARGE.shards:
            reassembly.add(NATIVE.decode_shard(corrupted(shard, -1 - rng.randrange(9_000))), liar)
    for shard in LARGE.shards[: k - 1]:
        assert reassembly.add(NATIVE.decode_shard(shard), "first") is None
    honest = [*LARGE.shards[1:k], LARGE.shards[0]]
    found = [reassembly.add(NATIVE.decode_shard(shard), "honest") for shard in honest]
    whole = [gathered for gathered in found if gathered]
    assert whole
    assert whole[0].encoded == LARGE.encoded
    assert not whole[0].liars & {"first", "honest"}


def test_a_shard_that_several_sent_stays_when_one_of_them_is_forgotten() -> None:
    ledger: Counter[Hashable] = Counter()
    reassembly = Reassembly(MADE.of, NATIVE, ledger)
    size = len(NATIVE.decode_shard(MADE.shards[0]).payload)
    feed(reassembly, (MADE.shards[0], "a"), (MADE.shards[0], "b"), (MADE.shards[1], "a"))
    assert ledger == {"a": 2 * size}
    reassembly.forget("a")
    assert ledger == {"b": size}
    assert reassembly.indices == {0}
    reassembly.forget("b")
    assert not ledger
    assert not reassembly.indices


def test_a_relay_that_forwards_a_false_shard_with_every_good_one_still_succeeds() -> None:
    """It cannot distinguish them, so it sends both, and combinations of rivals are tried."""
    reassembly, found = Reassembly(MADE.of, NATIVE), None
    for shard in MADE.shards:
        for sent in (corrupted(shard), shard):
            found = found or reassembly.add(NATIVE.decode_shard(sent), "relay")
    assert found is not None
    assert found.encoded == MADE.encoded
    assert found.liars == {"relay"}


def test_memory_is_bounded_whatever_arrives() -> None:
    reassembly = Reassembly(MADE.of, NATIVE)
    for number in range(20 * N):
        reassembly.add(NATIVE.decode_shard(corrupted(MADE.shards[number % N], -1 - number)), number)
    assert reassembly.held_bytes <= MAX_RIVALS * N * MADE.of.shape.bucket_size


def test_nothing_is_tried_before_there_are_k_indices() -> None:
    form = CountingForm()
    reassembly = Reassembly(MADE.of, form)
    for number in range(MAX_RIVALS * (K - 1)):
        reassembly.add(NATIVE.decode_shard(corrupted(MADE.shards[number % (K - 1)], -1 - number)), number)
    assert form.tries == 0


def test_a_whole_object_is_tried_once() -> None:
    form = CountingForm()
    reassembly = Reassembly(MADE.of, form)
    assert feed(reassembly, *((shard, shard[:4].hex()) for shard in MADE.shards[:K])) is not None
    assert form.tries == 1


@pytest.mark.parametrize(
    "other",
    [
        replace(MADE.of, object_root=bytes(32)),
        replace(MADE.of, erasure_mode=ErasureMode.SYSTEMATIC),
        replace(MADE.of, address=replace(MADE.of.address, epoch=MADE.of.address.epoch + 1)),
        replace(MADE.of, address=replace(MADE.of.address, namespace=43)),
        replace(MADE.of, address=replace(MADE.of.address, tag=bytes(32))),
        replace(MADE.of, shape=Shape(2, 6, 10, 32_768)),
    ],
)
def test_shards_that_differ_in_any_field_of_the_header_are_not_of_one_object(other: ShardSet) -> None:
    assert other != MADE.of
    shard = replace(NATIVE.decode_shard(MADE.shards[0]), of=other)
    with pytest.raises(ValueError, match="another object"):
        Reassembly(MADE.of, NATIVE).add(shard)


@given(st.data())
def test_with_k_honest_shards_of_one_source_the_object_is_always_found(data: st.DataObject) -> None:
    """For any false shards, in any order of arrival."""
    honest = data.draw(st.permutations(range(N)))[:K]
    lies = data.draw(st.lists(st.tuples(st.integers(0, N - 1), st.integers(1, 5_000), st.integers(0, 3)), max_size=12))
    sent = [(MADE.shards[index], "honest") for index in honest]
    sent += [(corrupted(MADE.shards[index], -at), f"liar {liar}") for index, at, liar in lies]
    reassembly, found = Reassembly(MADE.of, NATIVE), None
    for shard, source in data.draw(st.permutations(sent)):
        found = found or reassembly.add(NATIVE.decode_shard(shard), source)
    assert found is not None
    assert found.encoded == MADE.encoded
    assert "honest" not in found.liars
