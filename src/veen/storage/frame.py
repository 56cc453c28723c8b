"""Log entries on disk: a MSG and its RECEIPT behind a fixed header. Spec §4.8.1."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from mmap import mmap
from typing import TypeAlias

from veen.core import Malformed, Msg, Receipt, limits
from veen.core.cbor import DeferredFaults

Data: TypeAlias = bytes | mmap

ENTRY_VERSION = 1
# entry_ver, flags, label, stream_seq, msg_len, receipt_len, entry_hash
_HEADER = struct.Struct(">BB32sQII32s")
HEADER_BYTES = _HEADER.size
MAX_RECEIPT_BYTES = 192  # largest RECEIPT: both integers take nine bytes


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One framed entry: the committed bytes and their place."""

    label: bytes
    stream_seq: int
    msg: bytes
    receipt: bytes
    entry_hash: bytes

    @property
    def size(self) -> int:
        return HEADER_BYTES + len(self.msg) + len(self.receipt)

    def open(self) -> tuple[Msg, Receipt]:
        """Decode message and receipt. Raises unless they belong together and to this place."""
        message, receipt = Msg.decode(self.msg), Receipt.decode(self.receipt)
        if receipt.label != self.label or receipt.stream_seq != self.stream_seq:
            raise Malformed("entry", "the receipt is for another place than the header")
        receipt.check_binds(message)
        return message, receipt


def entry_hash(msg: bytes, receipt: bytes) -> bytes:
    return sha256(b"veen/entry" + msg + receipt).digest()


def write(label: bytes, stream_seq: int, msg: bytes, receipt: bytes) -> tuple[bytes, bytes]:
    """The framed entry and its entry_hash."""
    body = msg + receipt
    digest = sha256(b"veen/entry" + body).digest()
    return _HEADER.pack(ENTRY_VERSION, 0, label, stream_seq, len(msg), len(receipt), digest) + body, digest


def read(data: Data, pos: int = 0) -> tuple[LogEntry, int]:
    """The entry at `pos` and the offset of the next. Checks all that needs no key: version, flags, lengths, hash."""
    entry, end = read_unhashed(data, pos)
    if entry_hash(entry.msg, entry.receipt) != entry.entry_hash:
        raise Malformed("entry", f"the bytes do not match the entry hash, at byte {pos}")
    return entry, end


def read_unhashed(data: Data, pos: int = 0) -> tuple[LogEntry, int]:
    """As `read`, without the hash check: for callers that report a damaged entry and continue behind it."""
    if len(data) - pos < HEADER_BYTES:
        raise Malformed("entry", f"ends within its header at byte {pos}")
    version, flags, label, stream_seq, msg_len, receipt_len, digest = _HEADER.unpack_from(data, pos)
    if version != ENTRY_VERSION or flags:
        raise Malformed("entry", f"version {version}, flags {flags} at byte {pos}")
    start = pos + HEADER_BYTES
    end = start + msg_len + receipt_len
    if msg_len > limits.MAX_MSG_BYTES or receipt_len > MAX_RECEIPT_BYTES or end > len(data):
        raise Malformed(
            "entry", f"declares {msg_len} and {receipt_len} bytes at byte {pos}, but {len(data) - start} are left"
        )
    msg, receipt = data[start : start + msg_len], data[start + msg_len : end]
    return LogEntry(label, stream_seq, msg, receipt, digest), end


def read_by_content(data: Data, pos: int = 0) -> tuple[LogEntry, int]:
    """The entry at `pos`, whatever lengths its header declares: MSG and RECEIPT delimit themselves.

    For continuing behind a damaged header. Raises `Malformed` unless the hash in the header matches.
    """
    if len(data) - pos < HEADER_BYTES:
        raise Malformed("entry", f"ends within its header at byte {pos}")
    _, _, label, stream_seq, _, _, digest = _HEADER.unpack_from(data, pos)
    start = pos + HEADER_BYTES
    body = data[start : start + limits.MAX_MSG_BYTES + MAX_RECEIPT_BYTES]
    _, middle = Msg.read(body, 0, DeferredFaults())
    _, end = Receipt.read(body, middle, DeferredFaults())
    msg, receipt = body[:middle], body[middle:end]
    if entry_hash(msg, receipt) != digest:
        raise Malformed("entry", f"the bytes do not match the entry hash, at byte {pos}")
    return LogEntry(label, stream_seq, msg, receipt, digest), start + end


def length_at(data: Data, pos: int) -> int:
    """The length of the entry at `pos`, from its header alone."""
    if len(data) - pos < HEADER_BYTES:
        raise Malformed("entry", f"ends within its header at byte {pos}")
    _, _, _, _, msg_len, receipt_len, _ = _HEADER.unpack_from(data, pos)
    return HEADER_BYTES + int(msg_len) + int(receipt_len)


def read_all(data: Data) -> Iterator[LogEntry]:
    """Every entry of a chunk's bytes."""
    pos = 0
    while pos < len(data):
        entry, pos = read(data, pos)
        yield entry
