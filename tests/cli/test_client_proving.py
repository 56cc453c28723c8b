"""`veen receipt|proof|checkpoint|verify|evidence`."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.hub_fixture import STREAM, HubFixture, hostile_hub, hub_fixture
from tests.cli.runner import Ran, Veen
from tests.client.hostile import HostileHub
from tests.hub.client import hub_key
from veen.client.evidence import Evidence
from veen.core import Checkpoint, Receipt
from veen.overlays.crdt import Write


@pytest.fixture
def place(veen: Veen, tmp_path: Path) -> Iterator[HubFixture]:
    with hub_fixture(veen, tmp_path) as found:
        yield found


def test_receipt_proof_and_checkpoint_are_saved_and_verified_without_the_hub(place: HubFixture) -> None:
    place.send(*"abcde")
    files = [place.root / name for name in ("2.receipt", "2.proof", "2-in-4.proof", "checkpoint")]
    receipt = place.does("reader", "receipt", 2, "--out", files[0], "--json").json()
    place.does("reader", "proof", 2, "--out", files[1])
    later = place.does("reader", "proof", 2, "--upto", 4, "--out", files[2], "--json").json()
    checkpoint = place.does("reader", "checkpoint", "--out", files[3], "--json").json()
    assert Receipt.decode(files[0].read_bytes()).encode().hex() == receipt["receipt"]
    assert (later["stream_seq"], later["upto_seq"]) == (2, 4)
    assert Checkpoint.decode(files[3].read_bytes()).upto_seq == checkpoint["upto_seq"] == 5
    place.hub.stop()
    try:
        offline = ["verify", *files, "--client", place.root / "reader", "--hub", place.url, "--json"]
        found = place.veen.done(*offline).json()
    finally:
        place.hub.start()
    assert [(row["what"], row["stream_seq"]) for row in found] == [
        ("receipt", 2),
        ("receipt", 2),
        ("proof", 2),
        ("receipt", 2),
        ("receipt", 4),
        ("proof", 2),
        ("checkpoint", 5),
    ]
    assert {row["held_by"] for row in found} == {"key 1 of the hub", "in the log of 2", "in the log of 4"}


def test_a_saved_file_with_any_bit_changed_fails(place: HubFixture) -> None:
    place.send(*"abc")
    file = place.root / "file"
    place.does("reader", "proof", 1, "--upto", 3, "--out", file)
    whole = file.read_bytes()
    verify = ["verify", file, "--client", place.root / "reader", "--hub", place.url]
    place.veen.done(*verify)
    refused = set()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
        ran = place.veen(*verify)
        assert ran.status in (3, 4), at
        refused.add(ran.status)
    assert refused == {3, 4}
    for content in (b"", whole[:-1], whole + b"\0", b"text", whole[-60:]):
        file.write_bytes(content)
        assert place.veen(*verify).status in (3, 4)


def test_a_file_of_another_hub_or_an_unknown_hub_fails(place: HubFixture) -> None:
    place.send("a")
    file = place.root / "file"
    place.does("reader", "receipt", 1, "--out", file)
    with hostile_hub() as other:
        known = ["--hub", other.url, "--trust-on-first-use", "--stream", STREAM, "--client", place.root / "writer"]
        place.veen.done("send", "--body", "x", *known)
        foreign = place.veen("verify", file, "--client", place.root / "writer", "--hub", other.url)
    assert foreign.status == 4
    assert "check that it is from this --hub" in foreign.err
    unknown = place.veen("verify", file, "--client", place.root / "operator", "--hub", place.url)
    assert unknown.status == 6
    assert "the client directory has no record of the hub" in unknown.error


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["receipt", 9], 5),
        (["receipt", 0], 2),
        (["proof", 9], 5),
        (["proof", 2, "--upto", 1], 2),
        (["proof", 1, "--upto", 9], 5),
        (["checkpoint", "--upto", 9], 5),
        (["evidence", "make", 9, "--out", "x"], 2),
        (["evidence", "make", "--out", "x"], 2),
    ],
)
def test_entries_that_do_not_exist_cannot_be_proved(command: list[object], status: int, place: HubFixture) -> None:
    place.send("a", "b")
    ran = place.fails("reader", *command)  # type: ignore[arg-type]
    assert ran.status == status
    assert ran.error


@pytest.mark.parametrize("command", [["receipt", 1], ["proof", 1], ["checkpoint"], ["evidence", "make", 1]])
def test_an_existing_output_file_is_an_error_before_any_request(command: list[object], place: HubFixture) -> None:
    (place.root / "taken").write_text("mine")
    with hostile_hub() as hub:
        who = ["--hub", hub.url, "--trust-on-first-use", "--stream", STREAM, "--client", place.root / "reader"]
        ran = place.veen(*command, "--out", place.root / "taken", *who)
        assert hub.asked == []
    assert ran.status == 2
    assert "already exists" in ran.error
    assert (place.root / "taken").read_text() == "mine"


def test_a_whole_stream_is_verified(place: HubFixture) -> None:
    place.send(*"abcde")
    found = place.does("reader", "verify", "--json").json()
    assert (found["entries"], found["opened"]) == (5, 5)
    assert place.does("operator", "verify", "--json").json()["opened"] == 0
    empty = place.veen.done("verify", *place.of("reader")[:4], "--stream", "empty", "--json").json()
    assert (empty["entries"], empty["mmr_root"]) == (0, None)
    assert place.fails("reader", "verify", place.root / "x").status == 2


# Evidence.


def test_evidence_proves_an_entry_with_nothing_but_the_hub_id(place: HubFixture, tmp_path: Path) -> None:
    place.send("one", "two", "three")
    file = tmp_path / "two.evidence"
    place.does("reader", "evidence", "make", 2, "--disclose", "--claim", "it said two", "--out", file)
    stranger = Veen(tmp_path / "stranger")
    found = stranger.done("evidence", "verify", file, "--pin", place.hub_id, "--json").json()
    assert found["pinned"] is True
    assert found["claim"] == "it said two"
    (entry,) = found["entries"]
    assert (entry["stream_seq"], entry["text"]) == (2, "two")
    assert found["proofs"] == [{"stream_seq": 2, "upto_seq": 3}]
    assert b"three" not in file.read_bytes()
    wrong = stranger("evidence", "verify", file, "--pin", "ab" * 32)
    assert wrong.status == 4
    assert wrong.error


def test_evidence_says_who_wrote_an_entry_and_shows_events_by_their_schema(place: HubFixture, tmp_path: Path) -> None:
    put, body = Write(b"door", 1, b"open"), tmp_path / "body"
    body.write_bytes(put.encode())
    place.does("writer", "send", "--schema", put.NAME, "--body", f"@{body}")
    place.does("writer", "send", "--schema", "note.of.nobody.v1", "--body", "text")
    file, card = tmp_path / "kv.evidence", tmp_path / "writer.card"
    place.does("reader", "evidence", "make", 1, 2, "--disclose", "--writer", place.root / "writer", "--out", file)
    place.veen.done("card", place.root / "writer", "--out", card)
    stranger = Veen(tmp_path / "stranger")
    asked = "evidence", "verify", file, "--pin", place.hub_id
    found = stranger.done(*asked, "--writer", card, "--json").json()
    first, second = found["entries"]
    assert found["writer_pinned"] is True
    assert first["event"]["fields"] == {"key": b"door".hex(), "ts": 1, "value": b"open".hex()}
    assert (second["event"], second["text"]) == (None, "text")
    shown = stranger.done(*asked, "--writer", card)
    assert _facts(shown)["written by"].startswith("writer.card, which was named: id_sign ")
    assert f"{first['event']['name']} key=door ts=1 value=open" in shown.out
    assert "text schema " in shown.out
    assert "name the expected writer with --writer" in _facts(stranger.done(*asked))["written by"]
    wrong = stranger(*asked, "--writer", place.root / "reader")
    assert (wrong.status, "belongs to another identity" in wrong.error) == (4, True)


def test_evidence_without_a_pin_is_unverified(place: HubFixture, tmp_path: Path) -> None:
    place.send("one")
    file = tmp_path / "one.evidence"
    place.does("reader", "evidence", "make", 1, "--disclose", "--out", file)
    unnamed = place.veen("evidence", "verify", file)
    assert unnamed.status == 4
    assert _facts(unnamed)["verdict"] == "unverified: no hub was named"
    assert _facts(unnamed)["hub_id"] == place.hub_id
    assert "no hub was named" in unnamed.error
    assert "--pin" in unnamed.err
    as_json = place.veen("evidence", "verify", file, "--json")
    assert (as_json.status, as_json.json()["verdict"]) == (4, "unverified: no hub was named")
    named = place.veen.done("evidence", "verify", file, "--pin", place.hub_id)
    assert _facts(named)["verdict"] == "it holds"
    assert place.veen.done("evidence", "verify", file, "--pin", place.hub_id, "--json").json()["verdict"] == "it holds"


def test_the_hub_id_in_the_file_is_trusted_only_with_an_option_and_the_verdict_says_so(
    place: HubFixture, tmp_path: Path
) -> None:
    place.send("one")
    file = tmp_path / "one.evidence"
    place.does("reader", "evidence", "make", 1, "--out", file)
    verdict = "it holds, but the hub id was taken from the file: anyone could have made it"
    embedded = place.veen.done("evidence", "verify", file, "--trust-embedded")
    assert _facts(embedded)["verdict"] == verdict
    shown = place.veen.done("evidence", "verify", file, "--trust-embedded", "--json").json()
    assert (shown["verdict"], shown["pinned"]) == (verdict, False)
    both = place.veen("evidence", "verify", file, "--trust-embedded", "--pin", place.hub_id)
    assert (both.status, "contradict each other" in both.error) == (2, True)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    for option in ([], ["--trust-embedded"]):
        wrong = place.veen("evidence", "verify", file, *option)
        assert wrong.status in (3, 4)
        assert wrong.out == ""
        assert "no hub was named" not in wrong.err


def _unproved(file: Path) -> None:
    """Rewrite the file in the older form without proofs of content."""
    made = Evidence.decode(file.read_bytes())
    (exhibit,) = made.exhibits
    assert exhibit.opening is not None
    bare = replace(exhibit, opening=replace(exhibit.opening, proof=None))
    file.write_bytes(replace(made, exhibits=(bare,)).encode())


def _facts(ran: Ran) -> dict[str, str]:
    """The names and values before the table."""
    pairs = [line.split("\t") for line in ran.out.splitlines()]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def test_disclosed_content_is_verified_against_the_reader_key(place: HubFixture) -> None:
    place.send("one")
    file, secret, public = (place.root / name for name in ("e", "doors.reader-key", "doors.stream-key"))
    made = _facts(place.does("reader", "evidence", "make", 1, "--disclose", "--out", file))
    mine = ["doors", "--client", place.root / "reader"]
    key = place.veen.done("stream-key", "show", *mine).facts()["public_key"]
    assert (made["content check"], made["reader_pk"]) == ("proved for the reader key that was named", key)
    place.veen.done("stream-key", "export", *mine, "--out", secret)
    place.veen.done("stream-key", "export", *mine, "--public", "--out", public)
    verify = ["evidence", "verify", file, "--pin", place.hub_id]
    for named in (key, key.upper(), secret, public):
        assert _facts(place.veen.done(*verify, "--reader", named))["content check"] == made["content check"]
        assert place.veen.done(*verify, "--reader", named, "--json").json()["reader_pinned"] is True
    unpinned = _facts(place.veen.done(*verify))
    assert unpinned["content check"] == "proved for reader_pk; name the expected key with --reader"
    assert unpinned["reader_pk"] == key
    shown = place.veen.done(*verify, "--json").json()
    assert shown["reader_pinned"] is False
    assert [(entry["reader_pk"], entry["proved"]) for entry in shown["entries"]] == [(key, True)]
    wrong = place.veen(*verify, "--reader", "ab" * 32)
    assert wrong.status == 4
    assert "not by the reader key that was entered" in wrong.err


@pytest.mark.parametrize(("reader", "status"), [("nowhere", 2), ("ab", 2), ("zz" * 32, 2), ("", 2), ("e", 3)])
def test_an_invalid_reader_pin_is_rejected(reader: str, status: int, place: HubFixture) -> None:
    place.send("one")
    place.does("reader", "evidence", "make", 1, "--disclose", "--out", place.root / "e")
    named = place.root / "e" if reader == "e" else reader
    ran = place.veen("evidence", "verify", place.root / "e", "--reader", named)
    assert ran.status == status
    assert ran.error


def test_content_without_a_proof_is_shown_as_not_proved(place: HubFixture) -> None:
    place.send("one")
    file = place.root / "e"
    key = _facts(place.does("reader", "evidence", "make", 1, "--disclose", "--out", file))["reader_pk"]
    _unproved(file)
    verify = ["evidence", "verify", file, "--pin", place.hub_id]
    assert _facts(place.veen.done(*verify))["content check"].startswith("not proved")
    (entry,) = place.veen.done(*verify, "--json").json()["entries"]
    assert (entry["text"], entry["proved"]) == ("one", False)
    pinned = place.veen(*verify, "--reader", key)
    assert pinned.status == 4
    assert "entry 1 has no proof" in pinned.err


def test_without_disclosure_the_content_stays_sealed(place: HubFixture) -> None:
    place.send("one")
    file = place.root / "sealed.evidence"
    place.does("reader", "evidence", "make", 1, "--out", file)
    (entry,) = place.veen.done("evidence", "verify", file, "--pin", place.hub_id, "--json").json()["entries"]
    assert "text" not in entry
    assert "(sealed)" in place.veen.done("evidence", "verify", file, "--pin", place.hub_id).out
    refused = place.fails("writer", "evidence", "make", 1, "--disclose", "--out", place.root / "other")
    assert refused.status == 6
    assert not (place.root / "other").exists()


def test_evidence_with_one_bit_changed_proves_nothing(place: HubFixture) -> None:
    place.send("one", "two")
    file = place.root / "e"
    place.does("reader", "evidence", "make", 1, "--disclose", "--out", file)
    whole = file.read_bytes()
    for at in range(40, len(whole), 7):
        file.write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
        assert place.veen("evidence", "verify", file, "--pin", place.hub_id).status in (3, 4), at


@pytest.mark.parametrize("pin", ["nowhere", "ab", "cert:" + "ab" * 32])
def test_an_invalid_hub_pin_for_evidence_is_rejected(pin: str, place: HubFixture) -> None:
    place.send("one")
    place.does("reader", "evidence", "make", 1, "--out", place.root / "e")
    assert place.veen("evidence", "verify", place.root / "e", "--pin", pin).status == 2


def test_two_contradicting_receipts_become_evidence(place: HubFixture) -> None:
    place.send("one")
    mine, theirs, file = place.root / "mine", place.root / "theirs", place.root / "lie.evidence"
    place.does("reader", "receipt", 1, "--out", mine)
    original = Receipt.decode(mine.read_bytes())
    unsigned = replace(original, leaf_hash=bytes(32), mmr_root=bytes(32))
    signed = replace(unsigned, hub_sig=hub_key(place.hub).sign(unsigned.signing_digest()))
    theirs.write_bytes(signed.encode())
    who = ["--client", place.root / "reader", "--hub", place.url]
    both = ["--statement", mine, "--statement", theirs]
    made = place.veen.done("evidence", "make", *both, "--out", file, *who, "--json").json()
    assert made["contradictions"]
    shown = place.veen("evidence", "verify", file, "--pin", place.hub_id)
    assert shown.status == 11
    assert "two different messages are signed as" in shown.out
    unnamed = place.veen("evidence", "verify", file, "--json")
    assert (unnamed.status, unnamed.json()["verdict"]) == (4, "unverified: no hub was named")
    assert place.veen("evidence", "verify", file, "--trust-embedded").status == 11
    theirs.write_bytes(unsigned.encode())
    forged = place.veen("evidence", "make", *both, "--out", place.root / "forged", *who)
    assert forged.status == 4
    assert not (place.root / "forged").exists()


@pytest.fixture
def met(veen: Veen, tmp_path: Path) -> Iterator[tuple[HostileHub, list[object]]]:
    """A hostile hub, and the options of a client that has sent one entry to it and saved the receipt."""
    with hostile_hub() as hub:
        who: list[object] = ["--client", tmp_path / "alice", "--hub", hub.url, "--stream", STREAM]
        veen.done("keygen", "--out", tmp_path / "alice", "--no-passphrase")
        veen.done("stream-key", "create", STREAM, "--client", tmp_path / "alice")
        veen.done("send", "--body", "1", *who, "--pin", hub.identity.hub_id.hex())
        veen.done("receipt", 1, "--out", tmp_path / "1.receipt", *who)
        yield hub, who


def _evidence_file(ran: Ran) -> str:
    """The only evidence file that an error names."""
    named = set(re.findall(r"\S+\.evidence", ran.err))
    assert len(named) == 1, ran.err
    return str(named.pop())


def _wrong_root(hub: HostileHub) -> None:
    hub.on_receipts = lambda messages, said: [hub.signed(one, mmr_root=bytes(32)) for one in said]


def _time_back(hub: HostileHub) -> None:
    hub.on_receipts = lambda messages, said: [hub.signed(one, hub_ts=one.hub_ts - 1) for one in said]


@pytest.mark.parametrize(("arrange", "name"), [(_wrong_root, "root: "), (_time_back, "time: ")])
def test_every_command_rejects_a_caught_hub_until_start_over(
    veen: Veen, met: tuple[HostileHub, list[object]], tmp_path: Path, arrange: Callable[[HostileHub], None], name: str
) -> None:
    hub, who = met
    arrange(hub)
    hub.lying = True
    first = veen("send", "--body", "2", *who)
    assert first.status == 4
    assert first.error.startswith(name)
    file = _evidence_file(first)
    assert f"veen evidence verify {file} --pin {hub.identity.hub_id.hex()} proves it to others" in first.err
    assert veen("evidence", "verify", file, "--pin", hub.identity.hub_id.hex()).status == 11
    hub.lying = False
    count = len(hub.submitted)
    stateful = [part for part in who if part not in ("--stream", STREAM)]
    for command in (
        ["send", "--body", "3", *who],
        ["send", "--outbox", *who],
        ["stream", *who],
        ["receipt", 1, *who],
        ["checkpoint", *who],
        ["verify", *who],
        ["kv", "get", "a", *who],
    ):
        ran = veen(*command)
        assert ran.status == 4, (command, ran.err)
        assert "this hub contradicted itself on 20" in ran.error
        assert name in ran.error
        assert "--start-over" in ran.err
        assert _evidence_file(ran) == file
    assert len(hub.submitted) == count
    offline = veen.done("verify", tmp_path / "1.receipt", *stateful)
    assert "warning: this hub contradicted itself on 20" in offline.err
    released = veen.done("verify", *who, "--start-over")
    assert "warning: this hub contradicted itself on 20" in released.err
    assert "trusts the hub again" in released.err
    assert "contradicted" not in veen.done("send", "--body", "4", *who).err
    assert Path(file).exists()


def test_errors_mention_evidence_only_if_a_file_was_saved(veen: Veen, met: tuple[HostileHub, list[object]]) -> None:
    hub, who = met
    hub.lying = True
    hub.on_receipts = lambda messages, said: [replace(one, hub_sig=bytes(64)) for one in said]
    unsigned = veen("send", "--body", "2", *who)
    assert unsigned.status == 4
    assert "evidence" not in unsigned.err
    hub.on_receipts = None
    hub.logs.clear()
    gone = veen("stream", *who)
    assert gone.status == 4
    assert "truncated stream" in gone.error
    assert "evidence" not in gone.err
    assert "--start-over" in gone.err
