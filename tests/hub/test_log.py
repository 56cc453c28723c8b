"""The log of a hub, OBS0.2: fields, limits, and that a slow reader delays nothing."""

import io
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from plumbing import json_log
from plumbing.json_log import BURST_LINES, LINES_PER_S, JsonLog, LineWriter
from tests.hub.client import TOKEN, hub_key, log_file, log_rows, make_dir, running
from veen.core import Refused, SigningKey, cap_token
from veen.core.admission import BY_DETAIL
from veen.core.envelopes import ErrorEnvelope, ProofRequest
from veen.hub.submit import SubmitLog


def test_the_log_is_json_and_holds_no_secret(tmp_path: Path) -> None:
    with log_file(tmp_path / "log") as file, running(make_dir(tmp_path)) as hub:
        token = cap_token.mint(SigningKey.generate(), bytes(32), [bytes(32)], 1)
        hub.authorize(token)
        hub.writer().send()
        hub.post("/tooling/streams", b"", authorization=f"Bearer {TOKEN}")
        secret = hub_key(hub).seed
    lines = file.read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["event"] for row in rows] == ["started", "stopped"]
    assert all(row["component"] == "hub" for row in rows)
    assert not any(TOKEN in line or secret.hex() in line for line in lines)


def test_each_submit_is_logged_where_the_operator_asks_for_it(
    tmp_path: Path,
) -> None:
    with log_file(tmp_path / "log") as file, running(make_dir(tmp_path), log_submits=True) as hub:
        writer = hub.writer()
        message = writer.message()
        told = hub.submit(message).receipt()
        hub.submit(message)
    lines = file.read_text().splitlines()
    accepted, refused = [row for row in map(json.loads, lines) if row["event"] == "submit"]
    for row in (accepted, refused):
        assert row["label"] == message.label.hex()
        assert row["client_id_prefix"] == message.client_id.hex()[:8]
        assert row["leaf_hash_prefix"] == told.leaf_hash.hex()[:8]
        assert row["bytes_in"] == len(message.encode())
        assert row["verify_ms"] >= 0
        assert row["commit_ms"] >= 0
    assert (accepted["stream_seq"], accepted["bytes_out"]) == (1, len(told.encode()))
    assert (refused["code"], refused["detail_enum"]) == ("E.SEQ", "DUPLICATE")
    assert not any(message.ciphertext.hex()[:32] in line for line in lines)


FIELDS = {
    "label",
    "client_id_prefix",
    "stream_seq",
    "leaf_hash_prefix",
    "bytes_in",
    "bytes_out",
    "verify_ms",
    "commit_ms",
}
EVERY = {"ts", "level", "component", "role", "event"}


def submits(file: Path) -> list[dict[str, object]]:
    rows = log_rows(file)
    assert all(row.keys() >= EVERY for row in rows)
    return [row for row in rows if row["event"] == "submit"]


def test_what_is_refused_before_it_is_a_message_is_logged_with_the_same_fields(
    tmp_path: Path,
) -> None:
    with log_file(tmp_path / "log") as file, running(make_dir(tmp_path), log_submits=True) as hub:
        most = hub.service.rules.limits.max_msg_bytes
        bodies = [b"", b"\xff" * 10, bytes(most + 5), bytes(3 << 20)]
        replies = [hub.post("/v1/submit", body) for body in bodies] + [hub.post_json("/v1/submit", b"{")]
        hub.batch(b"\x80")
        wrong = hub.writer().message(ct_hash=bytes(32))
        replies.append(hub.submit(wrong))
    rows = submits(file)
    assert [row["detail_enum"] for row in rows] == [
        *("CBOR_INVALID", "CBOR_INVALID", "SIZE_PREFILTER", "SIZE_PREFILTER"),
        *("CBOR_INVALID", "CBOR_INVALID", "CT_HASH"),
    ]
    for row in rows:
        assert row.keys() == FIELDS | EVERY | {"code", "detail_enum"}
        assert (row["label"], row["stream_seq"], row["level"]) == (None, None, "info")
    assert [row["bytes_in"] for row in rows] == [*map(len, bodies), 1, 1, len(wrong.encode())]
    sizes = [
        len(reply.body) if not reply.is_json else len(reply.read(ErrorEnvelope, 400).encode()) for reply in replies
    ]
    assert [row["bytes_out"] for row in (*rows[:5], rows[6])] == sizes


def test_an_accepted_submit_has_the_fields_of_obs0_and_no_code(
    tmp_path: Path,
) -> None:
    with log_file(tmp_path / "log") as file, running(make_dir(tmp_path), log_submits=True, role="tenant") as hub:
        hub.writer().send()
    (row,) = submits(file)
    assert row.keys() == FIELDS | EVERY
    assert row["role"] == "tenant"


class Ticks:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Written:
    """A log in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self.clock = Ticks()
        self.lines = LineWriter(self._fd)
        self.log = JsonLog(self.lines, "hub", "authority", self.clock)

    def rows(self) -> list[dict[str, object]]:
        """All lines. Nothing is written after this."""
        self.lines.close(60)
        os.close(self._fd)
        return [json.loads(line) for line in self._path.read_text().splitlines()]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "log")


def test_a_flood_of_rejections_is_bounded_and_counted(written: Written) -> None:
    submitlog = SubmitLog(written.log)
    refused = BY_DETAIL["CBOR_INVALID"].refused("no")
    for _ in range(10 * BURST_LINES):
        submitlog.record_rejection(refused, 10)
    written.clock.now = 5.0
    for _ in range(10 * BURST_LINES):
        submitlog.record_rejection(refused, 10)
    rows = written.rows()
    assert len(rows) == BURST_LINES + 5 * LINES_PER_S + 1
    (told,) = [place for place, row in enumerate(rows) if row["event"] == "left_out"]
    assert (told, rows[told]["kind"], rows[told]["count"]) == (BURST_LINES, "refused submit", 9 * BURST_LINES)


def test_left_out_lines_are_reported_at_the_stop_at_the_latest(written: Written) -> None:
    for _ in range(BURST_LINES + 7):
        written.log.failed("here", ValueError("x"))
    written.log.fatal(OSError("a fatal error is logged in any case"))
    written.log.stopped()
    rows = written.rows()
    assert [row["event"] for row in rows[-3:]] == ["broken", "left_out", "stopped"]
    assert (rows[-2]["kind"], rows[-2]["count"]) == ("failed", 7)


def test_kinds_of_lines_do_not_take_each_others_room(monkeypatch: pytest.MonkeyPatch, written: Written) -> None:
    monkeypatch.setattr(json_log, "BURST_LINES", 1)
    SubmitLog(written.log).record_rejection(Refused("E.SIZE", "no"), 1)
    written.log.failed("here", ValueError("x"))
    assert len(written.rows()) == 2


@pytest.fixture(params=["full", "closed", "none"])
def unwritable(request: pytest.FixtureRequest) -> Iterator[LineWriter]:
    fd = os.open("/dev/full", os.O_WRONLY)
    if request.param == "closed":
        heard, said = os.pipe()
        os.close(heard)
        os.dup2(said, fd)
        os.close(said)
    yield LineWriter(None if request.param == "none" else fd)
    os.close(fd)


def test_a_log_that_cannot_be_written_costs_its_lines_alone(unwritable: LineWriter) -> None:
    lines = JsonLog(unwritable, "hub", "authority", Ticks())
    for _ in range(BURST_LINES + 1):
        lines.failed("here", ValueError("x"))
    lines.fatal(OSError("x"))
    SubmitLog(lines).record_rejection(Refused("E.SIZE", "no"), 1)
    lines.stopped()
    assert sum(unwritable.lost.values()) >= BURST_LINES + 3


class Pipe:
    """A full pipe that is drained once `read` is called."""

    def __init__(self, *, blocking: bool) -> None:
        self._out, self.fd = os.pipe()
        os.set_blocking(self.fd, False)
        for much in (4096, 1):
            with suppress(BlockingIOError):
                while True:
                    os.write(self.fd, b"\n" * much)
        os.set_blocking(self.fd, blocking)
        self._got: list[str] = []
        self._reader = threading.Thread(target=self._read)

    def begin(self) -> None:
        self._reader.start()

    def end(self) -> list[dict[str, object]]:
        """Everything that was read."""
        os.close(self.fd)
        self._reader.join()
        return [json.loads(line) for line in self._got if line.strip()]

    def _read(self) -> None:
        with open(self._out, encoding="utf-8") as out:
            self._got.extend(out)


@pytest.fixture(params=[True, False], ids=["blocking", "not blocking"])
def pipe(request: pytest.FixtureRequest) -> Pipe:
    return Pipe(blocking=request.param)


def test_a_log_that_is_not_read_delays_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipe: Pipe) -> None:
    monkeypatch.setattr(json_log, "MAX_QUEUED_BYTES", 2000)
    monkeypatch.setattr(sys, "stderr", open(pipe.fd, "w", closefd=False))  # noqa: SIM115  nothing to close
    with running(make_dir(tmp_path), log_submits=True) as hub:
        writer = hub.writer()
        assert [writer.send().stream_seq for _ in range(20)] == list(range(1, 21))
        (lost,) = re.findall(r'veen_log_lines_lost_total{why="no_room"} (.*)', hub.get("/metrics").body.decode())
        assert 0 < float(lost) < 20
        pipe.begin()
    assert pipe.end()[0]["event"] == "started"


@pytest.mark.parametrize("stderr", [None, io.StringIO()], ids=["closed", "no file"])
def test_a_hub_without_standard_error_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: object) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    with running(make_dir(tmp_path), log_submits=True) as hub:
        assert hub.writer().send().stream_seq == 1


def test_dropped_lines_are_reported_with_the_next_line(monkeypatch: pytest.MonkeyPatch, pipe: Pipe) -> None:
    monkeypatch.setattr(json_log, "MAX_QUEUED_BYTES", 2000)
    lines = LineWriter(pipe.fd)
    written = JsonLog(lines, "hub", "authority")
    for number in range(100):
        written.event("info", "some", number=number)
    assert not lines.flush(0)
    pipe.begin()
    assert lines.flush(60)
    written.event("info", "next")
    written.stopped()
    *some, told, following, _ = pipe.end()
    assert [row["number"] for row in some] == list(range(len(some)))
    assert (told["event"], told["kind"], told["count"]) == ("left_out", "unwritten", 100 - len(some))
    assert following["event"] == "next"
    assert lines.lost == {"no_room": 100 - len(some), "not_written": 0}


def test_the_end_waits_for_no_reader(monkeypatch: pytest.MonkeyPatch, pipe: Pipe) -> None:
    monkeypatch.setattr(json_log, "_CLOSE_TIMEOUT_S", 0.01)
    lines = LineWriter(pipe.fd)
    written = JsonLog(lines, "hub", "authority")
    written.fatal(OSError("x"))
    written.stopped()
    written.event("info", "too late")
    assert lines.lost["no_room"] == 1
    pipe.begin()
    assert lines.flush(60)
    assert [row["event"] for row in pipe.end()] == ["broken", "stopped"]


def test_accepted_submits_are_all_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_log, "BURST_LINES", 1)
    monkeypatch.setattr(json_log, "LINES_PER_S", 0)
    with log_file(tmp_path / "log") as file, running(make_dir(tmp_path), log_submits=True) as hub:
        hub.post("/v1/submit", b"")
        hub.post("/v1/submit", b"")
        hub.writer().send_many(3)
    assert [row["stream_seq"] for row in submits(file)] == [None, 1, 2, 3]


def test_our_own_mistake_is_logged_and_answered_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with log_file(tmp_path / "log") as file, running(make_dir(tmp_path)) as hub:

        def mistaken(*_: object) -> None:
            raise LookupError("ours")

        monkeypatch.setattr(hub.service.store.index, "read", mistaken)
        reply = hub.post("/v1/proof", ProofRequest(bytes(32), 1))
        assert (reply.status, reply.error().code) == (500, "E.UNAVAILABLE")
        monkeypatch.undo()
    rows = log_rows(file)
    assert [row["error"] for row in rows if row["event"] == "failed"] == ["LookupError: ours"]
