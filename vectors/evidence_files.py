"""evidence.json: evidence files, and what each of them proves to someone who knows the hub, a reader or a witness."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha512
from typing import Any, NamedTuple

from nacl import bindings

from vectors.ed25519_points import BASE, L, decode_leniently
from vectors.form import Doc, dh_key, signer_doc, signing_key
from veen.client import Card, Prekey, evidence
from veen.client.evidence import Evidence, EvidenceReport, Exhibit, Knowledge, Opening, Peaks, Tie
from veen.client.trust import HubRecord, KeyHistory
from veen.core import (
    Checkpoint,
    HubIdentity,
    Limits,
    Malformed,
    Mmr,
    MmrProof,
    Msg,
    PayloadHdr,
    Place,
    Profile,
    Receipt,
    Sealer,
    SigningKey,
    Unverified,
    checkpoint,
    handover,
    hub_identity,
    msg,
    naming,
    proof,
    receipt,
)
from veen.core.cosignature import WitnessPolicy, reset_digest
from veen.core.dleq import SharedProof
from veen.core.handover import Cover, HandOver, LabelSize, ProvedSize
from veen.core.hashing import h, ht, tag_prefix
from veen.core.hub_identity import ForkOrigin, OriginHub
from veen.core.proof import Head
from veen.core.recovery import LabelRecovery, Recovery, RecoveryStatement, incarnate, root_of
from veen.query import result_evidence

ROOT, OLD, NEW, THIRD = (signing_key(name) for name in ("hub-root", "hub", "hub-2", "hub-3"))
ALICE, BOB, WITNESS, STRANGER = (signing_key(name) for name in ("alice", "bob", "witness-1", "mallory"))
READER, OTHER_READER = dh_key("evidence-reader"), dh_key("evidence-reader-2")
PROFILE = Profile()
BORN, TURN, MADE = 1_700_000_000, 1_700_100_000, 1_700_200_000
HANDED = 5  # entries of the log when the key changed
TEXT = PayloadHdr(naming.schema_id("text.v1"))
BODIES = (b"door 4 opened", b"door 4 closed", b"door 5 opened", b"\x00\xff", b"", b"six", b"seven", b"eight")


class Log:
    """One label with its messages, receipts and tree. Every secret is derived from names."""

    def __init__(
        self, name: str, bodies: tuple[bytes, ...] = BODIES, header: PayloadHdr = TEXT, label: bytes | None = None
    ) -> None:
        self.header = header
        self.label = label or h(b"label " + name.encode())
        self.nodes: list[bytes] = []
        self.messages: list[Msg] = []
        self.receipts: list[Receipt] = []
        self.roots: list[bytes] = []
        self.peaks: list[tuple[bytes, ...]] = []
        tree = Mmr()
        for at, body in enumerate(bodies):
            writer = ALICE if at % 2 == 0 else BOB
            message = self._message(writer, at // 2 + 1, at, body, f"{name} {at}")
            self.nodes += tree.append(message.leaf_hash())
            self.messages.append(message)
            self.roots.append(tree.root())
            self.peaks.append(tuple(tree.peaks))
            key, hub_ts = (OLD, BORN + at) if at < HANDED else (NEW, TURN + at)
            self.receipts.append(self.sign(key, at + 1, hub_ts))

    def _message(self, writer: SigningKey, client_seq: int, prev_ack: int, body: bytes, name: str) -> Msg:
        place = Place(PROFILE.profile_id(), self.label, writer.public_key, client_seq, prev_ack)
        sealer = Sealer(READER.public_key, place, dh_key(f"evidence {name}"))
        sealed = sealer.seal(self.header, body, PROFILE.pad_block)
        fields = {"profile_id": place.profile_id, "label": self.label, "auth_ref": None, "ciphertext": sealed}
        return msg.sign(writer, client_seq=client_seq, prev_ack=prev_ack, **fields)  # type: ignore[arg-type]

    def sign(self, key: SigningKey, seq: int, hub_ts: int, **changed: bytes) -> Receipt:
        leaf, root = self.messages[seq - 1].leaf_hash(), self.roots[seq - 1]
        fields = {"leaf_hash": leaf, "mmr_root": root, **changed}
        return receipt.sign(key, label=self.label, stream_seq=seq, hub_ts=hub_ts, **fields)

    def prove(self, seq: int, size: int) -> MmrProof:
        return proof.prove(self.nodes.__getitem__, seq, size)

    def checkpoint(self, size: int, key: SigningKey, root: bytes | None = None) -> Checkpoint:
        signed = root or self.roots[size - 1]
        label = self.label
        return checkpoint.sign(key, label_prev=label, label_curr=label, upto_seq=size, mmr_root=signed, epoch=0)

    def tie(self, seq: int, size: int) -> Tie:
        return Tie(self.label, seq, size, self.prove(seq, size))

    def exhibit(self, seq: int, opening: Opening | None = None) -> Exhibit:
        return Exhibit(seq, self.messages[seq - 1], opening)

    def disclosed(self, seq: int) -> Exhibit:
        message = self.messages[seq - 1]
        return self.exhibit(
            seq, Opening(READER.public_key, READER.exchange(message.ciphertext[:32]), shared_proof(message))
        )


def shared_proof(message: Msg) -> SharedProof:
    """The proof of the shared secret with a nonce that is no secret, so that the same code gives the same bytes."""
    enc = message.ciphertext[:32]
    clamped = bytes((READER.secret[0] & 248,)) + READER.secret[1:-1] + bytes((READER.secret[-1] & 127 | 64,))
    w = int.from_bytes(clamped, "little") % L
    if (w * BASE).encode()[-1] & 0x80:
        w = L - w
    u = int.from_bytes(enc, "little") % (1 << 255)
    prime = 2**255 - 19
    lifted = decode_leniently(((u - 1) * pow(u + 1, -1, prime) % prime).to_bytes(32, "little"))
    base = pow(8, -1, L) * (8 * lifted)
    shared = w * base
    nonce = int.from_bytes(h(b"nonce " + message.leaf_hash()), "little") % L
    points = (w * BASE).encode() + base.encode() + shared.encode()
    statement = message.leaf_hash() + READER.public_key + enc + READER.exchange(enc) + points
    asked = tag_prefix("veen/shared-proof") + statement + (nonce * BASE).encode() + (nonce * base).encode()
    challenge = bindings.crypto_core_ed25519_scalar_reduce(sha512(asked).digest())
    response = (nonce + int.from_bytes(challenge, "little") * w) % L
    return SharedProof(bool(shared.encode()[-1] & 0x80), challenge, response.to_bytes(32, "little"))


LOG = Log("doors")
FORKED = Log("doors", (*BODIES[:2], *(b"other " + body for body in BODIES[2:])))

YOUNG = hub_identity.create(OLD, BORN)
TURNED = hub_identity.rotate(YOUNG, OLD, NEW, TURN)
ROOTED_YOUNG = hub_identity.create(OLD, BORN, root=ROOT)
ROOTED = hub_identity.rotate(ROOTED_YOUNG, ROOT, NEW, TURN)
ADOPTED = hub_identity.adopt_root(TURNED, OLD, ROOT.public_key, TURN + 1)
AGAIN = hub_identity.create(THIRD, TURN + 10, root=ROOT, incarnates=True)


def record(identity: HubIdentity, key: SigningKey) -> HubRecord:
    return HubRecord(identity, hub_identity.sign(identity, key), PROFILE, Limits())


@dataclass(frozen=True, slots=True)
class Case:
    """A file and what its verifier knows."""

    name: str
    file: bytes
    pin: bytes | None
    reader: bytes | None = None
    knowledge: Knowledge = field(default_factory=Knowledge)

    def doc(self) -> Doc:
        known = self.knowledge
        shown: Doc = {
            "name": self.name,
            "cbor": self.file,
            "pin": self.pin,
            "reader": self.reader,
            "witnesses": sorted(known.witnesses),
            "writers": [card.encode() for card in known.writers],
            "hub_identity": None if known.record is None else known.record.encode(),
        }
        if known.policy:
            shown["threshold"] = known.policy.threshold
        return shown | outcome(self.file, self.pin, self.reader, known)


def outcome(file: bytes, pin: bytes | None, reader: bytes | None, knowledge: Knowledge) -> Doc:
    """The outcome, and the report if the file holds: the answer that every implementation gives."""
    try:
        found = _verify(file, pin, () if reader is None else (reader,), knowledge)
    except Malformed:
        return {"outcome": "malformed"}
    except Unverified:
        return {"outcome": "unverified"}
    if pin is None:
        return {"outcome": "unverified", "report": found.shown}
    convicted = found.report.contradictions or found.report.retired
    return {"outcome": "contradicted" if convicted else "holds", "report": found.shown}


class Found(NamedTuple):
    """A report, and what implementations show of it."""

    report: EvidenceReport
    shown: object


def _verify(file: bytes, pin: bytes | None, readers: tuple[bytes, ...], knowledge: Knowledge) -> Found:
    if evidence.is_of_kind(file, evidence.RESULT_KIND):
        result = result_evidence.verify(file, pin, readers, knowledge)
        return Found(result.evidence, result.to_json())
    report = evidence.verify(file, pin, readers, knowledge)
    return Found(report, report.to_json())


def evidence_files() -> Doc:
    return {
        "about": "Evidence files, what their verifier knows besides the file, and what each file proves.",
        "witness": signer_doc(WITNESS),
        "files": [case.doc() for case in cases()],
    }


def cases() -> Iterator[Case]:
    """All cases. The differential tests also change their bytes."""
    yield from _entries()
    yield from _writers()
    yield from _contradictions()
    yield from _retired_keys()
    yield from _incarnations_and_recoveries()
    yield from _forks()
    yield from _keys_of_the_hub_as_witnesses()
    yield from _policies()


def _made(known: HubRecord, statements: tuple[Head, ...], **more: object) -> Evidence:
    return evidence.make_evidence(known, "", statements, now=MADE, **more)  # type: ignore[arg-type]


def _shown(seqs: tuple[int, ...], *, disclose: bool, known: HubRecord | None = None) -> Evidence:
    hub = known or record(YOUNG, OLD)
    top = LOG.checkpoint(HANDED, OLD)
    exhibits = [LOG.disclosed(seq) if disclose else LOG.exhibit(seq) for seq in seqs]
    receipts = tuple(LOG.receipts[seq - 1] for seq in seqs)
    return _made(hub, (*receipts, top), ties=[LOG.tie(seq, HANDED) for seq in seqs], exhibits=exhibits)


def _entries() -> Iterator[Case]:
    hub = YOUNG.hub_id
    two = _shown((2, 3), disclose=True)
    yield Case("two entries, disclosed", two.encode(), hub)
    yield Case("no hub is named", two.encode(), None)
    yield Case("another hub is named", two.encode(), ROOTED.hub_id)
    yield Case("the fingerprint of a key is named", two.encode(), h(OLD.public_key))
    yield Case("the reader is named", two.encode(), hub, READER.public_key)
    yield Case("another reader is named", two.encode(), hub, OTHER_READER.public_key)
    yield Case("a claim, text of four bytes a character", replace(two, claim="\U0001f6aa" * 256).encode(), hub)
    yield Case("every entry, sealed", _shown((1, 2, 3, 4, 5), disclose=False).encode(), hub)
    bare = LOG.disclosed(2)
    assert bare.opening is not None
    unproved = replace(two, exhibits=(replace(bare, opening=replace(bare.opening, proof=None)),))
    yield Case("disclosed without a proof", unproved.encode(), hub)
    yield Case("without a proof, though the reader is named", unproved.encode(), hub, READER.public_key)
    turned = replace(bare.opening, proof=replace(bare.opening.proof, negative=not bare.opening.proof.negative))  # type: ignore[type-var, union-attr]
    yield Case("the other sign in the proof", replace(two, exhibits=(replace(bare, opening=turned),)).encode(), hub)
    invented = Opening(OTHER_READER.public_key, bare.opening.shared)
    both = replace(two, exhibits=(bare, replace(bare, opening=invented)))
    yield Case("one entry with two secrets", both.encode(), hub)
    yield Case("a proof that ends elsewhere", replace(two, ties=(LOG.tie(2, 4),)).encode(), hub)
    yield Case("a proof of another entry", replace(two, ties=(replace(LOG.tie(2, 5), stream_seq=3),)).encode(), hub)
    yield Case("a message without a receipt", replace(two, receipts=two.receipts[:1], ties=()).encode(), hub)
    yield Case("a receipt by a stranger", replace(two, receipts=(LOG.sign(STRANGER, 2, BORN + 1),)).encode(), hub)
    yield Case("a receipt from before the hub", replace(two, receipts=(LOG.sign(OLD, 2, BORN - 1),)).encode(), hub)
    yield Case("the identity of another hub", replace(two, identity=ROOTED).encode(), hub)
    other = replace(PROFILE, pad_block=0)
    yield Case("another profile", replace(two, profile=other).encode(), hub)
    grown = replace(
        two, receipts=tuple(LOG.receipts[2:3]), ties=(), exhibits=(), peaks=(Peaks(LOG.label, 5, LOG.peaks[4]),)
    )
    yield Case("the peaks of a signed root", replace(grown, receipts=tuple(LOG.receipts[:5])).encode(), hub)
    yield Case("peaks that no root has", replace(grown, peaks=(Peaks(LOG.label, 5, LOG.peaks[3]),)).encode(), hub)
    largest = 2**64 - 1
    late = hub_identity.create(OLD, 0)
    far = replace(_shown((), disclose=False, known=record(late, OLD)), receipts=(LOG.sign(OLD, 1, largest),))
    yield Case("the last second of all", replace(far, made_at=largest).encode(), late.hub_id)


def card_of(identity: SigningKey, *writers: SigningKey, confirmed: bool = True) -> Card:
    """A card of an identity that names the keys of these writers."""
    prekeys = tuple(_signed_prekey(identity, number) for number in range(len(writers)))
    ids = tuple(writer.public_key for writer in writers)
    said = ht("veen/card-client", identity.public_key)
    confirmations = tuple(writer.sign(said) for writer in writers) if confirmed else None
    card = Card(identity.public_key, READER.public_key, 3, BORN, ids, prekeys, bytes(64), confirmations)
    return replace(card, sig=identity.sign(ht("veen/card", card.unsigned(without_last=2))))


def _signed_prekey(identity: SigningKey, number: int) -> Prekey:
    made = Prekey(number, dh_key(f"prekey {number}").public_key, BORN + 86_400, bytes(64))
    return replace(made, sig=identity.sign(ht("veen/prekey", made.unsigned())))


def _writers() -> Iterator[Case]:
    """ALICE wrote entry 3, BOB entry 2."""
    hub, ann, eve = YOUNG.hub_id, signing_key("identity of alice"), signing_key("identity of mallory")
    three, two = _shown((3,), disclose=True), _shown((2, 3), disclose=True)
    own, other = card_of(ann, ALICE), card_of(eve, STRANGER)
    yield Case("a card names the writer", replace(three, writers=(own,)).encode(), hub)
    yield Case("the writer is named", three.encode(), hub, knowledge=Knowledge(writers=(own,)))
    with_card, later = replace(three, writers=(own,)), card_of(ann, STRANGER)
    yield Case("the writer is named by another card", with_card.encode(), hub, knowledge=Knowledge(writers=(later,)))
    yield Case("another writer is named", with_card.encode(), hub, knowledge=Knowledge(writers=(other,)))
    yield Case("nothing shows who wrote it", three.encode(), hub, knowledge=Knowledge(writers=(other,)))
    yield Case("only one of two writers is named", two.encode(), hub, knowledge=Knowledge(writers=(own,)))
    both = Knowledge(writers=(own, card_of(ann, BOB)))
    yield Case("two cards of one identity", two.encode(), hub, knowledge=both)
    claimed = card_of(eve, ALICE, confirmed=False)
    yield Case("a card that no client_id confirms", replace(three, writers=(claimed,)).encode(), hub)
    stolen = replace(claimed, confirmations=other.confirmations)
    yield Case("a client_id that confirms another identity", replace(three, writers=(stolen,)).encode(), hub)
    yield Case("two identities of one writer", replace(three, writers=(own, card_of(eve, ALICE))).encode(), hub)
    yield Case("a changed card", replace(three, writers=(replace(own, generation=4),)).encode(), hub)
    mixed = replace(own, prekeys=other.prekeys)
    signed = replace(mixed, sig=ann.sign(ht("veen/card", mixed.unsigned(without_last=2))))
    yield Case("a prekey of another identity", replace(three, writers=(signed,)).encode(), hub)
    many = card_of(ann, ALICE, *(signing_key(f"alice {number}") for number in range(30)))
    yield Case("a card with many client_ids", replace(three, writers=(many,)).encode(), hub)


def _contradictions() -> Iterator[Case]:
    hub, known = YOUNG.hub_id, record(YOUNG, OLD)
    mine, theirs = LOG.receipts, FORKED.receipts
    yield Case("two messages at one place", _made(known, (mine[2], theirs[2])).encode(), hub)
    checkpoints = LOG.checkpoint(5, OLD), FORKED.checkpoint(5, OLD)
    yield Case("two roots of one length", _made(known, checkpoints).encode(), hub)
    yield Case("a receipt and a checkpoint", _made(known, (mine[4], checkpoints[1])).encode(), hub)
    yield Case("two times for one entry", _made(known, (mine[1], LOG.sign(OLD, 2, BORN + 9))).encode(), hub)
    yield Case("a time that goes back", _made(known, (LOG.sign(OLD, 1, BORN + 9), mine[3])).encode(), hub)
    moved = LOG.sign(OLD, 4, BORN + 3, leaf_hash=mine[1].leaf_hash)
    yield Case("one message at two places", _made(known, (mine[1], moved)).encode(), hub)
    root = LOG.sign(OLD, 4, BORN + 3, mmr_root=mine[0].mmr_root)
    grown = _made(known, (mine[2], root), peaks=[Peaks(LOG.label, 3, LOG.peaks[2])])
    yield Case("a root that does not follow", grown.encode(), hub)
    first = LOG.sign(OLD, 1, BORN, mmr_root=bytes(32))
    yield Case("a first entry with another root", _made(known, (first,)).encode(), hub)
    swapped = [LOG.sign(OLD, 1, BORN, leaf_hash=mine[2].leaf_hash, mmr_root=mine[2].leaf_hash)]
    swapped.append(LOG.sign(OLD, 3, BORN + 2, leaf_hash=mine[0].leaf_hash))
    shown = [Exhibit(1, LOG.messages[2]), Exhibit(3, LOG.messages[0])]
    yield Case("a client's messages out of order", _made(known, tuple(swapped), exhibits=shown).encode(), hub)
    rivals = [hub_identity.rotate(YOUNG, OLD, key, TURN) for key in (NEW, THIRD)]
    rival = KeyHistory(rivals[1], hub_identity.sign(rivals[1], THIRD))
    yield Case("two histories of keys", _made(record(rivals[0], NEW), (), rival=rival).encode(), hub)
    earlier = KeyHistory(YOUNG, hub_identity.sign(YOUNG, OLD))
    yield Case("an earlier record of keys", _made(record(rivals[0], NEW), (), rival=earlier).encode(), hub)
    stolen = KeyHistory(rivals[1], hub_identity.sign(rivals[1], STRANGER))
    yield Case("a second record that nobody signed", _made(record(rivals[0], NEW), (), rival=stolen).encode(), hub)


def _handed(root: SigningKey | None, identity: HubIdentity) -> tuple[HandOver, ProvedSize]:
    other = LabelSize(b"\xff" * 32, 1, bytes(32))
    rows = [LabelSize(LOG.label, HANDED, LOG.roots[HANDED - 1]), other]
    tree, nodes = handover.tree_of_labels(rows)
    made = handover.sign(identity.hub_id, OLD, NEW, TURN, len(rows), tree.root())
    if root:
        made = replace(made, root_sig=root.sign(made.signing_digest()))
    return made, ProvedSize(rows[0], 1, proof.prove(nodes.__getitem__, 1, len(rows)))


def _retired_keys() -> Iterator[Case]:
    for root, identity, kind in ((None, TURNED, ""), (ROOT, ROOTED, ", with a root")):
        hub, known = identity.hub_id, record(identity, NEW)
        change, row = _handed(root, identity)
        covers = [Cover(change, row, LOG.prove(seq, HANDED)) for seq in (2, 4, 5)]
        mine = LOG.receipts
        yield Case(
            f"statements of the current key{kind}", _made(known, (mine[6], LOG.checkpoint(8, NEW))).encode(), hub
        )
        yield Case(f"an uncovered receipt{kind}", _made(known, (mine[1],)).encode(), hub)
        covered = _made(known, (mine[1], mine[3], LOG.checkpoint(5, OLD)), covers=covers)
        yield Case(f"covered by a hand-over{kind}", covered.encode(), hub)
        later = _made(known, (mine[2], LOG.checkpoint(8, NEW)), ties=[LOG.tie(3, 8)])
        yield Case(f"covered by a checkpoint of the next key{kind}", later.encode(), hub)
        same = _made(known, (LOG.checkpoint(5, OLD), mine[4], LOG.checkpoint(5, NEW)))
        yield Case(f"covered by the next key at the same size, except a leaf{kind}", same.encode(), hub)
        forged = FORKED.checkpoint(5, OLD)
        conflict = _made(known, (LOG.checkpoint(5, OLD), forged), covers=covers)
        yield Case(f"a conflict under a retired key{kind}", conflict.encode(), hub)
        seen = Knowledge(witnesses=frozenset({WITNESS.public_key}))
        witnessed = _made(known, (LOG.checkpoint(5, OLD), forged.witnessed(STRANGER, WITNESS)), covers=covers)
        yield Case(f"a conflict that a witness dates{kind}", witnessed.encode(), hub, knowledge=seen)
        yield Case(f"a conflict whose witness is unknown{kind}", witnessed.encode(), hub)
        log = FORKED.checkpoint(5, OLD).witnessed(WITNESS)
        forked = _made(known, (mine[3], FORKED.receipts[3], log), ties=[FORKED.tie(4, 5)], covers=covers)
        yield Case(f"a receipt in a log that a witness dates{kind}", forked.encode(), hub, knowledge=seen)
        times = _made(known, (mine[1], LOG.sign(OLD, 2, BORN + 9)), covers=covers)
        yield Case(f"another time for a covered entry{kind}", times.encode(), hub)
        rooted = LOG.sign(OLD, 3, BORN + 2, mmr_root=FORKED.roots[2])
        another = _made(known, (mine[2], rooted, LOG.checkpoint(8, NEW)), ties=[LOG.tie(3, 8)])
        yield Case(f"another root for a covered entry{kind}", another.encode(), hub)
        beyond = _made(known, (LOG.sign(OLD, 6, TURN - 1),), covers=covers)
        yield Case(f"an entry beyond the hand-over{kind}", beyond.encode(), hub)
        again = _made(known, (mine[6], LOG.sign(OLD, 7, TURN - 1)), covers=covers)
        yield Case(f"an entry of the next key, signed with the retired key{kind}", again.encode(), hub)
        both = LOG.checkpoint(7, NEW).witnessed(WITNESS)
        twice = _made(known, (both, replace(LOG.checkpoint(7, OLD), witness_sigs=both.witness_sigs)), covers=covers)
        name = f"a checkpoint of the next key with a witness, signed with the retired key{kind}"
        yield Case(name, twice.encode(), hub, knowledge=seen)
        tops = FORKED.peaks[6]
        grown = (mine[6], LOG.sign(OLD, 7, TURN - 1, mmr_root=FORKED.roots[6]), mine[7])
        peaks = _made(known, grown, peaks=(Peaks(LOG.label, 7, tops),))
        yield Case(f"the peaks of a root that only a retired key signed{kind}", peaks.encode(), hub)
        stolen = STRANGER.sign(change.signing_digest())
        for part, broken in (("old", replace(change, old_sig=stolen)), ("new", replace(change, new_sig=stolen))):
            spoiled = _made(known, (mine[1],), covers=[Cover(broken, row, LOG.prove(2, HANDED))])
            yield Case(f"a hand-over that the {part} key did not sign{kind}", spoiled.encode(), hub)
        elsewhere = replace(row, place=2)
        yield Case(
            f"a row of a hand-over at another place{kind}",
            _made(known, (mine[1],), covers=[Cover(change, elsewhere, LOG.prove(2, HANDED))]).encode(),
            hub,
        )
        old = _made(record(YOUNG if root is None else ROOTED_YOUNG, OLD), (LOG.checkpoint(5, OLD), forged))
        yield Case(f"an older record in the file{kind}", old.encode(), hub)
        newer = Knowledge(record=identity)
        yield Case(f"an older record, and a newer one is known{kind}", old.encode(), hub, knowledge=newer)
    adopted = _made(record(ADOPTED, NEW), (LOG.receipts[5], LOG.receipts[1]))
    yield Case("a root that was adopted later", adopted.encode(), ADOPTED.hub_id)
    never = replace(TURNED, hub_keys=(replace(TURNED.hub_keys[0], valid_until=2**64 - 1), TURNED.hub_keys[1]))
    forever = _made(record(never, NEW), (LOG.receipts[1], FORKED.receipts[1], LOG.receipts[2], FORKED.receipts[2]))
    yield Case("a key that is retired after the year 9999", forever.encode(), TURNED.hub_id)


def _recovery(identity: HubIdentity, endorser: SigningKey, size: int = 3) -> tuple[RecoveryStatement, list[ProvedSize]]:
    rows = (LabelSize(LOG.label, size, LOG.roots[size - 1]), LabelSize(b"\xff" * 32, 1, bytes(32)))
    ids = naming.key_id(OLD.public_key), naming.key_id(NEW.public_key)
    said = Recovery(identity.hub_id, *ids, TURN, len(rows), root_of(rows))
    made = RecoveryStatement(said, NEW.sign(said.digest()), endorser.sign(said.digest()))
    _, nodes = handover.tree_of_labels(rows)
    return made, [ProvedSize(row, at, proof.prove(nodes.__getitem__, at, 2)) for at, row in enumerate(rows, 1)]


def _incarnations_and_recoveries() -> Iterator[Case]:
    lost = (LOG.receipts[1], LOG.receipts[3])
    for identity, endorser, kind in ((TURNED, OLD, ""), (ROOTED, ROOT, ", with a root")):
        known, hub = record(identity, NEW), identity.hub_id
        made, rows = _recovery(identity, endorser)
        shown = LabelRecovery(made, (rows[0],))
        yield Case(f"entries that a recovery lost{kind}", _made(known, lost, recovery=shown).encode(), hub)
        absent = LabelRecovery(made, (rows[1],))
        yield Case(f"a recovery without the label's row{kind}", _made(known, lost, recovery=absent).encode(), hub)
        stolen = LabelRecovery(replace(made, endorsement=STRANGER.sign(made.recovery.digest())), (rows[0],))
        yield Case(f"a recovery that nobody endorsed{kind}", _made(known, lost, recovery=stolen).encode(), hub)
        reset = replace(made, witness_sigs=(WITNESS.sign(reset_digest(made.recovery)),))
        cosigned = _made(known, lost, recovery=LabelRecovery(reset, shown.rows))
        yield Case(f"a recovery that a witness cosigned as a reset{kind}", cosigned.encode(), hub)
        newest = _made(known, (LOG.sign(NEW, 6, TURN + 5),), recovery=shown)
        yield Case(f"an entry of the key after a recovery{kind}", newest.encode(), hub)
        older = _made(record(YOUNG if endorser is OLD else ROOTED_YOUNG, OLD), lost, recovery=shown)
        yield Case(f"a recovery of a key that the record lacks{kind}", older.encode(), hub)
        ahead = hub_identity.rotate(identity, NEW if endorser is OLD else ROOT, THIRD, TURN + 100)
        yield Case(
            f"a recovery, and a newer record is known{kind}",
            _made(known, lost, recovery=shown).encode(),
            hub,
            knowledge=Knowledge(record=ahead),
        )
    ids = naming.key_id(NEW.public_key), naming.key_id(OLD.public_key)
    back = Recovery(TURNED.hub_id, *ids, TURN, 0, root_of(()))
    reverse = RecoveryStatement(back, OLD.sign(back.digest()), NEW.sign(back.digest()))
    turned_back = _made(record(TURNED, NEW), lost, recovery=LabelRecovery(reverse, ()))
    yield Case("a recovery from a later key to an earlier one", turned_back.encode(), TURNED.hub_id)
    again = KeyHistory(AGAIN, hub_identity.sign(AGAIN, THIRD))
    began = LabelRecovery(incarnate(ROOT, THIRD, TURN + 10), ())
    gone = _made(record(ROOTED, NEW), lost, rival=again, recovery=began)
    yield Case("entries of an earlier incarnation", gone.encode(), ROOTED.hub_id)
    yield Case("two incarnations", _made(record(ROOTED, NEW), lost, rival=again).encode(), ROOTED.hub_id)
    late = LabelRecovery(incarnate(ROOT, THIRD, TURN + 11), ())
    spoiled = _made(record(ROOTED, NEW), lost, rival=again, recovery=late)
    yield Case("an incarnation at another time", spoiled.encode(), ROOTED.hub_id)


def _forks() -> Iterator[Case]:
    kept = LOG.checkpoint(3, OLD)
    origin = ForkOrigin((OriginHub(YOUNG, hub_identity.sign(YOUNG, OLD), (kept,)),))
    fork = hub_identity.create(THIRD, BORN, origin=origin.ref())
    known = replace(record(fork, THIRD), origin=origin)
    heads = (LOG.receipts[1], LOG.sign(THIRD, 4, TURN), LOG.checkpoint(5, THIRD))
    made = _made(known, heads, ties=[LOG.tie(2, 5), LOG.tie(4, 5)])
    yield Case("a fork that continues a log", made.encode(), fork.hub_id)
    yield Case("a fork, and its origin is named", made.encode(), YOUNG.hub_id)
    yield Case("a fork without its origin", replace(made, origin=None).encode(), fork.hub_id)
    longer = ForkOrigin((replace(origin.hubs[0], checkpoints=(LOG.checkpoint(4, OLD),)),))
    yield Case("a fork with another origin", replace(made, origin=longer).encode(), fork.hub_id)
    last = replace(made, origin=longer, receipts=(), ties=())
    yield Case("a fork with another origin, and an entry after both", last.encode(), fork.hub_id)
    wrong = _made(known, (LOG.receipts[4],))
    yield Case("an entry of the origin after the fork", wrong.encode(), fork.hub_id)
    next_fork = hub_identity.rotate(fork, THIRD, NEW, TURN)
    ids = naming.key_id(THIRD.public_key), naming.key_id(NEW.public_key)
    said = Recovery(fork.hub_id, *ids, TURN, 0, root_of(()))
    statement = RecoveryStatement(said, NEW.sign(said.digest()), THIRD.sign(said.digest()))
    again = replace(record(next_fork, NEW), origin=origin)
    lost = _made(again, (LOG.receipts[1],), recovery=LabelRecovery(statement, ()))
    yield Case("a fork that lost an entry of its origin", lost.encode(), fork.hub_id)


def _keys_of_the_hub_as_witnesses() -> Iterator[Case]:
    """Conflicts under a retired key that another key of the hub cosigned: its signature shows nothing (001, KEX0.1)."""
    for root, young, turned, kind in ((None, YOUNG, TURNED, ""), (ROOT, ROOTED_YOUNG, ROOTED, ", with a root")):
        hub, named = turned.hub_id, _witnesses(NEW)
        both = tuple(log.checkpoint(5, OLD).witnessed(NEW) for log in (LOG, FORKED))
        change, row = _handed(root, turned)
        covers = [Cover(change, row, LOG.prove(5, HANDED))]
        made = _made(record(turned, NEW), both, covers=covers)
        yield Case(f"a conflict that a key of the hub cosigned{kind}", made.encode(), hub, knowledge=named)
        old = _made(record(young, OLD), both).encode()
        newer = replace(named, record=turned)
        yield Case(f"the same with an older record, and a newer one is known{kind}", old, hub, knowledge=newer)
    again = tuple(log.checkpoint(5, OLD).witnessed(THIRD) for log in (LOG, FORKED))
    first = _made(record(ROOTED, NEW), again)
    later = replace(_witnesses(THIRD), record=AGAIN)
    yield Case("a conflict that a later incarnation cosigned", first.encode(), ROOTED.hub_id, knowledge=later)
    origin = ForkOrigin((OriginHub(YOUNG, hub_identity.sign(YOUNG, OLD), (LOG.checkpoint(2, OLD),)),))
    fork = hub_identity.rotate(hub_identity.create(THIRD, BORN, origin=origin.ref()), THIRD, NEW, TURN)
    two = tuple(log.checkpoint(5, THIRD).witnessed(OLD) for log in (LOG, FORKED))
    forked = _made(replace(record(fork, NEW), origin=origin), two)
    yield Case("a conflict of a fork that its origin cosigned", forked.encode(), fork.hub_id, knowledge=_witnesses(OLD))


def _witnesses(*keys: SigningKey, threshold: int | None = None) -> Knowledge:
    """Named witnesses; with a threshold, how many of them must have cosigned."""
    named = sorted(key.public_key for key in keys)
    policy = None if threshold is None else WitnessPolicy(threshold, {key.hex(): key for key in named})
    return Knowledge(witnesses=frozenset(named), policy=policy)


def _policies() -> Iterator[Case]:
    hub, three = YOUNG.hub_id, (WITNESS, STRANGER, signing_key("witness-2"))
    shown = _shown((2, 3), disclose=True)
    top = shown.checkpoints[0]

    def case(name: str, threshold: int, *cosigned: Checkpoint, **changed: Any) -> Case:
        made = replace(shown, checkpoints=cosigned, **changed)
        return Case(name, made.encode(), hub, knowledge=_witnesses(*three, threshold=threshold))

    yield case("two of three witnesses are required, and cosigned", 2, top.witnessed(*three[:2]))
    yield case("two of three witnesses are required, and one cosigned", 2, top.witnessed(WITNESS))
    yield case("two of three witnesses are required, and one cosigned twice", 2, top.witnessed(WITNESS, WITNESS))
    apart = top.witnessed(WITNESS), top.witnessed(STRANGER)
    yield case("two of three witnesses are required, and each cosigned its own copy", 2, *apart)
    yield case("a witness is required, and none cosigned", 1, top)
    yield case("a witness is required, and there is no checkpoint", 1, ties=())
    two = replace(shown, receipts=(LOG.receipts[2], FORKED.receipts[2]), ties=(), exhibits=(), checkpoints=())
    required = _witnesses(WITNESS, threshold=1)
    yield Case("a witness is required, and the hub contradicts itself", two.encode(), hub, knowledge=required)
    beyond = LOG.checkpoint(2, OLD).witnessed(WITNESS)
    yield case("an entry that is in no cosigned log", 1, beyond, top)
    others = (*shown.receipts, Log("windows").receipts[2])
    yield case("an entry of another label than the cosigned log", 1, top.witnessed(WITNESS), receipts=others)
    yield case("two entries at the ends of logs that two witnesses cosigned", 1, *_ends(*three[:2]), ties=())
    yield case("two entries at the ends of logs that one witness cosigned", 1, *_ends(WITNESS, WITNESS), ties=())
    bare: dict[str, Any] = {"receipts": (), "ties": (), "exhibits": ()}
    yield case("a log without entries, which two of three witnesses cosigned", 2, top.witnessed(*three[:2]), **bare)
    yield case("a log without entries, which no witness cosigned", 1, top, **bare)
    own = _witnesses(OLD, threshold=1)
    yield Case(
        "only a key of the hub cosigned", replace(shown, checkpoints=(top.witnessed(OLD),)).encode(), hub, knowledge=own
    )
    new = replace(shown, checkpoints=(top.witnessed(NEW),)).encode()
    yield Case("only a later key of the hub cosigned", new, hub, knowledge=_witnesses(NEW, threshold=1))
    known = replace(_witnesses(NEW, threshold=1), record=TURNED)
    yield Case("only a later key of the hub cosigned, and its record is known", new, hub, knowledge=known)


def _ends(*witnesses: SigningKey) -> tuple[Checkpoint, ...]:
    """Checkpoints that end with entries 2 and 3, each cosigned by one witness."""
    return tuple(LOG.checkpoint(size, OLD).witnessed(key) for size, key in zip((2, 3), witnesses, strict=True))
