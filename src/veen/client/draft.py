"""A message before it has a place, and the result of sending it."""

from dataclasses import dataclass, field
from pathlib import Path

from veen.client import message_attachments
from veen.client.message_attachments import ATTACHED_SCHEMA, AttachedBody, Attachment
from veen.core import Limits, PayloadHdr, Receipt, naming
from veen.core.admission import BY_DETAIL
from veen.core.aead import TAG_BYTES
from veen.core.hashing import U64_MAX
from veen.core.hpke import ENC_BYTES
from veen.core.limits import MAX_MSG_BYTES
from veen.core.msg import MAX_CIPHERTEXT_BYTES

DEFAULT_SCHEMA = naming.schema_id("veen.bytes.v1")
_LENGTHS_BYTES = 8
# The size of a MSG without its ciphertext, with all numbers at their maximum length.
_AROUND_BYTES = MAX_MSG_BYTES - MAX_CIPHERTEXT_BYTES
_MOST_HEADER = len(PayloadHdr(bytes(32), bytes(32), bytes(32), bytes(32), U64_MAX).encode())


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to send."""

    body: bytes = field(repr=False)
    schema: bytes = DEFAULT_SCHEMA
    parent_id: bytes | None = None
    expires_at: int | None = None
    files: tuple[Path, ...] = ()
    mark: bytes | None = None  # the program's own id for it, stored together with its place: see `Outbox.marks`

    def header(self, auth_ref: bytes | None, att_root: bytes | None = None) -> PayloadHdr:
        """The header to seal. It names the capability that the message is admitted with."""
        schema = ATTACHED_SCHEMA if self.files else self.schema
        return PayloadHdr(schema, self.parent_id, att_root, auth_ref, self.expires_at)

    def payload(self, parts: tuple[Attachment, ...]) -> bytes:
        return AttachedBody(parts, self.schema, self.body).encode() if self.files else self.body

    def check(self, limits: Limits, pad_block: int) -> None:
        """Raise `Refused` for sizes that the hub would reject. Before it has a place, a rejection costs nothing.

        Assumes the maximum length for values that are not known yet.
        """
        around = _MOST_HEADER + ENC_BYTES + _LENGTHS_BYTES + 2 * TAG_BYTES + pad_block + _AROUND_BYTES
        room = min(limits.max_body_bytes - TAG_BYTES, limits.max_msg_bytes - around)
        if not self.files and len(self.body) <= room and limits.max_hdr_bytes >= _MOST_HEADER + TAG_BYTES:
            return  # it fits with any header
        message_attachments.check_files(self.files, limits)
        named = tuple(
            Attachment(bytes(32), limits.max_attachment_bytes, message_attachments.name_of(path)) for path in self.files
        )
        hdr_len = len(self.header(bytes(32), bytes(32)).encode()) + TAG_BYTES
        body_len = len(self.payload(named)) + TAG_BYTES
        sealed = ENC_BYTES + _LENGTHS_BYTES + hdr_len + body_len
        sealed += -sealed % pad_block if pad_block else 0
        for what, size, most in (
            ("header", hdr_len, limits.max_hdr_bytes),
            ("body", body_len, limits.max_body_bytes),
            ("message", sealed + _AROUND_BYTES, limits.max_msg_bytes),
        ):
            if size > most:
                raise BY_DETAIL["SIZE_PREFILTER"].refused(
                    f"the sealed {what} has {size} bytes, above {most}", max_allowed=most
                )


@dataclass(frozen=True, slots=True)
class Sent:
    """A message in the log. Its receipt is verified, the tree contains it, and both are on disk."""

    epoch: int
    receipt: Receipt

    @property
    def msg_id(self) -> bytes:
        return self.receipt.leaf_hash

    @property
    def stream_seq(self) -> int:
        return self.receipt.stream_seq

    @property
    def label(self) -> bytes:
        return self.receipt.label
