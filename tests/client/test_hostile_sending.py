"""A hub that lies to a writer is always caught, and the error names the kind of lie."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.hostile import HostileHub
from tests.client.pair import STREAM, Pair, pair, send_all
from veen.client import evidence
from veen.client.client import Client
from veen.client.contradiction import Contradiction, Lie
from veen.client.trust import Pin
from veen.core import Msg, Receipt, SigningKey

Said = list[Receipt]
Arrange = Callable[[HostileHub], None]


def _on_receipts(change: Callable[[HostileHub, list[Msg], Said], Said]) -> Arrange:
    def arrange(hub: HostileHub) -> None:
        hub.on_receipts = lambda messages, said: change(hub, messages, said)

    return arrange


def _earlier(hub: HostileHub, seq: int) -> Receipt:
    return hub.log(hub.label(STREAM)).entries[seq - 1][1]


def _signature(hub: HostileHub, messages: list[Msg], said: Said) -> Said:
    return [replace(one, hub_sig=bytes((one.hub_sig[0] ^ 1,)) + one.hub_sig[1:]) for one in said]


def _root(hub: HostileHub, messages: list[Msg], said: Said) -> Said:
    return [*said[:-1], hub.signed(said[-1], mmr_root=bytes(32))]


def _earlier_time(hub: HostileHub, messages: list[Msg], said: Said) -> Said:
    return [*said[:-1], hub.signed(said[-1], hub_ts=said[-1].hub_ts - 1)]


def _seq_gap(hub: HostileHub, messages: list[Msg], said: Said) -> Said:
    return [hub.signed(one, stream_seq=one.stream_seq + 3) for one in said]


def _duplicate_seq(hub: HostileHub, messages: list[Msg], said: Said) -> Said:
    return [said[0], *(hub.signed(one, stream_seq=said[0].stream_seq) for one in said[1:])]


def _taken_seq(hub: HostileHub, messages: list[Msg], said: Said) -> Said:
    """The place of an entry that was acknowledged before."""
    return [hub.signed(said[0], stream_seq=2), *said[1:]]


def _swapped(hub: HostileHub, messages: list[Msg], said: Said) -> Said:
    return [said[1], said[0], *said[2:]]


def _another_message(hub: HostileHub, messages: list[Msg], said: Said) -> Said:
    return [hub.signed(said[0], leaf_hash=hub.forged(said[0].label).leaf_hash()), *said[1:]]


def _replayed(hub: HostileHub, messages: list[Msg], said: Said) -> Said:
    return [_earlier(hub, 2), *said[1:]]


def _another_label(hub: HostileHub, messages: list[Msg], said: Said) -> Said:
    return [hub.signed(said[0], label=bytes(32)), *said[1:]]


def _stranger(hub: HostileHub) -> None:
    """Another key signs, and the hub's status claims that key."""
    key = SigningKey.generate()
    hub.on_receipts = lambda messages, said: [hub.signed(one, key) for one in said]
    hub.on_status = lambda shown: shown.update(hub_pk=key.public_key.hex())


def _retired(hub: HostileHub) -> None:
    """The hub's key signs outside its validity."""
    hub.on_receipts = lambda messages, said: [
        hub.signed(one, hub_ts=hub.identity.newest.valid_from - 1) for one in said
    ]


def _forked(hub: HostileHub) -> None:
    hub.fork(hub.label(STREAM), at=2)


def _rewritten_beyond(hub: HostileHub) -> None:
    """Another history that is longer than the known one."""
    hub.fork(hub.label(STREAM), at=0)


def _reordered(hub: HostileHub, messages: list[Msg], said: Said) -> Said:
    """The tree is correct, but contains a client's messages in reverse order."""
    log = hub.logs[hub.label(STREAM)] = hub.log(hub.label(STREAM)).cut(5)
    placed = {message.leaf_hash(): log.append(hub.key, message, hub.hub_ts) for message in reversed(messages)}
    return [placed[message.leaf_hash()] for message in messages]


def _truncated(hub: HostileHub) -> None:
    hub.logs[hub.label(STREAM)] = hub.log(hub.label(STREAM)).cut(2)


# (the lie, how the hub tells it, its kind, whether two signed statements prove it)
LIES: list[tuple[str, Arrange, Lie, bool]] = [
    ("a signature that is none", _on_receipts(_signature), Lie.SIGNATURE, False),
    ("a stranger's key", _stranger, Lie.WRONG_KEY, False),
    ("a key outside its time", _retired, Lie.WRONG_KEY, False),
    ("a root of nothing", _on_receipts(_root), Lie.ROOT, True),
    ("numbers left out", _on_receipts(_seq_gap), Lie.SEQ_GAP, True),
    ("one number for two messages", _on_receipts(_duplicate_seq), Lie.DUPLICATE_SEQ, True),
    ("a number that is taken", _on_receipts(_taken_seq), Lie.DUPLICATE_SEQ, True),
    ("receipts exchanged", _on_receipts(_swapped), Lie.SWAPPED_MESSAGE, False),
    ("the receipt of a message that was not sent", _on_receipts(_another_message), Lie.SWAPPED_MESSAGE, False),
    ("an old receipt", _on_receipts(_replayed), Lie.REPLAYED_RECEIPT, False),
    ("a receipt of another label", _on_receipts(_another_label), Lie.REPLAYED_RECEIPT, False),
    ("a time before that of an earlier entry", _on_receipts(_earlier_time), Lie.TIME, True),
    ("messages the other way round", _on_receipts(_reordered), Lie.REPEATED_MESSAGE, True),
    ("another history since then", _forked, Lie.FORKED_HISTORY, True),
    ("another history from the start", _rewritten_beyond, Lie.FORKED_HISTORY, True),
    ("entries gone", _truncated, Lie.TRUNCATED_STREAM, False),
]


async def _with_history(place: Path, then: Callable[[HostileHub, Pair, Client], Awaitable[None]]) -> None:
    """Five correct entries, and a writer that knows them."""
    with pair(place) as people:
        async with HostileHub() as hub:
            people.url, people.pin = hub.url, Pin(key=hub.identity.hub_id)
            async with people.writer() as client:
                await send_all(client, *(b"%d" % number for number in range(5)))
                hub.lying = True
                await then(hub, people, client)


@pytest.mark.parametrize(("arrange", "lie", "shown"), [case[1:] for case in LIES], ids=[case[0] for case in LIES])
def test_a_lie_to_a_writer_is_caught_and_named(place: Path, arrange: Arrange, lie: Lie, shown: bool) -> None:
    async def then(hub: HostileHub, people: Pair, client: Client) -> None:
        arrange(hub)
        with pytest.raises(Contradiction) as caught:
            await send_all(client, b"a", b"b", b"c")
        error = caught.value
        assert error.lie is lie
        assert str(error).startswith(f"{lie}: ")
        assert client.follower(STREAM).tree.size == 5
        if shown:
            assert error.evidence is not None
            report = evidence.verify(error.evidence.read_bytes(), hub.identity.hub_id)
            assert report.contradictions
            assert str(lie) in report.claim
        else:
            assert error.evidence is None

    asyncio.run(_with_history(place, then))


@pytest.mark.parametrize(("arrange", "lie"), [case[1:3] for case in LIES], ids=[case[0] for case in LIES])
def test_after_a_lie_nothing_more_is_sent(place: Path, arrange: Arrange, lie: Lie) -> None:
    async def then(hub: HostileHub, people: Pair, client: Client) -> None:
        arrange(hub)
        with pytest.raises(Contradiction):
            await send_all(client, b"a", b"b", b"c")
        before = len(hub.submitted)
        with pytest.raises(Contradiction) as caught:
            await client.send(STREAM, b"d")
        assert caught.value.lie is lie
        assert len(hub.submitted) == before

    asyncio.run(_with_history(place, then))


def test_the_same_lie_leaves_one_piece_of_evidence(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair, client: Client) -> None:
        _forked(hub)
        kept = set()
        for _ in range(2):
            with pytest.raises(Contradiction) as caught:
                await client.resync(STREAM)
            kept.add(caught.value.evidence)
        assert len(kept) == 1
        assert len(list(people.writer_dir.evidence.iterdir())) == 1

    asyncio.run(_with_history(place, then))


def test_an_honest_hub_is_accepted(place: Path) -> None:
    async def then(hub: HostileHub, people: Pair, client: Client) -> None:
        sent = await send_all(client, b"a", b"b", b"c")
        assert [one.stream_seq for one in sent] == [6, 7, 8]
        assert client.follower(STREAM).tree.size == 8
        assert client.follower(STREAM).tree.root() == hub.log(hub.label(STREAM)).tree.root()

    asyncio.run(_with_history(place, then))
