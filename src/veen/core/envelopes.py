"""Requests and responses of the data plane. Spec §10.4–10.6."""

from typing import Annotated

from veen.core.cbor import Bool, Bstr, Details, ListOf, Nested, Text, Uint, VersionField, Wire, int_map
from veen.core.checkpoint import Checkpoint
from veen.core.errors import Refused
from veen.core.limits import MAX_PAGE_ITEMS, MAX_TEXT_BYTES
from veen.core.msg import Msg
from veen.core.proof import MmrProof
from veen.core.receipt import Receipt

_VER = VersionField()
_SERVER_VERSION = Text(MAX_TEXT_BYTES, name="server_version", optional=True)


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
