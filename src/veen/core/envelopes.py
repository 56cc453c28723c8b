"""Requests and responses of the data plane. Spec §10.4–10.6."""

from dataclasses import replace
from typing import Annotated

from veen.core.admin import RevocationKind
from veen.core.cbor import Bool, Bstr, Details, ListOf, Nested, Text, Uint, VersionField, Wire, int_map
from veen.core.cbor.heads import write_text
from veen.core.checkpoint import Checkpoint
from veen.core.errors import Refused
from veen.core.hashing import ht, u64be
from veen.core.limits import MAX_EVIDENCE, MAX_HUB_KEYS, MAX_PAGE_ITEMS, MAX_TEXT_BYTES, SERVER_VERSION
from veen.core.msg import Msg
from veen.core.proof import MmrProof
from veen.core.receipt import Receipt
from veen.core.signing import SIGNATURE_BYTES, DigestSigner

_VER = VersionField()
_SERVER_VERSION = Text(MAX_TEXT_BYTES, name="server_version", optional=True)
# {1: 1, 2: receipt, 3: server_version} around an encoded receipt: the submit response of a hub of this version.
SUBMIT_RESPONSE_HEAD = b"\xa3\x01\x01\x02"
SUBMIT_RESPONSE_TAIL = b"\x03" + write_text(SERVER_VERSION)


@int_map("submit request", _VER)
class SubmitRequest(Wire):
    """Submit a message."""

    msg: Annotated[Msg, Nested(Msg)]


@int_map("submit response", _VER)
class SubmitResponse(Wire):
    """The message was accepted; this is its receipt."""

    receipt: Annotated[Receipt, Nested(Receipt)]
    server_version: Annotated[str | None, _SERVER_VERSION] = None


@int_map("stream request", _VER)
class StreamRequest(Wire):
    """Request a range of a label. `cursor`, if present, overrides `from_seq`."""

    label: Annotated[bytes, Bstr()]
    from_seq: Annotated[int, Uint()]
    to_seq: Annotated[int | None, Uint(optional=True)] = None
    max_items: Annotated[int | None, Uint(optional=True)] = None
    cursor: Annotated[int | None, Uint(optional=True)] = None
    with_receipts: Annotated[bool | None, Bool(optional=True)] = None
    with_mmr_proof: Annotated[bool | None, Bool(optional=True)] = None


@int_map("item")
class StreamItem(Wire):
    """One entry of a page."""

    stream_seq: Annotated[int, Uint()]
    msg: Annotated[Msg, Nested(Msg)]
    receipt: Annotated[Receipt | None, Nested(Receipt, optional=True)] = None


@int_map("stream response", _VER)
class StreamResponse(Wire):
    """One page, and the start of the next. `mmr_proof` proves the last item."""

    label: Annotated[bytes, Bstr()]
    from_seq: Annotated[int, Uint()]
    to_seq: Annotated[int | None, Uint(optional=True)]
    items: Annotated[tuple[StreamItem, ...], ListOf(Nested(StreamItem, name="item"), most=MAX_PAGE_ITEMS)]
    next_cursor: Annotated[int | None, Uint(optional=True)] = None
    mmr_proof: Annotated[MmrProof | None, Nested(MmrProof, optional=True)] = None
    server_version: Annotated[str | None, _SERVER_VERSION] = None


@int_map("receipt request", _VER)
class ReceiptRequest(Wire):
    """Request the receipt of one place."""

    label: Annotated[bytes, Bstr()]
    stream_seq: Annotated[int, Uint()]


@int_map("receipt response", _VER)
class ReceiptResponse(Wire):
    """The requested receipt."""

    receipt: Annotated[Receipt, Nested(Receipt)]
    server_version: Annotated[str | None, _SERVER_VERSION] = None


@int_map("proof request", _VER)
class ProofRequest(Wire):
    """Request the inclusion proof of a leaf in the tree that ends with it."""

    label: Annotated[bytes, Bstr()]
    stream_seq: Annotated[int, Uint()]


@int_map("proof response", _VER)
class ProofResponse(Wire):
    """The requested proof."""

    mmr_proof: Annotated[MmrProof, Nested(MmrProof)]
    server_version: Annotated[str | None, _SERVER_VERSION] = None


@int_map("checkpoint request", _VER)
class CheckpointRequest(Wire):
    """Request the checkpoint of a prefix."""

    label: Annotated[bytes, Bstr()]
    upto_seq: Annotated[int, Uint()]


@int_map("checkpoint response", _VER)
class CheckpointResponse(Wire):
    """The requested checkpoint."""

    checkpoint: Annotated[Checkpoint, Nested(Checkpoint)]
    server_version: Annotated[str | None, _SERVER_VERSION] = None


@int_map("error", _VER)
class ErrorEnvelope(Wire):
    """Why a request was rejected."""

    code: Annotated[str, Text(MAX_TEXT_BYTES)]
    message: Annotated[str, Text(MAX_TEXT_BYTES)]
    detail: Annotated[dict[str, int | str] | None, Details(optional=True)] = None
    retry_after: Annotated[int | None, Uint(optional=True)] = None
    request_id: Annotated[str | None, Text(MAX_TEXT_BYTES, optional=True)] = None

    @classmethod
    def of(cls, error: Refused, request_id: str | None = None) -> "ErrorEnvelope":
        """The envelope for a `Refused` error."""
        detail = dict(error.detail)
        if error.stage is not None:
            detail["stage"] = error.stage
        if error.detail_enum is not None:
            detail["detail_enum"] = error.detail_enum
        return cls(error.code, error.message, detail or None, error.retry_after, request_id)

    def refused(self) -> Refused:
        """The `Refused` error that a client raises for this envelope."""
        detail = dict(self.detail or {})
        stage, detail_enum = detail.pop("stage", None), detail.pop("detail_enum", None)
        return Refused(
            self.code,
            self.message,
            stage=None if stage is None else str(stage),
            detail_enum=None if detail_enum is None else str(detail_enum),
            detail=detail,
            retry_after=self.retry_after,
        )


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


@int_map("checkpoint order", VersionField())
class CheckpointOrder(Wire):
    """Ask a hub to store a checkpoint of all entries of a label, and to have it cosigned by its witnesses.

    The subject of a capability for the stream signs it; a request with the operator's token has no signature.
    """

    label: Annotated[bytes, Bstr()]
    auth_ref: Annotated[bytes | None, Bstr(optional=True)] = None
    made_at: Annotated[int | None, Uint(optional=True)] = None
    sig: Annotated[bytes | None, Bstr(SIGNATURE_BYTES, optional=True)] = None

    @classmethod
    def signed(cls, key: DigestSigner, hub_id: bytes, label: bytes, auth_ref: bytes, made_at: int) -> "CheckpointOrder":
        """The order of a capability's subject."""
        made = cls(label, auth_ref, made_at, bytes(SIGNATURE_BYTES))
        return replace(made, sig=key.sign(made.digest(hub_id)))

    def digest(self, hub_id: bytes) -> bytes:
        assert self.auth_ref is not None
        assert self.made_at is not None
        return ht("veen/checkpoint-order", hub_id + self.label + self.auth_ref + u64be(self.made_at))


@int_map("checkpoint list", VersionField())
class CheckpointList(Wire):
    """The regular checkpoints of a label, ascending."""

    label: Annotated[bytes, Bstr()]
    checkpoints: Annotated[tuple[Checkpoint, ...], ListOf(Nested(Checkpoint, name="checkpoint"), most=MAX_PAGE_ITEMS)]


@int_map("stream epoch")
class StreamEpoch(Wire):
    """An epoch in which a stream has entries, and the newest checkpoint that the hub has stored of it.

    If the epoch is over, this is its last checkpoint, and its `upto_seq` is the number of entries.
    """

    epoch: Annotated[int, Uint()]
    label: Annotated[bytes, Bstr()]
    entries: Annotated[int, Uint(least=1)]
    checkpoint: Annotated[Checkpoint | None, Nested(Checkpoint, optional=True)] = None


@int_map("epoch list", VersionField())
class EpochList(Wire):
    """The epochs in which a stream has entries, ascending. `next_epoch`, if present, continues the list."""

    stream_id: Annotated[bytes, Bstr()]
    epochs: Annotated[tuple[StreamEpoch, ...], ListOf(Nested(StreamEpoch, name="stream epoch"), most=MAX_PAGE_ITEMS)]
    next_epoch: Annotated[int | None, Uint(optional=True)] = None


@int_map("stream list", VersionField())
class StreamList(Wire):
    """Registered streams, ascending. `next_after`, if present, continues the list."""

    stream_ids: Annotated[tuple[bytes, ...], ListOf(Bstr(name="stream_id"), most=MAX_PAGE_ITEMS)]
    next_after: Annotated[bytes | None, Bstr(optional=True)] = None


@int_map("place in time", VersionField())
class TimePlace(Wire):
    """The first entry of a label at `hub_ts` or later; one behind the last entry if there is none.

    The receipts of that place and of the one before it prove it. They are missing where the log has no such entry, and
    where receipts were pruned.
    """

    label: Annotated[bytes, Bstr()]
    hub_ts: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint(least=1)]
    before: Annotated[Receipt | None, Nested(Receipt, optional=True)] = None
    at: Annotated[Receipt | None, Nested(Receipt, optional=True)] = None


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


@int_map("receipt check", VersionField())
class ReceiptCheck(Wire):
    """Whether the hub's log has the entry of a receipt. If not, and it is after `last_seq`, the hub lost it."""

    label: Annotated[bytes, Bstr()]
    stream_seq: Annotated[int, Uint(least=1)]
    last_seq: Annotated[int, Uint()]
    is_known: Annotated[bool, Bool()]


@int_map("witness request", VersionField())
class WitnessRequest(Wire):
    """A witness's signature for a regular checkpoint."""

    label: Annotated[bytes, Bstr()]
    upto_seq: Annotated[int, Uint(least=1)]
    witness_pk: Annotated[bytes, Bstr()]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]


@int_map("revocation request", VersionField())
class RevocationRequest(Wire):
    """The operator revokes a client key or a capability at this hub, for `ttl` seconds or permanently."""

    kind: Annotated[str, Text(MAX_TEXT_BYTES)]
    target: Annotated[bytes, Bstr()]  # client_id, auth_ref, or H(CBOR(cap_token))
    reason: Annotated[str | None, Text(MAX_TEXT_BYTES, optional=True)] = None
    ttl: Annotated[int | None, Uint(least=1, optional=True)] = None

    def flaw(self) -> str | None:
        known = self.kind in RevocationKind.__members__.values()
        return None if known else f"unknown kind of revocation {self.kind!r}"


@int_map("stream registration", VersionField())
class StreamRegistration(Wire):
    """The operator registers a stream, so that the hub accepts its labels."""

    stream_id: Annotated[bytes, Bstr()]


@int_map("rotation request", VersionField())
class RotationRequest(Wire):
    """The operator lets a running hub change to a key whose file is in its keys folder. The answer is a hand-over."""

    hub_pk: Annotated[bytes, Bstr()]
    valid_from: Annotated[int, Uint()]
    overlap_sec: Annotated[int, Uint()]
    endorsement: Annotated[bytes | None, Bstr(SIGNATURE_BYTES, optional=True)] = None  # of the root, if there is one


@int_map("key release", VersionField())
class KeyRelease(Wire):
    """The operator wants to destroy the retired keys of a running hub, which must not need or hold them any more."""

    hub_id: Annotated[bytes, Bstr()]


@int_map("released keys", VersionField())
class ReleasedKeys(Wire):
    """The ids of the retired keys. No process of the hub has them in its memory."""

    key_ids: Annotated[tuple[bytes, ...], ListOf(Bstr(name="key id"), most=MAX_HUB_KEYS)]


@int_map("clock acceptance", VersionField())
class ClockAcceptance(Wire):
    """The operator accepts the wall clock of the hub, which must still show about the time that the operator saw."""

    wall_ts: Annotated[int, Uint()]
