"""Each measurement runs end to end on real hubs, with too little load for meaningful figures."""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench import send_trace
from veen.bench import hub_process, scaling, throughput
from veen.bench.bench_report import BenchReport
from veen.bench.hub_process import HubProcess, run_round
from veen.bench.load import MessageWriters, Target
from veen.core import Msg, Profile, Unavailable, Unverified

TARGET = Target(b"\x01" * 32, Profile().profile_id())


def assert_measured(report: BenchReport, folder: Path) -> None:
    """Every row is there with a plausible value, and no files are left."""
    assert all(row.low <= row.value <= row.high for row in report.rows)
    assert all(row.value > 0 for row in report.rows if row.unit in ("/s", "ms", "s"))
    assert "MISSED" in report.text() or report.kept
    assert list(folder.iterdir()) == []


def test_the_hub_measurement_shows_what_was_promised_of_every_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "_WARM_UP", 2)
    lines: list[str] = []
    report = throughput.measure_hub(
        rounds=1, per_connection=8, connections=8, beside=False, folder=tmp_path, progress=lines.append
    )
    assert_measured(report, tmp_path)
    bounds = {row.what: row.least for row in report.rows if row.least is not None}
    assert bounds == {f"{mode.name}: of the one-core crypto limit": mode.least for mode in throughput.MODES}
    for mode in throughput.MODES:
        for what in ("submits", "p50", "p99", "p99 / p50", "CPU a message, hub", "messages a sync"):
            assert report.row(f"{mode.name}: {what}").value > 0
    assert report.row("one process: CPU a message, signer and workers").value > 0
    assert len(lines) == len(throughput.MODES)


@pytest.mark.slow
def test_the_labels_measurement_compares_many_labels_with_one(tmp_path: Path) -> None:
    report = throughput.measure_labels(labels=20, rounds=1, per_round=100, connections=8, folder=tmp_path)
    assert_measured(report, tmp_path)
    many, one = report.row("20 labels in turn: submits"), report.row("one label: submits")
    assert report.rows[0].value == pytest.approx(many.value / one.value)
    assert not report.row("one label: catch-ups of the log").kept


@pytest.mark.slow
def test_the_growth_measurement_reads_both_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "_JOURNAL_ENTRIES", 70)
    monkeypatch.setattr(scaling, "TURNS", 2)
    report = scaling.measure_growth(small=50, large=500, rounds=1, each=1, proofs=5, folder=tmp_path)
    assert_measured(report, tmp_path)
    assert report.row("entries replayed from the journal").value == 70
    for size in ("50", "500"):
        whole, anonymous, files = (report.row(f"resident at {size}{part}") for part in ("", *scaling.PARTS))
        assert whole.value >= anonymous.value + files.value > 0
    promised = {row.what: row.most for row in report.rows if row.most is not None}
    assert sorted(set(promised.values())) == [1.1, 2, 3, 64]


def test_a_round_with_rejected_messages_raises(tmp_path: Path) -> None:
    with HubProcess(HubProcess.init(tmp_path / "hub"), "--workers", "0") as running:
        writers = MessageWriters(running.target, 2, ["refused"])
        plan = writers.plan(4)
        with pytest.raises(Unavailable) as caught:
            run_round(running, [requests[::-1] for requests in plan], 4)
        assert "CLIENT_SEQ" in str(caught.value)
        # The answer to a batch is 200 even if messages are rejected: only the hub's counter shows it.
        twice = MessageWriters(running.target, 1, ["refused too"]).plan(4, 2) * 2
        with pytest.raises(Unavailable) as caught:
            run_round(running, twice, 8)
        assert "accepted 4 of 8" in str(caught.value)


def test_a_log_that_does_not_grow_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_process, "_SETTLE_TIMEOUT_S", 0.01)
    with HubProcess(HubProcess.init(tmp_path / "hub"), "--workers", "0") as running:
        assert running.settle(0) >= 0  # it has that many
        with pytest.raises(Unavailable) as caught:
            running.settle(1)
    assert "has had 0 of 1 entries" in str(caught.value)


def test_a_hub_that_does_not_start_is_reported_with_its_error(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        HubProcess(tmp_path / "none", "--workers", "0")
    assert "not a data directory of a hub" in str(caught.value)


def test_a_hub_that_exits_under_load_is_reported(tmp_path: Path) -> None:
    with HubProcess(HubProcess.init(tmp_path / "hub"), "--workers", "0") as running:
        plan = MessageWriters(running.target, 1, ["gone"]).plan(1)
        running.kill()
        with pytest.raises(Unavailable) as caught:
            running.drive(plan)
    assert "the hub exited" in str(caught.value)


def test_messages_are_distributed_in_turn_with_consecutive_client_seq() -> None:
    writers = MessageWriters(TARGET, 2, ["a", "b", "c"])
    made = [Msg.decode(writers.one()) for _ in range(12)]
    assert [len({message.client_id for message in made}), len({message.label for message in made})] == [2, 3]
    assert [message.client_seq for message in made] == [1] * 6 + [2] * 6


def test_the_crypto_limit_is_more_than_a_verify_and_takes_a_real_message() -> None:
    encoded = MessageWriters(TARGET, 1, ["limit"]).one()
    assert 1e-6 < throughput.CryptoLimit([encoded]).seconds() < 1
    forged = throughput.CryptoLimit([encoded[:-1] + bytes([encoded[-1] ^ 1])])
    with pytest.raises(Unverified):
        forged.seconds()


def test_a_baseline_that_is_not_installed_is_skipped_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with ExitStack() as stack:
        found = throughput.start_baselines(stack, tmp_path, 2)
    assert found.servers == ()
    assert found.notes == ("redis-server is not installed: skipped", "nats-server is not installed: skipped")


@pytest.mark.parametrize("program", ["redis-server", "nats-server"])
def test_an_installed_baseline_is_measured_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / program).symlink_to(path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with ExitStack() as stack:
        (server,) = throughput.start_baselines(stack, tmp_path, 4).servers
        server.run_round(10)
        assert server.loads[0].requests == 40
        assert all(row.value > 0 for row in server.rows())
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_a_send_keeps_the_bounds_of_its_calls_and_modules_and_leaves_the_loop_twice() -> None:
    report = send_trace.measure(rounds=30)
    assert {row.what: row.most for row in report.rows if row.most is not None} == {"calls": 300, "modules": 35}
    assert report.kept, report.text()
    # There and back: to store the message before it is sent, and its receipt before it is returned.
    assert report.row("thread changes in veen.client").value == 4
    assert report.row("calls").value == sum(row.value for row in report.rows if row.what.startswith("calls in "))
