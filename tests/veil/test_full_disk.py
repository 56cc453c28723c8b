"""Running nodes on a disk that fills up: what the local API answers, what the log says, and what kill -9 leaves."""

import asyncio
import json
import logging
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import mounts
from tests.full_disk import no_file_longer_than
from tests.veil.api_hosts import Running, make, running, town
from tests.veil.cli_runner import Veil
from tests.veil.test_lanes_endpoints import contact
from veil import Unavailable
from veil.api.client import Client
from veil.api.routes import ROUTES

MESSAGES = 1_000
PAYLOAD_BYTES, TEXT_NUMBER = 3_000, 4
DISK_BYTES = 64 << 20
# What the store of the reader has room for at first, and after some room was made.
FIRST_BYTES, MORE_BYTES = 4 << 20, 4 << 20
ARGUMENTS = {"/v1/policy/explain": {"pubkey": "self"}}


async def fill(alice: Running) -> httpx.Response:
    return await alice.ask("POST", "/v1/publish", json={"text": "x" * 200_000})


def test_on_a_full_disk_publishing_answers_503_and_every_question_is_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
                assert fault["reason"] in error["reason"]
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
    assert left.startswith("veil: store writes again; it could not since 2")


def test_a_contact_that_finds_no_room_is_not_added(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(make(tmp_path, "alice")) as alice:
            with no_file_longer_than(10):
                refused = await alice.ask("POST", "/v1/contacts", json={"contact": contact().text()})
            assert (refused.status_code, refused.json()["error"]["kind"]) == (503, "unavailable")
            assert await alice.get("/v1/contacts") == []
            await alice.post("/v1/contacts", contact=contact().text())
            assert len(await alice.get("/v1/contacts")) == 1

    asyncio.run(work())


def test_an_invitation_that_cannot_be_written_down_is_taken_in_with_the_next_event(tmp_path: Path) -> None:
    async def work() -> None:
        async with town(tmp_path, "alice", "bob") as (alice, bob):
            await alice.post("/v1/groups", name="choir")
            # A folder has the place of the file that the keys are written to first.
            in_the_way = bob.host.folder.path / f".identity.json.{os.getpid()}.part"
            in_the_way.mkdir()
            await alice.post("/v1/groups/invite", group="choir", contact="bob")
            await bob.said(1)
            assert await bob.get("/v1/groups") == []
            in_the_way.rmdir()
            await alice.post("/v1/publish", text="next", to="bob")
            await bob.said(2)
            assert [one["name"] for one in await bob.get("/v1/groups")] == ["choir"]

    asyncio.run(work())


@pytest.fixture(params=["ext4", "tmpfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with getattr(mounts, request.param)(tmp_path / "disk", DISK_BYTES) as place:
        yield place


class Ballast:
    """Takes the room on a disk that a test does not leave to the node."""

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


class Process:
    """A node in a process of its own, used through its API."""

    def __init__(self, veil: Veil, folder: Path, name: str) -> None:
        self.folder = folder
        self._veil = veil
        self.since = 0
        veil.done("node", "init", "--name", name, "--listen", "tls://127.0.0.1:0", "--data-dir", folder)
        self.start()

    def start(self) -> None:
        ran = self._veil.apart("node", "start", "--data-dir", self.folder)
        assert ran.status == 0, ran.err

    def stop(self) -> None:
        self._veil("node", "stop", "--data-dir", self.folder)

    def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        process = os.pidfd_open(json.loads((self.folder / "api.json").read_bytes())["pid"])
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [])
        os.close(process)

    def get(self, path: str, **query: object) -> Any:
        with Client(self.folder) as api:
            return api.get(path, **query)

    def post(self, path: str, **body: object) -> Any:
        with Client(self.folder) as api:
            return api.post(path, **body)

    def events(self, kind: str, wait_s: int = 0) -> list[Any]:
        """What happened since the last call."""
        found: list[Any] = []
        while events := self.get("/v1/events", since=self.since, limit=1_024, wait_s=wait_s)["events"]:
            self.since, wait_s = events[-1]["seq"], 0
            found += [one["data"] for one in events if one["kind"] == kind]
        return found

    def until_store(self, *, writes: bool) -> None:
        while (self.get("/v1/status")["store_fault"] is None) is not writes:
            time.sleep(0.1)

    def delivered(self) -> list[str]:
        return [one["data"]["text"][:TEXT_NUMBER] for one in self.get("/v1/feed", limit=1_024)]


@pytest.mark.slow
def test_of_1000_messages_to_a_disk_that_fills_every_acknowledged_one_survives_kill_9(
    disk: Path, tmp_path: Path
) -> None:
    veil = Veil(tmp_path / "home")
    reader, writer = Process(veil, disk / "reader", "reader"), Process(veil, tmp_path / "writer", "writer")
    ballast = Ballast(disk)
    try:
        for one, other in ((reader, writer), (writer, reader)):
            one.post("/v1/contacts", contact=other.get("/v1/contacts/self")["contact"])
        ballast.leave(FIRST_BYTES + MORE_BYTES)
        ballast.leave(FIRST_BYTES)
        published = {}
        for number in range(MESSAGES):
            text = f"{number:0{TEXT_NUMBER}d}" + "x" * (PAYLOAD_BYTES - TEXT_NUMBER)
            message_id = writer.post("/v1/publish", to="reader", text=text)["message_id"]
            published[message_id] = text[:TEXT_NUMBER]
        acked = set[str]()

        def see_acked(wait_s: int = 0) -> int:
            acked.update(published[one["message_id"]] for one in writer.events("acked", wait_s))
            return len(acked)

        reader.until_store(writes=False)
        first = see_acked()
        print(f"full: {first} acknowledged, {len(reader.delivered())} delivered")
        shown = veil.done("node", "status", "--data-dir", reader.folder).facts()["store"]
        assert shown.startswith("cannot write since "), shown
        assert "store cannot write since" in (reader.folder / "node.log").read_text()
        with pytest.raises(Unavailable, match="cannot write"):
            reader.post("/v1/publish", text="x" * 200_000)
        ballast.drop_last()
        reader.until_store(writes=True)
        assert "store writes again" in (reader.folder / "node.log").read_text()
        reader.until_store(writes=False)
        reader.kill()
        second = see_acked()
        print(f"full again, killed: {second} acknowledged")
        assert first < second < MESSAGES
        reader.start()
        delivered = reader.delivered()
        assert not acked - set(delivered), "acknowledged, and not there after kill -9 on the full disk"
        assert len(delivered) == len(set(delivered))
        ballast.drop_last()
        while see_acked(wait_s=20) < MESSAGES:
            pass
        reader.kill()
        reader.start()
        assert sorted(reader.delivered()) == sorted(published.values())
    finally:
        reader.stop()
        writer.stop()
