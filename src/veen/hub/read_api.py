"""Reads of the log: pages, receipts, proofs, checkpoints and subscriptions, with a memory limit for unsent pages."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from threading import Lock, RLock
from time import perf_counter

from plumbing.http.message import Request
from veen.core import Checkpoint, Malformed, MmrProof, Receipt, Refused, Unavailable, Unverified, proof
from veen.core.cbor.heads import ARRAY, MAP, UINT, write_bstr, write_head, write_text
from veen.core.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ProofAtResponse,
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
    StreamRequest,
    StreamResponse,
)
from veen.core.limits import CLOSE_PRUNED, MAX_PAGE_BYTES, MAX_PAGE_ITEMS, SERVER_VERSION
from veen.core.proof import Leaf
from veen.core.retention import PRUNED, Tombstone
from veen.hub.read_executor import BoundedQueue, QueuedJob
from veen.storage.frame import AcceptedEntry, LogEntry
from veen.storage.pruned_chunk import Pruned
from veen.storage.store import Lookup

MAX_PAGE_MEMORY_BYTES = 1 << 28
# Shares of one connection and of one caller. Connections through a proxy have no caller.
CONNECTION_BYTES, CALLER_BYTES = MAX_PAGE_MEMORY_BYTES // 8, MAX_PAGE_MEMORY_BYTES // 4
_SMALL_BYTES = 1 << 16
_RETRY_AFTER_S = 1
MAX_CACHED_PATHS = 1024  # a proof has at most 4 KiB

Owners = tuple[int | bytes, ...]


class PageMemoryBudget:
    """Counts the bytes of large pages that are still in memory. Thread-safe."""

    def __init__(self) -> None:
        # Reentrant: the garbage collector may free a page while another is being counted on the same thread.
        self._lock = RLock()
        self._held_by: dict[int | bytes, int] = {}  # without owners that hold nothing
        self.held = 0

    def check(self, request: Request | None = None) -> None:
        """Raise if no more pages may be built now. Pages being built are not counted: at most one per thread."""
        if self.held > MAX_PAGE_MEMORY_BYTES:
            raise Refused(
                "E.UNAVAILABLE", "too many pages are waiting to be read by clients", retry_after=_RETRY_AFTER_S
            )
        if request is not None and self._held_by:
            owners = _owners(request)
            over = [self._held_by.get(owner, 0) > _share(owner) for owner in owners]
            if any(over):
                refused = "too many of your pages are waiting: read them, then ask again"
                raise Refused("E.UNAVAILABLE", refused, retry_after=_RETRY_AFTER_S)

    def counted(self, page: bytes, request: Request) -> bytes:
        """The page, counted until the last reference to it is gone."""
        return page if len(page) <= _SMALL_BYTES else _CountedPage(page, self, _owners(request))

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
    """The connection by id: a reference would keep connection and page alive."""
    connection = id(request.connection)
    return (connection,) if request.caller is None else (connection, request.caller)


def _share(owner: int | bytes) -> int:
    return CONNECTION_BYTES if isinstance(owner, int) else CALLER_BYTES


class _CountedPage(bytes):
    """A page that is uncounted when it is freed: after it was sent, or its connection was lost."""

    def __new__(cls, page: bytes, room: PageMemoryBudget, owners: Owners) -> "_CountedPage":
        made = super().__new__(cls, page)
        made._budget = room
        made._owners = owners
        room.add(len(page), owners)
        return made

    _budget: PageMemoryBudget
    _owners: Owners

    def __del__(self) -> None:
        self._budget.add(-len(self), self._owners)


# Signs a checkpoint: (label, upto_seq, mmr_root, hub_ts of the last entry).
SignCheckpoint = Callable[[bytes, int, bytes, int], Checkpoint]


@dataclass(eq=False)
class ReadApi:
    """Answers queries about the log.

    `proved` is called with the duration of each proof, `nodes_damaged` when tree nodes do not match the log.
    """

    _lookup: Lookup
    _sign: SignCheckpoint
    _proved: Callable[[float], None]
    _nodes_damaged: Callable[[Malformed], None]
    _tombstone: Callable[[bytes, int], Tombstone]
    _paths: "InclusionPaths" = field(default_factory=lambda: InclusionPaths())

    def receipt(self, request: ReceiptRequest) -> ReceiptResponse:
        return ReceiptResponse(self._receipt(request.label, request.stream_seq), SERVER_VERSION)

    def proof(self, request: ProofRequest) -> ProofResponse:
        """The proof of a leaf in the tree that ends with it."""
        return ProofResponse(
            self._prove(request.stream_seq, self._head(request.label, request.stream_seq)), SERVER_VERSION
        )

    def proof_at(self, label: bytes, stream_seq: int, upto_seq: int) -> ProofAtResponse:
        """The proof of a leaf in a later tree."""
        if stream_seq > upto_seq:
            raise Refused("E.BAD_REQUEST", f"stream_seq {stream_seq} is after upto_seq {upto_seq}")
        self._check(label, stream_seq)
        return ProofAtResponse(self._prove(stream_seq, self._head(label, upto_seq)))

    def checkpoint(self, request: CheckpointRequest) -> CheckpointResponse:
        """Sign the root in the receipt at `upto_seq` with the current key, or return a stored checkpoint."""
        label, upto_seq = request.label, request.upto_seq
        last = self._head(label, upto_seq)
        made = self._sign(label, upto_seq, last.mmr_root, last.hub_ts)
        if (made.label_curr, made.upto_seq, made.mmr_root) != (
            label,
            upto_seq,
            last.mmr_root,
        ):  # a stored checkpoint of an origin
            raise Malformed(
                "checkpoint", f"the checkpoint of {label.hex()} at {upto_seq} does not match the root in the receipt"
            )
        return CheckpointResponse(made, SERVER_VERSION)

    def newest_checkpoint(self, label: bytes) -> CheckpointResponse:
        """The checkpoint of all entries of a label."""
        size = self._lookup.size(label)
        if not size:
            raise _no_entry(label, 1)
        return self.checkpoint(CheckpointRequest(label, size))

    def plain_checkpoint(self, label: bytes) -> Checkpoint:
        """The same without cosignatures."""
        return replace(self.newest_checkpoint(label).checkpoint, witness_sigs=None)

    def page(self, request: StreamRequest) -> "LogPage":
        """One page of a label. An unknown label is an error; a range behind its end is an empty page."""
        size = self._lookup.size(request.label)
        if not size:
            raise Refused("E.NOT_FOUND", "this label has no entries", detail={"label": request.label.hex()})
        first = max(1, request.from_seq if request.cursor is None else request.cursor)
        last = size if request.to_seq is None else min(request.to_seq, size)
        max_items = MAX_PAGE_ITEMS if request.max_items is None else min(request.max_items, MAX_PAGE_ITEMS)
        entries: list[LogEntry] = []
        room = MAX_PAGE_BYTES
        try:
            for entry in self._lookup.entries(request.label, first, min(last, first + max_items - 1)):
                room -= entry.size
                if room < 0 and entries:
                    break
                entries.append(entry)
        except Pruned as pruned:
            if not entries:  # else the next page says so
                raise self._pruned(pruned.label, first) from None
        read = entries[-1].stream_seq if entries else first - 1
        proved = None
        if request.with_mmr_proof and entries:
            proved = self._prove(read, _receipt_of(entries[-1])).encode()
        return LogPage(request, first, entries, read + 1 if read < last else None, proved)

    def _prove(self, stream_seq: int, head: Receipt) -> MmrProof:
        """The proof that an entry is in the tree of a receipt. It is verified, so damaged nodes are never sent."""
        start = perf_counter()
        known = self._paths.get(head, stream_seq)
        if known is not None:
            self._proved(perf_counter() - start)
            return known
        try:
            made = self._lookup.prove(head.label, stream_seq, head.stream_seq)
            proof.verify_inclusion(made, Leaf(head.label, made.leaf_hash, stream_seq), head)
        except (Malformed, Unverified, Unavailable) as error:
            what = f"the nodes of {head.label.hex()} do not lead to the root in receipt {head.stream_seq} ({error})"
            damage = Malformed("nodes", f"{what}; run `veen fsck DIR --repair` to rebuild them")
            self._nodes_damaged(damage)
            raise damage from None
        self._paths.put(head, stream_seq, made)
        self._proved(perf_counter() - start)
        return made

    def _receipt(self, label: bytes, stream_seq: int) -> Receipt:
        found = self._head(label, stream_seq)
        if not any(found.hub_sig):
            raise self._pruned(label, stream_seq)
        return found

    def _head(self, label: bytes, stream_seq: int) -> Receipt:
        """The receipt, or what is left of it: leaf, root and hub_ts stay when receipts are pruned."""
        _, found = self._lookup.headers(label, stream_seq)
        if found is None:
            raise _no_entry(label, stream_seq)
        if (found.label, found.stream_seq) != (label, stream_seq):
            raise Malformed("entry", f"the receipt of {label.hex()} at {stream_seq} is for another place")
        return found

    def _pruned(self, label: bytes, stream_seq: int) -> Refused:
        """The answer about a pruned entry, with the signed statement that it was pruned."""
        tombstone = self._tombstone(label, stream_seq)
        segment = tombstone.segment
        detail: dict[str, int | str] = {
            "label": label.hex(),
            "stream_seq": stream_seq,
            "from_seq": segment.start_seq,
            "to_seq": segment.end_seq,
            "tombstone": tombstone.encode().hex(),
        }
        text = f"entries {segment.start_seq} to {segment.end_seq} of this label were pruned"
        return Refused("E.NOT_FOUND", text, detail_enum=PRUNED, detail=detail)

    def _check(self, label: bytes, stream_seq: int) -> None:
        if not 1 <= stream_seq <= self._lookup.size(label):
            raise _no_entry(label, stream_seq)


class InclusionPaths:
    """The proofs that were requested last, by label, entry and size. Thread-safe. Spec §3.4.1.

    A proof never changes, so the cache saves work and changes no answer.
    """

    def __init__(self, most: int = MAX_CACHED_PATHS) -> None:
        self._most = most
        self._lock = Lock()
        self._proofs: OrderedDict[tuple[bytes, int, int, bytes], MmrProof] = OrderedDict()

    def get(self, head: Receipt, stream_seq: int) -> MmrProof | None:
        """The proof of an entry in the tree of a receipt."""
        key = (head.label, stream_seq, head.stream_seq, head.mmr_root)
        with self._lock:
            found = self._proofs.get(key)
            if found is not None:
                self._proofs.move_to_end(key)
            return found

    def put(self, head: Receipt, stream_seq: int, proof: MmrProof) -> None:
        with self._lock:
            self._proofs[head.label, stream_seq, head.stream_seq, head.mmr_root] = proof
            if len(self._proofs) > self._most:
                self._proofs.popitem(last=False)

    def __len__(self) -> int:
        return len(self._proofs)


@dataclass(eq=False)
class LogPage:
    """A page of encoded entries, which are sent as they are on disk."""

    _request: StreamRequest
    _first: int
    _entries: list[LogEntry]
    _next: int | None
    _proof: bytes | None

    def encode(self) -> bytes:
        """The stream response in its table's layout (a test compares the two)."""
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
        """The same as an object, for JSON."""
        return StreamResponse.decode(self.encode())


def item(entry: LogEntry, *, with_receipt: bool) -> bytes:
    """One stream item around an encoded entry."""
    head = (b"\xa3" if with_receipt else b"\xa2") + b"\x01" + write_head(UINT, entry.stream_seq)
    return head + b"\x02" + entry.msg + (b"\x03" + entry.receipt if with_receipt else b"")


def _receipt_of(entry: LogEntry) -> Receipt:
    found = Receipt.decode(entry.receipt)
    if (found.label, found.stream_seq) != (entry.label, entry.stream_seq):
        raise Malformed("entry", f"the receipt of {entry.label.hex()} at {entry.stream_seq} is for another place")
    return found


def _no_entry(label: bytes, stream_seq: int) -> Refused:
    detail: dict[str, int | str] = {"label": label.hex(), "stream_seq": stream_seq}
    return Refused("E.NOT_FOUND", f"there is no entry {stream_seq} under this label", detail=detail)


_PAGE_ITEMS = 64
PAGE_BYTES = 1 << 18  # a page ends with the entry that reaches this size
_RETRY_S = 1.0
_FULL_RETRY_S = 10
_INTERNAL = 1011


RecordError = Callable[[Exception, str], None]


class Subscriptions:
    """The subscribers of one hub, by label. On the loop's thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, executor: Executor, lookup: Lookup, most: int, record_error: RecordError
    ) -> None:
        """`record_error` is called with the error and the endpoint if a page cannot be read."""
        self.loop = loop
        self.record_error = record_error
        self.lookup = lookup
        self.page_memory = PageMemoryBudget()  # separate from that of page requests
        self._queue = BoundedQueue(loop, executor, 1, most)  # one read per subscriber, so it is never full
        self._most = most
        self.by_label: dict[bytes, set[Subscriber]] = {}
        self.count = 0

    def check_room(self) -> None:
        """Raise `Refused` if there are too many subscribers."""
        if self.count >= self._most:
            text = f"the hub serves at most {self._most} subscriptions at a time; read pages, or try again later"
            raise Refused("E.UNAVAILABLE", text, retry_after=_FULL_RETRY_S)

    def join(self, subscriber: "Subscriber") -> None:
        self.by_label.setdefault(subscriber.label, set()).add(subscriber)
        self.count += 1

    def leave(self, subscriber: "Subscriber") -> None:
        found = self.by_label.get(subscriber.label, set())
        if subscriber in found:
            found.discard(subscriber)
            self.count -= 1
            if not found:
                del self.by_label[subscriber.label]

    def read(self, subscriber: "Subscriber", from_seq: int) -> None:
        self._queue.put(QueuedJob(lambda: subscriber.read(from_seq), subscriber, subscriber.is_lost))

    def committed(self, records: Iterable[AcceptedEntry]) -> None:
        """Wake the subscribers of these labels."""
        for label in {record.label for record in records}:
            for subscriber in tuple(self.by_label.get(label, ())):
                subscriber.wake()


class Subscriber:
    """One WebSocket: it receives the entries of one label from a place on, in order and without gaps, as they commit.

    It reads through the log, so a slow one delays nothing else.
    """

    def __init__(self, subscriptions: Subscriptions, label: bytes, from_seq: int) -> None:
        self.label = label
        self._subscriptions = subscriptions
        self._next = from_seq
        self._ready: deque[tuple[int, bytes]] = deque()
        self._held = 0  # bytes that are ready or being sent
        self._reading = False
        self._again = False
        self._blocked = False
        self._send: Callable[[bytes], bool] | None = None
        self._close: Callable[[int], None] | None = None

    def on_open(self, send: Callable[[bytes], bool], close: Callable[[int], None]) -> None:
        self._send, self._close = send, close
        self._subscriptions.join(self)
        self.wake()

    def on_message(self, data: bytes) -> None:
        """Messages of subscribers are ignored."""

    def on_full(self) -> None:
        self._blocked = True

    def on_drain(self) -> None:
        self._blocked = False
        self._deliver()

    def on_close(self) -> None:
        self._send = None
        self._ready.clear()
        self._hold(0)
        self._subscriptions.leave(self)

    def is_lost(self) -> bool:
        return self._send is None

    def wake(self) -> None:
        """Read on: there may be new entries."""
        if self._reading or self._blocked or self._send is None:
            self._again = True
            return
        self._reading, self._again = True, False
        self._subscriptions.read(self, self._next)

    def read(self, first: int) -> None:
        """On the thread pool: read the next page."""
        loop = self._subscriptions.loop
        page: deque[tuple[int, bytes]] = deque()
        size = 0
        try:
            self._subscriptions.page_memory.check()
            for entry in self._subscriptions.lookup.entries(self.label, first, first + _PAGE_ITEMS - 1):
                page.append((entry.stream_seq, item(entry, with_receipt=True)))
                size += entry.size
                if size >= PAGE_BYTES:
                    break
        except Refused:  # the page memory is used up for now
            loop.call_soon_threadsafe(loop.call_later, _RETRY_S, self._retry)
        except Pruned:  # entries before it are sent first; the next page then begins with it
            loop.call_soon_threadsafe(self._got, page, True) if page else loop.call_soon_threadsafe(self._end_at_pruned)
        except Exception as error:  # noqa: BLE001  close the subscriber and log the error
            loop.call_soon_threadsafe(self._failed, error)
        else:
            more = len(page) == _PAGE_ITEMS or size >= PAGE_BYTES
            loop.call_soon_threadsafe(self._got, page, more)

    def _got(self, page: deque[tuple[int, bytes]], more: bool) -> None:
        self._reading = False
        if self._send is None:
            return
        self._again = self._again or more
        self._ready = page
        self._hold(sum(len(data) for _, data in page))
        self._deliver()

    def _retry(self) -> None:
        self._reading = False
        self.wake()

    def _end_at_pruned(self) -> None:
        """Pruned entries are no error of the hub. The client finds the tombstone with `/v1/stream`."""
        self._reading = False
        if self._close:
            self._close(CLOSE_PRUNED)

    def _failed(self, error: Exception) -> None:
        self._reading = False
        self._subscriptions.record_error(error, "/tooling/subscribe")
        if self._close:
            self._close(_INTERNAL)

    def _deliver(self) -> None:
        while self._ready and not self._blocked and self._send is not None:
            seq, data = self._ready[0]
            if self._send(data):
                self._next = seq + 1
                self._ready.popleft()
            else:
                self._blocked = True
        if self._blocked:
            return
        self._hold(0)
        if self._again:
            self.wake()

    def _hold(self, size: int) -> None:
        self._subscriptions.page_memory.add(size - self._held)
        self._held = size
