"""Requests and responses of the data plane. Spec §10.4–10.6."""

from dataclasses import dataclass
from typing import ClassVar

from veen.core.cbor import Bool, Bstr, Details, ListOf, Map, Nested, Text, Uint, VersionField, Wire
from veen.core.checkpoint import Checkpoint
from veen.core.errors import Refused
from veen.core.limits import MAX_PAGE_ITEMS, MAX_TEXT_BYTES
from veen.core.msg import Msg
from veen.core.proof import MmrProof
from veen.core.receipt import Receipt

_VER = VersionField()
_SERVER_VERSION = Text("server_version", MAX_TEXT_BYTES, optional=True)


@dataclass(frozen=True, slots=True)
class SubmitRequest(Wire):
    """Submit a message."""

    msg: Msg

    LAYOUT: ClassVar = Map("submit request", {1: _VER, 2: Nested("msg", Msg)})


@dataclass(frozen=True, slots=True)
class SubmitResponse(Wire):
    """The message was accepted; this is its receipt."""

    receipt: Receipt
    server_version: str | None = None

    LAYOUT: ClassVar = Map("submit response", {1: _VER, 2: Nested("receipt", Receipt), 3: _SERVER_VERSION})


@dataclass(frozen=True, slots=True)
class StreamRequest(Wire):
    """Request a range of a label. `cursor`, if present, overrides `from_seq`."""

    label: bytes
    from_seq: int
    to_seq: int | None = None
    max_items: int | None = None
    cursor: int | None = None
    with_receipts: bool | None = None
    with_mmr_proof: bool | None = None

    LAYOUT: ClassVar = Map(
        "stream request",
        {
            1: _VER,
            2: Bstr("label"),
            3: Uint("from_seq"),
            4: Uint("to_seq", optional=True),
            5: Uint("max_items", optional=True),
            6: Uint("cursor", optional=True),
            7: Bool("with_receipts", optional=True),
            8: Bool("with_mmr_proof", optional=True),
        },
    )


@dataclass(frozen=True, slots=True)
class StreamItem(Wire):
    """One entry of a page."""

    stream_seq: int
    msg: Msg
    receipt: Receipt | None = None

    LAYOUT: ClassVar = Map(
        "item", {1: Uint("stream_seq"), 2: Nested("msg", Msg), 3: Nested("receipt", Receipt, optional=True)}
    )


@dataclass(frozen=True, slots=True)
class StreamResponse(Wire):
    """One page, and the start of the next. `mmr_proof` proves the last item."""

    label: bytes
    from_seq: int
    to_seq: int | None
    items: tuple[StreamItem, ...]
    next_cursor: int | None = None
    mmr_proof: MmrProof | None = None
    server_version: str | None = None

    LAYOUT: ClassVar = Map(
        "stream response",
        {
            1: _VER,
            2: Bstr("label"),
            3: Uint("from_seq"),
            4: Uint("to_seq", optional=True),
            5: ListOf("items", Nested("item", StreamItem), most=MAX_PAGE_ITEMS),
            6: Uint("next_cursor", optional=True),
            7: Nested("mmr_proof", MmrProof, optional=True),
            8: _SERVER_VERSION,
        },
    )


@dataclass(frozen=True, slots=True)
class ReceiptRequest(Wire):
    """Request the receipt of one place."""

    label: bytes
    stream_seq: int

    LAYOUT: ClassVar = Map("receipt request", {1: _VER, 2: Bstr("label"), 3: Uint("stream_seq")})


@dataclass(frozen=True, slots=True)
class ReceiptResponse(Wire):
    """The requested receipt."""

    receipt: Receipt
    server_version: str | None = None

    LAYOUT: ClassVar = Map("receipt response", {1: _VER, 2: Nested("receipt", Receipt), 3: _SERVER_VERSION})


@dataclass(frozen=True, slots=True)
class ProofRequest(Wire):
    """Request the inclusion proof of a leaf in the tree that ends with it."""

    label: bytes
    stream_seq: int

    LAYOUT: ClassVar = Map("proof request", {1: _VER, 2: Bstr("label"), 3: Uint("stream_seq")})


@dataclass(frozen=True, slots=True)
class ProofResponse(Wire):
    """The requested proof."""

    mmr_proof: MmrProof
    server_version: str | None = None

    LAYOUT: ClassVar = Map("proof response", {1: _VER, 2: Nested("mmr_proof", MmrProof), 3: _SERVER_VERSION})


@dataclass(frozen=True, slots=True)
class CheckpointRequest(Wire):
    """Request the checkpoint of a prefix."""

    label: bytes
    upto_seq: int

    LAYOUT: ClassVar = Map("checkpoint request", {1: _VER, 2: Bstr("label"), 3: Uint("upto_seq")})


@dataclass(frozen=True, slots=True)
class CheckpointResponse(Wire):
    """The requested checkpoint."""

    checkpoint: Checkpoint
    server_version: str | None = None

    LAYOUT: ClassVar = Map("checkpoint response", {1: _VER, 2: Nested("checkpoint", Checkpoint), 3: _SERVER_VERSION})


@dataclass(frozen=True, slots=True)
class ErrorEnvelope(Wire):
    """Why a request was rejected."""

    code: str
    message: str
    detail: dict[str, int | str] | None = None
    retry_after: int | None = None
    request_id: str | None = None

    LAYOUT: ClassVar = Map(
        "error",
        {
            1: _VER,
            2: Text("code", MAX_TEXT_BYTES),
            3: Text("message", MAX_TEXT_BYTES),
            4: Details("detail", optional=True),
            5: Uint("retry_after", optional=True),
            6: Text("request_id", MAX_TEXT_BYTES, optional=True),
        },
    )

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
