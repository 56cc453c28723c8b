"""A hub that lies to a reader is always caught before anything is opened, and the error names the kind of lie."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.hostile import HostileHub
from tests.client.pair import STREAM, bodies, pair, read_all, send_all
from veen.client import evidence
from veen.client.client import Client
from veen.client.contradiction import Contradiction, Lie
from veen.client.trust import Pin
from veen.core import Malformed, Receipt, SigningKey
from veen.core.envelopes import StreamItem, StreamResponse

Items = list[StreamItem]
Arrange = Callable[[HostileHub], None]

# The reader has read KNOWN entries when the hub starts to lie about the entries after them.
KNOWN, ALL = 5, 9


def _on_items(change: Callable[[HostileHub, Items], Items]) -> Arrange:
    def arrange(hub: HostileHub) -> None:
        hub.on_items = lambda items: change(hub, items)

    return arrange


def _with(items: Items, number: int, **changes: object) -> Items:
    return [replace(item, **changes) if at == number else item for at, item in enumerate(items)]  # type: ignore[arg-type]


def _receipt(item: StreamItem) -> Receipt:
    assert item.receipt is not None
    return item.receipt


def _signature(hub: HostileHub, items: Items) -> Items:
    return _with(items, 1, receipt=replace(_receipt(items[1]), hub_sig=bytes(64)))


def _client_signature(hub: HostileHub, items: Items) -> Items:
    """A message that its client never signed, with a valid receipt."""
    forged = replace(items[1].msg, sig=bytes(64))
    return _with(items, 1, msg=forged)


def _root(hub: HostileHub, items: Items) -> Items:
    return _with(items, 1, receipt=hub.signed(_receipt(items[1]), mmr_root=bytes(32)))


def _earlier_time(hub: HostileHub, items: Items) -> Items:
    receipt = _receipt(items[1])
    return _with(items, 1, receipt=hub.signed(receipt, hub_ts=receipt.hub_ts - 1))


def _seq_gap(hub: HostileHub, items: Items) -> Items:
    return [items[0], *items[2:]]


def _numbers_shifted(hub: HostileHub, items: Items) -> Items:
    """One entry is omitted, and the rest is renumbered."""
    kept = [items[0], *items[2:]]
    first = items[0].stream_seq
    return [
        StreamItem(first + at, item.msg, hub.signed(_receipt(item), stream_seq=first + at))
        for at, item in enumerate(kept)
    ]


def _duplicate_seq(hub: HostileHub, items: Items) -> Items:
    other = hub.signed(_receipt(items[1]), stream_seq=items[0].stream_seq)
    return [items[0], StreamItem(items[0].stream_seq, items[1].msg, other), *items[2:]]


def _shown_twice(hub: HostileHub, items: Items) -> Items:
    return [items[0], items[0], *items[1:]]


def _swapped(hub: HostileHub, items: Items) -> Items:
    return [replace(items[0], msg=items[1].msg), replace(items[1], msg=items[0].msg), *items[2:]]


def _altered(hub: HostileHub, items: Items) -> Items:
    """One byte of a ciphertext is changed."""
    message = items[1].msg
    altered = replace(message, ciphertext=message.ciphertext[:-1] + bytes((message.ciphertext[-1] ^ 1,)))
    return _with(items, 1, msg=altered)


def _replayed(hub: HostileHub, items: Items) -> Items:
    return _with(items, 1, receipt=items[0].receipt)


def _truncated_at(last: int) -> Arrange:
    def arrange(hub: HostileHub) -> None:
        hub.logs[hub.label(STREAM)] = hub.log(hub.label(STREAM)).cut(last)

    return arrange


def _emptied(hub: HostileHub) -> None:
    del hub.logs[hub.label(STREAM)]


def _stranger(hub: HostileHub) -> None:
    key = SigningKey.generate()
    hub.on_items = lambda items: [replace(item, receipt=hub.signed(_receipt(item), key)) for item in items]
    hub.on_status = lambda shown: shown.update(hub_pk=key.public_key.hex())


def _repeated(hub: HostileHub) -> None:
    """The tree is correct, but contains one message twice."""
    log = hub.log(hub.label(STREAM))
    log.append(hub.key, log.entries[-1][0], hub.hub_ts)


def _another_page(hub: HostileHub) -> None:
    hub.on_page = lambda page: replace(page, label=bytes(32))


def _cursor_beyond(hub: HostileHub) -> None:
    hub.on_page = lambda page: replace(page, next_cursor=page.items[-1].stream_seq + 2)


def _forked(at: int) -> Arrange:
    return lambda hub: hub.fork(hub.label(STREAM), at)


# (the lie, how the hub tells it, its kind, whether two signed statements prove it)
LIES: list[tuple[str, Arrange, Lie, bool]] = [
    ("a signature that is none", _on_items(_signature), Lie.SIGNATURE, False),
    ("a message its client never signed", _on_items(_client_signature), Lie.SIGNATURE, False),
    ("a stranger's key", _stranger, Lie.WRONG_KEY, False),
    ("a root of nothing", _on_items(_root), Lie.ROOT, True),
    ("a time before that of an earlier entry", _on_items(_earlier_time), Lie.TIME, True),
    ("an entry left out", _on_items(_seq_gap), Lie.SEQ_GAP, False),
    ("an entry left out and the rest renumbered", _on_items(_numbers_shifted), Lie.ROOT, True),
    ("a next page that skips", _cursor_beyond, Lie.SEQ_GAP, False),
    ("one number for two entries", _on_items(_duplicate_seq), Lie.DUPLICATE_SEQ, True),
    ("an entry shown twice", _on_items(_shown_twice), Lie.DUPLICATE_SEQ, False),
    ("a message entered twice", _repeated, Lie.REPEATED_MESSAGE, True),
    ("messages exchanged", _on_items(_swapped), Lie.SWAPPED_MESSAGE, False),
    ("a message altered", _on_items(_altered), Lie.SWAPPED_MESSAGE, False),
    ("a page of another label", _another_page, Lie.SWAPPED_MESSAGE, False),
    ("an old receipt", _on_items(_replayed), Lie.REPLAYED_RECEIPT, False),
    ("entries gone", _truncated_at(3), Lie.TRUNCATED_STREAM, False),
    ("all entries gone", _emptied, Lie.TRUNCATED_STREAM, False),
    ("another history since then", _forked(3), Lie.FORKED_HISTORY, True),
    ("another history from the start", _forked(0), Lie.FORKED_HISTORY, True),
]
IDS = [case[0] for case in LIES]


async def _with_history(place: Path, then: Callable[[HostileHub, Client], Awaitable[None]]) -> None:
    """A log of nine entries, and a reader that knows the first five."""
    with pair(place) as people:
        async with HostileHub() as hub:
            people.url, people.pin = hub.url, Pin(key=hub.identity.hub_id)
            async with people.writer() as writer:
                await send_all(writer, *(b"%d" % number for number in range(1, ALL + 1)))
            async with people.reader() as reader:
                await read_all(reader, to_seq=KNOWN)
                hub.lying = True
                await then(hub, reader)


async def _read_into(seen: list[bytes | None], reader: Client, from_seq: int) -> None:
    async for entry in reader.read(STREAM, from_seq=from_seq):
        seen.append(entry.body)


async def _caught_at(hub: HostileHub, reader: Client, lie: Lie, shown: bool, from_seq: int) -> list[bytes | None]:
    """The bodies that were returned before the lie was detected."""
    seen: list[bytes | None] = []
    with pytest.raises(Contradiction) as caught:
        await _read_into(seen, reader, from_seq)
    error = caught.value
    assert error.lie is lie
    assert str(error).startswith(f"{lie}: ")
    assert (error.evidence is not None) is shown
    if error.evidence:
        assert evidence.verify(error.evidence.read_bytes(), hub.identity.hub_id).contradictions
    return seen


@pytest.mark.parametrize(("arrange", "lie", "shown"), [case[1:] for case in LIES], ids=IDS)
def test_a_lie_about_what_is_new_is_caught_and_named(place: Path, arrange: Arrange, lie: Lie, shown: bool) -> None:
    async def then(hub: HostileHub, reader: Client) -> None:
        arrange(hub)
        seen = await _caught_at(hub, reader, lie, shown, KNOWN + 1)
        assert seen == []
        assert reader.follower(STREAM).tree.size == KNOWN

    asyncio.run(_with_history(place, then))


@pytest.mark.parametrize(
    ("arrange", "lie"),
    [case[1:3] for case in LIES if case[0] != "entries gone"],
    ids=[i for i in IDS if i != "entries gone"],
)
def test_a_lie_about_what_is_known_is_caught_and_named(place: Path, arrange: Arrange, lie: Lie) -> None:
    async def then(hub: HostileHub, reader: Client) -> None:
        arrange(hub)
        with pytest.raises(Contradiction) as caught:
            await read_all(reader)
        assert caught.value.lie is lie

    asyncio.run(_with_history(place, then))


@pytest.mark.parametrize(
    ("arrange", "lie"),
    [
        (_on_items(_signature), Lie.SIGNATURE),
        (_stranger, Lie.WRONG_KEY),
        (_on_items(_root), Lie.ROOT),
        (_on_items(_numbers_shifted), Lie.ROOT),
        (_on_items(_swapped), Lie.SWAPPED_MESSAGE),
    ],
)
def test_a_new_reader_catches_the_lie_too(place: Path, arrange: Arrange, lie: Lie) -> None:
    async def then(hub: HostileHub, reader: Client) -> None:
        await reader.forget(STREAM)
        arrange(hub)
        with pytest.raises(Contradiction) as caught:
            await read_all(reader)
        assert caught.value.lie is lie
        assert reader.follower(STREAM).tree.size == 0

    asyncio.run(_with_history(place, then))


def test_a_log_that_ends_early_is_noticed_where_more_was_signed_for(place: Path) -> None:
    async def then(hub: HostileHub, reader: Client) -> None:
        _truncated_at(3)(hub)
        seen: list[bytes | None] = []
        with pytest.raises(Contradiction) as caught:
            await _read_into(seen, reader, 1)
        assert caught.value.lie is Lie.TRUNCATED_STREAM
        assert seen == [b"1", b"2", b"3"]  # these are correct

    asyncio.run(_with_history(place, then))


@pytest.mark.parametrize("from_seq", [1, 2])
def test_earlier_entries_are_checked_against_the_known_tree(place: Path, from_seq: int) -> None:
    """Consistent entries of another history, all before the known place."""

    async def then(hub: HostileHub, reader: Client) -> None:
        _forked(0)(hub)
        with pytest.raises(Contradiction) as caught:
            await read_all(reader, from_seq=from_seq, to_seq=3)
        assert caught.value.lie is Lie.FORKED_HISTORY
        assert caught.value.evidence is not None

    asyncio.run(_with_history(place, then))


def _without_receipts(page: StreamResponse) -> StreamResponse:
    return replace(page, items=tuple(replace(item, receipt=None) for item in page.items))


def _more_of_nothing(page: StreamResponse) -> StreamResponse:
    return replace(page, items=(), next_cursor=page.from_seq)


@pytest.mark.parametrize("change", [_without_receipts, _more_of_nothing])
def test_a_malformed_answer_is_rejected(place: Path, change: Callable[[StreamResponse], StreamResponse]) -> None:
    async def then(hub: HostileHub, reader: Client) -> None:
        hub.on_page = change
        with pytest.raises(Malformed):
            await read_all(reader, from_seq=KNOWN + 1)

    asyncio.run(_with_history(place, then))


def test_an_honest_hub_is_accepted(place: Path) -> None:
    async def then(hub: HostileHub, reader: Client) -> None:
        assert bodies(await read_all(reader)) == [b"%d" % number for number in range(1, ALL + 1)]
        assert reader.follower(STREAM).tree.root() == hub.log(hub.label(STREAM)).tree.root()

    asyncio.run(_with_history(place, then))


@pytest.mark.parametrize("from_seq", [1, KNOWN + 1, ALL + 1])
def test_an_entry_verified_after_the_request_may_be_missing_in_the_answer(place: Path, from_seq: int) -> None:
    """Another task of this client advances the tree, so the page is older than the known tree. That is not a lie."""

    async def then(hub: HostileHub, reader: Client) -> None:
        log = hub.log(hub.label(STREAM))
        await read_all(reader)

        def meanwhile(page: StreamResponse) -> StreamResponse:
            reader.follower(STREAM).tree.add(log.append(hub.key, hub.forged(log.label), hub.hub_ts))
            return page

        hub.on_page = meanwhile
        assert len(await read_all(reader, from_seq=from_seq)) == ALL + 1 - from_seq

    asyncio.run(_with_history(place, then))


def test_a_lie_is_caught_after_a_restart(place: Path) -> None:
    """A reader with a stored state receives another history."""

    async def before() -> HostileHub:
        async with HostileHub() as hub:
            people.url, people.pin = hub.url, Pin(key=hub.identity.hub_id)
            async with people.writer() as writer:
                await send_all(writer, b"1", b"2", b"3")
            async with people.reader() as reader:
                await read_all(reader)
        return hub

    async def after(hub: HostileHub) -> None:
        async with hub:
            people.url = hub.url
            async with people.reader() as reader:
                with pytest.raises(Contradiction) as caught:
                    await read_all(reader)
        assert caught.value.lie is Lie.FORKED_HISTORY
        assert caught.value.evidence is not None

    with pair(place) as people:
        hub = asyncio.run(before())
        hub.fork(hub.label(STREAM), 1)
        asyncio.run(after(hub))
