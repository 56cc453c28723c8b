"""Requests and responses of the tooling endpoints, used by clients and hubs. Not part of the data plane."""

from typing import Annotated

from veen.core.cbor import Bstr, ListOf, Nested, Uint, VersionField, Wire, int_map
from veen.core.checkpoint import Checkpoint
from veen.core.limits import MAX_EVIDENCE, MAX_PAGE_ITEMS
from veen.core.proof import MmrProof
from veen.core.receipt import Receipt
from veen.core.signing import SIGNATURE_BYTES


@int_map("authorize response", VersionField())
class AuthorizeResponse(Wire):
    """The capability was logged: its `auth_ref`, the end of its validity and the receipt of its log entry."""

    auth_ref: Annotated[bytes, Bstr()]
    expires_at: Annotated[int, Uint()]
    receipt: Annotated[Receipt, Nested(Receipt)]


@int_map("proof request", VersionField())
class ProofAtRequest(Wire):
    """Request the inclusion proof of a leaf in a later tree."""

    label: Annotated[bytes, Bstr()]
    stream_seq: Annotated[int, Uint(least=1)]
    upto_seq: Annotated[int, Uint(least=1)]


@int_map("proof in a later tree", VersionField())
class ProofAtResponse(Wire):
    """The inclusion proof of a leaf in a later tree. For the last leaf of an older tree it is a consistency proof."""

    mmr_proof: Annotated[MmrProof, Nested(MmrProof)]


@int_map("consistency request", VersionField())
class ConsistencyRequest(Wire):
    """Request the proof that one tree is a prefix of another."""

    label: Annotated[bytes, Bstr()]
    from_seq: Annotated[int, Uint(least=1)]
    to_seq: Annotated[int, Uint(least=1)]


@int_map("checkpoint list", VersionField())
class CheckpointList(Wire):
    """The regular checkpoints of a label, ascending."""

    label: Annotated[bytes, Bstr()]
    checkpoints: Annotated[tuple[Checkpoint, ...], ListOf(Nested(Checkpoint, name="checkpoint"), most=MAX_PAGE_ITEMS)]


@int_map("equivocation", VersionField())
class Equivocation(Wire):
    """Two contradicting receipts of one hub for one place: the proof that it equivocated."""

    first: Annotated[Receipt, Nested(Receipt)]
    second: Annotated[Receipt, Nested(Receipt)]

    def flaw(self) -> str | None:
        one, other = self.first, self.second
        if (one.label, one.stream_seq) != (other.label, other.stream_seq):
            return "the receipts have different places"
        if (one.leaf_hash, one.mmr_root) == (other.leaf_hash, other.mmr_root):
            return "the receipts do not contradict each other"
        return None


@int_map("equivocation list", VersionField())
class EquivocationList(Wire):
    """The equivocations that were proved against a hub, in no particular order."""

    equivocations: Annotated[
        tuple[Equivocation, ...], ListOf(Nested(Equivocation, name="equivocation"), most=MAX_EVIDENCE)
    ]


@int_map("witness request", VersionField())
class WitnessRequest(Wire):
    """A witness's signature for a regular checkpoint."""

    label: Annotated[bytes, Bstr()]
    upto_seq: Annotated[int, Uint(least=1)]
    witness_pk: Annotated[bytes, Bstr()]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]


@int_map("stream registration", VersionField())
class StreamRegistration(Wire):
    """The operator registers a stream, so that the hub accepts its labels."""

    stream_id: Annotated[bytes, Bstr()]
