"""One entry of a stream as a reader gets it: verified first, opened afterwards."""

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

# What a hub takes may be lowered; what it took before must stay readable.
READABLE = Limits(max_attachment_bytes=MAX_ATTACHMENT_BYTES)


@dataclass(frozen=True, slots=True)
class Entry:
    """What is at one place of a log. The hub answers for all of it but `fault`, which is its writer's.

    Where there is no reader key, or the payload does not open, `header` and `body` are None and `fault` says why: one
    bad message must not stop those who read past it.
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
    opened: Opened | None = field(default=None, repr=False)  # what attachments are opened with

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
        """An entry that has been verified, with what it says."""
        seq = receipt.stream_seq
        if self._key is None:
            return Entry(epoch, seq, message, receipt, fault="there is no reader key for this stream here", proof=proof)
        try:
            opened = ciphertext.open_sealed(self._key, Place.of(message), message.ciphertext, READABLE)
            schema, body, attachments = message_attachments.unwrap(opened, READABLE)
        except (Malformed, Unverified) as error:
            return Entry(epoch, seq, message, receipt, fault=str(error), proof=proof)
        return Entry(epoch, seq, message, receipt, schema, opened.header, body, attachments, None, proof, opened)
