"""A state in a file: it is bound to its log, and any other log or state is told from it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.hostile import HostileHub
from tests.client.pair import STREAM, Pair
from tests.state.hubs import at_a_liar, say
from veen.core import Malformed, SigningKey, Unavailable, Unverified, VeenError, receipt
from veen.overlays import At
from veen.overlays.crdt import LWW, Register
from veen.overlays.kv import KV, Write
from veen.state import StateSnapshot, StateView, compare, make
from veen.state.state_snapshot import PartState


async def filled(people: Pair) -> None:
    async with people.writer() as writer:
        await say(writer, *(Write(b"k%d" % (number % 3), 0, b"%d" % number) for number in range(8)))


@pytest.mark.parametrize("at", [None, At(0, 5), At(0, 1)])
def test_a_snapshot_matches_only_its_own_log_and_place(place: Path, at: At | None) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        await filled(people)
        async with people.reader() as reader, StateView.of(reader, STREAM, KV) as view:
            async with view.reading(at) as reading:
                made = await make(view, reading)
                states = dict(reading.states)
            read = StateSnapshot.decode(made.encode())
            read.verify(hub.identity.hub_id)
            assert read.decode_states(KV) == states
            assert read.end() == (at or At(0, 8))
            compared = await compare(view, read)
            assert (compared.at, compared.parts) == (read.end(), len(states))

    at_a_liar(place, work)


def test_an_empty_log_has_no_snapshot(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        async with people.reader() as reader, StateView.of(reader, STREAM, KV) as view, view.reading() as reading:
            with pytest.raises(Unavailable, match="has no entry up to this place"):
                await make(view, reading)

    at_a_liar(place, work)


def _other_state(made: StateSnapshot) -> StateSnapshot:
    states = (*made.states[:-1], PartState(made.states[-1].part, KV.encode_state(KV.EMPTY)))
    loose = replace(made, states=states)
    return replace(loose, state_hash=loose._hashed())


def _other_end(made: StateSnapshot) -> StateSnapshot:
    head = made.heads[-1]
    return replace(made, heads=(replace(head, stream_seq=head.stream_seq - 1),))


CHANGES: dict[str, tuple[Callable[[StateSnapshot], StateSnapshot], type[VeenError], str]] = {
    "another state": (_other_state, Unverified, "produces another state"),
    "another place": (_other_end, Unverified, ""),
    "another stream": (lambda made: replace(made, stream_id=bytes(32)), Unverified, "not of its stream|another stream"),
    "other rules": (lambda made: replace(made, rules=made.rules + 1), Malformed, "version"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_snapshot_is_rejected(place: Path, what: str) -> None:
    change, kind, said = CHANGES[what]

    async def work(hub: HostileHub, people: Pair) -> None:
        await filled(people)
        async with people.reader() as reader, StateView.of(reader, STREAM, KV) as view:
            async with view.reading() as reading:
                changed = change(await make(view, reading))
            with pytest.raises(kind, match=said or None):
                await _judged(changed, view)

    async def _judged(changed: StateSnapshot, view: StateView[Register, Register]) -> None:
        changed.verify()
        await compare(view, changed)

    at_a_liar(place, work)


def test_a_state_that_does_not_match_its_hash_does_not_decode(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        await filled(people)
        async with people.reader() as reader, StateView.of(reader, STREAM, KV) as view, view.reading() as reading:
            made = await make(view, reading)
        for loose in (replace(made, state_hash=bytes(32)), replace(made, states=made.states[::-1])):
            with pytest.raises(Malformed):
                StateSnapshot.decode(_encoded(loose))
        with pytest.raises(Malformed, match=r"not by crdt\.lww"):
            made.decode_states(LWW)

    def _encoded(loose: StateSnapshot) -> bytes:
        try:
            return loose.encode()
        except ValueError as error:
            raise Malformed("state snapshot", str(error)) from None

    at_a_liar(place, work)


def test_a_root_signed_by_another_hub_is_rejected(place: Path) -> None:
    async def work(hub: HostileHub, people: Pair) -> None:
        await filled(people)
        async with people.reader() as reader, StateView.of(reader, STREAM, KV) as view, view.reading() as reading:
            made = await make(view, reading)
        head, stranger = made.heads[-1], SigningKey.generate()
        names = ("label", "stream_seq", "leaf_hash", "mmr_root", "hub_ts")
        forged = receipt.sign(stranger, **{name: getattr(head, name) for name in names})
        with pytest.raises(Unverified):
            replace(made, heads=(forged,)).verify()
        with pytest.raises(Unverified):
            made.verify(bytes(32))

    at_a_liar(place, work)
