"""Bad states of a hub: one log line at the start and one at the end, a metric, and the health endpoints meanwhile."""

import errno
import json
import os
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from plumbing.http import HttpSettings
from plumbing.json_log import JsonLog, LineWriter
from tests.hub.client import Hub, Reply, make_dir, running, until
from tests.hub.disks import FullDisk, GatedDisk, NoLogDisk
from tests.hub.subscriber import Subscriber
from tests.storage.disks import FailingFrom, RefusingDisk
from veen.core import Unavailable
from veen.core.hashing import h
from veen.hub import conditions
from veen.hub.conditions import MAX_SOURCES, Conditions, Reason, public_text
from veen.hub.config import HubConfig

REFUSALS = 20
SEALED = b"\x05" * 4000


def gauge(hub: Hub, reason: str) -> tuple[float, float]:
    """`veen_hub_bad_state` and how often it was entered."""
    lines = hub.get("/metrics").body.decode().splitlines()
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}
    label = f'{{reason="{reason}"}}'
    return found[f"veen_hub_bad_state{label}"], found[f"veen_hub_bad_state_entered_total{label}"]


def states(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The lines about bad states since the last call."""
    rows = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [row["event"] for row in rows if row["event"] == "failed"] == []
    return [row for row in rows if row["event"].startswith("bad_state")]


def pair(rows: list[dict[str, Any]], reason: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Exactly two lines: a state was entered and left once."""
    assert [(row["event"], row["reason"]) for row in rows] == [
        ("bad_state_entered", reason),
        ("bad_state_left", reason),
    ]
    return rows[0], rows[1]


def put(hub: Hub, sealed: bytes) -> Reply:
    return hub.ask("PUT", f"/tooling/attachments/{h(sealed).hex()}", sealed)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
def test_a_disk_that_refuses_the_journal_is_logged_once_when_it_begins_and_once_when_it_ends(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: int
) -> None:
    disk = FailingFrom(None, number)
    with running(make_dir(tmp_path), disk=disk) as hub:
        writer = hub.writer()
        writer.send()
        assert gauge(hub, "journal_write") == (0, 0)
        disk.n = 0
        for _ in range(REFUSALS):
            assert hub.submit(writer.message()).status == 503
        assert gauge(hub, "journal_write") == (1, 1)
        shown = hub.get("/readyz").json(503)
        assert shown["reason"] == f"the journal cannot be written: {os.strerror(number)}"
        assert "journal_write" in shown["bad_states"]
        told = {one["reason"]: one for one in hub.status()["bad_states"]}
        assert told["journal_write"]["refused"] == REFUSALS
        disk.heal()
        writer.send()
        assert gauge(hub, "journal_write") == (0, 1)
        until(lambda: hub.get("/readyz").status == 200)
    rows = [row for row in states(capfd) if row["reason"] == "journal_write"]
    entered, left = pair(rows, "journal_write")
    assert (entered["level"], entered["errno"], entered["file"]) == ("error", errno.errorcode[number], "journal")
    assert os.strerror(number) in entered["error"]
    assert (left["level"], left["refused"], left["file"]) == ("info", REFUSALS, "journal")


def test_an_idle_hub_leaves_the_state_by_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "RECHECK_S", 0.01)
    disk = FullDisk()
    with running(make_dir(tmp_path), disk=disk) as hub:
        writer = hub.writer()
        kept = [writer.send()]
        disk.full = True
        assert hub.submit(writer.message()).status == 503
        assert gauge(hub, "journal_write") == (1, 1)
        disk.full = False
        until(lambda: gauge(hub, "journal_write") == (0, 1))
        kept += writer.send_many(3)
    pair(states(capfd), "journal_write")
    with running(hub.data_dir) as again:
        assert again.status()["entries"] == len(kept)


def test_a_log_that_cannot_catch_up_is_logged_once_however_often_it_is_tried(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veen.hub.submit.RETRY_S", 0.01)
    disk = NoLogDisk()
    with running(make_dir(tmp_path), disk=disk) as hub:
        hub.writer().send()
        until(lambda: gauge(hub, "log_write") == (1, 1))
        assert "log_write" in hub.get("/readyz").json(503)["bad_states"]
        disk.full = False
        until(lambda: gauge(hub, "log_write") == (0, 1))
        assert hub.get("/readyz").json()["bad_states"] == []
    entered, left = pair(states(capfd), "log_write")
    assert (entered["errno"], left["refused"]) == ("ENOSPC", 0)


@pytest.mark.parametrize("by_itself", [True, False], ids=["without uploads", "the next upload"])
def test_attachments_that_cannot_be_written_are_a_state_that_leaves_the_hub_ready(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, by_itself: bool
) -> None:
    monkeypatch.setattr(conditions, "RECHECK_S", 0.01 if by_itself else 600)
    disk = RefusingDisk()
    with running(make_dir(tmp_path), disk=disk, disk_reserve_bytes=0) as hub:
        disk.fail("write", errno.EIO)
        for _ in range(REFUSALS):
            reply = put(hub, SEALED)
            assert reply.status == 503
            assert reply.error().message == "the attachment cannot be written: Input/output error"
        assert gauge(hub, "attachment_write") == (1, 1)
        assert hub.get("/readyz").json()["bad_states"] == ["attachment_write"]
        disk.heal()
        if not by_itself:
            assert put(hub, SEALED).status == 201
        until(lambda: gauge(hub, "attachment_write") == (0, 1))
    entered, left = pair(states(capfd), "attachment_write")
    assert (entered["errno"], entered["file"], left["refused"]) == ("EIO", "attachment", REFUSALS)


def test_a_small_attachment_that_fits_does_not_end_the_state_of_a_large_one_that_did_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "RECHECK_S", 600)
    data_dir = make_dir(tmp_path)
    disk = os.statvfs(data_dir)
    with running(data_dir, disk_reserve_bytes=disk.f_blocks * disk.f_frsize) as hub:
        assert put(hub, SEALED).error().message == public_text(Reason.ATTACHMENT_ROOM)
        assert put(hub, b"").status == 503
        assert gauge(hub, "attachment_room") == (1, 1)
    (entered, at_stop) = states(capfd)
    assert (entered["reason"], entered["size_bytes"]) == ("attachment_room", len(SEALED))
    assert (at_stop["event"], at_stop["refused"]) == ("bad_state_at_stop", 2)


def test_a_verification_worker_that_is_killed_is_logged_and_its_successor_ends_the_state(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with running(make_dir(tmp_path), workers=2) as hub:
        pids = hub.service.pipeline._verifier.pids  # type: ignore[attr-defined]
        os.kill(pids[0], signal.SIGKILL)
        until(lambda: gauge(hub, "verifier") == (0, 1))  # without any request
        hub.writer().send()
    entered, _ = pair(states(capfd), "verifier")
    assert (entered["pid"], entered["exit_status"]) == (pids[0], -signal.SIGKILL)


def test_a_signer_that_is_killed_is_logged_and_its_successor_ends_the_state(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with running(make_dir(tmp_path)) as hub:
        pid = hub.service.signer.pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: gauge(hub, "signer") == (0, 1))  # without any request
        hub.writer().send()
    entered, _ = pair(states(capfd), "signer")
    assert (entered["pid"], entered["exit_status"]) == (pid, -signal.SIGKILL)


def test_a_flood_of_submits_is_one_state_that_ends_when_the_queue_has_drained(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    disk = GatedDisk()
    with running(make_dir(tmp_path), disk=disk, max_in_flight=4) as hub:
        disk.gate.clear()
        senders = [Thread(target=hub.submit, args=(hub.writer(f"s{n}").message(),)) for n in range(4)]
        for sender in senders:
            sender.start()
        until(lambda: hub.service.pipeline.in_flight == 4)
        for _ in range(REFUSALS):
            assert hub.submit(hub.writer().message()).status == 503
        assert gauge(hub, "submit_overload") == (1, 1)
        assert hub.get("/readyz").json()["bad_states"] == ["submit_overload"]
        disk.gate.set()
        for sender in senders:
            sender.join()
        assert gauge(hub, "submit_overload") == (0, 1)
    entered, left = pair(states(capfd), "submit_overload")
    assert (entered["level"], entered["in_flight"], left["refused"]) == ("warn", 4, REFUSALS)


def test_idle_connections_of_this_machine_do_not_shut_out_a_client(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = replace(HubConfig(tmp_path).http, max_connections=16)
    with (
        running(make_dir(tmp_path), http=settings) as hub,
        Subscriber(hub, f"label={hub.label('s').hex()}&from=1") as subscriber,
        ExitStack() as idle,
    ):
        for _ in range(32):
            idle.enter_context(socket.create_connection(("127.0.0.1", hub.port)))
        hub.writer().send()
        assert hub.get("/readyz").json()["bad_states"] == ["connection_overload"]
        idle.close()
        until(lambda: gauge(hub, "connection_overload") == (0, 1))
        assert subscriber.item().stream_seq == 1  # a subscription is not idle
    entered, left = pair(states(capfd), "connection_overload")
    assert (entered["cap"], left["refused"]) == ("total", 0)


@pytest.mark.parametrize(
    ("cap", "settings"),
    [
        ("total", HttpSettings(max_connections=4)),
        ("address", HttpSettings(max_connections_per_address=4, uncounted_networks=())),
    ],
)
def test_a_flood_of_connections_is_one_state_that_ends_when_enough_have_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], cap: str, settings: HttpSettings
) -> None:
    with running(make_dir(tmp_path), http=settings) as hub:
        held = [Subscriber(hub, f"label={'0' * 64}") for _ in range(4)]
        for _ in range(REFUSALS):
            assert hub.get("/healthz").status == 503
        for one in held:
            one.__exit__(None, None, None)
        until(lambda: hub.get("/healthz").status == 200)
        until(lambda: gauge(hub, "connection_overload") == (0, 1))
    entered, left = pair(states(capfd), "connection_overload")
    assert entered["cap"] == cap
    assert left["refused"] >= REFUSALS


class Written:
    """Conditions with their log in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._lines = LineWriter(self.fd)
        self.log = JsonLog(self._lines, "hub", "authority")

    def rows(self) -> list[dict[str, Any]]:
        self._lines.close(60)
        os.close(self.fd)
        return [json.loads(line) for line in self._path.read_text().splitlines()]


class NoLoop:
    """States without recheck need no loop."""

    def call_later(self, *_: object) -> None:
        raise AssertionError("nothing is to be rechecked")


def test_sources_beyond_the_bound_share_one_state(tmp_path: Path) -> None:
    written = Written(tmp_path / "log")
    found = Conditions(NoLoop(), written.log)  # type: ignore[arg-type]
    for number in range(10 * MAX_SOURCES):
        found.enter(Reason.DAMAGE, source=number)
    assert found.refused(Reason.DAMAGE) == 10 * MAX_SOURCES
    found.close()
    rows = written.rows()
    assert len(rows) == 2 * (MAX_SOURCES + 1)
    assert sum(row["refused"] for row in rows if row["event"] == "bad_state_at_stop") == 10 * MAX_SOURCES


def test_a_state_holds_while_any_of_its_sources_does(tmp_path: Path) -> None:
    written = Written(tmp_path / "log")
    found = Conditions(NoLoop(), written.log)  # type: ignore[arg-type]
    found.enter(Reason.VERIFIER, source="a")
    found.enter(Reason.VERIFIER, source="b")
    found.leave(Reason.VERIFIER, "a")
    found.leave(Reason.VERIFIER, "a")
    assert list(found.active) == [Reason.VERIFIER]
    found.leave(Reason.VERIFIER, "b")
    assert found.active == {}
    assert [row["event"] for row in written.rows()] == ["bad_state_entered"] * 2 + ["bad_state_left"] * 2


def _raised(act: Callable[[], object]) -> Exception:
    try:
        act()
    except Exception as error:  # noqa: BLE001  it is what is looked at
        return error
    raise AssertionError("it did not fail")


def test_the_text_for_clients_has_the_systems_words_and_no_path(tmp_path: Path) -> None:
    def wrapped() -> None:
        try:
            (tmp_path / "secret.seed").read_bytes()
        except OSError as error:
            raise Unavailable(f"{error.filename} cannot be read") from None

    def named() -> None:
        raise OSError(errno.ELOOP, "secret.seed is a link, not a file")

    for act in (wrapped, named, lambda: os.mkdir(tmp_path)):
        for reason in Reason:
            text = public_text(reason, _raised(act))
            assert str(tmp_path) not in text
            assert "secret" not in text
    text = public_text(Reason.STORAGE, _raised(wrapped))
    assert text == "the hub cannot read or write one of its files: No such file or directory"
