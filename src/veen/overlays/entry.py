"""The input of a fold: one verified entry of a log with its opened payload. Plain values, no I/O."""

from typing import Annotated, NamedTuple, Self

from veen.core import Msg, PayloadHdr, Receipt
from veen.core.cbor import Bstr, Bytes, Nested, Uint, Wire, array
from veen.core.hashing import u64be
from veen.core.limits import MAX_BODY_BYTES

AT_BYTES = 16


class At(NamedTuple):
    """A place in a stream. Labels of a stream are ordered by epoch, so tuple comparison is stream order."""

    epoch: int
    stream_seq: int

    def key(self) -> bytes:
        """Encode as 16 bytes whose byte order is the order of places."""
        return u64be(self.epoch) + u64be(self.stream_seq)

    @classmethod
    def of_key(cls, key: bytes) -> Self:
        return cls(int.from_bytes(key[:8], "big"), int.from_bytes(key[8:AT_BYTES], "big"))


@array("entry")
class FoldEntry(Wire):
    """One entry. `header` and `body` are None if the payload could not be opened.

    If the message has attachments, `header.schema` and `body` are those of the wrapped payload.
    """

    label: Annotated[bytes, Bstr()]
    epoch: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint(least=1)]
    hub_ts: Annotated[int, Uint()]
    client_id: Annotated[bytes, Bstr()]
    auth_ref: Annotated[bytes | None, Bstr(nullable=True)]
    msg_id: Annotated[bytes, Bstr()]
    header: Annotated[PayloadHdr | None, Nested(PayloadHdr, optional=True)] = None
    body: Annotated[bytes | None, Bytes(MAX_BODY_BYTES, optional=True)] = None

    def flaw(self) -> str | None:
        return (
            "header and body must both be present or both be absent"
            if (self.header is None) != (self.body is None)
            else None
        )

    @classmethod
    def of(cls, message: Msg, receipt: Receipt, header: PayloadHdr | None, body: bytes | None, epoch: int = 0) -> Self:
        """Build the entry from a message and its receipt. The caller must have verified both."""
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
        """The id of the original message. A mirrored copy names the original as its `parent_id`."""
        parent = self.header.parent_id if self.header else None
        return self.msg_id if parent is None else parent
