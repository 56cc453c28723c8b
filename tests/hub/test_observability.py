"""Status, health, readiness and metrics over real HTTP, with the names of OBS0."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from plumbing.http import HttpSettings
from tests.hub.client import PATIENCE_S, Clock, Hub, Reply, make_dir, running, until
from tests.hub.disks import FullDisk, NoLogDisk, QuickDisk
from tests.hub.subscriber import Subscriber
from veen.core import Limits, Rate, mmr, naming
from veen.core.envelopes import ProofRequest, ProofResponse
from veen.hub import status as health
from veen.hub.admission_rules import Admission

INTERVAL = 4
LIMITS = Limits(max_checkpoint_interval=INTERVAL)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with running(make_dir(tmp_path, limits=LIMITS), disk=QuickDisk()) as found:
        yield found


# Health and readiness.


def test_a_live_hub_is_healthy_and_ready(hub: Hub) -> None:
    health = hub.get("/healthz").json()
    assert health["ok"] is True
    assert health["profile_id"] == hub.service.rules.profile_id.hex()
    assert hub.get("/readyz").json()["ready"] is True


def test_a_hub_whose_log_cannot_be_written_is_alive_and_not_ready(tmp_path: Path) -> None:
    disk = NoLogDisk()
    with running(make_dir(tmp_path), disk=disk) as hub:
        hub.writer().send()
        # The log catches up within half a second; repeating the request is enough waiting.
        until(lambda: hub.get("/readyz").status == 503)
        assert "No space left" in hub.get("/readyz").json(503)["reason"]
        assert hub.get("/healthz").status == 200
        assert "No space left" in hub.status()["trouble"]
        # Durable entries are still served, and the journal accepts more.
        hub.writer("other").send()
        disk.full = False
        until(lambda: hub.get("/readyz").status == 200)
        assert hub.status()["trouble"] == ""


HEALTH = {"ok", "profile_id", "peaks_count", "last_stream_seq", "last_mmr_root"}


def test_health_has_the_fields_of_obs0_and_the_newest_entry(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir) as hub:
        empty = hub.get("/healthz").json()
        assert empty.keys() == HEALTH
        assert (empty["ok"], empty["peaks_count"], empty["last_stream_seq"]) == (True, 0, 0)
        assert empty["last_mmr_root"] == mmr.root(()).hex()
        assert empty["profile_id"] == hub.service.rules.profile_id.hex()
        hub.writer("a").send_many(7)
        last = hub.writer("b").send_many(3)[-1]
        shown = hub.get("/healthz").json()
        assert (shown["peaks_count"], shown["last_stream_seq"]) == (2, 3)
        assert shown["last_mmr_root"] == last.mmr_root.hex()
        assert last.label.hex() not in hub.get("/healthz").body.decode()


def test_health_is_the_same_after_a_restart_whether_or_not_the_log_has_caught_up(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path), Clock()
    hub = Hub(data_dir, clock, settings={"admission": Admission.OPEN}).start()
    least, middle, most = sorted((hub.writer(name) for name in "abc"), key=lambda writer: writer.label)
    # The newest is neither the first nor the last label of the index.
    for writer in (least, most, middle):
        clock.now += 1
        last = writer.send_many(3)[-1]
    shown = hub.get("/healthz").json()
    assert shown["last_mmr_root"] == last.mmr_root.hex()
    hub.stop()
    with running(data_dir, clock) as again:
        assert again.get("/healthz").json() == shown
    unwritten = NoLogDisk()
    unwritten.full = False
    with running(data_dir, clock, disk=unwritten) as hub:
        unwritten.full = True
        last = hub.writer("d").send()
        shown = hub.get("/healthz").json()
        assert shown["last_mmr_root"] == last.mmr_root.hex()
    with running(data_dir, clock) as hub:
        assert hub.service.replayed == 1
        assert hub.get("/healthz").json() == shown


def ready(hub: Hub) -> tuple[int, str]:
    reply = hub.get("/readyz")
    shown = reply.json(reply.status)
    assert shown["ready"] == (reply.status == 200)
    return reply.status, shown["reason"]


def test_a_hub_whose_journal_has_no_room_is_not_ready_until_it_has(tmp_path: Path) -> None:
    disk = FullDisk()
    with running(make_dir(tmp_path), disk=disk) as hub:
        writer = hub.writer()
        writer.send()
        disk.full = True
        before = samples(hub)["veen_submit_ok_total"]
        assert hub.submit(writer.message()).status == 503
        assert ready(hub) == (503, "the journal cannot be written: No space left on device")
        assert hub.get("/healthz").status == 200
        assert samples(hub)["veen_submit_ok_total"] == before
        disk.full = False
        writer.send()
        assert ready(hub) == (200, "")


def test_an_idle_hub_notices_by_itself_that_there_is_space_again(tmp_path: Path) -> None:
    disk = FullDisk()
    with running(make_dir(tmp_path), disk=disk) as hub:
        disk.full = True
        assert hub.submit(hub.writer().message()).status == 503
        assert ready(hub)[0] == 503
        disk.full = False
        until(lambda: ready(hub)[0] == 200)


def test_a_hub_whose_data_directory_is_gone_is_alive_and_not_ready(hub: Hub) -> None:
    journal, aside = hub.data_dir / "journal", hub.data_dir / "aside"
    journal.rename(aside)
    status, reason = ready(hub)
    assert (status, "cannot be reached" in reason) == (503, True)
    assert hub.get("/healthz").status == 200
    aside.rename(journal)
    assert ready(hub) == (200, "")


def test_a_hub_on_a_full_disk_is_not_ready(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = os.statvfs(hub.data_dir)
    monkeypatch.setattr(health, "MIN_FREE_BYTES", disk.f_blocks * disk.f_frsize + 1)
    assert ready(hub) == (503, "the disk is full")


# Metrics of OBS0.1, and the hub's own.


METRICS = {
    "veen_submit_ok_total": "counter",
    "veen_submit_err_total": "counter",
    "veen_verify_latency_ms": "histogram",
    "veen_commit_latency_ms": "histogram",
    "veen_end_to_end_latency_ms": "histogram",
    "veen_queue_depth": "gauge",
    "veen_rate_limited_total": "counter",
    "veen_checkpoint_interval": "histogram",
    "veen_anchor_fail_total": "counter",
    "veen_fsync_latency_ms": "histogram",
    "veen_group_size": "histogram",
    "veen_proof_latency_ms": "histogram",
    "veen_journal_bytes": "gauge",
    "veen_revocations": "gauge",
    "veen_multi_primary_labels": "gauge",
}


def metrics(hub: Hub) -> tuple[dict[str, str], dict[str, float]]:
    """The types and the samples of /metrics."""
    reply = hub.get("/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = reply.body.decode().splitlines()
    types = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE"))
    samples = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}
    return types, samples


def test_metrics_have_the_agreed_names_and_count_what_happened(hub: Hub) -> None:
    writer = hub.writer()
    writer.send_many(3)
    hub.submit(writer.message(client_seq=9))
    types, samples = metrics(hub)
    assert {name: types.get(name) for name in METRICS} == METRICS
    assert samples["veen_submit_ok_total"] == 3
    assert samples['veen_submit_err_total{code="E.SEQ",detail_enum="CLIENT_SEQ"}'] == 1
    assert samples["veen_verify_latency_ms_count"] == 4
    assert samples["veen_end_to_end_latency_ms_count"] == 3
    assert samples["veen_fsync_latency_ms_count"] == 3
    assert samples["veen_group_size_sum"] == 3
    assert samples["veen_queue_depth"] == 0
    assert samples["veen_journal_bytes"] > 0


def test_metrics_count_what_never_became_a_message(hub: Hub) -> None:
    hub.post("/v1/submit", b"")
    hub.post_json("/v1/submit", b"{")
    hub.post("/v1/submit", bytes(hub.service.rules.limits.max_msg_bytes + 5))
    hub.post("/v1/submit", bytes(3 << 20))
    samples = metrics(hub)[1]
    assert samples['veen_submit_err_total{code="E.FORMAT",detail_enum="CBOR_INVALID"}'] == 2
    assert samples['veen_submit_err_total{code="E.SIZE",detail_enum="SIZE_PREFILTER"}'] == 2


def test_metrics_time_proofs(hub: Hub) -> None:
    writer = hub.writer()
    writer.send()
    hub.post("/v1/proof", ProofRequest(writer.label, 1)).read(ProofResponse)
    assert metrics(hub)[1]["veen_proof_latency_ms_count"] == 1


def test_metrics_count_entries_between_checkpoints(tmp_path: Path) -> None:
    with running(make_dir(tmp_path, limits=LIMITS)) as hub:
        hub.writer().send_many(INTERVAL)
        until(lambda: samples(hub)["veen_checkpoint_interval_count"] == 1)
        assert samples(hub)["veen_checkpoint_interval_sum"] == INTERVAL


def test_metrics_count_entries_between_checkpoints_also_of_chunks_that_close_together(tmp_path: Path) -> None:
    with running(make_dir(tmp_path, limits=LIMITS), disk=QuickDisk()) as hub:
        hub.batch(*hub.writer().next_messages(3 * INTERVAL))
        until(lambda: samples(hub)["veen_checkpoint_interval_count"] == 3)
        assert samples(hub)["veen_checkpoint_interval_sum"] == 3 * INTERVAL


def test_what_the_hub_logs_itself_was_not_submitted(tmp_path: Path) -> None:
    with running(make_dir(tmp_path), admission=Admission.CAPABILITY) as hub:
        writer = hub.granted()
        hub.register(naming.stream_id("another"))
        assert samples(hub)["veen_submit_ok_total"] == 0
        writer.send_many(2)
        found = samples(hub)
        assert found["veen_submit_ok_total"] == found["veen_end_to_end_latency_ms_count"] == 2
        assert hub.status()["entries"] == 4


def test_metrics_count_rate_refusals(tmp_path: Path) -> None:
    with running(make_dir(tmp_path), admission=Admission.CAPABILITY) as hub:
        writer = hub.granted(rate=Rate(1, 1))
        writer.send()
        hub.submit(writer.message())
        assert metrics(hub)[1]["veen_rate_limited_total"] == 1


def samples(hub: Hub) -> dict[str, float]:
    return metrics(hub)[1]


def test_metrics_show_open_connections(hub: Hub) -> None:
    # The metrics request is a connection, too.
    until(lambda: samples(hub)["veen_connections"] == 1)
    with Subscriber(hub, f"label={'0' * 64}"):
        until(lambda: samples(hub)["veen_connections"] == 2)
    until(lambda: samples(hub)["veen_connections"] == 1)
    assert samples(hub)["veen_connections"] == 1


@pytest.mark.parametrize(
    ("cap", "settings"),
    [
        ("total", HttpSettings(max_connections=1)),
        ("address", HttpSettings(max_connections_per_address=1, uncounted_networks=())),
    ],
)
def test_metrics_count_refused_connections_by_the_cap_they_met(
    tmp_path: Path, cap: str, settings: HttpSettings
) -> None:
    with running(make_dir(tmp_path), http=settings) as hub:
        with Subscriber(hub, f"label={'0' * 64}"):
            reply = hub.get("/metrics")
            assert (reply.status, reply.error().code, reply.is_json) == (503, "E.UNAVAILABLE", True)
            assert reply.headers["retry-after"] == "1"
            assert ("address" in reply.error().message) == (cap == "address")

        def told(one: str) -> bool:
            text = hub.get("/metrics").body.decode()
            return f'veen_connections_refused_total{{cap="{one}"}}' in text and f'{{cap="{one}"}} 0.0' not in text

        # Until the hub has noticed the last close, the next connection is one too many.
        until(lambda: told(cap))


def test_connections_from_this_machine_are_not_counted_by_address(tmp_path: Path) -> None:
    settings = HttpSettings(max_connections_per_address=1)
    with running(make_dir(tmp_path), http=settings) as hub, Subscriber(hub, f"label={'0' * 64}"):
        assert hub.get("/healthz").status == 200


# Requests that the HTTP server rejects.


def raw(hub: Hub, data: bytes) -> Reply:
    """The response to bytes that are not a request."""
    import socket

    with socket.create_connection(("127.0.0.1", hub.port), timeout=PATIENCE_S) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    return Reply(int(line.split(" ")[1]), dict(field.split(": ", 1) for field in fields), body)


FRONT = [
    ("nonsense", b"nonsense\r\n\r\n", 400, "E.BAD_REQUEST"),
    ("no host", b"GET /x HTTP/1.1\r\n\r\n", 400, "E.BAD_REQUEST"),
    ("a long head", b"GET /x HTTP/1.1\r\nhost: h\r\nx: " + b"x" * 40_000 + b"\r\n\r\n", 431, "E.LIMIT"),
    ("a long target", b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nhost: h\r\n\r\n", 414, "E.LIMIT"),
    ("an expectation", b"GET /x HTTP/1.1\r\nhost: h\r\nexpect: miracles\r\n\r\n", 417, "E.BAD_REQUEST"),
    ("a coding", b"POST /x HTTP/1.1\r\nhost: h\r\ntransfer-encoding: gzip\r\n\r\n", 501, "E.BAD_REQUEST"),
    ("a version", b"GET /x HTTP/0.9\r\nhost: h\r\n\r\n", 505, "E.BAD_REQUEST"),
]


@pytest.mark.parametrize(("data", "status", "code"), [row[1:] for row in FRONT], ids=[row[0] for row in FRONT])
def test_what_the_front_refuses_is_an_error_envelope(hub: Hub, data: bytes, status: int, code: str) -> None:
    reply = raw(hub, data)
    assert (reply.status, reply.error().code) == (status, code)
    assert reply.error().message
    assert reply.is_json


@pytest.mark.parametrize(
    ("path", "field", "as_json"),
    [
        ("/v1/submit", "", False),
        ("/tooling/proof", "", False),
        ("/healthz", "", True),
        ("/v1/submit", "accept: application/json", True),
        ("/v1/submit", "content-type: application/json", True),
        ("/healthz", "accept: application/cbor", False),
        ("/healthz", "content-type: application/cbor", False),
    ],
)
def test_the_format_of_an_error_follows_the_request(hub: Hub, path: str, field: str, as_json: bool) -> None:
    fields = "".join(f"{one}\r\n" for one in ("host: h", field, "host: again") if one)
    reply = raw(hub, f"POST {path} HTTP/1.1\r\n{fields}\r\n".encode())
    assert (reply.status, reply.is_json) == (400, as_json)
    assert reply.error().code == "E.BAD_REQUEST"


def test_the_front_can_refuse_with_no_status_that_has_no_code() -> None:
    import ast

    from plumbing import http
    from veen.hub import responses

    folder = Path(http.__file__).parent
    found = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in ("BadHead", "_refuse", "refused"):
                    found |= {
                        arg.value for arg in node.args if isinstance(arg, ast.Constant) and type(arg.value) is int
                    }
    assert found >= {400, 408, 414, 417, 431, 500, 501, 503, 505}
    assert found <= responses.FRONT_CODES.keys()
