"""Each input killed with SIGKILL amid its work and started again: every event is in the log exactly once."""

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

from tests.cli.recorder.desk import ADMIN, SHOP, WEB, Desk, desk
from tests.cli.runner import Veen

DEADLINE_S = 600.0  # for a hang, not for a slow machine
BURST = 40


@pytest.fixture
def at(veen: Veen, tmp_path: Path) -> Iterator[Desk]:
    with desk(veen, tmp_path) as made:
        yield made


def numbers(at: Desk, field: Callable[[dict[str, object]], object]) -> list[object]:
    """What the entries of the log say, copies and all: this is not the overlay's view, it is the log."""
    ran = at.does(ADMIN, "replay", WEB, "--json")
    return [field(json.loads(line)["payload"]) for line in ran.out.splitlines()]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


def entries(at: Desk) -> int:
    found = at.town.hub.status()["entries"]
    assert isinstance(found, int)
    return found


def killed(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def ended(process: "subprocess.Popen[bytes]") -> None:
    """Asked to end, it sends what it has and says so."""
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert b"sent" in out


def listening(process: "subprocess.Popen[bytes]") -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(b"listening"), (line, process.stderr and process.stderr.read())
    return int(line.split()[1])


def kill_tail(at: Desk, kills: int) -> None:
    file, total, chance = at.root / "app.jsonl", 0, random.Random(kills)
    tail = ("tail", file, "--origin", "shop", "--type", "http.request")
    for kill in range(kills):
        with file.open("a") as lines:
            for _ in range(chance.randint(1, 3 * BURST)):
                lines.write(json.dumps({"n": total}) + "\n")
                total += 1
        before = entries(at)
        process = at.starts(SHOP, *tail)
        with file.open("a") as lines:  # and half a line, which is finished while nobody looks
            lines.write(json.dumps({"n": total}))
        until(lambda before=before: entries(at) > before)  # type: ignore[misc]
        time.sleep(chance.random() * 0.05)
        killed(process)
        with file.open("a") as lines:
            lines.write("\n")
        total += 1
        if kill % 2:
            file.rename(at.root / f"app.jsonl.{kill}")
    at.does(SHOP, *tail, "--once")
    assert numbers(at, lambda payload: payload["n"]) == list(range(total))


def test_a_file_is_recorded_exactly_once_through_kills_and_rotations(at: Desk) -> None:
    kill_tail(at, 3)


@pytest.mark.slow
def test_a_file_is_recorded_exactly_once_through_many_kills(at: Desk) -> None:
    kill_tail(at, 25)


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


def kill_logging(at: Desk, kills: int) -> None:
    spool, told, chance = at.root / "spool", set[tuple[int, int]](), random.Random(kills)
    for run in range(kills):
        command = [sys.executable, "-c", PROGRAM, str(spool), str(run), "1000000"]
        program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        before = entries(at)
        shipper = at.starts(SHOP, "ship", spool)
        assert program.stdout is not None
        for _ in range(chance.randint(10, 5 * BURST)):
            told.add((run, int(program.stdout.readline())))
        until(lambda before=before: entries(at) > before)  # type: ignore[misc]
        for victim in chance.sample((program, shipper), 2):
            rest = victim.stdout if victim is program else None
            victim.send_signal(signal.SIGKILL)
            if rest is not None:
                told |= {(run, int(line)) for line in rest if line.endswith(b"\n")}
            killed(victim)
    at.does(SHOP, "ship", spool, "--once")
    found = numbers(at, lambda payload: (payload["run"], payload["n"]))
    assert len(found) == len(set(found))
    assert told <= set(found)  # what was logged and not told is at most the last of each run
    assert len(set(found) - told) <= kills
    assert list(spool.glob("*.spool")) == []


def test_what_a_program_logged_is_recorded_exactly_once_though_both_are_killed(at: Desk) -> None:
    kill_logging(at, 2)


@pytest.mark.slow
def test_what_a_program_logged_is_recorded_exactly_once_through_many_kills(at: Desk) -> None:
    kill_logging(at, 15)


def otlp_request(first: int, count: int) -> bytes:
    records = [
        {"timeUnixNano": str(10**18 + n), "eventName": "http.request", "body": {"intValue": str(n)}}
        for n in range(first, first + count)
    ]
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}).encode()


def kill_otlp(at: Desk, kills: int) -> None:
    """An exporter that sends again until it has an answer, as exporters do."""
    chance, sent = random.Random(kills), 0
    where = [0]
    stop = False

    def export() -> None:
        nonlocal sent
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        while not stop:
            body = gzip.compress(otlp_request(sent, 5), mtime=0)
            try:
                answer = httpx.post(f"http://127.0.0.1:{where[0]}/v1/logs", content=body, headers=headers)
            except httpx.HTTPError:
                time.sleep(0.01)
                continue
            assert (answer.status_code, answer.json()) == (200, {})
            sent += 5

    exporter = Thread(target=export)
    for kill in range(kills + 1):
        process = at.starts(SHOP, "otlp", "--origin", "shop", "--type", "http.request", "--listen", "127.0.0.1:0")
        where[0] = listening(process)
        if not kill:
            exporter.start()
        before = sent
        until(lambda before=before: sent > before + BURST)  # type: ignore[misc]
        time.sleep(chance.random() * 0.1)
        if kill < kills:
            killed(process)
    stop = True
    exporter.join()
    ended(process)
    assert numbers(at, lambda payload: payload["body"]) == list(range(sent))


def test_otlp_records_are_recorded_exactly_once_through_kills(at: Desk) -> None:
    kill_otlp(at, 2)


@pytest.mark.slow
def test_otlp_records_are_recorded_exactly_once_through_many_kills(at: Desk) -> None:
    kill_otlp(at, 15)


def kill_syslog(at: Desk, kills: int) -> None:
    """A sender that numbers its messages, and sends all again that may have been lost: nothing tells it which were."""
    chance, total = random.Random(kills), 0

    def said(payload: dict[str, object]) -> object:
        return payload["message"]

    syslog = ("syslog", "--origin", "shop", "--type", "http.request", "--listen", "127.0.0.1:0", "--transport", "tcp")
    doubtful: list[bytes] = []
    for kill in range(kills + 1):
        process = at.starts(SHOP, *syslog)
        with socket.create_connection(("127.0.0.1", listening(process))) as wire:
            for _ in range(chance.randint(BURST, 2 * BURST)):
                text = f'<34>1 2030-01-31T12:00:00Z host app - - [meta sequenceId="{total}"] {total}'
                doubtful.append(f"{len(text)} {text}".encode())
                total += 1
            before = entries(at)
            wire.sendall(b"".join(doubtful))
            until(lambda before=before: entries(at) > before)  # type: ignore[misc]
            if kill < kills:
                time.sleep(chance.random() * 0.02)
                killed(process)
            else:
                until(lambda total=total: len(set(numbers(at, said))) == total)  # type: ignore[misc]
    ended(process)
    found = numbers(at, said)
    assert sorted(map(int, map(str, found))) == list(range(total))


def test_numbered_syslog_messages_are_recorded_exactly_once_through_kills(at: Desk) -> None:
    kill_syslog(at, 2)


@pytest.mark.slow
def test_numbered_syslog_messages_are_recorded_exactly_once_through_many_kills(at: Desk) -> None:
    kill_syslog(at, 15)


def kill_pipe(at: Desk, kills: int) -> None:
    """A pipe cannot be asked what was read of it: what was is recorded once and in order, and the last run has all."""
    total, first_of_last = 0, 0
    pipe = ("pipe", "--origin", "shop", "--type", "http.request")
    for kill in range(kills + 1):
        process = at.starts(SHOP, *pipe, given=subprocess.PIPE)
        assert process.stdin is not None
        before, first_of_last = entries(at), total
        for _ in range(BURST):
            process.stdin.write(json.dumps({"n": total}).encode() + b"\n")
            total += 1
        process.stdin.flush()
        until(lambda before=before: entries(at) > before)  # type: ignore[misc]
        if kill < kills:
            killed(process)
    out, err = process.communicate(timeout=DEADLINE_S)  # the end of the pipe is the end of the run
    assert process.returncode == 0, (out, err)
    found = numbers(at, lambda payload: payload["n"])
    assert list(map(str, found)) == [str(one) for one in sorted({int(str(one)) for one in found})]
    assert set(range(first_of_last, total)) <= set(found)


def test_what_was_read_of_a_pipe_is_recorded_exactly_once_through_kills(at: Desk) -> None:
    kill_pipe(at, 2)


def test_an_input_takes_in_while_the_hub_is_away_and_sends_when_it_is_back(at: Desk) -> None:
    process = at.starts(SHOP, "otlp", "--origin", "shop", "--type", "http.request", "--listen", "127.0.0.1:0")
    url = f"http://127.0.0.1:{listening(process)}/v1/logs"
    hub, port = at.town.hub, at.town.hub.port
    hub.stop()
    json_type = {"content-type": "application/json"}
    answer = httpx.post(url, content=otlp_request(0, 3), headers=json_type, timeout=DEADLINE_S)
    assert answer.status_code == 200
    hub.settings["port"] = port
    hub.start()
    until(lambda: numbers(at, lambda payload: payload["body"]) == [0, 1, 2])
    ended(process)
