"""Marks: ids that a program gives its messages, stored in the transaction that assigns their places."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.hostile import HostileHub
from tests.client.ledger import NOW, STREAM, messages
from tests.client.pair import STREAM as NEWS
from tests.client.pair import pair
from veen.client import ClientDir, StateConflict
from veen.client.portable import export_identity, import_identity
from veen.client.sender import Draft
from veen.client.trust import Pin
from veen.client.writer_keys import WriterRequest

HUB_ID, LABEL = bytes(31) + b"h", bytes(31) + b"l"


def put(client: ClientDir, *marks: bytes) -> list[bytes]:
    writer = client.writer(WriterRequest(HUB_ID, LABEL, STREAM, now=NOW))
    sealed = messages(writer, len(marks))
    client.outbox.put(writer, [replace(one, mark=mark) for mark, one in zip(marks, sealed, strict=True)])
    return [one.leaf_hash for one in sealed]


def test_a_mark_is_there_with_the_place_and_found_by_its_beginning(client: ClientDir) -> None:
    one, two = put(client, b"a1", b"b1")
    assert client.outbox.marks(b"a") == {b"a1": one}
    assert client.outbox.marks(b"") == {b"a1": one, b"b1": two}
    client.outbox.forget_marks([b"a1", b"never"])
    assert client.outbox.marks(b"") == {b"b1": two}


def test_marks_outlive_the_process(place: Path) -> None:
    with ClientDir.create(place / "client", None, NOW) as client:
        (leaf,) = put(client, b"a1")
    with ClientDir.open(place / "client") as client:
        assert client.outbox.marks(b"a") == {b"a1": leaf}


def test_without_a_place_no_mark_is_stored(client: ClientDir) -> None:
    writer = client.writer(WriterRequest(HUB_ID, LABEL, STREAM, now=NOW))
    put(client, b"a1")
    (sealed,) = messages(writer, 1)
    with pytest.raises(StateConflict):
        client.outbox.put(writer, [replace(sealed, mark=b"late")])
    assert b"late" not in client.outbox.marks(b"")


def test_abandoned_messages_lose_their_marks(client: ClientDir) -> None:
    first, _, _ = put(client, b"a1", b"a2", b"a3")
    pending = client.outbox.pending(HUB_ID, LABEL)
    client.outbox.abandon(HUB_ID, LABEL, pending[1].msg.client_id, pending[1].msg.client_seq)
    assert client.outbox.marks(b"a") == {b"a1": first}


def test_marks_move_with_a_client(place: Path, client: ClientDir) -> None:
    (leaf,) = put(client, b"a1")
    export_identity(client, place / "out", NOW)
    import_identity(place / "out", place / "back", None, NOW).close()
    with ClientDir.open(place / "back") as back:
        assert back.outbox.marks(b"a") == {b"a1": leaf}


def test_a_marked_draft_is_marked_with_the_message_it_became(place: Path) -> None:
    async def work(client_of: Path) -> None:
        async with HostileHub() as hub:
            with pair(client_of) as people:
                people.url, people.pin = hub.url, Pin(key=hub.identity.hub_id)
                async with people.writer() as client:
                    sender = client.sender(NEWS)
                    sent = await asyncio.gather(*(sender.put(Draft(b"x", mark=b"m%d" % n)) for n in range(3)))
                    plain = await client.send(NEWS, b"y")
                    found = client.dir.outbox.marks(b"m")
                assert found == {b"m%d" % n: one.msg_id for n, one in enumerate(sent)}
                assert plain.msg_id not in found.values()

    asyncio.run(work(place))
