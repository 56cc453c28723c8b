"""Requests and responses of the tooling endpoints, used by clients and hubs. Not part of the data plane."""

from dataclasses import dataclass
from typing import ClassVar

from veen.core.cbor import Bstr, ListOf, Map, Nested, Uint, VersionField, Wire
from veen.core.checkpoint import Checkpoint
from veen.core.limits import MAX_EVIDENCE, MAX_PAGE_ITEMS
from veen.core.proof import MmrProof
from veen.core.receipt import Receipt
from veen.core.signing import SIGNATURE_BYTES


@dataclass(frozen=True, slots=True)
class AuthorizeResponse(Wire):
    """The capability was logged: its `auth_ref`, the end of its validity and the receipt of its log entry."""

    auth_ref: bytes
    expires_at: int
    receipt: Receipt

    LAYOUT: ClassVar = Map(
        "authorize response",
        {1: VersionField(), 2: Bstr("auth_ref"), 3: Uint("expires_at"), 4: Nested("receipt", Receipt)},
    )


@dataclass(frozen=True, slots=True)
class ProofAtRequest(Wire):
    """Request the inclusion proof of a leaf in a later tree."""

    label: bytes
    stream_seq: int
    upto_seq: int

    LAYOUT: ClassVar = Map(
        "proof request",
        {1: VersionField(), 2: Bstr("label"), 3: Uint("stream_seq", least=1), 4: Uint("upto_seq", least=1)},
    )


@dataclass(frozen=True, slots=True)
class ProofAtResponse(Wire):
    """The inclusion proof of a leaf in a later tree. For the last leaf of an older tree it is a consistency proof."""

    mmr_proof: MmrProof

    LAYOUT: ClassVar = Map("proof in a later tree", {1: VersionField(), 2: Nested("mmr_proof", MmrProof)})


@dataclass(frozen=True, slots=True)
class ConsistencyRequest(Wire):
    """Request the proof that one tree is a prefix of another."""

    label: bytes
    from_seq: int
    to_seq: int

    LAYOUT: ClassVar = Map(
        "consistency request",
        {1: VersionField(), 2: Bstr("label"), 3: Uint("from_seq", least=1), 4: Uint("to_seq", least=1)},
    )


@dataclass(frozen=True, slots=True)
class CheckpointList(Wire):
    """The regular checkpoints of a label, ascending."""

    label: bytes
    checkpoints: tuple[Checkpoint, ...]

    LAYOUT: ClassVar = Map(
        "checkpoint list",
        {
            1: VersionField(),
            2: Bstr("label"),
            3: ListOf("checkpoints", Nested("checkpoint", Checkpoint), most=MAX_PAGE_ITEMS),
        },
    )


@dataclass(frozen=True, slots=True)
class Equivocation(Wire):
    """Two contradicting receipts of one hub for one place: the proof that it equivocated."""

    first: Receipt
    second: Receipt

    LAYOUT: ClassVar = Map(
        "equivocation", {1: VersionField(), 2: Nested("first", Receipt), 3: Nested("second", Receipt)}
    )

    def flaw(self) -> str | None:
        one, other = self.first, self.second
        if (one.label, one.stream_seq) != (other.label, other.stream_seq):
            return "the receipts have different places"
        if (one.leaf_hash, one.mmr_root) == (other.leaf_hash, other.mmr_root):
            return "the receipts do not contradict each other"
        return None


@dataclass(frozen=True, slots=True)
class EquivocationList(Wire):
    """The equivocations that were proved against a hub, in no particular order."""

    equivocations: tuple[Equivocation, ...]

    LAYOUT: ClassVar = Map(
        "equivocation list",
        {1: VersionField(), 2: ListOf("equivocations", Nested("equivocation", Equivocation), most=MAX_EVIDENCE)},
    )


@dataclass(frozen=True, slots=True)
class WitnessRequest(Wire):
    """A witness's signature for a regular checkpoint."""

    label: bytes
    upto_seq: int
    witness_pk: bytes
    sig: bytes

    LAYOUT: ClassVar = Map(
        "witness request",
        {
            1: VersionField(),
            2: Bstr("label"),
            3: Uint("upto_seq", least=1),
            4: Bstr("witness_pk"),
            5: Bstr("sig", SIGNATURE_BYTES),
        },
    )


@dataclass(frozen=True, slots=True)
class StreamRegistration(Wire):
    """The operator registers a stream, so that the hub accepts its labels."""

    stream_id: bytes

    LAYOUT: ClassVar = Map("stream registration", {1: VersionField(), 2: Bstr("stream_id")})
