"""One entry of a stream for a reader: verified first, then opened."""

from dataclasses import dataclass, field

from veen.client import message_attachments
from veen.client.message_attachments import Attachment
from veen.core import (
    DhKey,
    Limits,
    Malformed,
    MmrProof,
    Msg,
    Opened,
    PayloadHdr,
    Place,
    Receipt,
    Unverified,
    ciphertext,
)
from veen.core.limits import MAX_ATTACHMENT_BYTES

# A hub may lower its limits; entries that it admitted before must stay readable.
READABLE = Limits(max_attachment_bytes=MAX_ATTACHMENT_BYTES)


@dataclass(frozen=True, slots=True)
class Entry:
    """The entry at one place of a log. The hub is responsible for all of it except `fault`, which its writer caused.

    Without a reader key, or if the payload does not open, `header` and `body` are None and `fault` is the reason. One
    bad message must not stop readers.
    """

    epoch: int
    stream_seq: int
    msg: Msg = field(repr=False)
    receipt: Receipt = field(repr=False)
    schema: bytes | None = None
    header: PayloadHdr | None = None
    body: bytes | None = None
    attachments: tuple[Attachment, ...] = ()
    fault: str | None = None
    proof: MmrProof | None = field(default=None, repr=False)
    opened: Opened | None = field(default=None, repr=False)  # needed to open attachments

    @property
    def msg_id(self) -> bytes:
        return self.receipt.leaf_hash

    @property
    def hub_ts(self) -> int:
        return self.receipt.hub_ts

    @property
    def client_id(self) -> bytes:
        return self.msg.client_id


class Opener:
    """Opens the entries of one stream."""

    def __init__(self, key: DhKey | None) -> None:
        self._key = key

    def entry(self, epoch: int, message: Msg, receipt: Receipt, proof: MmrProof | None = None) -> Entry:
        """Open a verified entry."""
        seq = receipt.stream_seq
        if self._key is None:
            return Entry(epoch, seq, message, receipt, fault="no reader key for this stream", proof=proof)
        try:
            opened = ciphertext.open_sealed(self._key, Place.of(message), message.ciphertext, READABLE)
            schema, body, attachments = message_attachments.unwrap(opened, READABLE)
        except (Malformed, Unverified) as error:
            return Entry(epoch, seq, message, receipt, fault=str(error), proof=proof)
        return Entry(epoch, seq, message, receipt, schema, opened.header, body, attachments, None, proof, opened)
