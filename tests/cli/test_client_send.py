"""`veen send`: messages, receipts, pins, lines and the outbox."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.hub_fixture import STREAM, HubFixture, hostile_hub, hub_fixture
from tests.cli.runner import Veen
from tests.cli.test_edges import COMMAND
from tests.client.pair import QUICK
from tests.hub.client import running
from tests.hub.disks import QuickDisk
from tests.slow_server import STAGES, STARTS, dripping
from veen.cli.kit import open_session
from veen.cli.send import line_report
from veen.client import ClientDir
from veen.client.sender import Sent, Undecided
from veen.client.trust import HubTrust
from veen.core import Limits, Receipt, Unavailable, naming
from veen.core.hashing import h


@pytest.fixture
def place(veen: Veen, tmp_path: Path) -> Iterator[HubFixture]:
    with hub_fixture(veen, tmp_path, limits=Limits(max_body_bytes=2048)) as found:
        yield found


def read(place: HubFixture, *arguments: object) -> list[dict[str, object]]:
    ran = place.does("reader", "stream", *arguments, "--json")
    return [json.loads(line) for line in ran.out.splitlines()]


def texts(place: HubFixture) -> list[object]:
    return [entry["text"] for entry in read(place)]


def test_a_message_is_sent_and_its_receipt_is_shown(place: HubFixture) -> None:
    sent = place.does("writer", "send", "--body", "hello", "--json").json()
    receipt = Receipt.decode(bytes.fromhex(sent["receipt"]))
    place.hub.service.hub_metadata.identity.verify_receipt(receipt)
    assert sent["stream_seq"] == receipt.stream_seq == 1
    assert sent["msg_id"] == receipt.leaf_hash.hex()
    assert sent["hub_ts"] == receipt.hub_ts
    assert texts(place) == ["hello"]
    assert place.does("writer", "send", "--body", "x").facts()["verified"] == "signature, place and root"


def test_a_body_is_text_a_file_or_standard_input(place: HubFixture) -> None:
    (place.root / "note").write_bytes(b"from a file\n")
    place.does("writer", "send", "--body", f"@{place.root / 'note'}")
    place.does("writer", "send", "--body", "")
    pinned = [*place.of("writer"), "--pin", place.hub_id]
    ran = place.apart("send", "--body", "-", *pinned, given=b"\xff\0 not text")
    assert ran.returncode == 0, ran.stderr
    assert [entry["body"] for entry in read(place)] == [b"from a file\n".hex(), "", b"\xff\0 not text".hex()]


def test_schema_and_attachments_are_sent(place: HubFixture) -> None:
    (place.root / "photo.jpg").write_bytes(bytes(range(256)) * 500)
    place.does("writer", "send", "--attach", place.root / "photo.jpg", "--schema", "door.v1", "--body", "look")
    (entry,) = read(place)
    assert entry["schema"] == naming.schema_id("door.v1").hex()
    assert [(one["name"], one["size"]) for one in entry["attachments"]] == [("photo.jpg", 128_000)]  # type: ignore[attr-defined]
    assert entry["text"] == "look"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ([], 2),
        (["--body", "x", "--lines"], 2),
        (["--lines", "--outbox"], 2),
        (["--lines", "--attach", "x"], 2),
        (["--outbox", "--attach", "x"], 2),
        (["--body", "@nowhere"], 6),
        (["--attach", "nowhere"], 6),
        (["--body", "x" * 2048], 5),
        (["--body", "x", "--cap", "nowhere"], 6),
    ],
)
def test_an_invalid_command_fails_and_nothing_is_logged(arguments: list[str], status: int, place: HubFixture) -> None:
    ran = place.fails("writer", "send", *arguments)
    assert ran.status == status
    assert ran.error
    assert place.hub.status()["entries"] == 0


def test_a_client_without_the_key_of_the_stream_cannot_send(place: HubFixture) -> None:
    ran = place.fails("operator", "send", "--body", "x")
    assert ran.status == 6
    assert "this client has no key of stream" in ran.error
    assert "veen stream-key import FILE" in ran.err


# Pins.


def test_first_contact_needs_a_pin_and_sends_no_request_without_one(place: HubFixture) -> None:
    with hostile_hub() as hub:
        ran = place.veen("send", "--body", "x", *place.of("writer")[:2], "--hub", hub.url, "--stream", STREAM)
        assert hub.asked == []
    assert ran.status == 2
    assert "this is the first contact with the hub" in ran.error
    assert "--pin" in ran.err
    assert "--trust-on-first-use" in ran.err


def test_a_pin_is_an_id_a_fingerprint_a_directory_or_an_identity_file(place: HubFixture) -> None:
    identity = place.hub.service.hub_metadata.identity
    pins = [identity.hub_id.hex(), h(identity.newest.hub_pk).hex(), place.hub.data_dir]
    pins.append(place.hub.data_dir / "hub-identity.json")
    for number, pin in enumerate(pins):
        place.veen.done("send", "--body", str(number), *place.of("writer"), "--pin", pin)
    assert texts(place) == ["0", "1", "2", "3"]


def test_a_hub_that_was_pinned_needs_no_pin_again(place: HubFixture) -> None:
    place.does("writer", "send", "--body", "first")
    place.veen.done("send", "--body", "second", *place.of("writer"))
    assert texts(place) == ["first", "second"]


@pytest.mark.parametrize("pin", ["ab" * 32, "nowhere", "ab" * 31, "cert:" + "ab" * 31])
def test_a_wrong_pin_sends_nothing(pin: str, place: HubFixture) -> None:
    ran = place.veen("send", "--body", "x", *place.of("writer"), "--pin", pin)
    assert ran.status == (4 if pin == "ab" * 32 else 2)
    assert ran.error
    assert (f"hub {place.hub_id} answered" in ran.error) is (ran.status == 4)
    assert "may be evidence" not in ran.err
    assert place.hub.status()["entries"] == 0


def test_a_certificate_pin_with_an_http_url_is_a_usage_error(place: HubFixture) -> None:
    ran = place.veen("send", "--body", "x", *place.of("writer"), "--pin", "cert:" + "ab" * 32)
    assert ran.status == 2
    assert "is not https" in ran.error
    assert place.hub.status()["entries"] == 0


def test_a_folder_that_is_not_a_data_directory_is_no_pin(place: HubFixture) -> None:
    ran = place.veen("send", "--body", "x", *place.of("writer"), "--pin", place.root / "reader")
    assert ran.status == 6
    assert "veen hub key" in ran.err


def test_trust_on_first_use_names_the_hub_and_rejects_another_one_later(place: HubFixture, tmp_path: Path) -> None:
    first = place.veen.done("send", "--body", "x", *place.of("writer"), "--trust-on-first-use")
    assert f"accepted hub {place.hub_id} on first use" in first.err
    again = place.veen.done("send", "--body", "y", *place.of("writer"), "--trust-on-first-use")
    assert "trusting" not in again.err
    port = place.hub.port
    place.hub.stop()
    try:
        place.veen.done("hub", "init", "--data-dir", tmp_path / "impostor", "--no-root")
        with running(tmp_path / "impostor", time.time, QuickDisk(), port=port) as impostor:
            ran = place.veen("send", "--body", "secret", *place.of("writer"), "--trust-on-first-use")
            assert impostor.status()["entries"] == 0
        assert ran.status == 4
        assert "wrong key" in ran.error
        assert "another hub answers at this address now" in ran.err
        assert "--pin HEX|PATH" in ran.err
    finally:
        place.hub.start()


def test_a_pin_and_trust_on_first_use_contradict_each_other(place: HubFixture) -> None:
    ran = place.veen("send", "--body", "x", *place.of("writer"), "--pin", place.hub_id, "--trust-on-first-use")
    assert ran.status == 2


def test_an_unreachable_hub_is_an_error_and_the_message_is_not_saved(place: HubFixture) -> None:
    here = ["--client", place.root / "writer", "--stream", STREAM, "--pin", "ab" * 32, "--body", "x"]
    ran = place.veen("send", *here, "--hub", "http://127.0.0.1:1")
    assert ran.status == 6
    assert "veen hub status --hub http://127.0.0.1:1" in ran.err
    assert "the message was not sent and is not in the outbox" in ran.err
    with ClientDir.open(place.root / "writer") as writer:
        assert writer.outbox.places() == ()
    assert "no line was sent" in place.veen("send", *here[:-2], "--lines", "--hub", "http://127.0.0.1:1").err
    assert "was not sent" not in place.veen("send", *here[:-2], "--outbox", "--hub", "http://127.0.0.1:1").err
    assert place.veen("send", *here, "--hub", "ftp://x").status == 2


def test_a_silent_hub_is_named_while_waiting_and_fails_after_the_timeout(
    place: HubFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_session, "ANNOUNCE_WAIT_AFTER_S", 0.01)
    here = ["--client", place.root / "writer", "--stream", STREAM, "--pin", "ab" * 32, "--body", "x"]
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        ran = place.veen("send", *here, "--hub", url, "--timeout", "0.3")
    assert ran.status == 6
    first, *rest = ran.err.splitlines()
    assert first == f"veen: waiting for {url}"
    assert any("the message was not sent and is not in the outbox" in line for line in rest)
    assert place.veen("send", *here, "--hub", url, "--timeout", "0").status == 2


def test_with_a_context_no_options_are_needed(place: HubFixture) -> None:
    place.send("first")
    here = ["--hub", place.url, "--client", place.root / "writer", "--stream", STREAM]
    place.veen.done("context", "add", "daily", *here)
    assert place.veen.done("send", "--body", "second").facts()["stream_seq"] == "2"
    place.veen.done("receipt", 2)
    env = {"VEEN_CLIENT": str(place.root / "operator")}
    sealed = place.veen.done("stream", "--pin", place.hub_id, env=env)
    assert [line.split("\t")[3] for line in sealed.out.splitlines()] == ["(sealed)", "(sealed)"]


@pytest.mark.parametrize("missing", ["--hub", "--client", "--stream"])
def test_a_value_that_neither_option_nor_context_gives_is_an_error(missing: str, place: HubFixture) -> None:
    given = dict(zip(place.of("writer")[::2], place.of("writer")[1::2], strict=True))
    del given[missing]
    ran = place.veen("send", "--body", "x", *[part for pair in given.items() for part in pair])
    assert ran.status == 2
    assert ran.error.startswith(f"missing {missing}")
    assert "store it in a context" in ran.err


# Lines.


def test_lines_are_sent_in_order_in_batches(place: HubFixture) -> None:
    lines = [f"line {number}" for number in range(300)]
    pinned = [*place.of("writer"), "--pin", place.hub_id, "--json"]
    ran = place.apart("send", "--lines", *pinned, given="\n".join(lines).encode())
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == b""
    assert texts(place) == lines
    assert place.hub.status()["entries"] == 300


def test_an_empty_line_is_an_empty_message_and_empty_input_sends_nothing(place: HubFixture) -> None:
    pinned = [*place.of("writer"), "--pin", place.hub_id]
    assert place.apart("send", "--lines", *pinned, given=b"").returncode == 0
    assert place.hub.status()["entries"] == 0
    assert place.apart("send", "--lines", *pinned, given=b"a\n\nb\n").returncode == 0
    assert texts(place) == ["a", "", "b"]


def test_a_line_that_is_too_long_stops_the_command_after_the_lines_before_it(place: HubFixture) -> None:
    pinned = [*place.of("writer"), "--pin", place.hub_id]
    ran = place.apart("send", "--lines", *pinned, given=b"one\ntwo\n" + b"x" * 2048 + b"\nfour\n")
    assert ran.returncode == 5
    assert b"hint: in the log: lines 1-2\n" in ran.stderr
    assert b"hint: resume at line 3: " in ran.stderr
    assert b"hint: in the outbox" not in ran.stderr
    assert texts(place) == ["one", "two"]


def test_when_the_hub_dies_the_report_says_where_to_resume_and_no_line_is_sent_twice(place: HubFixture) -> None:
    lines = [f"line {number}" for number in range(1, 2001)]
    with hostile_hub() as hub:
        who = [*place.of("writer")[:2], "--hub", hub.url, "--stream", STREAM]
        batches: list[str] = []

        def mute_from_third_batch(path: str) -> bool:
            batches.extend([path] if path == "/tooling/submit-batch" else [])
            return len(batches) > 2

        hub.mute = mute_from_third_batch
        command = ["send", "--lines", *who, "--timeout", "60"]
        failed = place.apart(*command, "--trust-on-first-use", given="\n".join(lines).encode())
        assert failed.returncode == 6
        report = failed.stderr.decode()
        found = [re.search(rf"hint: {where}: lines (\d+)-(\d+)", report) for where in ("in the log", "in the outbox")]
        logged, kept = (range(int(one[1]), int(one[2]) + 1) for one in found if one)
        resume = re.search(r"resume at line (\d+):", report)
        assert resume is not None
        assert (logged.start, logged.stop, kept.stop) == (1, kept.start, int(resume[1]))
        with ClientDir.open(place.root / "writer") as writer:
            assert [len(writer.outbox.pending(*at)) for at in writer.outbox.places()] == [len(kept)]
        hub.mute = lambda path: False
        rest = place.apart(*command, given="\n".join(lines[int(resume[1]) - 1 :]).encode())
        assert rest.returncode == 0, rest.stderr
        reading = ["--client", place.root / "reader", "--hub", hub.url, "--stream", STREAM, "--trust-on-first-use"]
        shown = place.veen.done("stream", *reading, "--json").out.splitlines()
        assert [json.loads(line)["text"] for line in shown] == lines


def test_ctrl_c_prints_the_same_report_and_nothing_else(place: HubFixture) -> None:
    lines = [f"line {number}" for number in range(1, 2001)]
    command = ["send", "--lines", *place.of("writer"), "--pin", place.hub_id]
    env = place.veen.shell_env(os.environ)
    sending = subprocess.Popen(
        [*COMMAND, *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    assert sending.stdin is not None
    sending.stdin.write(("\n".join(lines) + "\n").encode())
    sending.stdin.flush()
    while not place.hub.status()["entries"]:
        assert sending.poll() is None
        time.sleep(0.01)
    sending.send_signal(signal.SIGINT)  # standard input stays open: without the signal it would not end
    _, err = sending.communicate()
    report = err.decode()
    assert sending.returncode == 130
    assert all(line.startswith("veen: ") for line in report.splitlines()), report
    assert "veen: in the log: " in report
    resume = re.search(r"resume at line (\d+):", report)
    assert resume is not None
    assert "send again" not in report
    rest = place.apart(*command, given="\n".join(lines[int(resume[1]) - 1 :]).encode())
    assert rest.returncode == 0, rest.stderr
    assert texts(place) == lines


def test_the_report_names_lines_that_are_in_neither_place() -> None:
    receipt = Receipt(bytes(32), 1, bytes(32), bytes(32), 0, bytes(64))
    lost, none = Undecided(bytes(32), Unavailable("x")), Unavailable("x")
    report = line_report(2, [none, none, Sent(0, receipt), lost, lost, none], 2)
    assert report[0] == "in the log: lines 1-2, 5"
    assert report[1].startswith("in the outbox: lines 6-7; do not send them again")
    assert report[2] == "neither in the log nor in the outbox, send again: lines 3-4"
    assert report[3] == "resume at line 8: it and all later lines are neither in the log nor in the outbox"


# The outbox.


def test_a_message_without_a_receipt_stays_in_the_outbox_and_is_sent_next_time(
    place: HubFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_session, "RETRY_POLICY", QUICK)
    with hostile_hub() as hub:
        who = [*place.of("writer")[:2], "--hub", hub.url, "--stream", STREAM]
        hub.mute = lambda path: path.startswith(("/v1/submit", "/tooling/submit"))
        lost = place.veen("send", "--body", "once", *who, "--trust-on-first-use")
        assert lost.status == 6
        assert "stays in the outbox" in lost.err
        assert "not in the outbox" not in lost.err
        assert "veen send --outbox" in lost.err
        hub.mute = lambda path: False
        ran = place.veen.done("send", "--outbox", *who)
        assert ran.out.endswith("\t1\taccepted\n")
        assert ran.err == "veen: 1 accepted, 0 refused\n"
        assert place.veen.done("send", "--outbox", *who).err == "veen: the outbox is empty\n"
        (log,) = hub.logs.values()
        assert log.tree.size == 1


def test_a_submit_that_times_out_stays_in_the_outbox_and_is_not_sent_twice(place: HubFixture) -> None:
    """The hub accepts the message but sends its receipt too slowly. Sending the same bytes again finds the entry."""
    with hostile_hub() as hub:
        who = [*place.of("writer")[:2], "--hub", hub.url, "--stream", STREAM]
        place.veen.done("send", "--body", "zero", *who, "--trust-on-first-use")
        hub.drips = lambda path: path.startswith(("/v1/submit", "/tooling/submit"))
        lost = place.veen("send", "--body", "once", *who, "--timeout", "3")
        assert lost.status == 6
        assert lost.error.startswith(f"{hub.url} did not answer POST /v1/submit in full within 3 s: ")
        assert "bytes of the body arrived" in lost.error
        assert "stays in the outbox" in lost.error
        assert "not in the outbox" not in lost.err
        assert "veen send --outbox" in lost.err
        hub.drips = lambda path: False
        assert place.veen.done("send", "--outbox", *who).out.endswith("\t2\taccepted\n")
        (log,) = hub.logs.values()
        assert log.tree.size == 2


@pytest.mark.parametrize("kind", STARTS)
def test_a_hub_that_answers_too_slowly_at_first_contact_times_out(place: HubFixture, kind: str) -> None:
    with dripping(kind) as address:
        who = [*place.of("writer")[:2], "--hub", f"http://{address}", "--stream", STREAM]
        lost = place.veen("send", "--body", "once", *who, "--timeout", "0.5", "--trust-on-first-use")
    assert lost.status == 6
    assert lost.error.startswith(f"http://{address} did not answer GET /tooling/status in full within 0.5 s: ")
    assert STAGES[kind] in lost.error
    assert "--timeout" in lost.err
    assert "the message was not sent and is not in the outbox" in lost.err


def test_the_next_send_reports_the_outcome_of_the_previous_one(
    place: HubFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_session, "RETRY_POLICY", QUICK)
    with hostile_hub() as hub:
        who = [*place.of("writer")[:2], "--hub", hub.url, "--stream", STREAM]
        hub.mute = lambda path: path.startswith(("/v1/submit", "/tooling/submit"))
        place.veen("send", "--body", "first", *who, "--trust-on-first-use")
        hub.mute = lambda path: False
        ran = place.veen.done("send", "--body", "second", *who)
        assert "of an earlier run is now entry 1" in ran.err
        assert ran.facts()["stream_seq"] == "2"


def test_one_process_at_a_time_sends(place: HubFixture) -> None:
    with ClientDir.open(place.root / "writer") as writer, writer.sending():
        ran = place.apart("send", "--body", "x", *place.of("writer"), "--pin", place.hub_id)
    assert ran.returncode == 6
    assert b"is in use by process" in ran.stderr


# Contradictions.


def test_a_hub_that_forks_its_history_is_caught_and_the_evidence_is_saved(place: HubFixture) -> None:
    with hostile_hub() as hub:
        who = [*place.of("writer")[:2], "--hub", hub.url, "--stream", STREAM]
        place.veen.done("send", "--body", "one", *who, "--trust-on-first-use")
        place.veen.done("send", "--body", "two", *who)
        hub.fork(hub.label(STREAM), 1)
        caught = place.veen("send", "--body", "three", *who)
        assert caught.status == 4
        assert caught.error.startswith("forked history: ")
        (kept,) = (place.root / "writer" / "evidence").iterdir()
        assert f"veen evidence verify {kept} --pin {hub.identity.hub_id.hex()}" in caught.err
        shown = place.veen("evidence", "verify", kept, "--pin", hub.identity.hub_id.hex(), "--json")
        assert shown.status == 11
        assert shown.json()["contradictions"]
        over = place.veen.done("verify", "--start-over", *who, "--json").json()
        assert over["entries"] == hub.log(hub.label(STREAM)).tree.size
        place.veen.done("send", "--body", "four", *who)


def test_the_record_of_a_known_hub_can_be_read_without_the_hub(place: HubFixture) -> None:
    place.does("writer", "send", "--body", "x")
    with ClientDir.open(place.root / "writer") as writer:
        known = open_session.known_hub(writer, place.url)
    assert HubTrust(known).hub_id.hex() == place.hub_id
