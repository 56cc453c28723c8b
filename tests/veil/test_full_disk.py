"""Running nodes on a full disk: answers of the local API, log lines, and the state after kill -9."""

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import mounts
from tests.full_disk import no_file_longer_than
from tests.veil.api_hosts import Running, linked_nodes, make, running
from tests.veil.cli_runner import Veil
from tests.veil.node_process import NodeProcess
from tests.veil.test_lanes_endpoints import contact
from veil import Unavailable
from veil.api.routes import ROUTES
from veil.runtime.data_directory import Settings

MESSAGES, SOME = 1_000, 50
PAYLOAD_BYTES, TEXT_NUMBER = 3_000, 4
DISK_BYTES = 64 << 20
# Free space of the reader's disk at first, and after space was freed.
FIRST_BYTES, MORE_BYTES = 4 << 20, 4 << 20
ARGUMENTS = {"/v1/policy/explain": {"pubkey": "self"}}


async def fill(alice: Running) -> httpx.Response:
    return await alice.ask("POST", "/v1/publish", json={"text": "x" * 200_000})


def test_on_a_full_disk_publishing_gets_503_and_queries_work(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with running(make(tmp_path, "alice")) as alice:
            await alice.post("/v1/publish", text="before")
            before = await alice.get("/v1/events")
            with no_file_longer_than(40_000):
                refused = await fill(alice)
                error = refused.json()["error"]
                assert (refused.status_code, error["kind"], error["what"]) == (503, "unavailable", "store")
                assert "cannot write" in error["reason"]
                for method, path in ROUTES:
                    if method == "GET":
                        answer = await alice.ask(method, path, params=ARGUMENTS.get(path, {}))
                        assert answer.status_code == 200, (path, answer.text)
                assert await alice.get("/v1/events") == before
                assert [one["message_id"] for one in await alice.get("/v1/outbound")] == [1]
                fault = (await alice.get("/v1/status"))["store_fault"]
                # The free bytes differ between the two: other processes use the disk.
                assert fault["reason"].partition(";")[0] in error["reason"]
                assert (await fill(alice)).status_code == 503
            while (await alice.get("/v1/status"))["store_fault"]:
                await asyncio.sleep(0.05)
            await alice.post("/v1/publish", text="after")
            assert len(await alice.get("/v1/outbound")) == 2

    with caplog.at_level(logging.WARNING, "veil"):
        asyncio.run(work())
    entered, left = caplog.messages
    assert entered.startswith("veil: store cannot write since 2")
    assert "bytes are free" in entered
    assert left.startswith("veil: store writes again after a failure since 2")


def test_a_contact_that_cannot_be_stored_is_not_added(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(make(tmp_path, "alice")) as alice:
            with no_file_longer_than(10):
                refused = await alice.ask("POST", "/v1/contacts", json={"contact": contact().text()})
            assert (refused.status_code, refused.json()["error"]["kind"]) == (503, "unavailable")
            assert await alice.get("/v1/contacts") == []
            await alice.post("/v1/contacts", contact=contact().text())
            assert len(await alice.get("/v1/contacts")) == 1

    asyncio.run(work())


def test_an_invitation_that_cannot_be_stored_is_processed_with_the_next_event(tmp_path: Path) -> None:
    async def work() -> None:
        async with linked_nodes(tmp_path, "alice", "bob") as (alice, bob):
            await alice.post("/v1/groups", name="choir")
            # A directory blocks the name of the file for the keys.
            keys = bob.host.directory.path / "identity.json"
            kept = keys.rename(keys.with_name("kept.json"))
            keys.mkdir()
            await alice.post("/v1/groups/invite", group="choir", contact="bob")
            await bob.said(1)
            assert await bob.get("/v1/groups") == []
            keys.rmdir()
            kept.rename(keys)
            await alice.post("/v1/publish", text="next", to="bob")
            await bob.said(2)
            assert [one["name"] for one in await bob.get("/v1/groups")] == ["choir"]

    asyncio.run(work())


@pytest.fixture(params=["ext4", "tmpfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with getattr(mounts, request.param)(tmp_path / "disk", DISK_BYTES) as place:
        yield place


class Ballast:
    """A file that fills the disk up to the space that the test leaves."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._count = 0

    def leave(self, size: int) -> None:
        found = os.statvfs(self._place)
        self._count += 1
        with self._file(self._count).open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - size)

    def drop_last(self) -> None:
        self._file(self._count).unlink()
        self._count -= 1

    def _file(self, number: int) -> Path:
        return self._place / f"ballast{number}"


def acknowledged(writer: NodeProcess) -> set[int]:
    """The messages acknowledged since the last call, waiting for an event."""
    return {data["message_id"] for kind, data in writer.events() if kind == "acked"}


def delivered(reader: NodeProcess) -> list[str]:
    return [one["data"]["text"][:TEXT_NUMBER] for one in reader.api.get("/v1/feed", limit=1_024)]


def until_full(veil: Veil, reader: NodeProcess) -> None:
    """Wait until `veil node status` reports that the store cannot write."""
    while True:
        shown = veil.done("node", "status", "--data-dir", reader.folder.path).facts()
        if shown["store"].startswith("cannot write: "):
            assert float(shown["store_failed_since"]) <= time.time()
            return
        assert (shown["store"], shown["store_failed_since"]) == ("writes", "")
        time.sleep(0.1)


@pytest.mark.slow
def test_of_1000_messages_to_a_disk_that_fills_every_acknowledged_one_survives_kill_9(
    disk: Path, tmp_path: Path
) -> None:
    veil, chosen = Veil(tmp_path / "home"), Settings(listen=("tls://127.0.0.1:0",))
    reader, writer = (NodeProcess(path, path.name, chosen).start() for path in (disk, tmp_path))
    ballast = Ballast(disk)
    try:
        reader.knows(writer)
        writer.knows(reader)
        ballast.leave(FIRST_BYTES + MORE_BYTES)
        ballast.leave(FIRST_BYTES)
        published = {}
        for number in range(MESSAGES):
            text = f"{number:0{TEXT_NUMBER}d}" + "x" * (PAYLOAD_BYTES - TEXT_NUMBER)
            message_id = writer.api.post("/v1/publish", to=disk.name, text=text)["message_id"]
            published[message_id] = text[:TEXT_NUMBER]
        until_full(veil, reader)
        with pytest.raises(Unavailable, match="cannot write"):
            reader.api.post("/v1/publish", text="x" * 200_000)
        acked = acknowledged(writer)
        first = len(acked)
        ballast.drop_last()
        while len(acked) < first + SOME:  # the node resumes by itself
            acked |= acknowledged(writer)
        until_full(veil, reader)
        log = reader.log()
        assert "veil: store cannot write since" in log
        assert "veil: store writes again" in log
        reader.kill()
        while more := acknowledged(writer):
            acked |= more
        print(f"{first} acknowledged when the disk was full, {len(acked)} when it was full again")
        assert len(acked) < MESSAGES
        reader.start()
        there = delivered(reader)
        assert not {published[one] for one in acked} - set(there), "acknowledged, and gone after kill -9"
        assert len(there) == len(set(there))
        ballast.drop_last()
        while len(acked) < MESSAGES:
            acked |= acknowledged(writer)
        reader.kill()
        reader.start()
        assert sorted(delivered(reader)) == sorted(published.values())
    finally:
        reader.stop()
        writer.stop()
