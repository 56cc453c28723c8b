"""`veen recorder otlp|syslog|retry`: listeners start only if their events can be recorded; others are set aside."""

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.recorder.recorder_fixture import ADMIN, SHOP, WEB, RecorderFixture, recorder_fixture
from tests.cli.recorder.test_kills import listening_port, stop, until
from tests.cli.runner import Veen
from veen import recorder


@pytest.fixture
def at(veen: Veen, tmp_path: Path) -> Iterator[RecorderFixture]:
    with recorder_fixture(veen, tmp_path) as made:
        yield made


def post(port: int, *types: str) -> dict[str, object]:
    records = [{"timeUnixNano": "5", "eventName": one, "body": {"stringValue": one}} for one in types]
    content = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}).encode()
    answer = httpx.post(
        f"http://127.0.0.1:{port}/v1/logs", content=content, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 200
    found: dict[str, object] = answer.json()
    return found


@pytest.mark.parametrize(("name", "event_type"), [("syslog", "syslog.message"), ("otlp", "otel.log")])
def test_a_listener_whose_type_has_no_stream_does_not_start(at: RecorderFixture, name: str, event_type: str) -> None:
    ran = at.tries(SHOP, name, "--origin", "shop", "--listen", "127.0.0.1:0")
    assert (ran.status, ran.out) == (5, "")
    assert f"{event_type!r} is not mapped to a stream" in ran.error
    assert "veen recorder map TYPE STREAM" in ran.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--origin", "bank", "--type", "http.request"), "is not an origin of producer shop"),
        (("--origin", "shop", "--type", "job.done"), "may not write to record/app/jobs"),
    ],
)
def test_a_listener_whose_producer_may_not_record_its_events_does_not_start(
    at: RecorderFixture, arguments: tuple[str, ...], reason: str
) -> None:
    at.does(ADMIN, "init", "--type", "job.done=record/app/jobs", "--every-events", 5)
    ran = at.tries(SHOP, "syslog", *arguments, "--listen", "127.0.0.1:0")
    assert (ran.status, reason in ran.error) == (5, True)


def test_events_set_aside_are_reported_to_the_exporter_and_recorded_by_retry(at: RecorderFixture) -> None:
    process = at.starts(SHOP, "otlp", "--origin", "shop", "--type", "http.request", "--listen", "127.0.0.1:0")
    port = listening_port(process)
    assert post(port, "http.request") == {}
    answer = post(port, "cart.full", "http.request", "cart.full")["partialSuccess"]
    assert answer == {
        "rejectedLogRecords": "2",
        "errorMessage": "set aside: event type 'cart.full' is not mapped to a stream",
    }
    aside = at.root / SHOP / "recorder" / "refused.jsonl"
    until(lambda: aside.exists() and aside.read_text().count("\n") == 2, "2 events set aside")
    busy = at.tries(SHOP, "retry")
    assert (busy.status, aside.exists()) == (6, True)  # the listener may be writing to that file
    stop(process)

    again = at.does(SHOP, "retry", "--json").json()
    assert (again["sent"], again["refused"], aside.exists()) == (0, 2, True)
    at.does(ADMIN, "map", "cart.full", WEB)
    assert at.does(SHOP, "retry", "--json").json() == {"sent": 2, "known": 0, "refused": 0}
    assert at.does(SHOP, "retry", "--json").json()["sent"] == 0
    found = [json.loads(line) for line in at.does(ADMIN, "replay", WEB, "--json").out.splitlines()]
    assert [one["payload"]["body"] for one in found] == ["http.request", "http.request", "cart.full", "cart.full"]
    assert [one["position"] for one in found] == [1, 3, 2, 4]
    assert all(one["source"].startswith("otlp/") for one in found)


def test_a_port_in_use_names_the_option_that_chooses_another(at: RecorderFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        for name in ("syslog", "otlp"):
            ran = at.tries(SHOP, name, "--origin", "shop", "--type", "http.request", "--listen", where)
            assert (ran.status, "in use" in ran.error) == (6, True)
            assert "hint: --listen HOST:PORT" in ran.err


def test_a_listener_starts_while_the_hub_is_away_and_remarks_on_the_missing_check(at: RecorderFixture) -> None:
    at.does(SHOP, "send", "login", "--subject", "a", "--origin", "shop")
    hub = at.hub_fixture.hub
    hub.settings["port"] = hub.port
    hub.stop()
    process = at.starts(SHOP, "syslog", "--origin", "shop", "--listen", "127.0.0.1:0")
    try:
        listening_port(process)
    finally:
        process.terminate()
        _, err = process.communicate()
        hub.start()
    assert b"the stream of syslog.message events is checked once the hub answers" in err


def test_without_the_opentelemetry_packages_the_hint_names_the_extra(
    veen: Veen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(recorder, "otlp", raising=False)
    monkeypatch.setitem(sys.modules, "veen.recorder.otlp", None)
    ran = veen("recorder", "otlp", "--origin", "shop")
    assert (ran.status, ran.error) == (6, "the OpenTelemetry packages are not installed")
    assert "pip install '.[recorder]'" in ran.err
