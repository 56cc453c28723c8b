"""The memory of pages that wait for their readers: a reader that does not read must not hold more and more of it."""

from collections.abc import Callable
from threading import RLock
from time import perf_counter

from plumbing.http.message import Request
from veen.core import Checkpoint, Malformed, MmrProof, Receipt, Refused, Unavailable, Unverified, proof
from veen.core.cbor.heads import ARRAY, MAP, UINT, write_bstr, write_head, write_text
from veen.core.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
    StreamRequest,
    StreamResponse,
)
from veen.core.limits import MAX_PAGE_BYTES, MAX_PAGE_ITEMS, SERVER_VERSION
from veen.core.proof import Leaf
from veen.core.tooling_messages import ProofAtResponse
from veen.storage.frame import LogEntry
from veen.storage.lookup import Lookup

MOST_BYTES = 1 << 28
# Nobody keeps the others from their pages. Many connections may be one caller's; those of a proxy are nobody's.
CONNECTION_BYTES, CALLER_BYTES = MOST_BYTES // 8, MOST_BYTES // 4
_SMALL_BYTES = 1 << 16
_RETRY_AFTER_S = 1

Owners = tuple[int | bytes, ...]


class PageRoom:
    """Counts the long pages that someone still holds. Safe on any thread."""

    def __init__(self) -> None:
        # A page may be given up while another is counted on the same thread: whenever the collector comes by.
        self._lock = RLock()
        self._held_by: dict[int | bytes, int] = {}  # nobody who holds nothing
        self.held = 0

    def check(self, request: Request | None = None) -> None:
        """Raise where no more pages are made for now. What is being made is not counted yet: one for each thread."""
        if self.held > MOST_BYTES:
            raise Refused("E.UNAVAILABLE", "too many pages wait for their readers", retry_after=_RETRY_AFTER_S)
        if request is not None and self._held_by:
            owners = _owners(request)
            over = [self._held_by.get(owner, 0) > _share(owner) for owner in owners]
            if any(over):
                refused = "too many pages wait to be taken by you: read on, then ask again"
                raise Refused("E.UNAVAILABLE", refused, retry_after=_RETRY_AFTER_S)

    def counted(self, page: bytes, request: Request) -> bytes:
        """The page, counted until the last who holds it lets go."""
        return page if len(page) <= _SMALL_BYTES else _Counted(page, self, _owners(request))

    def add(self, size: int, owners: Owners = ()) -> None:
        with self._lock:
            self.held += size
            for owner in owners:
                left = self._held_by.get(owner, 0) + size
                if left:
                    self._held_by[owner] = left
                else:
                    del self._held_by[owner]


def _owners(request: Request) -> Owners:
    """By number: a page that held its connection would keep both alive."""
    connection = id(request.connection)
    return (connection,) if request.caller is None else (connection, request.caller)


def _share(owner: int | bytes) -> int:
    return CONNECTION_BYTES if isinstance(owner, int) else CALLER_BYTES


class _Counted(bytes):
    """Bytes that are missed when they are gone: sent, or their connection lost."""

    def __new__(cls, page: bytes, room: PageRoom, owners: Owners) -> "_Counted":
        made = super().__new__(cls, page)
        made._room = room
        made._owners = owners
        room.add(len(page), owners)
        return made

    _room: PageRoom
    _owners: Owners

    def __del__(self) -> None:
        self._room.add(-len(self), self._owners)


# What signs a checkpoint: (label, upto_seq, mmr_root, hub_ts of the last entry).
SignCheckpoint = Callable[[bytes, int, bytes, int], Checkpoint]


class ReadApi:
    """Answers about what is in the log."""

    def __init__(
        self,
        lookup: Lookup,
        sign: SignCheckpoint,
        proved: Callable[[float], None],
        spoiled: Callable[[Malformed], None],
    ) -> None:
        """`proved` hears how long each proof took, `spoiled` of nodes that are not those of the log."""
        self._lookup = lookup
        self._sign = sign
        self._proved = proved
        self._spoiled = spoiled

    def receipt(self, request: ReceiptRequest) -> ReceiptResponse:
        return ReceiptResponse(self._receipt(request.label, request.stream_seq), SERVER_VERSION)

    def proof(self, request: ProofRequest) -> ProofResponse:
        """The leaf in the tree that ends with it."""
        return ProofResponse(
            self._prove(request.stream_seq, self._receipt(request.label, request.stream_seq)), SERVER_VERSION
        )

    def proof_at(self, label: bytes, stream_seq: int, upto_seq: int) -> ProofAtResponse:
        """The leaf in a later tree."""
        if stream_seq > upto_seq:
            raise Refused("E.BAD_REQUEST", f"stream_seq {stream_seq} is after upto_seq {upto_seq}")
        self._check(label, stream_seq)
        return ProofAtResponse(self._prove(stream_seq, self._receipt(label, upto_seq)))

    def checkpoint(self, request: CheckpointRequest) -> CheckpointResponse:
        """Made on demand over the root that the receipt there has: the same prefix gives the same checkpoint."""
        label, upto_seq = request.label, request.upto_seq
        last = self._receipt(label, upto_seq)
        made = self._sign(label, upto_seq, last.mmr_root, last.hub_ts)
        if (made.label_curr, made.upto_seq, made.mmr_root) != (label, upto_seq, last.mmr_root):  # it was kept
            raise Malformed("checkpoint", f"that of {label.hex()} at {upto_seq} is not over the root of its receipt")
        return CheckpointResponse(made, SERVER_VERSION)

    def page(self, request: StreamRequest) -> "LogPage":
        """One page of a label. An unknown label is an error; a range beyond its end is an empty page."""
        size = self._lookup.size(request.label)
        if not size:
            raise Refused("E.NOT_FOUND", "nothing is logged under this label", detail={"label": request.label.hex()})
        first = max(1, request.from_seq if request.cursor is None else request.cursor)
        last = size if request.to_seq is None else min(request.to_seq, size)
        most = MAX_PAGE_ITEMS if request.max_items is None else min(request.max_items, MAX_PAGE_ITEMS)
        entries: list[LogEntry] = []
        room = MAX_PAGE_BYTES
        for entry in self._lookup.entries(request.label, first, min(last, first + most - 1)):
            room -= entry.size
            if room < 0 and entries:
                break
            entries.append(entry)
        read = entries[-1].stream_seq if entries else first - 1
        proved = None
        if request.with_mmr_proof and entries:
            proved = self._prove(read, _receipt_of(entries[-1])).encode()
        return LogPage(request, first, entries, read + 1 if read < last else None, proved)

    def _prove(self, stream_seq: int, head: Receipt) -> MmrProof:
        """That an entry is in the tree a receipt speaks of. Checking it takes a hash for every node that was read."""
        start = perf_counter()
        try:
            made = self._lookup.prove(head.label, stream_seq, head.stream_seq)
            proof.verify_inclusion(made, Leaf(head.label, made.leaf_hash, stream_seq), head)
        except (Malformed, Unverified, Unavailable) as error:
            what = f"those of {head.label.hex()} do not lead to the root of receipt {head.stream_seq} ({error})"
            damage = Malformed("nodes", f"{what}; veen fsck DIR --repair makes them again")
            self._spoiled(damage)
            raise damage from None
        self._proved(perf_counter() - start)
        return made

    def _receipt(self, label: bytes, stream_seq: int) -> Receipt:
        entry = self._lookup.entry(label, stream_seq)
        if entry is None:
            raise _nothing(label, stream_seq)
        return _receipt_of(entry)

    def _check(self, label: bytes, stream_seq: int) -> None:
        if not 1 <= stream_seq <= self._lookup.size(label):
            raise _nothing(label, stream_seq)


class LogPage:
    """A page whose entries are encoded already: they go out as they lie on disk."""

    def __init__(
        self,
        request: StreamRequest,
        first: int,
        entries: list[LogEntry],
        next_cursor: int | None,
        proof: bytes | None,
    ) -> None:
        self._request = request
        self._first = first
        self._entries = entries
        self._next = next_cursor
        self._proof = proof

    def encode(self) -> bytes:
        """The stream response, by its table's layout (a test holds it to the table)."""
        receipts = bool(self._request.with_receipts)
        parts = [b"\x01\x01", b"\x02" + write_bstr(self._request.label), b"\x03" + write_head(UINT, self._first)]
        if self._request.to_seq is not None:
            parts.append(b"\x04" + write_head(UINT, self._request.to_seq))
        items = b"".join(item(entry, with_receipt=receipts) for entry in self._entries)
        parts.append(b"\x05" + write_head(ARRAY, len(self._entries)) + items)
        if self._next is not None:
            parts.append(b"\x06" + write_head(UINT, self._next))
        if self._proof is not None:
            parts.append(b"\x07" + self._proof)
        parts.append(b"\x08" + write_text(SERVER_VERSION))
        return write_head(MAP, len(parts)) + b"".join(parts)

    def response(self) -> StreamResponse:
        """The same as an object: for JSON."""
        return StreamResponse.decode(self.encode())


def item(entry: LogEntry, *, with_receipt: bool) -> bytes:
    """One stream item around an entry that is encoded already."""
    head = (b"\xa3" if with_receipt else b"\xa2") + b"\x01" + write_head(UINT, entry.stream_seq)
    return head + b"\x02" + entry.msg + (b"\x03" + entry.receipt if with_receipt else b"")


def _receipt_of(entry: LogEntry) -> Receipt:
    found = Receipt.decode(entry.receipt)
    if (found.label, found.stream_seq) != (entry.label, entry.stream_seq):
        raise Malformed("entry", f"the receipt of {entry.label.hex()} at {entry.stream_seq} is for another place")
    return found


def _nothing(label: bytes, stream_seq: int) -> Refused:
    detail: dict[str, int | str] = {"label": label.hex(), "stream_seq": stream_seq}
    return Refused("E.NOT_FOUND", f"there is no entry {stream_seq} under this label", detail=detail)
