"""The verifier page: one file, no network, and in a real browser the same verdicts as Python, whatever the file."""

import base64
import hashlib
import html
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.vectors_files import load
from tests.web.browser import Browser, browser
from tests.web.node_project import compiled, run
from tools import schema_names
from vectors import query_results
from vectors.evidence_files import OLD, READER, STRANGER, WITNESS, YOUNG, Log, cases, outcome, record
from veen.cli.kit import evidence_viewer
from veen.client import evidence
from veen.client.evidence import NOTHING, Evidence, Knowledge
from veen.client.message_attachments import ATTACHED_SCHEMA, AttachedBody, Attachment
from veen.core import PayloadHdr, SigningKey, Unverified, attachment, canonical_json, cbor, naming
from veen.core.cosignature import WitnessPolicy
from veen.overlays.record import RecordEvent

PAGE = resources.files("veen.cli").joinpath("verifier.html").read_bytes()
MAX_PAGE_BYTES = 300_000
TONES = {"holds": "good", "contradicted": "bad", "unverified": "bad", "malformed": "bad"}


# The file


def test_the_page_in_the_package_is_the_one_that_the_sources_give(tmp_path: Path) -> None:
    compiled()
    made = tmp_path / "page.html"
    done = run("node", "page/build.mjs", str(made))
    assert done.returncode == 0, done.stderr
    assert made.read_bytes() == PAGE, "run `npm run build` in web/verify"


def test_the_names_of_the_schemas_are_up_to_date() -> None:
    assert schema_names.FILE.read_text() == schema_names.text()


def test_the_page_is_small() -> None:
    assert len(PAGE) <= MAX_PAGE_BYTES


def test_the_release_notes_name_the_hash_of_the_page() -> None:
    notes = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    newest = notes.split("\n## [")[1]
    assert hashlib.sha256(PAGE).hexdigest() in newest, "write the hash of veen evidence verifier into CHANGELOG.md"


def test_the_policy_of_the_page_permits_its_own_script_and_style_only() -> None:
    text = PAGE.decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    rules = dict(rule.split(" ", 1) for rule in policy[1].split("; "))
    hashes = {}
    for tag in ("script", "style"):
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert len(found) == 1
        digest = base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode()
        hashes[f"{tag}-src"] = f"'sha256-{digest}'"
    assert rules == {
        "default-src": "'none'",
        **hashes,
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }


def test_the_page_names_no_other_place_and_never_makes_markup_from_text() -> None:
    text = PAGE.decode()
    assert set(re.findall(r"\w+://[^\s\"'`]+", text)) == {"http://www.w3.org/2000/svg"}
    for word in ("eval(", "Function(", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "fetch("):
        assert word not in text


def test_the_command_writes_the_page_and_its_hash(tmp_path: Path) -> None:
    out = tmp_path / "verify.html"
    command = [sys.executable, "-m", "veen.cli", "evidence", "verifier", "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, check=True)
    shown = json.loads(done.stdout)
    assert out.read_bytes() == PAGE
    assert shown["sha256"] == hashlib.sha256(PAGE).hexdigest()
    assert subprocess.run(command, capture_output=True).returncode == 2, "the file exists"


# In Chromium

DROP = """
const [files, pin, reader, witnesses, done] = arguments;
const observer = new MutationObserver(() => {
  const verdict = document.getElementById("verdict");
  if (verdict === null || verdict.textContent.startsWith("Verifying")) return;
  observer.disconnect();
  const tags = new Set([...document.querySelectorAll("#result *")].map((one) => one.localName));
  const [text, listed] = ["result", "files"].map((id) => document.getElementById(id).innerText);
  const hit = String(window.hit);
  done({ tone: verdict.classList[2], verdict: verdict.innerText, tags: [...tags], text, files: listed, hit });
});
observer.observe(document.getElementById("result"), { childList: true });
document.getElementById("pin").value = pin;
document.getElementById("reader").value = reader;
document.getElementById("witnesses").value = witnesses;
const dropped = new DataTransfer();
for (const [name, content] of files) {
  const bytes = Uint8Array.from(atob(content), (one) => one.charCodeAt(0));
  dropped.items.add(new File([bytes], name));
}
document.dispatchEvent(new DragEvent("drop", { dataTransfer: dropped, cancelable: true }));
"""
OWN_TAGS = {
    "div",
    "section",
    "h2",
    "strong",
    "p",
    "small",
    "dl",
    "dt",
    "dd",
    "code",
    "pre",
    "ul",
    "li",
    "em",
    "details",
    "summary",
    *("table", "thead", "tbody", "tr", "th", "td"),
}
SVG_TAGS = {"svg", "g", "rect", "line", "text", "title"}


class VerifierPage:
    """The page, as someone opened it from disk."""

    def __init__(self, window: Browser, path: Path) -> None:
        self.window = window
        self.path = path

    def drop(
        self, data: bytes, pin: str = "", reader: str = "", name: str = "door.evidence", first: bytes = b""
    ) -> dict[str, str]:
        """Drop a file on a fresh page, perhaps together with a card before it, and return what the page then shows."""
        self.window.open(self.path)
        return self.drop_all([("writer.card", first), (name, data)] if first else [(name, data)], pin, reader)

    def drop_all(
        self, files: list[tuple[str, bytes]], pin: str = "", reader: str = "", witnesses: str = ""
    ) -> dict[str, str]:
        """Drop files on the page as it is and return what it then shows. Fails if anything is unusual."""
        contents = [(name, base64.b64encode(data).decode()) for name, data in files]
        shown = self.window.run(DROP, contents, pin, reader, witnesses)
        assert shown["hit"] == "undefined", "a script of the file ran"
        assert set(shown["tags"]) <= OWN_TAGS | SVG_TAGS, shown["tags"]
        assert self.window.console() == []
        assert isinstance(shown, dict)
        return shown


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerifierPage]:
    folder = tmp_path_factory.mktemp("browser")
    path = folder / "verify.html"
    path.write_bytes(PAGE)
    with browser(folder / "profile") as window:
        yield VerifierPage(window, path)


CASES = {case.name: case for case in (*cases(), *query_results.cases())}
DISCLOSED = CASES["two entries, disclosed"]
HUB = YOUNG.hub_id.hex()
GENUINE = "This evidence is genuine: the hub that you entered signed it"
SETTLED = """
const done = arguments[0];
const look = () => {
  const verdict = document.getElementById("verdict");
  if (verdict === null || verdict.textContent.startsWith("Verifying")) requestAnimationFrame(look);
  else done(verdict.innerText);
};
look();
"""


def tone_of(data: bytes, pin: bytes | None = YOUNG.hub_id) -> str:
    """The colour that the verdict of Python has on the page."""
    found = outcome(data, pin, None, NOTHING)
    return "warn" if pin is None and "report" in found else TONES[found["outcome"]]


def disclosed(body: bytes, header: PayloadHdr, claim: str = "") -> bytes:
    """Evidence of one entry with that payload."""
    log = Log("page", (body,), header)
    made = evidence.make_evidence(
        record(YOUNG, OLD),
        claim,
        (log.receipts[0], log.checkpoint(1, OLD)),
        ties=[log.tie(1, 1)],
        exhibits=[log.disclosed(1)],
        now=0,
    )
    return made.encode()


def schema(name: str) -> PayloadHdr:
    return PayloadHdr(naming.schema_id(name))


def test_a_dropped_file_shows_who_what_when_and_the_verdict(page: VerifierPage) -> None:
    shown = page.drop(DISCLOSED.file, YOUNG.hub_id.hex())
    assert (shown["tone"], shown["verdict"].splitlines()[0]) == ("good", GENUINE)
    report = next(one for one in load("evidence.json")["files"] if one["name"] == DISCLOSED.name)["report"]
    for entry in report["entries"]:
        assert entry["client_id"] in shown["text"]
        assert bytes.fromhex(entry["body"]).decode() in shown["text"]
    for said in ("2023-11-14 22:13:21 UTC", YOUNG.hub_id.hex(), "root of the 5 entries, signed by the hub"):
        assert said in shown["text"] or said in page.window.text("#result")
    assert "svg" in shown["tags"]


def test_the_verdict_follows_the_pin_as_it_is_typed(page: VerifierPage, tmp_path: Path) -> None:
    file = tmp_path / "door.evidence"
    file.write_bytes(DISCLOSED.file)
    page.window.open(page.path)
    page.window.type("#file", str(file))
    assert page.window.run(SETTLED).startswith("Unverified: no hub was named")
    page.window.type("#pin", "57f8")
    assert page.window.run(SETTLED).startswith("Not verified")
    page.window.type("#pin", YOUNG.hub_id.hex()[4:])
    assert page.window.run(SETTLED).startswith(GENUINE)


# The page has no field for an identity record; witnesses have a test of their own.
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.knowledge == NOTHING])
def test_the_page_gives_the_verdict_of_python(page: VerifierPage, name: str) -> None:
    case = CASES[name]
    pin, reader = ("" if key is None else key.hex() for key in (case.pin, case.reader))
    found = outcome(case.file, case.pin, case.reader, case.knowledge)
    tone = "warn" if case.pin is None else TONES[found["outcome"]]
    assert page.drop(case.file, pin, reader)["tone"] == tone


def test_a_witness_that_is_named_decides_a_conflict(page: VerifierPage) -> None:
    case = CASES["a conflict that a witness dates"]
    assert case.pin is not None
    shown = page.drop(case.file, case.pin.hex())
    assert shown["verdict"].startswith("Contradiction under a retired key")
    witness = next(iter(case.knowledge.witnesses)).hex()
    page.window.run("document.querySelector('details').open = true; arguments[0]()")
    page.window.type("#witnesses", witness)
    assert page.window.run(SETTLED).startswith("The hub contradicts itself")


def test_a_card_that_is_dropped_names_who_must_have_written_the_entries(page: VerifierPage) -> None:
    case, wrong = CASES["the writer is named"], CASES["nothing shows who wrote it"]
    card, stranger = (next(iter(one.knowledge.writers)) for one in (case, wrong))
    shown = page.drop(case.file, YOUNG.hub_id.hex(), first=card.encode())
    assert shown["tone"] == "good"
    assert card.id_sign.hex() in shown["text"]
    assert "The owner of writer.card, the card that you loaded" in shown["text"]
    assert page.drop(case.file, YOUNG.hub_id.hex(), first=stranger.encode())["tone"] == "bad"
    embedded = page.drop(CASES["a card names the writer"].file, YOUNG.hub_id.hex())
    assert "A card in the file proves that this identity has the signing key" in embedded["text"]


# What a first reader must not misunderstand


def cosigned(*witnesses: SigningKey, size: int = 3, tied: int = 3) -> bytes:
    """Evidence of entries 1 and 3 of a log, whose checkpoint some witnesses cosigned. Entry 3 is tied to `tied`."""
    log = Log("page", (b"one", b"two", b"three", b"four"))
    heads = (log.receipts[0], log.receipts[2], log.checkpoint(size, OLD).witnessed(*witnesses), log.checkpoint(4, OLD))
    ties = [log.tie(1, size), log.tie(3, tied)]
    exhibits = [log.disclosed(1), log.disclosed(3)]
    return evidence.make_evidence(record(YOUNG, OLD), "paid", heads, ties=ties, exhibits=exhibits, now=0).encode()


@pytest.mark.parametrize(
    ("data", "named", "tone"),
    [
        pytest.param(cosigned(WITNESS), [WITNESS], "good", id="cosigned"),
        pytest.param(cosigned(), [WITNESS], "warn", id="nobody cosigned"),
        pytest.param(cosigned(STRANGER), [WITNESS], "warn", id="another one cosigned"),
        pytest.param(cosigned(WITNESS), [WITNESS, STRANGER], "warn", id="one of two cosigned"),
        pytest.param(cosigned(WITNESS, size=2, tied=4), [WITNESS], "warn", id="cosigned before entry 3"),
        pytest.param(cosigned(OLD), [OLD], "warn", id="a key of the hub"),
    ],
)
def test_every_named_witness_must_have_cosigned_all_entries(
    page: VerifierPage, data: bytes, named: list[SigningKey], tone: str
) -> None:
    page.window.open(page.path)
    shown = page.drop_all([("door.evidence", data)], HUB, witnesses="\n".join(one.public_key.hex() for one in named))
    assert shown["tone"] == tone
    policy = WitnessPolicy(len(named), {str(at): one.public_key for at, one in enumerate(named)})
    if tone == "good":
        assert "The witness that you entered cosigned the log" in shown["verdict"]
        evidence.verify(data, YOUNG.hub_id, knowledge=Knowledge(policy=policy))
    else:
        assert shown["verdict"].startswith("Not witnessed")
        assert named[-1].public_key.hex() in shown["verdict"]
        assert "All" not in page.window.text("#checks h2")
        with pytest.raises(Unverified):
            evidence.verify(data, YOUNG.hub_id, knowledge=Knowledge(policy=policy))


def test_the_verdict_says_what_is_not_established(page: VerifierPage) -> None:
    shown = page.drop(cosigned(), HUB)
    proved, open_ = shown["verdict"].split("Not established")
    assert f"Hub {HUB[:16]}…, which you entered, signed entries 1 and 3" in proved
    for said in (
        "Entries 2 and 4 of this log are not in this file; the sender chose what to include",
        "Later entries: the file says nothing about this log after entry 4",
        "only for the reader key in the file",
        "the hub's own clock",
        "the file shows only a key",
        "only witnesses can confirm that, and you entered none",
        "what the sender claims",
    ):
        assert said in open_
    assert "only for the reader key" not in page.drop(cosigned(), HUB, READER.public_key.hex())["verdict"]
    assert shown["text"].index("Entry 3") < shown["text"].index("Not verified: what the sender claims")


def test_the_verdict_says_that_a_thief_of_a_retired_key_could_have_signed(page: VerifierPage) -> None:
    found = {name: outcome(one.file, one.pin, one.reader, NOTHING) for name, one in CASES.items() if one.pin}
    held = {name: one["report"]["coverage"] for name, one in found.items() if one["outcome"] == "holds"}
    counts = {name: [head["coverage"] for head in heads].count("uncovered") for name, heads in held.items()}
    retired = next(name for name, count in counts.items() if count)
    current = next(name for name, count in counts.items() if not count)
    for name, expected in ((retired, True), (current, False)):
        case = CASES[name]
        assert case.pin is not None
        said = page.drop(case.file, case.pin.hex())["verdict"]
        assert ("A thief of the key could have signed later" in said) == expected, name


def test_the_verdict_says_which_card_it_depends_on(page: VerifierPage) -> None:
    case = CASES["the writer is named"]
    card = next(iter(case.knowledge.writers)).encode()
    assert "The owner of writer.card wrote" in page.drop(case.file, HUB, first=card)["verdict"]
    assert "The owner of" not in page.drop(case.file, HUB)["verdict"]
    embedded = page.drop(CASES["a card names the writer"].file, HUB)["verdict"]
    assert "a card in the file shows the key, but not whose it is" in embedded


def test_a_card_is_listed_once_and_can_be_removed(page: VerifierPage) -> None:
    case = CASES["nothing shows who wrote it"]
    card = next(iter(case.knowledge.writers)).encode()
    page.window.open(page.path)
    shown = page.drop_all([("payroll.card", card)], HUB)
    assert shown["verdict"].startswith("No evidence file yet\n")
    assert shown["files"].startswith("payroll.card\nCard: the page checks that its owner wrote all entries")
    shown = page.drop_all([("copy.card", card)], HUB)
    assert "copy.card was already loaded" in shown["files"]
    shown = page.drop_all([("door.evidence", case.file)], HUB)
    assert shown["files"].count("Card:") == 1
    assert shown["verdict"].startswith("This evidence does not prove that the owners of your cards wrote it")
    page.window.run("document.querySelector('#files button').click(); arguments[0]()")
    assert page.window.run(SETTLED).startswith(GENUINE)
    assert "payroll.card" not in page.window.text("#files")


def test_other_files_in_one_drop_get_a_message_each(page: VerifierPage) -> None:
    card = next(iter(CASES["the writer is named"].knowledge.writers)).encode()
    others = [
        ("torn.card", card[:-1] + bytes((card[-1] ^ 1,)), "torn.card is not used: this card is damaged"),
        ("pin.txt", HUB.encode() + b"\n", "pin.txt is not used: it contains a key or a hub id"),
        ("<b>holiday</b>.pdf", b"%PDF-1.4\n", "<b>holiday</b>.pdf is not used: it is neither evidence nor a card"),
        ("second.evidence", DISCLOSED.file, "second.evidence was not checked"),
    ]
    page.window.open(page.path)
    dropped = [("door.evidence", DISCLOSED.file), *((name, data) for name, data, _ in others)]
    shown = page.drop_all(dropped, HUB)
    assert shown["verdict"].startswith(GENUINE)
    for _, _, says in others:
        assert says in shown["files"]
    shown = page.drop_all([("second.evidence", DISCLOSED.file)], HUB)
    assert "door.evidence was replaced by second.evidence" in shown["files"]


def test_a_file_that_is_refused_ends_the_verdict_on_the_file_before_it(page: VerifierPage) -> None:
    card = next(iter(CASES["the writer is named"].knowledge.writers)).encode()
    refused = {
        "torn.card": (card[:-1] + bytes((card[-1] ^ 1,)), "This card is damaged"),
        "pin.txt": (HUB.encode() + b"\n", "It contains a key or a hub id"),
        "<b>holiday</b>.pdf": (b"%PDF-1.4\n", "It is neither evidence nor a card"),
        "empty": (b"", "It is neither evidence nor a card"),
    }
    for name, (data, says) in refused.items():
        page.window.open(page.path)
        shown = page.drop_all([("writer.card", card), ("door.evidence", CASES["the writer is named"].file)], HUB)
        assert shown["verdict"].startswith(GENUINE)
        shown = page.drop_all([(name, data)], HUB)
        assert (shown["tone"], shown["verdict"].splitlines()[0]) == ("bad", f"Not verified: {name} is not evidence")
        assert says in shown["verdict"]
        assert GENUINE not in shown["text"]
        assert "door.evidence was removed" in shown["files"]
        shown = page.drop_all([("door.evidence", CASES["the writer is named"].file)], HUB)
        assert shown["verdict"].startswith(GENUINE)
        assert name not in shown["files"]
    shown = page.drop_all([("a.pdf", b"a"), ("writer.card", card), ("b.pdf", b"b")], HUB)
    assert shown["verdict"].startswith("Not verified: none of these 2 files is evidence\n")
    assert "a.pdf" in shown["verdict"]
    assert "b.pdf" in shown["verdict"]


def test_every_verdict_names_its_file(page: VerifierPage) -> None:
    stranger = next(iter(CASES["nothing shows who wrote it"].knowledge.writers)).encode()
    forged = replace(Evidence.decode(DISCLOSED.file), receipts=(Log("other").receipts[0],)).encode()
    contradicted = CASES["two messages at one place"]
    assert contradicted.pin is not None
    for shown in (
        page.drop(DISCLOSED.file, HUB),
        page.drop(DISCLOSED.file),
        page.drop(DISCLOSED.file, HUB[1:]),
        page.drop(DISCLOSED.file, "ab" * 32),
        page.drop(DISCLOSED.file, HUB, "ab" * 32),
        page.drop(DISCLOSED.file, HUB, first=stranger),
        page.drop(DISCLOSED.file[:-100], HUB),
        page.drop(forged, HUB),
        page.drop(contradicted.file, contradicted.pin.hex()),
    ):
        assert "\nFile: door.evidence\n" in shown["verdict"]


def test_a_card_that_is_dropped_later_only_adds(page: VerifierPage) -> None:
    case = CASES["the writer is named"]
    page.drop(case.file, HUB)
    shown = page.drop_all([("writer.card", next(iter(case.knowledge.writers)).encode())], HUB)
    assert shown["verdict"].startswith(f"{GENUINE}\n\nFile: door.evidence\n")
    assert "The owner of writer.card wrote" in shown["verdict"]


def test_a_key_is_ticked_only_for_the_times_that_the_hub_signed(page: VerifierPage) -> None:
    late = replace(Evidence.decode(DISCLOSED.file), made_at=4_000_000_000).encode()
    text = page.drop(late, HUB)["text"]
    assert "in use" not in text
    assert "no end stated" in text
    assert "Not verified: whether the key was retired later" in text
    marks = "arguments[0]([...document.querySelectorAll('.keys li')].map((one) => [one.className, one.innerText]))"
    identity = Evidence.decode(DISCLOSED.file).identity
    listed = page.window.run(marks)
    assert len(listed) == len(identity.hub_keys)
    for mark, said in listed:
        assert (mark == "passed") == ("within this period" in said)
        assert (mark == "skipped") == ("It signed no receipt in this file" in said)
    assert any("from 2023-11-14 22:13:21 UTC" in said or "at 2023-11-14 22:13:21 UTC" in said for _, said in listed)


def test_each_field_says_where_its_keys_must_come_from(page: VerifierPage) -> None:
    page.window.open(page.path)
    said = page.window.run(
        "document.querySelector('.fields details').open = true;"
        "arguments[0]([...document.querySelectorAll('.fields small')].map((one) => one.innerText))"
    )
    assert len(said) == 4
    for one in said:
        assert "from a source that you trust" in one
        assert "not from this page, the file or its sender" in one
    assert "Drop cards of writers here too" in page.window.text("#drop")


def test_without_a_hub_id_the_checks_do_not_sound_like_a_proof(page: VerifierPage) -> None:
    shown = page.drop(DISCLOSED.file)
    assert shown["tone"] == "warn"
    assert "but its hub was not checked" in page.window.text("#checks h2")
    assert "You entered no hub id" in page.window.text("#checks")


def test_a_wrong_hub_id_is_shown_beside_the_one_in_the_file(page: VerifierPage) -> None:
    typo = HUB[:-1] + ("0" if HUB[-1] != "0" else "1")
    shown = page.drop(DISCLOSED.file, typo)
    assert shown["tone"] == "bad"
    for said in (typo, HUB, "They differ in 1 digit: probably a typing mistake"):
        assert said in shown["verdict"]
    assert page.window.text("#checks h2") == "1 check passed, then one failed"
    assert "Another hub signed this file" in page.drop(DISCLOSED.file, "ab" * 32)["verdict"]


@pytest.mark.parametrize("field", ["pin", "reader", "witnesses"])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HUB[:-1], "63 digits were entered, 1 too few: a "),
        (HUB + "a", "65 digits were entered, 1 too many"),
        (HUB[:-1] + "g", "“g” at position 64 is not a hex digit"),
    ],
)
def test_a_wrong_key_is_named_with_its_field(page: VerifierPage, field: str, text: str, says: str) -> None:
    page.window.open(page.path)
    shown = page.drop_all([("door.evidence", DISCLOSED.file)], **{"pin": HUB, field: text})
    title = {"pin": "Hub id", "reader": "Reader key", "witnesses": "Witnesses"}[field]
    assert shown["verdict"].splitlines()[0] == "Not verified"
    assert f"{title}: {says}" in shown["verdict"]
    page.window.run("document.querySelector('.fields details').open = true; arguments[0]()")
    assert says in page.window.text(f"#{field}-problem")


def test_a_damaged_or_unrelated_file_is_refused_in_plain_words(page: VerifierPage) -> None:
    again = "Ask the sender for the file again. If it fails again, treat it as tampered with."
    torn = page.drop(DISCLOSED.file[:-100], HUB)["verdict"]
    assert torn.startswith("Not valid evidence: the file is damaged")
    forged = replace(Evidence.decode(DISCLOSED.file), receipts=(Log("other").receipts[0],)).encode()
    changed = page.drop(forged, HUB)["verdict"]
    assert changed.startswith("This evidence proves nothing\n")
    unrelated = page.drop(b"%PDF-1.4\n", HUB, name="holiday.pdf")["verdict"]
    assert unrelated.startswith("Not verified: holiday.pdf is not evidence\n")
    assert "Ask the sender for the .evidence file" in unrelated
    assert again in torn
    assert again in changed
    for data, verdict in ((DISCLOSED.file[:-100], torn), (forged, changed)):
        assert verdict.endswith("Technical reason"), "the reason is folded"
        page.drop(data, HUB)
        folded = page.window.run("arguments[0](document.querySelector('#verdict details').textContent)")
        assert folded.count("Reason: ") == 1


def test_the_page_shows_what_was_checked_for_a_printed_copy(page: VerifierPage) -> None:
    shown = page.drop(DISCLOSED.file, HUB)
    assert hashlib.sha256(DISCLOSED.file).hexdigest() in shown["text"]
    version = json.loads((compiled() / "package.json").read_text())["version"]
    assert f"veen-verify {version}" in shown["text"]


def test_nothing_runs_off_a_narrow_screen(page: VerifierPage) -> None:
    case = CASES["the writer is named"]
    page.window.resize(400, 900)
    page.drop(case.file, HUB, first=next(iter(case.knowledge.writers)).encode())
    widths = """
    for (const one of document.querySelectorAll("details")) one.open = true;
    arguments[0]([document.documentElement.scrollWidth, innerWidth]);
    """
    scrolled, inner = page.window.run(widths)
    page.window.resize(1000, 900)
    assert scrolled <= inner


def test_the_picture_is_readable_on_a_narrow_screen_and_names_each_entry(page: VerifierPage) -> None:
    page.window.resize(390, 900)
    page.drop(DISCLOSED.file, HUB)
    sizes = """
    const found = [...document.querySelectorAll("svg")].flatMap((one) => {
      const scale = one.getBoundingClientRect().width / one.viewBox.baseVal.width;
      return [...one.querySelectorAll("text")].map((text) => scale * parseFloat(getComputedStyle(text).fontSize));
    });
    const named = [...document.querySelectorAll("svg .name")].map((one) => one.textContent);
    arguments[0]([found, named]);
    """
    heights, named = page.window.run(sizes)
    page.window.resize(1000, 900)
    assert min(heights) >= 11
    assert "entry 5" in named, "the log has 5 entries: a tree of 4, and entry 5 alone"


def test_a_key_without_a_file_asks_for_the_file(page: VerifierPage) -> None:
    page.window.open(page.path)
    page.window.type("#pin", HUB)
    assert page.window.run(SETTLED).startswith("No evidence file yet\n")


def test_the_verdict_says_that_the_writer_chose_the_content(page: VerifierPage) -> None:
    shown = page.drop(DISCLOSED.file, HUB)
    assert "Nothing here proves that the content is true" in shown["verdict"].split("Not established")[0]
    assert "\nWritten by\n" in shown["text"]
    assert "\nRecorded by the hub\n" in shown["text"]


def test_a_failed_check_does_not_read_as_a_fact(page: VerifierPage) -> None:
    page.drop(DISCLOSED.file, "ab" * 32)
    failed = page.window.text("#checks li.failed")
    assert failed.startswith("Failed: whether the hub id in the file is the one that was entered\n")


def test_the_page_shows_each_word_that_it_explains() -> None:
    text = html.unescape(PAGE.decode())
    words, shown = text.split('<details id="words">')[1].split("</details>", 1)
    shown = (text.split('<details id="words">')[0].split("</style>")[1] + shown).lower()
    terms = [term for line in re.findall(r"<dt>(.*?)</dt>", words) for term in line.lower().split(", ")]
    assert {"secret", "stream"} <= set(terms)
    assert [term for term in terms if not re.search(rf"\b{term}s?\b", shown)] == []


def test_a_flipped_byte_anywhere_is_refused_as_python_refuses_it(page: VerifierPage) -> None:
    sound = DISCLOSED.file
    tones = []
    for at in range(0, len(sound), 31):
        changed = sound[:at] + bytes((sound[at] ^ 0x20,)) + sound[at + 1 :]
        shown = page.drop(changed, YOUNG.hub_id.hex())
        assert shown["tone"] == tone_of(changed), f"byte {at}"
        tones.append(shown["tone"])
    assert tones.count("bad") > 75
    assert tones.count("good") <= 1  # the time at which the file was made is not signed


# Query results


def test_a_query_result_shows_who_asked_what_and_the_rows(page: VerifierPage) -> None:
    case = CASES["a query result"]
    shown = page.drop(case.file, HUB, name="result.evidence")
    assert (shown["tone"], shown["verdict"].splitlines()[0]) == ("good", GENUINE)
    assert (
        "signed the entries that record this query and its result with 3 rows, and the receipts of 3 events behind it"
        in shown["verdict"]
    )
    for said in ("the service computed them", "veen query replay"):
        assert said in shown["verdict"].split("Not established")[1]
    card = page.window.text("#query")
    for said in ("record/app/web", "user:alice", "2023-11-14 22:13:20 UTC", "The hub signed the receipts of 3 events"):
        assert said in card
    for row in query_results.ROWS:
        assert f"{row['receipt_id']} {row['subject_id']} {str(row['payload.ok']).lower()}" in card
    assert "Entry 1: the digest of the result, as the service recorded it" in shown["text"]


def test_a_query_result_says_which_events_are_not_in_it(page: VerifierPage) -> None:
    for name, says in {
        "without evidence": "Which events are behind the rows: the query asked for no evidence",
        "with a sample": "The events that are not in the sample",
        "with an event of another hub": "1 event of other hubs: this hub did not sign it",
    }.items():
        shown = page.drop(CASES[f"a query result, {name}"].file, HUB)
        assert says in shown["verdict"].split("Not established")[1], name


def test_a_flipped_byte_of_a_query_result_is_refused_as_python_refuses_it(page: VerifierPage) -> None:
    sound = CASES["a query result"].file
    for at in range(0, len(sound), 97):
        changed = sound[:at] + bytes((sound[at] ^ 0x20,)) + sound[at + 1 :]
        assert page.drop(changed, HUB)["tone"] == tone_of(changed), f"byte {at}"


# Content by schema

RECORDED = RecordEvent(
    "badge-17", "door.opened", 1_700_000_000_123, "gate", canonical_json.encode({"door": 4}).decode()
)


def test_a_recorded_event_is_shown_with_its_fields(page: VerifierPage) -> None:
    shown = page.drop(
        disclosed(RECORDED.encode(), PayloadHdr(RecordEvent.SCHEMA)), YOUNG.hub_id.hex(), READER.public_key.hex()
    )
    for said in ("badge-17", "door.opened", "2023-11-14T22:13:20.123Z", "gate", '{"door":4}', "Schema record.event.v1"):
        assert said in shown["text"]
    assert "Proved for the reader key that you entered" in shown["text"]


@pytest.mark.parametrize("name", ["kv", "queue", "wallet", "rpc", "operation-paid", "revocation", "authority"])
def test_events_of_overlays_are_shown_with_their_fields(page: VerifierPage, name: str) -> None:
    entries = load(f"overlays/{name}.json")["entries"]
    entry = next(one for one in entries if one.get("body") and one["payload_hdr"])
    body, header = bytes.fromhex(entry["body"]), PayloadHdr(bytes.fromhex(entry["payload_hdr"]["schema"]))
    shown = page.drop(disclosed(body, header), YOUNG.hub_id.hex())
    assert shown["tone"] == "good"
    assert "\nSchema " in shown["text"]
    fields = cbor_fields(body)
    assert fields
    for field in fields:
        assert f"\n{field}\n" in shown["text"]


def cbor_fields(body: bytes) -> list[str]:
    """The text keys of a map, in any order."""
    count, pos, found = body[0] & 0x1F, 1, []
    assert body[0] >> 5 == 5
    for _ in range(count):
        key, pos = cbor.value.read_value(body, pos)
        _, pos = cbor.value.read_value(body, pos)
        found.append(str(key))
    return found


def test_one_entry_is_counted_in_the_singular(page: VerifierPage) -> None:
    shown = page.drop(disclosed(b"x", schema("veen.bytes.v1")), HUB)
    assert "Entry 1 is in the signed log of 1 entry\n" in shown["text"]
    assert "root of the 1 entry, signed by the hub" in shown["text"]
    assert "1 entries" not in shown["text"]


def test_plain_bytes_that_are_a_map_are_no_event(page: VerifierPage) -> None:
    shown = page.drop(disclosed(cbor.encode({"amount": 7}), schema("veen.bytes.v1")), HUB)
    assert "Schema veen.bytes.v1" in shown["text"]
    assert "The writer chose these fields" not in shown["text"]


def test_attachments_are_listed_and_unknown_schemas_are_hex(page: VerifierPage) -> None:
    part = Attachment(b"\x07" * 32, 19, "plan.pdf")
    wrapped = AttachedBody((part,), naming.schema_id("veen.bytes.v1"), b"see the plan")
    header = PayloadHdr(ATTACHED_SCHEMA, att_root=attachment.root([part.coid]))
    shown = page.drop(disclosed(wrapped.encode(), header), YOUNG.hub_id.hex())
    assert "see the plan" in shown["text"]
    assert "Attachment plan.pdf, 19 bytes" in shown["text"]
    shown = page.drop(disclosed(b"\x00\xfe", schema("made.up.v1")), YOUNG.hub_id.hex())
    assert "00fe" in shown["text"]
    assert f"Unknown schema {naming.schema_id('made.up.v1').hex()}, bytes in hex" in shown["text"]


# Hostile files

MARKUP = (
    "<script>window.hit=1</script>",
    "<img src=x onerror=window.hit=1>",
    "<svg onload=window.hit=1>",
    '"><iframe srcdoc="<script>parent.hit=1</script>">',
    "</pre></style><a href=javascript:window.hit=1>click</a>",
    "{{constructor.constructor('window.hit=1')()}}",
    "\u202egnp.exe \u2066hidden\u2069 \x00\x1b[2J \ufeff",
    "&lt;b&gt; &#x3c;script&#x3e; <!-- <style>*{display:none}</style>",
)


def with_markup(text: str) -> Iterator[tuple[str, bytes]]:
    """Valid files with that text in every field that is shown."""
    yield "the claim", disclosed(b"x", schema("veen.bytes.v1"), claim=text)
    yield "a text", disclosed(text.encode(), schema("veen.bytes.v1"))
    yield "an unknown schema", disclosed(text.encode(), schema(text))
    for field in ("subject_id", "event_type", "origin"):
        changed: dict[str, Any] = {field: text}
        event = replace(RECORDED, **changed)
        yield f"{field} of a recorded event", disclosed(event.encode(), PayloadHdr(RecordEvent.SCHEMA))
    payload = replace(RECORDED, content=canonical_json.encode({text: text}).decode())
    yield "the payload of a recorded event", disclosed(payload.encode(), PayloadHdr(RecordEvent.SCHEMA))
    yield "a key and a value", disclosed(cbor.encode({text: text, "key": text.encode()}), schema("crdt.lww.v1"))
    part = Attachment(b"\x07" * 32, 1, text)
    wrapped = AttachedBody((part,), naming.schema_id("veen.bytes.v1"), text.encode())
    yield (
        "the name of an attachment",
        disclosed(wrapped.encode(), PayloadHdr(ATTACHED_SCHEMA, att_root=attachment.root([part.coid]))),
    )


@pytest.mark.parametrize("text", MARKUP, ids=range(len(MARKUP)))
def test_markup_in_any_field_is_shown_as_text(page: VerifierPage, text: str) -> None:
    for where, data in with_markup(text):
        shown = page.drop(data, YOUNG.hub_id.hex(), name=text.replace("/", "_").replace("\x00", "_"))
        assert shown["tone"] == "good", where
        if text.isprintable():
            assert text in shown["text"] or json.dumps(text)[1:-1] in shown["text"], where
        assert "\u202e" not in shown["text"], where


@pytest.mark.parametrize("text", MARKUP, ids=range(len(MARKUP)))
def test_markup_in_a_query_result_is_shown_as_text(page: VerifierPage, text: str) -> None:
    asked = {"evidence": {"mode": "none"}, "meta": {text: text}, "filter": {"subject_id": text, "event_type": [text]}}
    made = query_results.made(asked, [{text: text, "subject_id": {text: [text]}}], ())
    shown = page.drop(made.encode(), HUB)
    assert shown["tone"] == "good"
    if text.isprintable():
        assert text in shown["text"] or json.dumps(text)[1:-1] in shown["text"]
    assert "\u202e" not in shown["text"]


def hostile(rng: random.Random) -> Iterator[bytes]:
    """Files that are no evidence: huge numbers, deep nesting, garbage."""
    sound = DISCLOSED.file
    heads = [bytes((major << 5 | 27,)) + b"\xff" * 8 for major in range(8)] + [
        b"\x9f",
        b"\xbf",
        b"\x5f",
        b"\xfb" + bytes(8),
    ]
    for at in range(40):
        place = rng.randrange(len(sound))
        yield sound[:place] + heads[at % len(heads)] + sound[place:]
    for depth in (17, 1000, 100_000, 1_000_000):
        yield b"\x81" * depth
        yield b"\xa1\x01" * depth
        yield sound[:20] + b"\x81" * depth
        yield disclosed(b"\x81" * min(depth, 1_000_000), schema("crdt.lww.v1"))
    yield b""
    yield b"\x89PNG\r\n\x1a\n" + bytes(100)
    yield b"<!doctype html><script>window.hit=1</script>"
    yield b'{"kind":"veen.evidence.v1"}'
    for _ in range(60):
        yield rng.randbytes(rng.randrange(1, 4000))
    for _ in range(40):
        start = rng.randrange(1, len(sound))
        yield sound[:start] + rng.randbytes(len(sound) - start)


REFUSALS = (
    "Not valid evidence: the file is damaged",
    "Not verified: door.evidence is not evidence",
    "This evidence proves nothing",
    "This evidence proves nothing about the hub that you entered",
)


def test_hostile_files_get_a_clear_refusal_and_nothing_else(page: VerifierPage) -> None:
    files = list(hostile(random.Random(17)))
    assert len(files) + len(MARKUP) * len(list(with_markup("x"))) >= 200
    for number, data in enumerate(files):
        shown = page.drop(data, YOUNG.hub_id.hex())
        assert shown["tone"] == tone_of(data), number
        if shown["tone"] == "bad":
            assert shown["verdict"].splitlines()[0] in REFUSALS, number


LARGE = """
const [size, done] = arguments;
const observer = new MutationObserver(() => {
  const verdict = document.getElementById("verdict");
  if (verdict === null || verdict.textContent.startsWith("Verifying")) return;
  observer.disconnect();
  done(verdict.innerText);
});
observer.observe(document.getElementById("result"), { childList: true });
const bytes = new Uint8Array(size).fill(0x81);
const dropped = new DataTransfer();
dropped.items.add(new File([bytes], "large.evidence"));
document.dispatchEvent(new DragEvent("drop", { dataTransfer: dropped, cancelable: true }));
"""


@pytest.mark.parametrize("size", [50_000_000, 70_000_000])
def test_a_file_of_many_megabytes_is_refused(page: VerifierPage, size: int) -> None:
    page.window.open(page.path)
    assert page.window.run(LARGE, size).startswith("Not verified: large.evidence is not evidence")


def test_a_long_body_and_a_full_file_are_shown_in_part(page: VerifierPage) -> None:
    shown = page.drop(disclosed(b"a" * 500_000, schema("veen.bytes.v1")), YOUNG.hub_id.hex())
    assert "more characters" in shown["text"]
    log = Log("page", (b"x",))
    many = evidence.make_evidence(record(YOUNG, OLD), "", (log.receipts[0],), now=0)
    full = Evidence.decode(many.encode())
    crowded = replace(full, receipts=full.receipts * 1000, exhibits=(log.exhibit(1),) * 200)
    shown = page.drop(crowded.encode(), YOUNG.hub_id.hex())
    assert shown["tone"] == "good"
    assert "150 more entries were verified and are not shown" in shown["text"]


# The viewer: a page for one evidence file, without a verdict

VERDICTS = ("genuine", "it holds", "proves", "proved", "valid", "contradict", "is verified", "was verified")


def viewer(data: bytes, name: str = "door.evidence") -> str:
    return evidence_viewer.page(evidence.verify(data, YOUNG.hub_id), data, name).decode()


def test_the_viewer_shows_the_content_and_never_a_verdict() -> None:
    contradicted = CASES["two messages at one place"].file
    for data in (DISCLOSED.file, contradicted):
        text = viewer(data)
        shown = html.unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL))
        assert "Nothing on this page is verified" in shown
        assert "Get the verifier" in shown
        assert "release notes" in shown
        said = shown.lower().replace("nothing on this page is verified", "")
        assert [word for word in VERDICTS if word in said] == []
    assert "door 4 closed" in viewer(DISCLOSED.file)


def test_the_viewer_contains_the_evidence_file() -> None:
    found = re.search(r'href="data:application/octet-stream;base64,([^"]*)"', viewer(DISCLOSED.file))
    assert found
    assert base64.b64decode(found[1]) == DISCLOSED.file


def test_the_viewer_has_no_script_and_permits_none() -> None:
    text = viewer(DISCLOSED.file)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert policy[1].startswith("default-src 'none'; style-src 'sha256-")
    assert "script" not in policy[1]
    assert "<script" not in text


VIEWED = """
const done = arguments[0];
const tags = [...new Set([...document.querySelectorAll("body *")].map((one) => one.localName))];
done({ tags, text: document.body.innerText, hit: String(window.hit) });
"""
VIEWER_TAGS = {"h1", "h2", "section", "p", "ol", "li", "code", "a", "dl", "dt", "dd"}


@pytest.mark.parametrize("text", MARKUP, ids=range(len(MARKUP)))
def test_markup_in_any_field_is_text_in_the_viewer(page: VerifierPage, text: str, tmp_path: Path) -> None:
    for number, (where, data) in enumerate(with_markup(text)):
        path = tmp_path / f"{number}.html"
        path.write_text(viewer(data, text))
        page.window.open(path)
        shown = page.window.run(VIEWED)
        assert shown["hit"] == "undefined", where
        assert set(shown["tags"]) <= VIEWER_TAGS, where
        assert page.window.console() == [], where
        assert "\u202e" not in shown["text"], where


def test_the_content_of_the_viewer_is_that_of_the_command() -> None:
    event = disclosed(RECORDED.encode(), PayloadHdr(RecordEvent.SCHEMA))
    shown = html.unescape(viewer(event))
    for said in ("record.event.v1", "badge-17", "door.opened", "gate", '{"door":4}'):
        assert said in shown
    assert "sealed: it is not in the file" in viewer(CASES["every entry, sealed"].file)
