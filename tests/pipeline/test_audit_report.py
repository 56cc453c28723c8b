"""What an audit leaves: a report in one form, a page that stands alone, a statement that holds for that report only."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from bench.biglog import BigLog
from tests.cli.runner import Veen
from tests.pipeline.damage import copied, flip, look
from veen.core import Malformed, SigningKey, Unverified
from veen.pipeline.audit import page_of, report_of, sign
from veen.pipeline.audit.outcome import Outcome
from veen.pipeline.audit.report import JsonObject, decode, encode
from veen.pipeline.audit.statement import Statement

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
    return report_of(look(*roots), 1_700_000_000, "a test")


def test_a_report_counts_what_there_is(log: BigLog) -> None:
    found: dict[str, Any] = made(log.folders.root)
    (one,) = found["directories"]
    assert (found["verdict"], found["entries"], one["failed"], one["unchecked"]) == ("sound", 61, 0, 0)
    assert sum(count for _, count in one["over_time"]) == 61
    assert {row["label"]: row["upto_seq"] for row in one["labels"]} == {
        log.labels[0].hex(): 31,
        log.labels[1].hex(): 30,
    }


def test_a_report_has_one_form(log: BigLog) -> None:
    data = encode(made(log.folders.root))
    assert encode(decode(data)) == data
    for other in (data + b"\n", b"{}", data.replace(b"veen.audit.v1", b"veen.audit.v2"), data[:-1]):
        with pytest.raises(Malformed):
            decode(other)


def test_a_statement_holds_for_its_report_and_no_other(log: BigLog, damaged: Path) -> None:
    data, other = encode(made(log.folders.root)), encode(made(damaged))
    found = Statement.decode(sign(AUDITOR, data).encode())
    found.verify(data)
    found.verify(data, AUDITOR.public_key)
    assert found.verdict == "sound"
    with pytest.raises(Unverified, match="another report"):
        found.verify(other)
    with pytest.raises(Unverified, match="another key"):
        found.verify(data, bytes(32))


def test_a_statement_with_any_bit_flipped_does_not_hold(log: BigLog) -> None:
    data = encode(made(log.folders.root))
    sound = sign(AUDITOR, data).encode()
    for at in range(len(sound)):
        wrong = bytearray(sound)
        wrong[at] ^= 1 << at % 8
        with pytest.raises((Malformed, Unverified)):
            Statement.decode(bytes(wrong)).verify(data)


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


def test_the_page_stands_alone_and_shows_each_plot(log: BigLog, damaged: Path) -> None:
    page = page_of(made(log.folders.root, damaged))
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.seen.count("svg") == 8
    assert not {"script", "link", "img", "iframe"} & set(tags.seen)
    assert "://" not in re.sub(r"\s", "", page)
    assert "&lt;hub&gt; &amp; co" in page
    assert "<hub>" not in page
    assert "client_sig" in page


def test_the_page_of_an_empty_log_can_be_made(place: Path) -> None:
    empty = BigLog(place / "hub")
    assert "sound" in page_of(made(empty.folders.root))


def test_an_outcome_travels_as_it_is(log: BigLog, damaged: Path) -> None:
    for directory in look(log.folders.root, damaged).directories:
        for links in directory.labels.values():
            for link in links:
                assert Outcome.decode(link.outcome.encode()) == link.outcome


def test_the_command_reports_signs_and_verifies(veen: Veen, log: BigLog, tmp_path: Path) -> None:
    veen.done("keygen", "--out", tmp_path / "me", "--no-passphrase")
    out = tmp_path / "audited"
    told = veen.done("audit", log.folders.root, "--workers", "1", "--out", out, "--sign", "--client", tmp_path / "me")
    assert told.facts()["verdict"] == "sound"
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "report.json", "statement.cbor"]
    shown = veen.done("audit", "verify", out, "--json").json()
    assert shown["verdict"] == "sound"
    veen.done("audit", "verify", out, "--auditor", shown["auditor"])
    report = (out / "report.json").read_bytes()
    (out / "report.json").write_bytes(report.replace(b'"sound"', b'"found"'))
    assert veen("audit", "verify", out).status == 4
    (out / "report.json").write_bytes(report)
    assert veen("audit", "verify", out, "--auditor", "00" * 32).status == 4


def test_the_command_says_what_is_damaged_by_its_status(veen: Veen, log: BigLog, damaged: Path) -> None:
    told = veen("audit", damaged, "--workers", "1", "--json")
    assert told.status == 8
    (one,) = told.json()["directories"]
    assert {finding["stream_seq"] for finding in one["findings"]} == {3}
    assert veen("audit", log.folders.root, "--pin", "00" * 32).status == 8


def test_the_command_uses_several_processes(veen: Veen, place: Path) -> None:
    big = BigLog(place / "hub", streams=4)
    big.grow(3_000)
    assert veen.done("audit", "run", big.folders.root, "--workers", "2", "--json").json()["entries"] == 3_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--sign",), "written into a folder"),
        (("--master", "local[1]"), "are Spark's"),
        (("--workers", "0"), "workers"),
    ],
)
def test_the_command_refuses_what_does_not_fit_together(
    veen: Veen, log: BigLog, arguments: tuple[str, ...], said: str
) -> None:
    told = veen("audit", log.folders.root, *arguments)
    assert told.status == 2
    assert said in told.error


def test_a_hub_by_its_address_is_no_data_directory(veen: Veen) -> None:
    told = veen("audit", "http://127.0.0.1:1")
    assert told.status == 3
    assert "is a hub" in told.error
