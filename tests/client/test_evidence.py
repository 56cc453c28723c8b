"""Evidence convinces a verifier without access to the hub, and forged evidence does not."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.client.hostile import START, HostileHub
from tests.client.pair import STREAM, pair, read_all, send_all
from veen.client import Card, ClientDir, evidence
from veen.client.client import Client
from veen.client.contradiction import Contradiction, Lie
from veen.client.evidence import MAX_EVIDENCE_BYTES, Evidence, Exhibit, Knowledge, Opening, Peaks
from veen.client.hub_session import keep_contradiction
from veen.client.trust import HubRecord, KeyHistory, Pin
from veen.core import (
    Checkpoint,
    DhKey,
    Limits,
    Malformed,
    Receipt,
    Refused,
    SigningKey,
    Unavailable,
    Unverified,
    strict_json,
)
from veen.core import hub_identity as identities
from veen.core.hashing import h

COUNT = 11


class Shown:
    """Evidence of two of eleven entries, the hub, and the stream's reader key."""

    def __init__(self, place: Path, disclose: bool = True) -> None:
        async def run() -> None:
            async with HostileHub() as hub:
                people.url, people.pin = hub.url, Pin(key=hub.identity.hub_id)
                async with people.writer() as writer, people.reader() as reader:
                    await send_all(writer, *(b"body %d" % number for number in range(1, COUNT + 1)))
                    await read_all(reader)
                    self.made = await reader.evidence(STREAM, [3, 7], claim="as seen", disclose=disclose)
                    own = people.writer_dir.card
                    self.own = await writer.evidence(STREAM, [3], writers=[own])
                    self.theirs = await reader.evidence(STREAM, [3], writers=[own])
                self.writer, self.reader = own, people.reader_dir.card
            self.hub = hub

        with pair(place) as people:
            asyncio.run(run())
        self.label = self.hub.label(STREAM)
        self.pin = self.hub.identity.hub_id
        self.known = HubRecord(
            self.hub.identity, identities.sign(self.hub.identity, self.hub.key), self.hub.profile, Limits()
        )

    def receipt(self, seq: int) -> Receipt:
        return self.hub.log(self.label).entries[seq - 1][1]

    def verify(self, **changes: Any) -> evidence.EvidenceReport:
        return evidence.verify(replace(self.made, **changes).encode(), self.pin)


@pytest.fixture
def shown(place: Path) -> Shown:
    return Shown(place)


def test_evidence_says_what_was_said_and_when(shown: Shown) -> None:
    report = evidence.verify(shown.made.encode(), shown.pin)
    assert (report.hub_id, report.pinned, report.claim) == (shown.pin, True, "as seen")
    assert report.receipts == (shown.receipt(3), shown.receipt(7))
    assert [checkpoint.upto_seq for checkpoint in report.checkpoints] == [COUNT]
    assert [(tie.stream_seq, tie.upto_seq) for tie in report.ties] == [(3, COUNT), (7, COUNT)]
    assert [entry.opened.body for entry in report.entries if entry.opened] == [b"body 3", b"body 7"]
    assert report.contradictions == ()
    found = strict_json.decode(strict_json.encode(report.to_json()), "report")
    assert isinstance(found, dict)
    assert found["hub_id"] == shown.pin.hex()
    entries = found["entries"]
    assert isinstance(entries, list)
    assert [entry["body"] for entry in entries if isinstance(entry, dict)] == [b"body 3".hex(), b"body 7".hex()]


def test_a_fingerprint_of_the_hubs_key_is_as_good_a_pin(shown: Shown) -> None:
    assert evidence.verify(shown.made.encode(), h(shown.hub.key.public_key)).pinned
    assert not evidence.verify(shown.made.encode()).pinned


def test_what_is_not_disclosed_stays_sealed(place: Path) -> None:
    shown = Shown(place, disclose=False)
    report = evidence.verify(shown.made.encode(), shown.pin)
    assert [entry.opened for entry in report.entries] == [None, None]
    assert report.entries[0].client_seq == 3


def test_an_opening_opens_one_message_and_no_other(shown: Shown) -> None:
    first, second = shown.made.exhibits
    assert first.opening
    with pytest.raises(Unverified, match="not the secret of this reader key and this enc"):
        first.opening.open(second.msg)
    unproved = replace(first.opening, proof=None)
    with pytest.raises(Unverified, match="decryption failed"):
        unproved.open(second.msg)
    with pytest.raises(Unverified):
        shown.verify(exhibits=(first, replace(second, opening=first.opening)))


def test_without_a_reader_key_nothing_is_disclosed(place: Path) -> None:
    async def run() -> None:
        with ClientDir.create(place / "auditor", None, START) as folder:
            async with HostileHub() as hub:
                people.url, people.pin = hub.url, Pin(key=hub.identity.hub_id)
                async with people.writer() as writer:
                    await writer.send(STREAM, b"1")
                    async with Client(hub.url, folder, pin=people.pin) as auditor:
                        with pytest.raises(Unavailable, match="cannot disclose entries"):
                            await auditor.evidence(STREAM, [1], disclose=True)
                        with pytest.raises(Refused, match="no entry 5"):
                            await auditor.evidence(STREAM, [5])
                        assert (await auditor.evidence(STREAM, [1])).exhibits[0].opening is None

    with pair(place) as people:
        asyncio.run(run())


# Invalid evidence.


def _other_hub(shown: Shown) -> dict[str, Any]:
    key = SigningKey.generate()
    record = identities.create(key, START - 1000)
    return {"identity": record, "signature": identities.sign(record, key)}


def _changed_receipt(shown: Shown) -> dict[str, Any]:
    return {"receipts": (replace(shown.receipt(3), hub_ts=1), shown.receipt(7))}


def _changed_checkpoint(shown: Shown) -> dict[str, Any]:
    return {"checkpoints": (replace(shown.made.checkpoints[0], upto_seq=5),)}


def _receipt_missing(shown: Shown) -> dict[str, Any]:
    return {"receipts": (shown.receipt(3),)}


def _checkpoint_missing(shown: Shown) -> dict[str, Any]:
    return {"checkpoints": ()}


def _tie_elsewhere(shown: Shown) -> dict[str, Any]:
    return {"ties": (replace(shown.made.ties[0], stream_seq=7),)}


def _tie_altered(shown: Shown) -> dict[str, Any]:
    tie = shown.made.ties[0]
    step = replace(tie.mmr_proof.path[0], sib=bytes(32))
    proof = replace(tie.mmr_proof, path=(step, *tie.mmr_proof.path[1:]))
    return {"ties": (replace(tie, mmr_proof=proof),)}


def _message_elsewhere(shown: Shown) -> dict[str, Any]:
    return {"exhibits": (replace(shown.made.exhibits[0], stream_seq=7),)}


def _message_altered(shown: Shown) -> dict[str, Any]:
    exhibit = shown.made.exhibits[0]
    altered = replace(exhibit.msg, ciphertext=exhibit.msg.ciphertext[:-1] + b"\1")
    return {"exhibits": (replace(exhibit, msg=altered),)}


def _message_unsigned(shown: Shown) -> dict[str, Any]:
    exhibit = shown.made.exhibits[0]
    return {"exhibits": (replace(exhibit, msg=replace(exhibit.msg, sig=bytes(64))),)}


def _opening_of_another(shown: Shown) -> dict[str, Any]:
    exhibit = shown.made.exhibits[0]
    return {"exhibits": (replace(exhibit, opening=Opening(DhKey.generate().public_key, bytes(32))),)}


def _peaks_of_nothing(shown: Shown) -> dict[str, Any]:
    return {"peaks": (Peaks(shown.label, 3, (bytes(32), bytes(32))),)}


def _peaks_of_no_head(shown: Shown) -> dict[str, Any]:
    return {"peaks": (Peaks(shown.label, 4, (bytes(32),)),)}


def _signature_of_another_record(shown: Shown) -> dict[str, Any]:
    return {"signature": replace(shown.made.signature, sig=bytes(64))}


@pytest.mark.parametrize(
    "change",
    [
        _other_hub,
        _changed_receipt,
        _changed_checkpoint,
        _receipt_missing,
        _checkpoint_missing,
        _tie_elsewhere,
        _tie_altered,
        _message_elsewhere,
        _message_altered,
        _message_unsigned,
        _opening_of_another,
        _peaks_of_nothing,
        _peaks_of_no_head,
        _signature_of_another_record,
    ],
)
def test_evidence_that_does_not_hold_is_refused(shown: Shown, change: Callable[[Shown], dict[str, Any]]) -> None:
    changes = change(shown)
    with pytest.raises((Unverified, Malformed)):
        shown.verify(**changes)


def test_another_pin_refuses_it(shown: Shown) -> None:
    with pytest.raises(Unverified, match="not the hub that was entered"):
        evidence.verify(shown.made.encode(), bytes(32))


def test_any_bytes_either_fail_or_are_what_they_were(shown: Shown) -> None:
    """No bit of the file can be changed unnoticed, except in the author's remarks."""
    data = shown.made.encode()
    claim = data.index(b"as seen")
    free = set(range(claim - 1, claim + len(b"as seen") + 6))  # the claim and its time
    for at in range(0, len(data), 7):
        altered = data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]
        if at not in free:
            with pytest.raises((Malformed, Unverified)):
                evidence.verify(altered, shown.pin)
    for end in range(0, len(data), 50):
        with pytest.raises(Malformed):
            evidence.verify(data[:end], shown.pin)
    with pytest.raises(Malformed):
        evidence.verify(data + b"\0", shown.pin)
    with pytest.raises(Malformed):
        evidence.verify(bytes(MAX_EVIDENCE_BYTES + 1), shown.pin)


# Contradictions.


def made(shown: Shown, *statements: Receipt | Checkpoint, **more: Any) -> evidence.EvidenceReport:
    return evidence.verify(evidence.make_evidence(shown.known, "x", statements, **more).encode(), shown.pin)


def test_two_receipts_for_one_place_are_a_contradiction(shown: Shown) -> None:
    other = shown.hub.signed(shown.receipt(5), leaf_hash=bytes(32))
    assert made(shown, shown.receipt(5), other).contradictions
    root = shown.hub.signed(shown.receipt(5), mmr_root=bytes(32))
    assert made(shown, shown.receipt(5), root).contradictions
    assert not made(shown, shown.receipt(5), shown.receipt(6)).contradictions


def test_the_same_place_signed_at_two_times_is_a_contradiction(shown: Shown) -> None:
    later = shown.hub.signed(shown.receipt(5), hub_ts=START + 5)
    assert made(shown, shown.receipt(5), later).contradictions


def test_a_time_that_goes_back_along_a_label_is_a_contradiction(shown: Shown) -> None:
    ahead = shown.hub.signed(shown.receipt(5), hub_ts=1 << 62)
    (said,) = made(shown, shown.receipt(6), ahead, shown.receipt(3)).contradictions
    assert f"hub_ts goes back from {1 << 62} to {START}, from entry 5 to entry 6" in said
    assert not made(shown, shown.receipt(3), ahead).contradictions
    assert not made(shown, *(shown.receipt(seq) for seq in (3, 5, 6))).contradictions, "equal times are normal"
    elsewhere = shown.hub.signed(shown.receipt(6), label=bytes(32))
    assert not made(shown, ahead, elsewhere).contradictions, "labels have no order among each other"


def test_two_histories_of_the_hubs_keys_are_a_contradiction(shown: Shown) -> None:
    def rotated(at: int) -> KeyHistory:
        new = SigningKey.generate()
        record = identities.rotate(shown.hub.identity, shown.hub.key, new, START + at)
        return KeyHistory(record, identities.sign(record, new))

    one, other = rotated(10), rotated(20)
    assert not made(shown, rival=other).contradictions, "one of them continues the other"
    shown.known = replace(shown.known, identity=one.identity, signature=one.signature)
    assert made(shown, rival=other).contradictions
    with pytest.raises(Unverified):
        made(shown, rival=replace(other, signature=one.signature))


def test_a_receipt_and_a_checkpoint_that_disagree_are_a_contradiction(shown: Shown) -> None:
    log = shown.hub.log(shown.label)
    honest = shown.hub.checkpoint_of(log.cut(5))
    lying = shown.hub.checkpoint_of(log.cut(5), mmr_root=bytes(32))
    assert not made(shown, shown.receipt(5), honest).contradictions
    assert made(shown, shown.receipt(5), lying).contradictions
    assert made(shown, honest, lying).contradictions


def test_a_root_that_does_not_follow_is_a_contradiction(shown: Shown) -> None:
    log = shown.hub.log(shown.label)
    peaks = Peaks(shown.label, 5, tuple(log.cut(5).tree.peaks))
    wrong = shown.hub.signed(shown.receipt(6), mmr_root=bytes(32))
    assert made(shown, shown.receipt(5), wrong, peaks=[peaks]).contradictions
    assert not made(shown, shown.receipt(5), shown.receipt(6), peaks=[peaks]).contradictions
    assert made(shown, shown.hub.signed(shown.receipt(1), mmr_root=bytes(32))).contradictions
    assert not made(shown, shown.receipt(1)).contradictions


def test_one_message_at_two_places_is_a_contradiction(shown: Shown) -> None:
    again = shown.hub.signed(shown.receipt(6), leaf_hash=shown.receipt(5).leaf_hash)
    assert made(shown, shown.receipt(5), again).contradictions


def test_a_clients_messages_out_of_order_are_a_contradiction(shown: Shown) -> None:
    log = shown.hub.log(shown.label)
    (first, _), (second, _) = log.entries[:2]
    swapped = log.cut(0)
    said = [swapped.append(shown.hub.key, message, START) for message in (second, first)]
    exhibits = [Exhibit(1, second), Exhibit(2, first)]
    assert made(shown, *said, exhibits=exhibits).contradictions
    honest = [Exhibit(1, first), Exhibit(2, second)]
    assert not made(shown, shown.receipt(1), shown.receipt(2), exhibits=honest).contradictions


# Storing evidence.


@pytest.mark.parametrize(
    ("count", "kept"), [(0, False), (1, False), (2, True)], ids=["nothing signed", "one statement", "two statements"]
)
def test_only_what_contradicts_itself_is_kept(shown: Shown, place: Path, count: int, kept: bool) -> None:
    with ClientDir.create(place / "box", None, START) as folder:
        said = (shown.receipt(5), shown.hub.signed(shown.receipt(5), leaf_hash=bytes(32)))[:count]
        error = Contradiction(Lie.DUPLICATE_SEQ, "two", said)
        keep_contradiction(folder, shown.known, error)
        assert (error.evidence is not None) is kept
        if error.evidence:
            assert error.evidence.stat().st_mode & 0o777 == 0o600
            assert str(error).endswith(f"(evidence: {error.evidence})")
            assert Evidence.decode(error.evidence.read_bytes()).claim == "duplicate seq: two"


def test_a_claim_that_is_too_long_is_cut(shown: Shown) -> None:
    assert len(evidence.make_evidence(shown.known, "é" * 5000, ()).claim.encode()) <= 1024


def named(*writers: Card) -> Knowledge:
    return Knowledge(writers=writers)


def test_evidence_names_the_writer_if_a_card_proves_it(shown: Shown) -> None:
    wrote = shown.writer.id_sign
    assert evidence.verify(shown.made.encode(), shown.pin).entries[0].writer is None
    for made in (shown.own, shown.theirs):
        report = evidence.verify(made.encode(), shown.pin)
        assert (report.entries[0].writer, report.writer_pinned) == (wrote, False)
        assert evidence.verify(made.encode(), shown.pin, knowledge=named(shown.writer)).writer_pinned
    assert evidence.verify(shown.made.encode(), shown.pin, knowledge=named(shown.writer)).entries[1].writer == wrote


def test_the_writers_own_evidence_reveals_only_the_client_id_that_wrote(shown: Shown) -> None:
    assert shown.own.writers is not None
    (card,) = shown.own.writers
    assert (card.client_ids, card.id_sign) == (shown.writer.client_ids[:1], shown.writer.id_sign)


def test_another_writer_than_the_named_one_is_refused(shown: Shown) -> None:
    with pytest.raises(Unverified, match="belongs to another identity"):
        evidence.verify(shown.own.encode(), shown.pin, knowledge=named(shown.reader))
    with pytest.raises(Unverified, match="on no confirmed card"):
        evidence.verify(shown.made.encode(), shown.pin, knowledge=named(shown.reader))
    unconfirmed = replace(shown.writer, confirmations=None)
    assert shown.verify(writers=(unconfirmed,)).entries[0].writer is None
    with pytest.raises(Unverified, match="card"):
        shown.verify(writers=(replace(shown.writer, created_at=shown.writer.created_at + 1),))
