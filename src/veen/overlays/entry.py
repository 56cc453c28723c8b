"""What an overlay folds: one entry of a log, already verified, with its payload opened. Plain values, no I/O."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

from veen.core import Msg, PayloadHdr, Receipt
from veen.core.cbor import Array, Bstr, Bytes, Nested, Uint, Wire
from veen.core.hashing import u64be
from veen.core.limits import MAX_BODY_BYTES

AT_BYTES = 16


class At(NamedTuple):
    """A place in a stream. The labels of a stream follow each other by epoch, so places compare as they are."""

    epoch: int
    stream_seq: int

    def key(self) -> bytes:
        """16 bytes that sort as places do."""
        return u64be(self.epoch) + u64be(self.stream_seq)

    @classmethod
    def of_key(cls, key: bytes) -> Self:
        return cls(int.from_bytes(key[:8], "big"), int.from_bytes(key[8:AT_BYTES], "big"))


@dataclass(frozen=True, slots=True)
class FoldEntry(Wire):
    """One entry. `header` and `body` are None where the payload could not be opened.

    Where a body came with attachments, `header.schema` and `body` are those of what they were attached to.
    """

    label: bytes
    epoch: int
    stream_seq: int
    hub_ts: int
    client_id: bytes
    auth_ref: bytes | None
    msg_id: bytes
    header: PayloadHdr | None = None
    body: bytes | None = None

    LAYOUT: ClassVar = Array(
        "entry",
        Bstr("label"),
        Uint("epoch"),
        Uint("stream_seq", least=1),
        Uint("hub_ts"),
        Bstr("client_id"),
        Bstr("auth_ref", nullable=True),
        Bstr("msg_id"),
        Nested("header", PayloadHdr, optional=True),
        Bytes("body", MAX_BODY_BYTES, optional=True),
    )

    def flaw(self) -> str | None:
        return "a header and a body come together" if (self.header is None) != (self.body is None) else None

    @classmethod
    def of(cls, message: Msg, receipt: Receipt, header: PayloadHdr | None, body: bytes | None, epoch: int = 0) -> Self:
        """The entry of a message and its receipt, which the caller has verified."""
        return cls(
            receipt.label,
            epoch,
            receipt.stream_seq,
            receipt.hub_ts,
            message.client_id,
            message.auth_ref,
            receipt.leaf_hash,
            header,
            body,
        )

    @property
    def at(self) -> At:
        return At(self.epoch, self.stream_seq)

    @property
    def origin(self) -> bytes:
        """The message this one is, wherever it was written first: a mirrored copy names it as its `parent_id`."""
        parent = self.header.parent_id if self.header else None
        return self.msg_id if parent is None else parent
