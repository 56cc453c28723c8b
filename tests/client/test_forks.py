"""A forked hub: its log is verified with the keys of both hubs, each for its part."""

import asyncio
from pathlib import Path

import pytest

from plumbing.durable import Disk
from tests.client.pair import STREAM, Pair, bodies, pair, read_all, send_all
from tests.hub.client import START, Clock, Hub, make_dir, running
from veen.client import ClientDir, evidence
from veen.client.client import Client
from veen.client.contradiction import Contradiction, Lie
from veen.client.portable import export_identity, import_identity
from veen.client.trust import Pin
from veen.core import DhKey, Refused, Unverified
from veen.storage import fork

KEPT = 4


async def _send(people: Pair, *sent: bytes) -> None:
    async with people.writer() as writer:
        await send_all(writer, *sent)


def forked(place: Path, people: Pair) -> Path:
    """A fork of a hub with six entries, which keeps the first four."""
    data_dir = make_dir(place)
    with running(data_dir) as hub:
        people.url, people.pin = f"http://127.0.0.1:{hub.port}", Pin(key=hub.service.hub_metadata.identity.hub_id)
        label = hub.label(STREAM)
        asyncio.run(_send(people, *(b"%d" % number for number in range(1, 7))))
    fork.fork(Disk(), data_dir, place / "fork", {label: KEPT}, START + 100)
    return place / "fork"


def meet(people: Pair, hub: Hub) -> None:
    people.url, people.pin = f"http://127.0.0.1:{hub.port}", Pin(key=hub.service.hub_metadata.identity.hub_id)


def test_kept_and_added_entries_of_a_fork_verify(place: Path) -> None:
    async def work(hub: Hub) -> None:
        async with people.reader() as reader:
            assert bodies(await read_all(reader)) == [b"1", b"2", b"3", b"4", b"a", b"b"]
            assert (await reader.proof(STREAM, 2, 6)).receipt.stream_seq == 2
            assert (await reader.checkpoint(STREAM, KEPT)).upto_seq == KEPT
            with pytest.raises(Refused):  # the origin has no checkpoint there, which is allowed
                await reader.checkpoint(STREAM, 3)
            assert (await reader.resync(STREAM, replay_from=1)).replayed == 6
            shown = await reader.evidence(STREAM, [2, 6], disclose=True)
            report = evidence.verify(shown.encode(), reader.hub_id)
            assert [entry.opened.body for entry in report.entries if entry.opened] == [b"2", b"b"]
        async with people.reader(pin=None) as again:  # known now, including its origin
            assert len(await read_all(again)) == 6

    with pair(place) as people, running(forked(place, people), clock=Clock(START + 200)) as hub:
        meet(people, hub)
        with ClientDir.create(place / "other", None, START) as other:
            key = people.reader_dir.stream_keys.export(STREAM)
            other.stream_keys.import_secret(STREAM, DhKey(key.secret))
            asyncio.run(_send_from(other, people, b"a", b"b"))
        asyncio.run(work(hub))


async def _send_from(folder: ClientDir, people: Pair, *sent: bytes) -> None:
    async with Client(people.url, folder, pin=people.pin) as client:
        await send_all(client, *sent)


def test_a_client_of_a_hub_and_its_fork_can_be_exported(place: Path) -> None:
    """Both have the same label, and each signs its own part of the log."""

    async def read() -> None:
        async with people.reader() as reader:
            await read_all(reader)

    with pair(place) as people:
        data_dir = forked(place, people)
        with running(place / "hub") as hub:
            meet(people, hub)
            asyncio.run(read())
            label = hub.label(STREAM)
        with running(data_dir, clock=Clock(START + 200)) as hub:
            meet(people, hub)
            asyncio.run(read())
        folder = people.reader_dir
        export_identity(folder, place / "set", START + 300)
        with import_identity(place / "set", place / "moved", None, START + 400) as moved:
            known = [row for row in folder.state.labels() if row[1] == label]
            assert sorted(state.size for _, _, state in known) == [KEPT, 6]
            assert [row for row in moved.state.labels() if row[1] == label] == known


def test_a_fork_is_another_hub(place: Path) -> None:
    """A client that pinned the first hub rejects the second."""
    with pair(place) as people:
        data_dir = forked(place, people)
        pinned = people.pin
        with running(data_dir, clock=Clock(START + 200)) as hub:
            meet(people, hub)
            people.pin = pinned
            with pytest.raises(Contradiction) as caught:
                asyncio.run(_send(people, b"x"))
            assert caught.value.lie is Lie.WRONG_KEY


def test_a_fork_whose_origin_is_not_the_one_it_names_is_refused(place: Path) -> None:
    with pair(place) as people:
        data_dir = forked(place, people)
        with running(data_dir, clock=Clock(START + 200)) as hub:
            meet(people, hub)
            origin = data_dir / "origin.cbor"
            changed = bytearray(origin.read_bytes())
            changed[-1] ^= 1
            origin.write_bytes(bytes(changed))
            with pytest.raises(Unverified, match="origin"):
                asyncio.run(_send(people, b"x"))
