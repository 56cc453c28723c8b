"""Evidence: one file that proves what a hub signed, to anyone, offline.

It contains the hub's identity record, signed statements, and what connects them: proofs, the peaks of a tree, messages
and, if a reader disclosed them, their content. `evidence_verify.verify` checks it; nothing in it is trusted unchecked.
"""

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from veen.client.contradiction import Contradiction
from veen.client.local_files import Disk
from veen.client.local_tree import label_of, size_of
from veen.client.trust import HubRecord
from veen.core import (
    Checkpoint,
    DhKey,
    HubIdentity,
    IdentitySignature,
    Limits,
    MmrProof,
    Msg,
    Opened,
    Place,
    Profile,
    Receipt,
    ciphertext,
    dleq,
)
from veen.core.cbor import Bstr, Constant, ListOf, Nested, Text, Uint, VersionField, Wire, int_map
from veen.core.dleq import SharedProof
from veen.core.hashing import h
from veen.core.hpke import ENC_BYTES
from veen.core.limits import MAX_PAGE_ITEMS, MAX_PEAKS, MAX_TEXT_BYTES
from veen.core.origin import ForkOrigin
from veen.core.proof import Head

KIND = "veen.evidence.v1"
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


@int_map("key history")
class KeyHistory(Wire):
    """Another identity record of the same hub, with its signature."""

    identity: Annotated[HubIdentity, Nested(HubIdentity)]
    signature: Annotated[IdentitySignature, Nested(IdentitySignature)]


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


def make(
    known: HubRecord,
    claim: str,
    statements: Iterable[Head],
    *,
    ties: Iterable[Tie] = (),
    peaks: Iterable[Peaks] = (),
    exhibits: Iterable[Exhibit] = (),
    rival: KeyHistory | None = None,
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
    )


def of_contradiction(known: HubRecord, found: Contradiction, now: int | None = None) -> Evidence | None:
    """The evidence of a contradiction; None if the hub signed nothing that proves it."""
    statements, claim = found.statements, f"{found.lie}: {found.reason}"
    if found.rival is not None:
        return make(known, claim, (), rival=KeyHistory(*found.rival), now=now)
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
    return make(known, claim, statements, peaks=shown, exhibits=exhibits, now=now)


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
