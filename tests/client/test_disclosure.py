"""Disclosure: a message has one content, even if its writer and the discloser collude."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tests.client.two_contents import ENC, MADE_UP, OPEN, READER, READERS, SHUT, two_faced
from veen.client import evidence
from veen.client.evidence import Exhibit, Opening
from veen.client.trust import HubRecord
from veen.core import (
    DhKey,
    Limits,
    Malformed,
    Mmr,
    Msg,
    PayloadHdr,
    Place,
    Profile,
    Receipt,
    SigningKey,
    Unverified,
    ciphertext,
    dleq,
    msg,
    receipt,
)
from veen.core import hub_identity as identities
from veen.core.dleq import SharedProof
from veen.core.hashing import h

NOW = 1_750_000_000
LABEL = b"\x0c" * 32
WRITER = SigningKey(b"\x0d" * 32)
HUB = SigningKey(b"\x0e" * 32)
PROFILE = Profile()


def known() -> HubRecord:
    record = identities.create(HUB, NOW)
    return HubRecord(record, identities.sign(record, HUB), PROFILE, Limits())


KNOWN = known()
HUB_ID = KNOWN.identity.hub_id


def said(message: Msg, opening: Opening | None, *more: Opening) -> bytes:
    """Evidence with a receipt for the message, and the given openings."""
    tree = Mmr()
    tree.append(message.leaf_hash())
    signed = Receipt.decode(receipt.sign_encoded(HUB, LABEL, 1, message.leaf_hash(), tree.root(), NOW))
    exhibits = [Exhibit(1, message, one) for one in (opening, *more)]
    return evidence.make_evidence(KNOWN, "", [signed], exhibits=exhibits, now=NOW).encode()


def sent(body: bytes, key: DhKey = READER) -> Msg:
    """An honest message."""
    place = Place(PROFILE.profile_id(), LABEL, WRITER.public_key, 1, 0, None)
    return signed(ciphertext.seal(key.public_key, place, PayloadHdr(h(b"text")), body, PROFILE.pad_block))


def signed(sealed: bytes) -> Msg:
    return msg.sign(
        WRITER,
        profile_id=PROFILE.profile_id(),
        label=LABEL,
        client_seq=1,
        prev_ack=0,
        auth_ref=None,
        ciphertext=sealed,
    )


def body_of(report: evidence.EvidenceReport) -> bytes:
    (entry,) = report.entries
    assert entry.opened
    return entry.opened.body


# Honest messages.


def test_what_is_disclosed_is_proved_for_the_readers_key() -> None:
    message = sent(b"one")
    data = said(message, Opening.of(READER, message))
    pinned = evidence.verify(data, HUB_ID, {READER.public_key})
    assert (body_of(pinned), pinned.reader_pinned, pinned.proved) == (b"one", True, True)
    report = evidence.verify(data, HUB_ID)
    assert (body_of(report), report.reader_pinned, report.proved) == (b"one", False, True)
    (entry,) = report.entries
    assert (entry.reader_pk, entry.proved) == (READER.public_key, True)
    assert isinstance(shown := report.to_json(), dict)
    assert shown["reader_pinned"] is False
    assert isinstance(entries := shown["entries"], list)
    assert isinstance(only := entries[0], dict)
    assert (only["reader_pk"], only["proved"]) == (READER.public_key.hex(), True)


def test_another_reader_than_the_pinned_one_is_refused() -> None:
    message = sent(b"one")
    data = said(message, Opening.of(READER, message))
    with pytest.raises(Unverified, match="not by the reader key that was entered"):
        evidence.verify(data, HUB_ID, {READERS[0].public_key})


def test_a_file_without_proofs_verifies_but_is_not_proved() -> None:
    message = sent(b"one")
    data = said(message, Opening(READER.public_key, READER.exchange(message.ciphertext[:32])))
    report = evidence.verify(data, HUB_ID)
    assert (body_of(report), report.proved) == (b"one", False)
    with pytest.raises(Unverified, match="entry 1 has no proof that the reader key that was entered opens it"):
        evidence.verify(data, HUB_ID, {READER.public_key})


def test_the_bytes_of_an_opening_without_a_proof_are_what_they_always_were() -> None:
    old = Opening(b"\x01" * 32, b"\x02" * 32)
    data = b"\xa2\x01\x58\x20" + b"\x01" * 32 + b"\x02\x58\x20" + b"\x02" * 32
    assert old.encode() == data
    assert Opening.decode(data) == old


def test_a_message_that_is_not_disclosed_needs_no_reader() -> None:
    report = evidence.verify(said(sent(b"one"), None), HUB_ID, {READER.public_key})
    assert (report.entries[0].opened, report.entries[0].reader_pk) == (None, None)


def _flipped(data: bytes) -> bytes:
    return bytes((data[0] ^ 1,)) + data[1:]


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, proof=replace(one.proof, negative=not one.proof.negative)),
        lambda one: replace(one, proof=replace(one.proof, challenge=_flipped(one.proof.challenge))),
        lambda one: replace(one, proof=replace(one.proof, response=_flipped(one.proof.response))),
        lambda one: replace(one, proof=SharedProof(False, bytes(32), bytes(32))),
        lambda one: replace(one, shared=_flipped(one.shared)),
        lambda one: replace(one, reader_pk=_flipped(one.reader_pk)),
        lambda one: replace(one, reader_pk=READERS[0].public_key),
        lambda one: replace(one, reader_pk=one.reader_pk[:-1] + bytes((one.reader_pk[-1] | 0x80,))),
    ],
    ids=["sign", "challenge", "response", "empty", "shared", "reader_pk", "another reader", "another name of it"],
)
def test_a_disclosure_with_anything_changed_is_refused(change: Callable[[Opening], Opening]) -> None:
    message = sent(b"one")
    changed = change(Opening.of(READER, message))
    with pytest.raises(Unverified):
        evidence.verify(said(message, changed), HUB_ID)


def test_the_proof_of_another_message_is_refused() -> None:
    """Even of a message with the same enc and the same secret."""
    one, other = sent(b"one"), sent(b"two")
    same_enc = signed(one.ciphertext + bytes(PROFILE.pad_block))
    with pytest.raises(Unverified, match="shared proof"):
        evidence.verify(said(other, Opening.of(READER, one)), HUB_ID)
    with pytest.raises(Unverified, match="shared proof"):
        evidence.verify(said(same_enc, Opening.of(READER, one)), HUB_ID)
    assert body_of(evidence.verify(said(same_enc, Opening.of(READER, same_enc)), HUB_ID)) == b"one"


# A writer and a discloser who collude.


@dataclass(frozen=True, slots=True)
class Plot:
    """A message with two contents, and the opening for each."""

    message: Msg
    openings: tuple[Opening, Opening]


def made_up() -> Plot:
    pairs = [(READER.public_key, secret) for secret in MADE_UP]
    first, second = (Opening(*pair) for pair in pairs)
    return Plot(two_faced(WRITER, PROFILE, LABEL, pairs), (first, second))


def of_two_readers() -> Plot:
    pairs = [(key.public_key, key.exchange(ENC)) for key in READERS]
    message = two_faced(WRITER, PROFILE, LABEL, pairs)
    first, second = (Opening.of(key, message) for key in READERS)
    return Plot(message, (first, second))


def test_without_a_proof_one_message_has_two_contents_and_the_report_says_that_nothing_is_proved() -> None:
    plot = made_up()
    reports = [evidence.verify(said(plot.message, one), HUB_ID) for one in plot.openings]
    assert body_of(reports[0]).startswith(SHUT)
    assert body_of(reports[1])[32:].startswith(OPEN)
    assert [report.proved for report in reports] == [False, False]


def test_neither_of_two_contents_passes_for_what_the_reader_opens() -> None:
    plot = made_up()
    for one in plot.openings:
        with pytest.raises(Unverified, match="has no proof that the reader key that was entered opens it"):
            evidence.verify(said(plot.message, one), HUB_ID, {READER.public_key})
        proved = replace(one, proof=dleq.prove(READER, ENC, plot.message.leaf_hash()))
        with pytest.raises(Unverified, match="shared"):
            evidence.verify(said(plot.message, proved), HUB_ID)
    with pytest.raises(Unverified, match="decryption failed"):
        Opening.of(READER, plot.message)


def test_one_file_does_not_show_one_message_with_two_contents() -> None:
    for plot in (made_up(), of_two_readers()):
        with pytest.raises(Unverified, match="disclosed twice"):
            evidence.verify(said(plot.message, *plot.openings), HUB_ID)


def test_invented_reader_keys_are_detected_only_by_the_reader_pin() -> None:
    plot = of_two_readers()
    for key, own, other in zip(READERS, plot.openings, reversed(plot.openings), strict=True):
        assert evidence.verify(said(plot.message, own), HUB_ID).entries[0].reader_pk == key.public_key
        assert evidence.verify(said(plot.message, own), HUB_ID, {key.public_key}).proved
        with pytest.raises(Unverified, match="not by the reader key that was entered"):
            evidence.verify(said(plot.message, other), HUB_ID, {key.public_key})
        renamed = replace(other, reader_pk=key.public_key)
        with pytest.raises(Unverified, match="shared proof"):
            evidence.verify(said(plot.message, renamed), HUB_ID, {key.public_key})


# Messages that cannot be disclosed.


def test_a_message_sealed_to_a_point_of_the_twist_is_read_and_not_disclosed() -> None:
    enc = (2).to_bytes(32, "little")

    class Twisted(DhKey):
        """A sender whose public key is not on the curve, but who knows the shared secret."""

        __slots__ = ()

        def exchange(self, peer: bytes) -> bytes:
            return READER.exchange(enc)

    sender = Twisted(bytes(32))
    sender.public_key = enc
    place = Place(PROFILE.profile_id(), LABEL, WRITER.public_key, 1, 0, None)
    sealer = ciphertext.Sealer(READER.public_key, place, sender)
    message = signed(sealer.seal(PayloadHdr(h(b"text")), b"one", PROFILE.pad_block))
    assert ciphertext.open_sealed(READER, place, message.ciphertext, Limits()).body == b"one"
    with pytest.raises(Malformed, match="the content of the message cannot be proved"):
        Opening.of(READER, message)


def test_a_message_with_a_copied_enc_is_not_disclosed() -> None:
    """It does not open, and its disclosure would open the other message."""
    victim = sent(b"between us")
    copied = signed(victim.ciphertext[:40] + _flipped(victim.ciphertext[40:]))
    with pytest.raises(Unverified, match="decryption failed"):
        Opening.of(READER, copied)
    with pytest.raises(Unverified, match="decryption failed"):
        Opening.of(READERS[0], victim)
