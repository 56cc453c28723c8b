"""Evidence: one file that proves what a hub signed, to anyone, offline.

It contains the hub's identity record, signed statements, and what connects them: proofs, the peaks of a tree, messages
and, if a reader disclosed them, their content. `verify` checks it; nothing in it is trusted unchecked.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from pathlib import Path
from typing import Annotated

from veen.client.client_identity import Card
from veen.client.contradiction import Contradiction
from veen.client.local_files import Disk
from veen.client.trust import HubRecord, HubTrust, KeyHistory
from veen.core import (
    Checkpoint,
    DhKey,
    HubIdentity,
    IdentitySignature,
    Limits,
    Malformed,
    Mmr,
    MmrProof,
    Msg,
    Opened,
    Place,
    Profile,
    Receipt,
    Unverified,
    ciphertext,
    dleq,
    mmr,
    proof,
)
from veen.core.cbor import Bstr, Constant, ListOf, Nested, Text, Uint, VersionField, Wire, heads, int_map
from veen.core.cosignature import WitnessPolicy
from veen.core.dleq import SharedProof
from veen.core.handover import AnchoredLog, Cover, Coverage, Dating, Link
from veen.core.hashing import h
from veen.core.hpke import ENC_BYTES
from veen.core.hub_identity import ForkOrigin, Lineage, lineage
from veen.core.limits import MAX_PAGE_ITEMS, MAX_PEAKS, MAX_TEXT_BYTES
from veen.core.proof import Head, Leaf, entries_text, label_of, size_of
from veen.core.receipt import time_clash
from veen.core.recovery import LabelRecovery
from veen.core.strict_json import Json

KIND = "veen.evidence.v1"
RESULT_KIND = "veen.query_result.v1"  # evidence of a query result, which `veen.query` verifies
MAX_EVIDENCE_BYTES = 1 << 26


@int_map("opening")
class Opening(Wire):
    """The shared secret that opens one message and no other.

    With the proof, the message has only one content under `reader_pk`. Without it, as in older files, a writer and a
    discloser who collude may have chosen among several contents.
    """

    reader_pk: Annotated[bytes, Bstr()]
    shared: Annotated[bytes, Bstr()]
    proof: Annotated[SharedProof | None, Nested(SharedProof, optional=True)] = None

    @classmethod
    def of(cls, key: DhKey, message: Msg) -> "Opening":
        """Disclose one message. Raises `Malformed` or `Unverified` if it does not open or cannot be proved."""
        enc = message.ciphertext[:ENC_BYTES]
        made = cls(key.public_key, key.exchange(enc), dleq.prove(key, enc, message.leaf_hash()))
        # A message could copy the `enc` of another and not open. Its secret would open the other one, so check first.
        made.open(message)
        return made

    def open(self, message: Msg) -> Opened:
        """Open the message. Raises `Malformed` or `Unverified` if it does not open or its proof fails."""
        if self.proof is not None:
            enc = message.ciphertext[:ENC_BYTES]
            dleq.verify(self.proof, message.leaf_hash(), self.reader_pk, enc, self.shared)
        return ciphertext.open_sealed(_OneSecret(self), Place.of(message), message.ciphertext, Limits())


class _OneSecret(DhKey):
    """A key that knows the result of one exchange only."""

    __slots__ = ("_shared",)

    def __init__(self, opening: Opening) -> None:
        self.public_key = opening.reader_pk
        self._shared = opening.shared

    def exchange(self, peer: bytes) -> bytes:
        return self._shared


@int_map("exhibit")
class Exhibit(Wire):
    """A message at its place. With its opening, anyone can read it."""

    stream_seq: Annotated[int, Uint(least=1)]
    msg: Annotated[Msg, Nested(Msg)]
    opening: Annotated[Opening | None, Nested(Opening, optional=True)] = None


@int_map("tie")
class Tie(Wire):
    """The inclusion proof of the entry at `stream_seq` in the log of `upto_seq` entries."""

    label: Annotated[bytes, Bstr()]
    stream_seq: Annotated[int, Uint(least=1)]
    upto_seq: Annotated[int, Uint(least=1)]
    mmr_proof: Annotated[MmrProof, Nested(MmrProof)]


@int_map("peaks")
class Peaks(Wire):
    """The peaks of a tree whose root is signed. They determine the root after the next entry."""

    label: Annotated[bytes, Bstr()]
    size: Annotated[int, Uint(least=1)]
    peaks: Annotated[tuple[bytes, ...], ListOf(Bstr(name="peak"), most=MAX_PEAKS)]


def _many(wire: type[Wire], *, name: str = "") -> ListOf:
    return ListOf(Nested(wire, name=wire.LAYOUT.name), name=name, most=MAX_PAGE_ITEMS)


@int_map("evidence", Constant(KIND, name="kind"), VersionField())
class Evidence(Wire):
    """The file. `claim` is a remark by its author and proves nothing."""

    claim: Annotated[str, Text(MAX_TEXT_BYTES)]
    made_at: Annotated[int, Uint()]
    identity: Annotated[HubIdentity, Nested(HubIdentity)]
    signature: Annotated[IdentitySignature, Nested(IdentitySignature)]
    profile: Annotated[Profile, Nested(Profile)]
    receipts: Annotated[tuple[Receipt, ...], _many(Receipt)] = ()
    checkpoints: Annotated[tuple[Checkpoint, ...], _many(Checkpoint)] = ()
    ties: Annotated[tuple[Tie, ...], _many(Tie)] = ()
    peaks: Annotated[tuple[Peaks, ...], _many(Peaks)] = ()
    exhibits: Annotated[tuple[Exhibit, ...], _many(Exhibit)] = ()
    origin: Annotated[ForkOrigin | None, Nested(ForkOrigin, optional=True)] = None  # only if the hub is a fork
    rival: Annotated[KeyHistory | None, Nested(KeyHistory, optional=True)] = None  # a second history of the hub's keys
    recovery: Annotated[LabelRecovery | None, Nested(LabelRecovery, optional=True)] = None  # states the loss of entries
    covers: Annotated[
        tuple[Cover, ...] | None, ListOf(Nested(Cover, name="cover"), most=MAX_PAGE_ITEMS, optional=True)
    ] = None  # connect statements of retired keys with hand-overs
    writers: Annotated[
        tuple[Card, ...] | None, ListOf(Nested(Card, name="card"), most=MAX_PAGE_ITEMS, optional=True)
    ] = None  # say which identities the client_ids belong to


def is_of_kind(data: bytes, kind: str) -> bool:
    """Whether a file states this kind in its first field. It may still be damaged."""
    return data[1:].startswith(b"\x01" + heads.write_text(kind))


def make_evidence(
    known: HubRecord,
    claim: str,
    statements: Iterable[Head],
    *,
    ties: Iterable[Tie] = (),
    peaks: Iterable[Peaks] = (),
    exhibits: Iterable[Exhibit] = (),
    rival: KeyHistory | None = None,
    recovery: LabelRecovery | None = None,
    covers: Iterable[Cover] = (),
    writers: Iterable[Card] = (),
    now: int | None = None,
) -> Evidence:
    """Assemble evidence."""
    signed = tuple(dict.fromkeys(statements))
    return Evidence(
        claim.encode()[:MAX_TEXT_BYTES].decode(errors="ignore"),
        int(time.time()) if now is None else now,
        known.identity,
        known.signature,
        known.profile,
        tuple(head for head in signed if isinstance(head, Receipt)),
        tuple(head for head in signed if isinstance(head, Checkpoint)),
        tuple(ties),
        tuple(peaks),
        tuple(exhibits),
        known.origin,
        rival,
        recovery,
        tuple(dict.fromkeys(covers)) or None,
        tuple(dict.fromkeys(writers)) or None,
    )


def joined(known: HubRecord, claim: str, parts: Sequence[Evidence]) -> Evidence:
    """One file with the entries of several, such as those of several epochs."""
    receipts: list[Head] = [receipt for one in parts for receipt in one.receipts]
    return make_evidence(
        known,
        claim,
        [*receipts, *(checkpoint for one in parts for checkpoint in one.checkpoints)],
        ties=[tie for one in parts for tie in one.ties],
        exhibits=[shown for one in parts for shown in one.exhibits],
        writers=[card for one in parts for card in one.writers or ()],
    )


def of_contradiction(known: HubRecord, found: Contradiction, now: int | None = None) -> Evidence | None:
    """The evidence of a contradiction; None if the hub signed nothing that proves it."""
    statements, claim = found.statements, f"{found.lie}: {found.reason}"
    if found.rival is not None:
        return make_evidence(known, claim, (), rival=KeyHistory(*found.rival), now=now)
    # A single signed statement contradicts itself only if it is a first entry whose root is not its leaf.
    alone = len(statements) == 1 and isinstance(statements[0], Receipt) and statements[0].stream_seq == 1
    if len(statements) < 2 and not (alone and statements[0].mmr_root != getattr(statements[0], "leaf_hash", None)):
        return None
    first = statements[0]
    shown = [Peaks(label_of(first), size_of(first), found.peaks)] if found.peaks and len(statements) > 1 else []
    receipts = {head.leaf_hash: head for head in statements if isinstance(head, Receipt)}
    exhibits = [
        Exhibit(receipts[message.leaf_hash()].stream_seq, message)
        for message in found.messages
        if message.leaf_hash() in receipts
    ]
    return make_evidence(known, claim, statements, peaks=shown, exhibits=exhibits, covers=found.covers, now=now)


def of_recovery(trust: HubTrust, claim: str, statements: Sequence[Head], stated: LabelRecovery) -> Evidence:
    """The evidence of a loss that the hub stated. The first statement shows which incarnation of the hub signed."""
    now = trust.known
    signed_by = trust.record_of(statements[0]) if statements else now
    rival = None if signed_by is now else KeyHistory(now.identity, now.signature)
    return make_evidence(signed_by, claim, statements, rival=rival, recovery=stated)


class EvidenceStore:
    """The folder in which a client stores evidence."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.folder = folder
        self._disk = disk

    def save(self, evidence: Evidence) -> Path:
        """Save evidence under a hash of its content without the time, so that a contradiction is stored once."""
        data = evidence.encode()
        name = h(replace(evidence, made_at=0).encode()).hex()[:32]
        path = self.folder / f"{name}.evidence"
        if not path.exists():
            self._disk.make_folder(self.folder)
            self._disk.write_file(path, data)
            self._disk.sync_folder(self.folder)
        return path


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """A message with a receipt, and its content if it was disclosed."""

    receipt: Receipt
    client_id: bytes
    client_seq: int
    opened: Opened | None
    reader_pk: bytes | None = None  # the reader key that opens it, if disclosed
    proved: bool = False  # False: only the author of the file claims that this is the content under that key
    writer: bytes | None = None  # id_sign of the identity that wrote it, if a card proves it


@dataclass(frozen=True, slots=True)
class EvidenceReport:
    """The verified content of evidence. `contradictions` prove misbehaviour of the hub."""

    hub_id: bytes
    pinned: bool  # False: some hub signed it, and no pin says which one it must be
    claim: str
    receipts: tuple[Receipt, ...]
    checkpoints: tuple[Checkpoint, ...]
    ties: tuple[Tie, ...]
    entries: tuple[ShownEntry, ...]
    contradictions: tuple[str, ...]
    lost: tuple[Receipt, ...] = ()  # receipts for entries that the hub states to have lost
    retired: tuple[str, ...] = ()  # verdicts on conflicts for which a thief of a retired key may be responsible
    conflicts: tuple[str, ...] = ()  # the conflicts of these verdicts
    coverage: tuple[tuple[Head, Coverage], ...] = ()
    reader_pinned: bool = False  # True: all disclosed content is proved for the given reader keys
    writer_pinned: bool = False  # True: the given writers wrote all entries
    cosigners: tuple[str, ...] = ()  # the witnesses of the policy that cosigned, if one was given

    @property
    def proved(self) -> bool:
        """Whether all disclosed content is proved to be what the reader key opens."""
        return all(entry.proved for entry in self.entries if entry.opened is not None)

    def to_json(self) -> Json:
        return {
            "hub_id": self.hub_id.hex(),
            "pinned": self.pinned,
            "reader_pinned": self.reader_pinned,
            "writer_pinned": self.writer_pinned,
            **({"cosigners": list(self.cosigners)} if self.cosigners else {}),
            "claim": self.claim,
            "receipts": [_place(receipt) for receipt in self.receipts],
            "checkpoints": [_place(checkpoint) for checkpoint in self.checkpoints],
            "proofs": [{"stream_seq": tie.stream_seq, "upto_seq": tie.upto_seq} for tie in self.ties],
            "entries": [_entry(entry) for entry in self.entries],
            "contradictions": list(self.contradictions),
            "lost": [_place(receipt) for receipt in self.lost],
            "retired": list(self.retired),
            "conflicts": list(self.conflicts),
            "coverage": [{**_place(head), "coverage": str(found)} for head, found in self.coverage],
        }


def _place(head: Head) -> dict[str, Json]:
    shown: dict[str, Json] = {
        "label": label_of(head).hex(),
        "stream_seq" if isinstance(head, Receipt) else "upto_seq": size_of(head),
        "mmr_root": head.mmr_root.hex(),
    }
    if isinstance(head, Receipt):
        shown |= {"leaf_hash": head.leaf_hash.hex(), "hub_ts": head.hub_ts}
    return shown


def _entry(entry: ShownEntry) -> Json:
    shown: dict[str, Json] = {
        "label": entry.receipt.label.hex(),
        "stream_seq": entry.receipt.stream_seq,
        "msg_id": entry.receipt.leaf_hash.hex(),
        "hub_ts": entry.receipt.hub_ts,
        "client_id": entry.client_id.hex(),
        "client_seq": entry.client_seq,
        "writer": entry.writer.hex() if entry.writer else None,
    }
    if entry.opened and entry.reader_pk:
        shown |= {"reader_pk": entry.reader_pk.hex(), "proved": entry.proved}
        shown |= {"schema": entry.opened.header.schema.hex(), "body": entry.opened.body.hex()}
    return shown


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The knowledge of a verifier besides the file.

    `record` is the hub's identity record from another source: a file may contain an older one, which does not show that
    a key was retired. `existed` are statements that the verifier received before their key was retired, and `anchored`
    the verified times of anchors. `writers` are the cards of the identities that must have written all
    entries.
    """

    record: HubIdentity | None = None
    witnesses: frozenset[bytes] = frozenset()
    existed: Collection[Head] = ()
    anchored: Mapping[AnchoredLog, int] = field(default_factory=dict)
    writers: Collection[Card] = ()
    policy: WitnessPolicy | None = None  # every entry must be in a log that these witnesses cosigned


NOTHING = Knowledge()


def verify(
    data: bytes, pin: bytes | None = None, readers: Collection[bytes] = (), knowledge: Knowledge = NOTHING
) -> EvidenceReport:
    """Verify evidence. Raises `Malformed` or `Unverified` if any part of it does not verify.

    `pin` is the hub's id or a fingerprint of one of its keys; without it, the report shows what some hub signed.
    `readers` are the public keys of the streams. With them, all disclosed content must be proved to be what one of
    these keys opens. Without them, the writer of a message who also disclosed it may have invented the key.
    """
    if len(data) > MAX_EVIDENCE_BYTES:
        raise Malformed("evidence", f"{len(data)} bytes, above {MAX_EVIDENCE_BYTES}")
    return verify_decoded(Evidence.decode(data), pin, readers, knowledge)


def verify_decoded(
    shown: Evidence, pin: bytes | None = None, readers: Collection[bytes] = (), knowledge: Knowledge = NOTHING
) -> EvidenceReport:
    """Like `verify`, of evidence that is decoded already."""
    shown.identity.verify(shown.signature, shown.identity.hub_id if pin is None else pin)
    line = lineage(_newer(shown.identity, knowledge.record), shown.origin)
    records = _records(line, knowledge.record)
    heads: dict[tuple[bytes, int], list[Head]] = defaultdict(list)
    signed: tuple[Head, ...] = (*shown.receipts, *shown.checkpoints)
    for head in signed:
        line.verify_head(head, shown.profile)
        heads[label_of(head), size_of(head)].append(head)
    for tie in shown.ties:
        _check_tie(tie, heads)
    _check_disclosed(shown.exhibits, readers)
    wrote = _writers((*knowledge.writers, *(shown.writers or ())))
    entries = tuple(_shown_entry(exhibit, shown, wrote) for exhibit in shown.exhibits)
    _check_writers(entries, knowledge.writers)
    links = tuple(Link(tie.stream_seq, tie.upto_seq, tie.mmr_proof) for tie in shown.ties)
    dating = Dating(
        line,
        shown.profile,
        signed,
        shown.covers or (),
        links,
        knowledge.witnesses - {key.hub_pk for identity in records for key in identity.hub_keys},
        knowledge.existed,
        knowledge.anchored,
    )
    found = (
        *_two_stories(heads),
        *_bad_growth(shown, heads, dating),
        *_repeats(shown.receipts),
        *_bad_times(shown.receipts),
        *_disorder(entries),
        *_beyond_handover(dating),
    )
    verdicts = [(conflict, conflict.verdict(dating)) for conflict in found]
    proven = [conflict.text for conflict, verdict in verdicts if verdict is None]
    histories = _two_key_histories(shown.identity, shown.rival)
    # Statements that contradict each other convict the hub without any witness.
    asked = None if verdicts or histories else knowledge.policy
    cosigners = _check_policy(shown, asked, records) if asked else ()
    return EvidenceReport(
        shown.identity.hub_id,
        pin is not None,
        shown.claim,
        shown.receipts,
        shown.checkpoints,
        shown.ties,
        entries,
        tuple(dict.fromkeys([*histories, *proven])),
        _lost(shown, line),
        tuple(dict.fromkeys(verdict for _, verdict in verdicts if verdict is not None)),
        tuple(dict.fromkeys(conflict.text for conflict, verdict in verdicts if verdict is not None)),
        tuple((head, dating.coverage(head)) for head in signed),
        bool(readers),
        bool(knowledge.writers),
        cosigners,
    )


def _check_policy(shown: Evidence, policy: WitnessPolicy, records: Iterable[HubIdentity]) -> tuple[str, ...]:
    """Raise `Unverified` unless the witnesses cosigned a log with each entry. Returns those that cosigned all of them;
    without entries, those that cosigned each log that enough witnesses cosigned.
    """
    accepted: dict[tuple[bytes, int, bytes], set[str]] = defaultdict(set)
    for one in shown.checkpoints:
        accepted[one.label_curr, one.upto_seq, one.mmr_root].update(policy.signers(one, *records))
    enough = {place: names for place, names in accepted.items() if len(names) >= policy.threshold}
    ties = {(tie.label, tie.stream_seq, tie.upto_seq) for tie in shown.ties}
    if not enough and shown.checkpoints:
        policy.check(
            max(shown.checkpoints, key=lambda one: len(accepted[one.label_curr, one.upto_seq, one.mmr_root])),
            *records,
        )
    signers = [] if shown.receipts else list(enough.values())
    for receipt in shown.receipts:
        found = [
            names
            for (label, upto_seq, root), names in enough.items()
            if label == receipt.label
            and (
                (label, receipt.stream_seq, upto_seq) in ties
                or (upto_seq, root) == (receipt.stream_seq, receipt.mmr_root)
            )
        ]
        if not found:
            raise Unverified("evidence", f"no cosigned checkpoint covers entry {receipt.stream_seq}")
        signers.append(set().union(*found))
    common = set.intersection(*signers) if signers else set()
    return tuple(name for name in policy.witnesses if name in common)


def _lost(shown: Evidence, line: Lineage) -> tuple[Receipt, ...]:
    """The receipts of replaced keys for entries lost in a recovery. Raises `Unverified` if its statement is invalid."""
    if shown.recovery is None:
        return ()
    found, statement = [], shown.recovery.statement
    rival = shown.rival.identity if shown.rival else None
    later = rival if rival and rival.begins_after(shown.identity) else None  # the next incarnation of the hub
    for receipt in shown.receipts:
        size = shown.recovery.size_of(receipt.label, later or shown.identity)
        key = line.verify_head(receipt, shown.profile)
        if receipt.stream_seq > size and (
            statement.is_incarnation(later) if later else statement.replaces(shown.identity, key)
        ):
            found.append(receipt)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ConflictReport:
    """Statements that conflict. `retired` is the verdict if a thief of a retired key may have signed one of them."""

    text: str
    statements: tuple[Head, ...]
    retired: str | None


def conflicts(dating: Dating) -> list[ConflictReport]:
    """The conflicts that statements show by themselves, without messages or peaks."""
    heads: dict[tuple[bytes, int], list[Head]] = defaultdict(list)
    for head in dating.statements:
        heads[label_of(head), size_of(head)].append(head)
    receipts = tuple(head for head in dating.statements if isinstance(head, Receipt))
    found = (*_two_stories(heads), *_bad_times(receipts), *_beyond_handover(dating))
    return [ConflictReport(one.text, one.statements, one.verdict(dating)) for one in found]


def _newer(shown: HubIdentity, known: HubIdentity | None) -> HubIdentity:
    """The longer of two records of one incarnation. Raises `Unverified` if neither continues the other."""
    if known is None or known.hub_id != shown.hub_id or known.is_other_incarnation(shown):
        return shown
    older, newer = (shown, known) if len(shown.hub_keys) <= len(known.hub_keys) else (known, shown)
    newer.check_follows(older)
    return newer


def _records(line: Lineage, known: HubIdentity | None) -> tuple[HubIdentity, ...]:
    """All records with keys of the hub, which are never witnesses: of its origins too, and of another incarnation."""
    return (*line.identities, known) if known and known.hub_id == line.identities[0].hub_id else line.identities


@dataclass(frozen=True, slots=True)
class _Conflict:
    """Statements that an honest hub does not sign together, and why."""

    text: str
    statements: tuple[Head, ...]
    in_tree: bool = True  # False if only the times of receipts conflict, which no tree contains
    beyond: bool = False  # True if the statement conflicts with the hand-over of its key

    def verdict(self, dating: Dating) -> str | None:
        """None if the conflict convicts the hub, else that its key may be stolen."""
        return dating.verdict(self.statements, in_tree=self.in_tree, beyond=self.beyond)


def shows(
    known: HubRecord, found: Contradiction, knowledge: Knowledge = NOTHING
) -> tuple[Evidence | None, EvidenceReport | None]:
    """The evidence of a contradiction, if anything was signed, and the report on it if it proves anything."""
    made = of_contradiction(known, found)
    if made is None:
        return None, None
    try:
        return made, verify(made.encode(), known.identity.hub_id, knowledge=knowledge)
    except (Malformed, Unverified):
        return made, None


def _check_tie(tie: Tie, heads: dict[tuple[bytes, int], list[Head]]) -> None:
    """Raise unless the proof connects a receipt in this file with a signed root in this file."""
    leaves = [head for head in heads.get((tie.label, tie.stream_seq), []) if isinstance(head, Receipt)]
    roots = heads.get((tie.label, tie.upto_seq), [])
    for leaf in leaves:
        for head in roots:
            try:
                proof.verify_inclusion(tie.mmr_proof, Leaf.of(leaf), head)
            except Unverified:
                continue
            return
    raise Unverified("evidence", f"the proof of entry {tie.stream_seq} does not connect a receipt with a signed root")


def _check_disclosed(exhibits: tuple[Exhibit, ...], readers: Collection[bytes]) -> None:
    """A message has one content; with `readers`, the content that one of these keys opens."""
    disclosed: dict[bytes, tuple[bytes, bytes]] = {}
    for exhibit in exhibits:
        opening, where = exhibit.opening, f"entry {exhibit.stream_seq}"
        if opening is None:
            continue
        secret = opening.reader_pk, opening.shared
        if disclosed.setdefault(exhibit.msg.leaf_hash(), secret) != secret:
            raise Unverified("evidence", f"{where} is disclosed twice, with different secrets")
        if readers and opening.reader_pk not in readers:
            opener = f"{opening.reader_pk.hex()[:16]}…"
            raise Unverified("evidence", f"{where} is opened by {opener}, not by the reader key that was entered")
        if readers and opening.proof is None:
            raise Unverified("evidence", f"{where} has no proof that the reader key that was entered opens it")


def _writers(cards: Iterable[Card]) -> dict[bytes, bytes]:
    """The id_sign of each client_id that a card names and that confirms it. Raises `Unverified` for a wrong card."""
    found: dict[bytes, bytes] = {}
    for card in cards:
        card.verify()
        for client_id in card.client_ids if card.confirmations else ():
            if found.setdefault(client_id, card.id_sign) != card.id_sign:
                raise Unverified("evidence", f"two identities confirm client_id {client_id.hex()[:16]}…")
    return found


def _check_writers(entries: Iterable[ShownEntry], named: Collection[Card]) -> None:
    """Raise unless the named identities wrote all entries."""
    identities = {card.id_sign for card in named}
    for entry in entries if named else ():
        if entry.writer not in identities:
            where = f"entry {entry.receipt.stream_seq}: client_id {entry.client_id.hex()[:16]}…"
            why = "belongs to another identity" if entry.writer else "is on no confirmed card of a named writer"
            raise Unverified("evidence", f"{where} {why}")


def _shown_entry(exhibit: Exhibit, shown: Evidence, writers: Mapping[bytes, bytes]) -> ShownEntry:
    message = exhibit.msg
    if message.profile_id != shown.profile.profile_id():
        raise Unverified("evidence", f"the message at entry {exhibit.stream_seq} has another profile")
    leaf = message.leaf_hash()
    bound = [one for one in shown.receipts if one.stream_seq == exhibit.stream_seq and one.leaf_hash == leaf]
    if not bound:
        raise Unverified("evidence", f"the message at entry {exhibit.stream_seq} has no receipt in this file")
    bound[0].check_binds(message)
    message.verify_signature()
    entry = bound[0], message.client_id, message.client_seq
    writer = writers.get(message.client_id)
    if exhibit.opening is None:
        return ShownEntry(*entry, None, writer=writer)
    opening = exhibit.opening
    return ShownEntry(*entry, opening.open(message), opening.reader_pk, opening.proof is not None, writer)


def _two_key_histories(identity: HubIdentity, rival: KeyHistory | None) -> list[str]:
    """Two signed identity records of the hub, neither of which continues the other."""
    if rival is None:
        return []
    rival.identity.verify(rival.signature, identity.hub_id)
    if rival.identity.is_other_incarnation(identity):
        return []  # a root may begin the hub again, without entries
    for one, other in ((identity, rival.identity), (rival.identity, identity)):
        try:
            one.check_follows(other)
        except Unverified:
            continue
        return []
    return ["the hub's keys signed two identity records, and neither continues the other"]


def _two_stories(heads: dict[tuple[bytes, int], list[Head]]) -> list[_Conflict]:
    found = []
    for (label, size), signed in heads.items():
        where = f"entry {size} of label {label.hex()[:16]}…"
        for one, other in combinations(signed, 2):
            if isinstance(one, Receipt) and isinstance(other, Receipt) and one.leaf_hash != other.leaf_hash:
                found.append(_Conflict(f"two different messages are signed as {where}", (one, other)))
            if one.mmr_root != other.mmr_root:
                text = f"two different roots are signed for the log that ends with {where}"
                found.append(_Conflict(text, (one, other)))
    return found


def _beyond_handover(dating: Dating) -> list[_Conflict]:
    """Statements of a retired key for more entries than its hand-over states."""
    found = []
    for head, cover in product(dating.statements, dating.covers):
        identity, key = dating.key_of(head)
        keys = [one.hub_pk for one in identity.signing_keys]
        until = cover.handover.old_pk
        if until in keys and keys.index(key.hub_pk) <= keys.index(until) and cover.contradicts(identity, head):
            text = f"entry {size_of(head)} of label {label_of(head).hex()[:16]}… is signed"
            text = f"{text}, but the key handed over only {entries_text(cover.proved.row.size)}"
            found.append(_Conflict(text, (head,), beyond=True))
    return found


def _bad_growth(shown: Evidence, heads: dict[tuple[bytes, int], list[Head]], dating: Dating) -> list[_Conflict]:
    """Roots that do not follow from the signed root before them."""
    found = []
    known = {(one.label, one.size): one.peaks for one in shown.peaks}
    follows: dict[tuple[bytes, int], Head] = {}  # the statement of each root with peaks; one that is dated, if any is
    for (label, size), peaks in known.items():
        root = mmr.root_of(peaks) if len(peaks) == size.bit_count() else None
        signed = [head for head in heads.get((label, size), ()) if head.mmr_root == root]
        if not signed:
            raise Unverified("evidence", f"the peaks for {entries_text(size)} do not match a signed root")
        follows[label, size] = next((head for head in signed if dating.is_dated(head)), signed[0])
    for receipt in shown.receipts:
        place = receipt.label, receipt.stream_seq - 1
        if place[1] and place not in known:
            continue
        tree = Mmr(place[1], known.get(place, ()))
        tree.append(receipt.leaf_hash)
        if tree.root() != receipt.mmr_root:
            where = f"entry {receipt.stream_seq} of label {receipt.label.hex()[:16]}…"
            text = f"the root signed for {where} does not follow from the log before it"
            found.append(_Conflict(text, (*([follows[place]] if place in follows else ()), receipt)))
    return found


def _repeats(receipts: tuple[Receipt, ...]) -> list[_Conflict]:
    """One message at two places."""
    return [
        _Conflict(f"one message is signed as entry {one.stream_seq} and as entry {other.stream_seq}", (one, other))
        for one, other in combinations(sorted(receipts, key=lambda receipt: receipt.stream_seq), 2)
        if one.leaf_hash == other.leaf_hash and one.stream_seq != other.stream_seq
    ]


def _bad_times(receipts: tuple[Receipt, ...]) -> list[_Conflict]:
    """Signed times that decrease along a label, or differ for one entry."""
    found: list[_Conflict] = []
    latest: dict[bytes, Receipt] = {}
    for receipt in sorted(receipts, key=lambda receipt: receipt.stream_seq):
        before = latest.setdefault(receipt.label, receipt)
        clash = time_clash(before, receipt)
        if clash:
            text = f"{clash}, of label {receipt.label.hex()[:16]}…"
            found.append(_Conflict(text, (before, receipt), in_tree=False))
        else:
            latest[receipt.label] = receipt
    return found


def _disorder(entries: tuple[ShownEntry, ...]) -> list[_Conflict]:
    """Messages of a client that are not in the order of their client_seq."""
    found = []
    for one, other in combinations(sorted(entries, key=lambda entry: entry.receipt.stream_seq), 2):
        if (one.receipt.label, one.client_id) != (other.receipt.label, other.client_id):
            continue
        first, second = one.receipt.stream_seq, other.receipt.stream_seq
        if first < second and other.client_seq <= one.client_seq:
            text = f"client_seq {other.client_seq} is entry {second}, after {one.client_seq} at entry {first}"
            found.append(_Conflict(text, (one.receipt, other.receipt)))
    return found
