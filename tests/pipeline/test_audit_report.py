"""The outputs of an audit: a canonical report, a self-contained page, and a statement for that report only."""

import re
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from html.parser import HTMLParser
from multiprocessing import active_children
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bench.big_log import BigLog
from tests.cli.runner import Veen
from tests.pipeline.damage import copied, flip, run_audit
from veen.core import Malformed, SigningKey, Unverified, cbor
from veen.pipeline import jobs
from veen.pipeline.audit import audit, audit_report, page_of, report_of, sign
from veen.pipeline.audit.audit_report import AuditStatement, JsonObject, decode, encode
from veen.pipeline.audit.piece_audit import PieceOutcome
from veen.pipeline.jobs import in_processes

AUDITOR = SigningKey(b"\x05" * 32)


@pytest.fixture
def damaged(log: BigLog, place: Path) -> Path:
    root = copied(log.folders.root, place / "<hub> & co")
    flip(sorted(root.glob("log/chunk-*-0*[0-9].log"))[0], 2300)
    return root


@pytest.fixture
def veen(tmp_path: Path) -> Veen:
    return Veen(tmp_path / "home")


def made(*roots: Path) -> JsonObject:
    return report_of(run_audit(*roots), 1_700_000_000, "a test")


def test_a_report_counts_entries_chunks_and_findings(log: BigLog) -> None:
    found: dict[str, Any] = made(log.folders.root)
    (one,) = found["directories"]
    assert (found["verdict"], found["entries"], one["failed"], one["unchecked"]) == ("sound", 61, 0, 0)
    assert sum(count for _, count in one["over_time"]) == 61
    assert {row["label"]: row["upto_seq"] for row in one["labels"]} == {
        log.labels[0].hex(): 31,
        log.labels[1].hex(): 30,
    }


def test_a_report_has_a_canonical_form(log: BigLog) -> None:
    data = encode(made(log.folders.root))
    assert encode(decode(data)) == data
    for other in (data + b"\n", b"{}", data.replace(b"veen.audit.v1", b"veen.audit.v2"), data[:-1]):
        with pytest.raises(Malformed):
            decode(other)


def test_a_statement_is_valid_for_its_report_and_no_other(log: BigLog, damaged: Path) -> None:
    data, other = encode(made(log.folders.root)), encode(made(damaged))
    found = AuditStatement.decode(sign(AUDITOR, data).encode())
    found.verify(data)
    found.verify(data, AUDITOR.public_key)
    assert found.verdict == "sound"
    with pytest.raises(Unverified, match="another report"):
        found.verify(other)
    with pytest.raises(Unverified, match="another key"):
        found.verify(data, bytes(32))


def test_a_statement_with_any_flipped_bit_is_invalid(log: BigLog) -> None:
    data = encode(made(log.folders.root))
    sound = sign(AUDITOR, data).encode()
    for at in range(len(sound)):
        wrong = bytearray(sound)
        wrong[at] ^= 1 << at % 8
        with pytest.raises((Malformed, Unverified)):
            AuditStatement.decode(bytes(wrong)).verify(data)


class Tags(HTMLParser):
    """Every tag that was opened, and whether each was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "br", "rect", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag


def test_the_page_is_self_contained_and_has_each_plot(log: BigLog, damaged: Path) -> None:
    page = page_of(made(log.folders.root, damaged))
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.seen.count("svg") == 5
    assert not {"script", "link", "img", "iframe"} & set(tags.seen)
    assert "://" not in re.sub(r"\s", "", page)
    assert "&lt;hub&gt; &amp; co" in page
    assert "<hub>" not in page
    assert "client_sig" in page


def test_the_page_shows_time_version_and_auditor(log: BigLog) -> None:
    report = made(log.folders.root)
    assert f"Made 2023-11-14 22:13 UTC by VEEN {report['version']}, not signed." in page_of(report)
    assert f"for the auditor <code>{AUDITOR.public_key.hex()}</code>" in page_of(report, AUDITOR.public_key)


def test_the_page_keeps_words_whole_and_names_files_briefly(damaged: Path) -> None:
    page = page_of(made(damaged))
    assert "<td class=word>damaged</td>" in page
    assert re.search(r'<td title="log/chunk-[0-9a-f]{64}-0{19}1-0{19}7.log"><code>log/chunk-[0-9a-f]{8}…-1-7.log', page)
    (anywhere,) = re.findall(r"([^{}]*){[^{}]*overflow-wrap: anywhere", page)
    assert anywhere.strip() == "code"


def test_the_rate_is_a_line_for_a_few_pieces_and_a_plot_for_many(log: BigLog) -> None:
    report: dict[str, Any] = made(log.folders.root)
    report["directories"][0]["rate"] = [100] * 19
    assert "100 to 100 entries a second" in page_of(report)
    assert "Verification rate" not in page_of(report)
    report["directories"][0]["rate"] = [100] * 20
    assert "Verification rate" in page_of(report)


def test_a_single_bar_is_not_a_slab() -> None:
    (width,) = re.findall(r'class="bar"[^>]* width="([^"]+)"', audit_report.over_time([(1_700_000_000, 41)], "entries"))
    assert float(width) <= 40


def test_the_page_of_an_empty_log_can_be_made(place: Path) -> None:
    empty = BigLog(place / "hub")
    assert "sound" in page_of(made(empty.folders.root))


def test_an_outcome_survives_encoding(log: BigLog, damaged: Path) -> None:
    for directory in run_audit(log.folders.root, damaged).directories:
        for links in directory.labels.values():
            for link in links:
                plain = cbor.decode(cbor.encode(link.outcome.plain()))
                assert PieceOutcome.of(plain) == link.outcome


def test_the_command_reports_signs_and_verifies(veen: Veen, log: BigLog, tmp_path: Path) -> None:
    veen.done("keygen", "--out", tmp_path / "me", "--no-passphrase")
    out = tmp_path / "audited"
    ran = veen.done("audit", log.folders.root, "--workers", "1", "--out", out, "--sign", "--client", tmp_path / "me")
    assert ran.facts()["verdict"] == "sound"
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "report.json", "statement.cbor"]
    unnamed = veen("audit", "verify", out, "--json")
    assert (unnamed.status, unnamed.json()["verdict"]) == (4, "unverified: no auditor was named")
    assert "no auditor was named" in unnamed.error
    embedded = veen.done("audit", "verify", out, "--trust-embedded", "--json").json()
    assert embedded["verdict"] == "sound, but the auditor's key was taken from the file: anyone could have made it"
    named = ("--auditor", unnamed.json()["auditor"])
    assert veen.done("audit", "verify", out, *named, "--json").json()["verdict"] == "sound"
    assert veen("audit", "verify", out, *named, "--trust-embedded").status == 2
    report = (out / "report.json").read_bytes()
    (out / "report.json").write_bytes(report.replace(b'"sound"', b'"found"'))
    assert veen("audit", "verify", out, *named).status == 4
    assert "no auditor was named" not in veen("audit", "verify", out).error
    (out / "report.json").write_bytes(report)
    assert veen("audit", "verify", out, "--auditor", "00" * 32).status == 4


def test_the_exit_status_of_the_command_reports_damage(veen: Veen, log: BigLog, damaged: Path) -> None:
    ran = veen("audit", damaged, "--workers", "1", "--json")
    assert ran.status == 8
    (one,) = ran.json()["directories"]
    assert {finding["stream_seq"] for finding in one["findings"]} == {3}
    assert veen("audit", log.folders.root, "--pin", "00" * 32).status == 8


def test_the_command_uses_several_processes(veen: Veen, place: Path) -> None:
    big = BigLog(place / "hub", streams=4)
    big.grow(3_000)
    assert veen.done("audit", "run", big.folders.root, "--workers", "2", "--json").json()["entries"] == 3_000


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--sign",), "--sign needs --out"),
        (("--master", "local[1]"), "need --spark"),
        (("--workers", "0"), "workers"),
    ],
)
def test_the_command_rejects_contradictory_options(
    veen: Veen, log: BigLog, arguments: tuple[str, ...], expected: str
) -> None:
    ran = veen("audit", log.folders.root, *arguments)
    assert ran.status == 2
    assert expected in ran.error


def test_an_existing_report_is_kept_with_its_signature(veen: Veen, log: BigLog, tmp_path: Path) -> None:
    veen.done("keygen", "--out", tmp_path / "me", "--no-passphrase")
    out, hub = tmp_path / "audited", log.folders.root
    veen.done("audit", hub, "--workers", "1", "--out", out, "--sign", "--client", tmp_path / "me")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert AUDITOR.public_key.hex() not in before["report.html"].decode()
    assert "for the auditor" in before["report.html"].decode()
    ran = veen("audit", hub, "--workers", "1", "--out", out)
    assert (ran.status, "already exists" in ran.error) == (2, True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    for name in ("report.json", "report.html"):
        (out / name).unlink()
    assert veen("audit", hub, "--workers", "1", "--out", out).status == 2


def test_an_unsigned_report_is_reported_as_unsigned(veen: Veen, log: BigLog, tmp_path: Path) -> None:
    veen.done("audit", log.folders.root, "--workers", "1", "--out", tmp_path / "audited")
    ran = veen("audit", "verify", tmp_path / "audited")
    assert ran.status == 6
    assert "is not signed" in ran.error
    assert "--sign" in ran.err


def test_a_path_without_data_directory_is_rejected_and_not_damaged(veen: Veen, log: BigLog, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    for name, expected in (("nowhere", "not a hub's data"), ("empty", "not a hub's data"), ("file", "cannot be read")):
        ran = veen("audit", log.folders.root, tmp_path / name, "--out", tmp_path / "audited")
        assert ran.status == 6
        assert expected in ran.error
    assert not (tmp_path / "audited").exists()


@pytest.mark.parametrize("lost", ["log", "hub-identity.json"])
def test_a_data_directory_that_lost_a_part_is_damaged(damaged: Path, lost: str) -> None:
    (damaged / lost).rename(damaged / "aside")
    assert made(damaged)["verdict"] == "damaged"


def test_an_audit_reports_progress_within_a_piece(place: Path) -> None:
    big, reports = BigLog(place / "hub"), list[tuple[int, int]]()
    big.grow(700)
    audit([str(big.folders.root)], in_processes(1), progress=lambda done, total: reports.append((done, total)))
    assert reports == [(256, 700), (512, 700), (700, 700)]


class HeldPool(ProcessPoolExecutor):
    """Workers that stop at their first progress report until the audit is interrupted."""

    begun: ClassVar[list["HeldPool"]] = []

    def __init__(self, workers: int, context: Any, begin: Any, shared: tuple[Any, Any]) -> None:
        super().__init__(workers, context, begin, shared)
        self.tasks: list[Future[Any]] = []
        self.counted = shared[0]
        self.held = self.counted.get_lock().acquire()
        self.begun.append(self)

    def submit(self, *args: Any, **given: Any) -> Future[Any]:
        self.tasks.append(super().submit(*args, **given))
        return self.tasks[-1]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if self.held:
            self.held = self.counted.get_lock().release()
        super().shutdown(wait, cancel_futures=cancel_futures)


def test_an_interrupt_ends_an_audit_early(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = BigLog(place / "hub", streams=2)
    big.grow(6_000)
    monkeypatch.setattr(jobs, "ProcessPoolExecutor", HeldPool)

    def press(done: int, total: int) -> None:
        if any(one.running() for one in HeldPool.begun[-1].tasks):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit([str(big.folders.root)], in_processes(2), progress=press)
    assert not [child for child in active_children() if child.is_alive()]
    (pool,) = HeldPool.begun
    begun = [one for one in pool.tasks if not one.cancelled()]
    assert len(begun) < len(pool.tasks)
    assert all(isinstance(one.exception(), CancelledError) for one in begun)
    assert pool.counted.value < 6_000 / 2


def test_the_address_of_a_hub_is_not_a_data_directory(veen: Veen) -> None:
    ran = veen("audit", "http://127.0.0.1:1")
    assert ran.status == 3
    assert "is the address of a hub" in ran.error
