"""Evidence for an answer: anyone can check it, and what it comes to is the answer; every change to it is noticed."""

from pathlib import Path

import pytest

from tests.client.hostile import HostileHub
from tests.client.pair import STREAM, Pair
from tests.state.hubs import at_a_liar, say
from veen.client.evidence import verify
from veen.core import Malformed, Unavailable, Unverified
from veen.overlays import At
from veen.overlays.crdt import G_COUNTER, Increment
from veen.overlays.kv import KV, Write
from veen.state import StateView, prove, state_proof, verify_state


def evidence(place: Path, key: bytes, at: At | None = None) -> tuple[bytes, bytes, bytes]:
    """A file for one key of a short log, the hub's id, and the hash of the key's state."""
    made: list[tuple[bytes, bytes, bytes]] = []

    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer:
            await say(writer, *(Write(b"k%d" % (number % 2), 0, b"%d" % number) for number in range(6)))
        async with people.reader() as reader, StateView.of(reader, STREAM, KV) as view, view.reading(at) as reading:
            file = await prove(view, reading, key)
            made.append((file.encode(), hub.identity.hub_id, reading.state_hash(key)))

    at_a_liar(place, work)
    return made[0]


@pytest.mark.parametrize(("at", "value"), [(None, b"5"), (At(0, 4), b"3"), (At(0, 2), b"1")])
def test_evidence_produces_the_same_state_as_the_hub(place: Path, at: At | None, value: bytes) -> None:
    file, hub_id, hashed = evidence(place, b"k1", at)
    found = verify_state(file, KV, STREAM, b"k1", pin=hub_id)
    assert found.states[b"k1"].value == value
    assert found.state_hash == hashed
    assert found.faults == ()
    assert hashed.hex() in found.report.claim
    assert found.report.pinned
    assert verify(file, hub_id).contradictions == ()


def test_evidence_of_a_register_has_only_the_winning_write(place: Path) -> None:
    file, hub_id, _ = evidence(place, b"k1")
    assert [entry.receipt.stream_seq for entry in verify(file, hub_id).entries] == [6]


def test_evidence_of_a_counter_has_every_increment(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer:
            await say(writer, *(Increment(bytes(32), n) for n in (1, 2, 3)))
        async with (
            people.reader() as reader,
            StateView.of(reader, STREAM, G_COUNTER) as view,
            view.reading() as reading,
        ):
            (part,) = reading.states
            assert [step.at.stream_seq for step in reading.determining(part)] == [1, 2, 3]
            file = (await prove(view, reading, part)).encode()
        assert verify_state(file, G_COUNTER, STREAM, part).states == {part: reading_of(file, part)}

    def reading_of(file: bytes, part: bytes) -> object:
        return verify_state(file, G_COUNTER, STREAM).states[part]

    at_a_liar(place, work)


def test_an_untouched_part_has_no_evidence(place: Path) -> None:
    with pytest.raises(Unavailable, match="only the whole log proves that"):
        evidence(place, b"never written")


def test_more_entries_than_a_file_holds_are_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_proof, "MAX_PAGE_ITEMS", 3)

    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer:
            await say(writer, *(Write(b"k%d" % number, 0, b"") for number in range(3)))
        async with people.reader() as reader, StateView.of(reader, STREAM, KV) as view, view.reading() as reading:
            assert len((await prove(view, reading, b"k0", b"k1")).exhibits) == 2
            with pytest.raises(Unavailable, match="3 entries determine it"):
                await prove(view, reading, *reading.states)

    at_a_liar(place, work)


def test_evidence_of_another_hub_is_refused(place: Path) -> None:
    file, _, _ = evidence(place, b"k1")
    with pytest.raises(Unverified):
        verify_state(file, KV, STREAM, b"k1", pin=bytes(32))


def test_evidence_of_another_stream_is_refused(place: Path) -> None:
    file, hub_id, _ = evidence(place, b"k1")
    with pytest.raises(Unverified, match="not of this stream"):
        verify_state(file, KV, "another", b"k1", pin=hub_id)


def test_every_changed_byte_is_detected_or_irrelevant(place: Path) -> None:
    file, hub_id, hashed = evidence(place, b"k1")
    noticed = 0
    for at in range(0, len(file), 3):
        changed = bytearray(file)
        changed[at] ^= 0x40
        try:
            found = verify_state(bytes(changed), KV, STREAM, b"k1", pin=hub_id)
        except (Malformed, Unverified):
            noticed += 1
        else:  # the maker's own words and the time it was made are not the hub's
            assert found.state_hash == hashed
    assert noticed > len(file) // 3 * 0.8


def test_no_evidence_is_made_from_a_wrong_proof_of_the_hub(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.writer() as writer:
            await say(writer, *(Write(b"k", 0, b"%d" % number) for number in range(3)))
        async with people.reader() as reader, StateView.of(reader, STREAM, KV) as view, view.reading() as reading:
            hub.on_proof = lambda honest: type(honest)(bytes(32), honest.path, honest.peaks_after)
            hub.lying = True
            with pytest.raises(Unverified):
                await prove(view, reading, b"k")

    at_a_liar(place, work)
