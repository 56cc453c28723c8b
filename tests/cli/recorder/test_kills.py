"""Inputs that are killed with SIGKILL and started again: every event is in the log exactly once."""

import gzip
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import httpx
import pytest

from tests.cli.recorder.recorder_fixture import ADMIN, SHOP, WEB, RecorderFixture, recorder_fixture
from tests.cli.runner import Veen

DEADLINE_S = 600.0  # for a hang, not for a slow machine
BURST = 40


@pytest.fixture
def at(veen: Veen, tmp_path: Path) -> Iterator[RecorderFixture]:
    with recorder_fixture(veen, tmp_path) as made:
        yield made


def numbers(at: RecorderFixture, field: Callable[[dict[str, object]], object]) -> list[object]:
    """A field of every entry in the log. The log itself is read, so copies would show."""
    ran = at.does(ADMIN, "replay", WEB, "--json")
    return [field(json.loads(line)["payload"]) for line in ran.out.splitlines()]


def until(condition: Callable[[], bool], awaited: str = "new entries in the log") -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"timed out after {DEADLINE_S:g} s waiting for {awaited}"
        time.sleep(0.01)


def entries(at: RecorderFixture) -> int:
    found = at.hub_fixture.hub.status()["entries"]
    assert isinstance(found, int)
    return found


def kill(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Terminate an input; it must send the rest and print its counts."""
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert b"sent" in out


def listening_port(process: "subprocess.Popen[bytes]") -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(b"listening"), (line, process.stderr and process.stderr.read())
    return int(line.split()[1])


def check_tail_through_kills(at: RecorderFixture, kills: int) -> None:
    file, total, chance = at.root / "app.jsonl", 0, random.Random(kills)
    tail = ("tail", file, "--origin", "shop", "--type", "http.request")
    for number in range(kills):
        with file.open("a") as lines:
            for _ in range(chance.randint(1, 3 * BURST)):
                lines.write(json.dumps({"n": total}) + "\n")
                total += 1
        before = entries(at)
        process = at.starts(SHOP, *tail)
        with file.open("a") as lines:  # half a line, which is completed while no input runs
            lines.write(json.dumps({"n": total}))
        until(lambda before=before: entries(at) > before)  # type: ignore[misc]
        time.sleep(chance.random() * 0.05)
        kill(process)
        with file.open("a") as lines:
            lines.write("\n")
        total += 1
        if number % 2:
            file.rename(at.root / f"app.jsonl.{number}")
    at.does(SHOP, *tail, "--once")
    assert numbers(at, lambda payload: payload["n"]) == list(range(total))


def test_a_file_is_recorded_exactly_once_through_kills_and_rotations(at: RecorderFixture) -> None:
    check_tail_through_kills(at, 3)


@pytest.mark.slow
def test_a_file_is_recorded_exactly_once_through_many_kills(at: RecorderFixture) -> None:
    check_tail_through_kills(at, 25)


PROGRAM = """
import logging, sys
from veen.recorder.log_handler import RecorderHandler
handler = RecorderHandler(sys.argv[1], "shop", event_type="http.request")
log = logging.getLogger("app"); log.addHandler(handler); log.setLevel(logging.INFO)
for number in range(int(sys.argv[3])):
    log.info("at work", extra={"run": int(sys.argv[2]), "n": number})
    sys.stdout.write(f"{number}\\n"); sys.stdout.flush()
sys.stdin.read()
"""


def check_logging_through_kills(at: RecorderFixture, kills: int) -> None:
    spool, logged, chance = at.root / "spool", set[tuple[int, int]](), random.Random(kills)
    for run in range(kills):
        command = [sys.executable, "-c", PROGRAM, str(spool), str(run), "1000000"]
        program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        before = entries(at)
        shipper = at.starts(SHOP, "ship", spool)
        assert program.stdout is not None
        for _ in range(chance.randint(10, 5 * BURST)):
            logged.add((run, int(program.stdout.readline())))
        until(lambda before=before: entries(at) > before)  # type: ignore[misc]
        for victim in chance.sample((program, shipper), 2):
            rest = victim.stdout if victim is program else None
            victim.send_signal(signal.SIGKILL)
            if rest is not None:
                logged |= {(run, int(line)) for line in rest if line.endswith(b"\n")}
            kill(victim)
    at.does(SHOP, "ship", spool, "--once")
    found = numbers(at, lambda payload: (payload["run"], payload["n"]))
    assert len(found) == len(set(found))
    assert logged <= set(found)  # per run, at most one event was logged but not printed
    assert len(set(found) - logged) <= kills
    assert list(spool.glob("*.spool")) == []


def test_logged_events_are_recorded_exactly_once_when_program_and_shipper_are_killed(at: RecorderFixture) -> None:
    check_logging_through_kills(at, 2)


@pytest.mark.slow
def test_logged_events_are_recorded_exactly_once_through_many_kills(at: RecorderFixture) -> None:
    check_logging_through_kills(at, 15)


def otlp_request(first: int, count: int) -> bytes:
    records = [
        {"timeUnixNano": str(10**18 + n), "eventName": "http.request", "body": {"intValue": str(n)}}
        for n in range(first, first + count)
    ]
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}).encode()


def check_otlp_through_kills(at: RecorderFixture, kills: int) -> None:
    """The exporter repeats a request until it is answered, as real exporters do."""
    chance, sent = random.Random(kills), 0
    where = [0]
    stopping = False

    def export() -> None:
        nonlocal sent
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        while not stopping:
            body = gzip.compress(otlp_request(sent, 5), mtime=0)
            try:
                answer = httpx.post(f"http://127.0.0.1:{where[0]}/v1/logs", content=body, headers=headers)
            except httpx.HTTPError:
                time.sleep(0.01)
                continue
            assert (answer.status_code, answer.json()) == (200, {})
            sent += 5

    exporter = Thread(target=export)
    for number in range(kills + 1):
        process = at.starts(SHOP, "otlp", "--origin", "shop", "--type", "http.request", "--listen", "127.0.0.1:0")
        where[0] = listening_port(process)
        if not number:
            exporter.start()
        before = sent
        until(lambda before=before: sent > before + BURST, f"{BURST} accepted records")  # type: ignore[misc]
        time.sleep(chance.random() * 0.1)
        if number < kills:
            kill(process)
    stopping = True
    exporter.join()
    stop(process)
    assert numbers(at, lambda payload: payload["body"]) == list(range(sent))


def test_otlp_records_are_recorded_exactly_once_through_kills(at: RecorderFixture) -> None:
    check_otlp_through_kills(at, 2)


@pytest.mark.slow
def test_otlp_records_are_recorded_exactly_once_through_many_kills(at: RecorderFixture) -> None:
    check_otlp_through_kills(at, 15)


def check_syslog_through_kills(at: RecorderFixture, kills: int) -> None:
    """The sender numbers its messages and repeats all that may be lost: syslog has no acknowledgements."""
    chance, total = random.Random(kills), 0

    def message(payload: dict[str, object]) -> object:
        return payload["message"]

    syslog = ("syslog", "--origin", "shop", "--type", "http.request", "--listen", "127.0.0.1:0", "--transport", "tcp")
    doubtful: list[bytes] = []
    for number in range(kills + 1):
        process = at.starts(SHOP, *syslog)
        with socket.create_connection(("127.0.0.1", listening_port(process))) as wire:
            for _ in range(chance.randint(BURST, 2 * BURST)):
                text = f'<34>1 2030-01-31T12:00:00Z host app - - [meta sequenceId="{total}"] {total}'
                doubtful.append(f"{len(text)} {text}".encode())
                total += 1
            before = entries(at)
            wire.sendall(b"".join(doubtful))
            until(lambda before=before: entries(at) > before)  # type: ignore[misc]
            if number < kills:
                time.sleep(chance.random() * 0.02)
                kill(process)
            else:
                awaited = f"{total} messages in the log"
                until(lambda total=total: len(set(numbers(at, message))) == total, awaited)  # type: ignore[misc]
    stop(process)
    found = numbers(at, message)
    assert sorted(map(int, map(str, found))) == list(range(total))


def test_numbered_syslog_messages_are_recorded_exactly_once_through_kills(at: RecorderFixture) -> None:
    check_syslog_through_kills(at, 2)


@pytest.mark.slow
def test_numbered_syslog_messages_are_recorded_exactly_once_through_many_kills(at: RecorderFixture) -> None:
    check_syslog_through_kills(at, 15)


def check_pipe_through_kills(at: RecorderFixture, kills: int) -> None:
    """Lines that a killed input has read are recorded once and in order. The last run reads all of its lines."""
    total, first_of_last = 0, 0
    pipe = ("pipe", "--origin", "shop", "--type", "http.request")
    for number in range(kills + 1):
        process = at.starts(SHOP, *pipe, given=subprocess.PIPE)
        assert process.stdin is not None
        before, first_of_last = entries(at), total
        for _ in range(BURST):
            process.stdin.write(json.dumps({"n": total}).encode() + b"\n")
            total += 1
        process.stdin.flush()
        until(lambda before=before: entries(at) > before)  # type: ignore[misc]
        if number < kills:
            kill(process)
    out, err = process.communicate(timeout=DEADLINE_S)  # communicate() closes the pipe, which ends the run
    assert process.returncode == 0, (out, err)
    found = numbers(at, lambda payload: payload["n"])
    assert list(map(str, found)) == [str(one) for one in sorted({int(str(one)) for one in found})]
    assert set(range(first_of_last, total)) <= set(found)


def test_lines_read_from_a_pipe_are_recorded_exactly_once_through_kills(at: RecorderFixture) -> None:
    check_pipe_through_kills(at, 2)


def test_an_input_accepts_events_while_the_hub_is_away_and_sends_them_later(at: RecorderFixture) -> None:
    process = at.starts(SHOP, "otlp", "--origin", "shop", "--type", "http.request", "--listen", "127.0.0.1:0")
    url = f"http://127.0.0.1:{listening_port(process)}/v1/logs"
    hub, port = at.hub_fixture.hub, at.hub_fixture.hub.port
    hub.stop()
    json_type = {"content-type": "application/json"}
    answer = httpx.post(url, content=otlp_request(0, 3), headers=json_type, timeout=DEADLINE_S)
    assert answer.status_code == 200
    hub.settings["port"] = port
    hub.start()
    until(lambda: numbers(at, lambda payload: payload["body"]) == [0, 1, 2], "3 records in the log")
    stop(process)
