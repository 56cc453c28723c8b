"""Reading a stream. Every entry is verified, and checked against the known history, before it is opened. Spec §9."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import ProtocolError

from veen.client import message_attachments, tree_follower
from veen.client.contradiction import Contradiction, Lie
from veen.client.exchange import no_answer
from veen.client.hub_session import HubSession
from veen.client.message_attachments import Attachment
from veen.client.transport import HubLink
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
    Refused,
    Unavailable,
    Unverified,
    ciphertext,
)
from veen.core.envelopes import StreamItem, StreamResponse
from veen.core.limits import CLOSE_PRUNED, MAX_ATTACHMENT_BYTES, MAX_MSG_BYTES
from veen.core.retention import PRUNED, Tombstone

_READ_BYTES = 1 << 18
_MOST_ITEM = MAX_MSG_BYTES + (1 << 12)
_PORTS = {"http": 80, "https": 443}
QUIET_S = 30.0  # send a ping after this silence; fail after twice as long


class EntrySubscription:
    """One subscription to one label."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = WSConnection(ConnectionType.CLIENT)
        self._part = bytearray()
        self._early: list[Event] = []
        self._rejection: RejectConnection | None = None  # if its body has not arrived yet

    @classmethod
    async def open(cls, link: HubLink, label: bytes, from_seq: int) -> "EntrySubscription":
        """Raises `Refused` if the hub accepts no subscription, `Unavailable` if it does not answer."""
        where = urlsplit(link.url)
        port = where.port or _PORTS[where.scheme]
        tls = link.tls() if link.is_https else None
        try:
            async with asyncio.timeout(link.retry_policy.connect_s):
                reader, writer = await asyncio.open_connection(where.hostname, port, ssl=tls)
        except TimeoutError:
            raise Unavailable(
                f"{link.url} did not accept a connection within {link.retry_policy.connect_s:g} s"
            ) from None
        except OSError as error:
            raise no_answer(link.url, f"{link.url} did not answer", error) from None
        subscription = cls(reader, writer)
        try:
            async with asyncio.timeout(link.retry_policy.answer_s):
                target = f"/tooling/subscribe?label={label.hex()}&from={from_seq}"
                headers = link.reads.headers("GET", target) if link.reads else {}
                await subscription._shake_hands(where.netloc, f"{where.path.rstrip('/')}{target}", headers)
        except TimeoutError:
            subscription.close()
            raise Unavailable(
                f"{link.url} did not open the subscription within {link.retry_policy.answer_s:g} s"
            ) from None
        except BaseException:
            subscription.close()
            raise
        return subscription

    def close(self) -> None:
        self._writer.transport.abort()

    async def items(self) -> AsyncIterator[list[StreamItem]]:
        """Entries in order, in batches as they arrive. Raises `Unavailable` when the subscription ends, and `Refused`
        if the next entry was pruned."""
        while True:
            items = []
            for event in await self._events():
                if isinstance(event, BytesMessage):
                    self._part += event.data
                    if len(self._part) > _MOST_ITEM:
                        raise Malformed("subscription", f"an item has more than {_MOST_ITEM} bytes")
                    if event.message_finished:
                        items.append(StreamItem.decode(bytes(self._part)))
                        self._part.clear()
                elif isinstance(event, TextMessage):
                    raise Malformed("subscription", "a text message instead of a binary one")
                elif isinstance(event, Ping):
                    self._writer.write(self._frames.send(event.response()))
                elif isinstance(event, CloseConnection) and event.code == CLOSE_PRUNED:
                    if items:
                        yield items
                    raise Refused("E.NOT_FOUND", "the hub says that the next entry was pruned", detail_enum=PRUNED)
                elif isinstance(event, CloseConnection):
                    raise Unavailable(f"the hub closed the subscription with code {event.code}")
            if items:
                yield items

    async def _shake_hands(self, host: str, target: str, headers: Mapping[str, str]) -> None:
        extra = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._writer.write(self._frames.send(Request(host=host, target=target, extra_headers=extra)))
        while True:
            events = await self._events()
            for number, event in enumerate(events):
                if isinstance(event, AcceptConnection):
                    self._early = events[number + 1 :]  # the first entries may arrive with the response
                    return
                if isinstance(event, RejectConnection) and not event.has_body:
                    raise _refused(event)
                if isinstance(event, RejectConnection):
                    self._rejection = event
                if isinstance(event, RejectData) and event.body_finished and self._rejection is not None:
                    raise _refused(self._rejection)

    async def _events(self) -> list[Event]:
        """The events of the next bytes. The first silence sends a ping, the second one ends the subscription."""
        if self._early:
            events, self._early = self._early, []
            return events
        data = await self._read()
        if data is None:
            self._writer.write(self._frames.send(Ping()))
            data = await self._read()
        if not data:
            raise Unavailable("the hub closed the connection of the subscription")
        try:
            self._frames.receive_data(data)
            return [event for event in self._frames.events() if not isinstance(event, Pong)]
        except ProtocolError as error:
            raise Malformed("subscription", f"not a WebSocket: {error}") from None

    async def _read(self) -> bytes | None:
        try:
            async with asyncio.timeout(QUIET_S):
                return await self._reader.read(_READ_BYTES)
        except TimeoutError:
            return None
        except OSError as error:
            raise Unavailable(f"the subscription broke: {error}") from None


_MAX_DIGITS = 9  # of a number of seconds


def _refused(rejection: RejectConnection) -> Refused | Unavailable:
    status = rejection.status_code
    if status == 503:  # a hub that has enough subscribers still answers reads
        wait = bytes(dict(rejection.headers).get(b"retry-after", b""))
        seconds = int(wait) if wait.isdigit() and len(wait) <= _MAX_DIGITS else None
        return Refused("E.UNAVAILABLE", "the hub accepts no subscription now", retry_after=seconds)
    if status >= 500:
        return Unavailable(f"the hub accepts no subscription now: HTTP status {status}")
    return Refused("E.NOT_FOUND", f"the hub offers no subscriptions: HTTP status {status}")


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


_MAX_CLIENTS = 1 << 16


class ClientOrder:
    """The last message of each client. With very many clients, those silent for longest are dropped."""

    def __init__(self) -> None:
        self._last: OrderedDict[bytes, tuple[Msg, Receipt]] = OrderedDict()

    def check(self, message: Msg, receipt: Receipt) -> None:
        """Raise `Contradiction` unless the message follows its client's last one and acknowledges earlier entries."""
        if message.prev_ack >= receipt.stream_seq:
            raise Contradiction(
                Lie.REPEATED_MESSAGE,
                f"entry {receipt.stream_seq} acknowledges entry {message.prev_ack}, which is not before it",
                (receipt,),
                messages=(message,),
            )
        before = self._last.get(message.client_id)
        if before is not None and message.client_seq != before[0].client_seq + 1:
            raise self._out_of_order(message, receipt, *before)
        self._last[message.client_id] = (message, receipt)
        self._last.move_to_end(message.client_id)
        if len(self._last) > _MAX_CLIENTS:
            self._last.popitem(last=False)

    @staticmethod
    def _out_of_order(message: Msg, receipt: Receipt, before: Msg, earlier: Receipt) -> Contradiction:
        client = f"client {message.client_id.hex()[:16]}…"
        reason = (
            f"{client} has message {before.client_seq} as entry {earlier.stream_seq} "
            f"and message {message.client_seq} as entry {receipt.stream_seq}"
        )
        lie = Lie.REPEATED_MESSAGE if message.client_seq <= before.client_seq else Lie.SEQ_GAP
        return Contradiction(lie, reason, (earlier, receipt), messages=(before, message))


_YIELD_EVERY = 64  # entries verified before other tasks may run


@dataclass(frozen=True, slots=True)
class ReadRange:
    """The entries of a label to read: up to `to_seq`, or to the end of the log."""

    from_seq: int = 1
    to_seq: int | None = None
    with_proof: bool = False
    on_pruned: Callable[[Tombstone], None] | None = None  # called for pruned entries, which are then left out

    def __post_init__(self) -> None:
        if self.from_seq < 1 or (self.to_seq is not None and self.to_seq < self.from_seq):
            raise ValueError(f"{self.from_seq} to {self.to_seq} is not a valid range of entries")


@dataclass(frozen=True, slots=True)
class _Answer:
    page: StreamResponse | None  # None if the hub does not know the label
    known: int  # verified size of the log at the time of the request


class LabelReader:
    """Reads one label."""

    def __init__(
        self, session: HubSession, follower: tree_follower.Follower, epoch: int, opener: Opener, wanted: ReadRange
    ) -> None:
        self._session = session
        self._follower = follower
        self._epoch = epoch
        self._opener = opener
        self._wanted = wanted
        self._order = ClientOrder()
        self._tree = tree_follower.LabelTree(follower.label)  # this reader's position, which may be behind the follower
        self._begun = wanted.from_seq == 1

    @property
    def label(self) -> bytes:
        return self._follower.label

    @property
    def next_seq(self) -> int:
        return max(self._tree.size + 1, self._wanted.from_seq)

    async def begin(self) -> None:
        """Move to the place before the first entry."""
        if self._begun:
            return
        try:
            self._tree = await self._follower.tree_at(self._wanted.from_seq - 1)
        except tree_follower.PrunedEntries as pruned:
            await self._skip(pruned)
        except Refused as refused:
            if refused.code != "E.NOT_FOUND":
                raise
            if self._follower.tree.size >= self._wanted.from_seq - 1:
                raise await self._follower.lost(refused.message) from None
            raise Refused("E.NOT_FOUND", f"the stream has no entry {self._wanted.from_seq}") from None
        self._begun = True

    async def pages(self) -> AsyncGenerator[list[Entry], None]:
        """Pages of entries in order, to the end of the range or of the log. Prefetches one page."""
        await self.begin()
        ahead: asyncio.Task[_Answer] | None = None
        try:
            while not self._is_done():
                try:
                    answer = await (ahead or self._fetch_page(self.next_seq))
                except tree_follower.PrunedEntries as pruned:
                    ahead = None
                    await self._skip(pruned)
                    continue
                ahead, page = None, answer.page
                if page is None or not page.items:
                    await self._check_end(answer)
                    return
                if page.next_cursor is not None:
                    ahead = asyncio.create_task(self._fetch_page(page.next_cursor))
                yield await self.take(page.items, page)
                if page.next_cursor is None:
                    await self._check_complete(answer.known, f"the log ends at entry {self.next_seq - 1}")
                    return
        finally:
            if ahead:
                ahead.cancel()

    async def _skip(self, pruned: tree_follower.PrunedEntries) -> None:
        """Continue behind entries that were pruned. Raises the error if the caller did not ask for that."""
        if self._wanted.on_pruned is None:
            raise pruned
        self._tree = await self._follower.tree_at(pruned.tombstone.segment.end_seq)
        self._order = ClientOrder()
        self._wanted.on_pruned(pruned.tombstone)

    def _is_done(self) -> bool:
        return self._wanted.to_seq is not None and self.next_seq > self._wanted.to_seq

    async def _fetch_page(self, first: int) -> _Answer:
        # Taken before the request: an entry that is verified later need not be in the response.
        known = self._follower.tree.size
        try:
            return _Answer(await self._follower.page(first, self._wanted.to_seq), known)
        except Refused as refused:
            if refused.detail_enum == PRUNED:
                raise await self._follower.pruned(refused, first) from None
            if refused.code == "E.NOT_FOUND":
                return _Answer(None, known)
            raise

    async def _check_end(self, answer: _Answer) -> None:
        """Check a response without entries: the hub must not have lost entries that it signed."""
        if answer.page is None:
            if answer.known:
                raise await self._follower.lost("nothing is logged under this label")
            return
        if answer.page.next_cursor is not None:
            raise Malformed("stream response", "a page without entries has a next_cursor")
        await self._check_complete(answer.known, f"the log ends at entry {self.next_seq - 1}")
        await self._follower.check_end()

    async def _check_complete(self, known: int, answer: str) -> None:
        """Check the end of the log: the hub must not have signed more entries."""
        expected = known if self._wanted.to_seq is None else min(known, self._wanted.to_seq)
        if self.next_seq <= expected:
            raise await self._follower.lost(answer)

    async def take(self, items: Sequence[StreamItem], page: StreamResponse | None = None) -> list[Entry]:
        """Verify the next entries, check them against the known history, then open them."""
        tree = self._tree.copy()
        try:
            if page is not None:
                self._check_page(page)
            receipts, proofs = await self._verified(tree, items)
            if page is not None and page.mmr_proof is not None:
                _check_last(page.mmr_proof, receipts[-1])
        except Contradiction as error:
            # A wrong root may be a symptom of another history, so look for stronger evidence.
            raise await self._follower.with_best_evidence(error, self._tree.head) from None
        await self._check_history(tree, receipts)
        self._tree = tree
        entries = []
        for number, (item, receipt, proof) in enumerate(zip(items, receipts, proofs, strict=True)):
            entries.append(self._opener.entry(self._epoch, item.msg, receipt, proof))
            if number % _YIELD_EVERY == _YIELD_EVERY - 1:
                await asyncio.sleep(0)
        return entries

    async def _verified(
        self, tree: tree_follower.LabelTree, items: Sequence[StreamItem]
    ) -> tuple[list[Receipt], list[MmrProof | None]]:
        receipts: list[Receipt] = []
        proofs: list[MmrProof | None] = []
        for number, item in enumerate(items):
            receipt = await self._verified_item(tree, item, receipts[-1] if receipts else None)
            proofs.append(tree_follower.next_proof(tree, receipt.leaf_hash) if self._wanted.with_proof else None)
            tree.add(receipt)
            self._order.check(item.msg, receipt)
            receipts.append(receipt)
            if number % _YIELD_EVERY == _YIELD_EVERY - 1:
                await asyncio.sleep(0)
        return receipts, proofs

    async def _verified_item(self, tree: tree_follower.LabelTree, item: StreamItem, before: Receipt | None) -> Receipt:
        """Verify one entry by itself: its number, the hub's signature, its message and the client's signature."""
        receipt, expected = item.receipt, tree.size + 1
        if receipt is None:
            raise Malformed("stream response", "an entry has no receipt, but receipts were requested")
        await self._session.verify((receipt,))
        if item.stream_seq != expected:
            raise self._misnumbered(item.stream_seq, expected, receipt, before)
        if receipt.label != self._follower.label or receipt.stream_seq != expected:
            raise _replayed(receipt, expected, self._follower.label)
        try:
            receipt.check_binds(item.msg)
        except Unverified as error:
            reason = f"the message of entry {expected} does not match its receipt: {error.reason}"
            raise Contradiction(Lie.SWAPPED_MESSAGE, reason, (receipt,), messages=(item.msg,)) from None
        try:
            item.msg.verify_signature()
        except Unverified:
            reason = f"the message of entry {expected} is not signed by its client"
            raise Contradiction(Lie.SIGNATURE, reason, (receipt,), messages=(item.msg,)) from None
        return receipt

    def _misnumbered(self, found: int, expected: int, receipt: Receipt, before: Receipt | None) -> Contradiction:
        if found > expected:
            return Contradiction(Lie.SEQ_GAP, f"entry {found} follows entry {expected - 1}", (receipt,))
        known = before if before and before.stream_seq == receipt.stream_seq else None
        known = known or self._follower.known(receipt.stream_seq)
        if known and (known.leaf_hash, known.mmr_root) != (receipt.leaf_hash, receipt.mmr_root):
            return tree_follower.same_place(known, receipt)
        return Contradiction(Lie.DUPLICATE_SEQ, f"entry {found} follows entry {expected - 1}", (receipt,))

    def _check_page(self, page: StreamResponse) -> None:
        if page.label != self._follower.label:
            raise Contradiction(Lie.SWAPPED_MESSAGE, "the page has another label than the requested one")
        if page.next_cursor is not None and page.next_cursor != page.items[-1].stream_seq + 1:
            last = page.items[-1].stream_seq
            raise Contradiction(Lie.SEQ_GAP, f"next_cursor is {page.next_cursor} after entry {last}")

    async def _check_history(self, tree: tree_follower.LabelTree, receipts: Sequence[Receipt]) -> None:
        """Check that the entries belong to the known history: they continue it or lead up to it."""
        known = self._follower.tree.size
        if tree.size <= known:
            await self._follower.check(receipts[-1])
            self._follower.remember(receipts)
        elif not await self._follower.adopt(self._tree, tree, receipts):
            # Start at the last known entry, so that it is compared as well if it is among these.
            await self._follower.follow([one for one in receipts if one.stream_seq >= known])


def _replayed(receipt: Receipt, expected: int, label: bytes) -> Contradiction:
    what = f"entry {receipt.stream_seq}" if receipt.label == label else "another label"
    return Contradiction(Lie.REPLAYED_RECEIPT, f"entry {expected} has the receipt of {what}", (receipt,))


def _check_last(shown: MmrProof, receipt: Receipt) -> None:
    try:
        tree_follower.peaks_from(shown, receipt)
    except Unverified as error:
        raise Contradiction(Lie.ROOT, f"the proof of entry {receipt.stream_seq}: {error.reason}", (receipt,)) from None


_MAX_QUEUED_PAGES = 4  # pages queued for a slow consumer


class StreamReader:
    """Reads one stream across its epochs."""

    def __init__(
        self,
        session: HubSession,
        followers: tree_follower.Followers,
        stream_id: bytes,
        key: DhKey | None,
        wanted: ReadRange,
        spans: Mapping[int, tuple[int, int | None]],
    ) -> None:
        """`spans` has the first and the last entry to read of some epochs; others are read as a whole."""
        self._spans = spans
        self._session = session
        self._followers = followers
        self._stream_id = stream_id
        self._opener = Opener(key)
        self._wanted = wanted
        self._subscribes_at = 0.0  # by the clock of the loop; a hub that is full says when to ask again

    async def read(self, epochs: Sequence[int]) -> AsyncGenerator[Entry, None]:
        """The entries of these epochs, one epoch after the other, to the current end."""
        for epoch in epochs:
            async with aclosing(self._label(epoch).pages()) as pages:
                async for page in pages:
                    for entry in page:
                        yield entry

    async def follow(self, epoch: int) -> AsyncGenerator[Entry, None]:
        """Follow from an epoch on. Around its end, an epoch is followed together with the next one."""
        pages: asyncio.Queue[list[Entry] | BaseException] = asyncio.Queue(_MAX_QUEUED_PAGES)
        task = asyncio.create_task(self._follow_epochs(epoch, pages))
        try:
            while True:
                page = await pages.get()
                if isinstance(page, BaseException):
                    raise page
                for entry in page:
                    yield entry
        finally:
            task.cancel()
            await asyncio.wait([task])

    def _label(self, epoch: int) -> LabelReader:
        label, wanted = self._session.label(self._stream_id, epoch), self._wanted
        wanted = ReadRange(*self._spans.get(epoch, (1, None)), wanted.with_proof, wanted.on_pruned)
        return LabelReader(self._session, self._followers.of(label), epoch, self._opener, wanted)

    async def _follow_epochs(self, epoch: int, pages: "asyncio.Queue[list[Entry] | BaseException]") -> None:
        """Run one task per epoch. The next starts at its begin; the last ends after the allowed skew."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    group.create_task(self._follow_label(self._label(epoch), epoch, pages))
                    await self._wait_until(self._session.trust.profile.epoch_end(epoch))
                    epoch += 1
        except BaseExceptionGroup as group_error:
            await pages.put(group_error.exceptions[0])

    async def _follow_label(
        self, reader: LabelReader, epoch: int, pages: "asyncio.Queue[list[Entry] | BaseException]"
    ) -> None:
        ends = self._session.trust.profile.epoch_end(epoch)
        closing = None if ends is None else ends + self._session.trust.limits.max_epoch_skew_sec
        async with aclosing(self._batches(reader, closing)) as batches:
            async for batch in batches:
                await pages.put(batch)

    async def _batches(self, reader: LabelReader, closing: int | None) -> AsyncGenerator[list[Entry], None]:
        """Read pages to the end, then subscribe. Repeat if the connection breaks, until the epoch is closed."""
        failures = 0
        while True:
            last = closing is not None and self._now() > closing
            try:
                async with aclosing(reader.pages()) as pages:
                    async for page in pages:
                        failures = 0
                        yield page
                if last:
                    return
                async with aclosing(self._subscribe(reader, closing)) as batches:
                    async for batch in batches:
                        failures = 0
                        yield batch
            except Unavailable as error:
                failures += 1
                if failures >= self._session.link.retry_policy.attempts:
                    raise
                await asyncio.sleep(self._session.link.pause_s(error, failures))

    async def _subscribe(self, reader: LabelReader, closing: int | None) -> AsyncGenerator[list[Entry], None]:
        link, loop = self._session.link, asyncio.get_running_loop()
        if loop.time() < self._subscribes_at:
            await asyncio.sleep(link.retry_policy.poll_s)
            return
        try:
            subscription = await EntrySubscription.open(link, reader.label, reader.next_seq)
        except Refused as refused:  # the hub still answers page requests
            self._subscribes_at = loop.time() + (refused.retry_after or 0)
            await asyncio.sleep(link.retry_policy.poll_s)
            return
        if closing is not None:
            loop.call_later(max(closing + 1 - self._now(), 0), subscription.close)
        try:
            async for items in subscription.items():
                yield await reader.take(items)
        except Refused as refused:
            if refused.detail_enum != PRUNED:
                raise
            # The next page of the log has the proof, or shows that the hub said it without reason.
            await asyncio.sleep(self._session.link.retry_policy.poll_s)
        finally:
            subscription.close()

    def _now(self) -> int:
        return self._session.clock.now()

    async def _wait_until(self, hub_ts: int | None) -> None:
        """Sleep until that hub time; forever if there are no epochs."""
        if hub_ts is None:
            await asyncio.Event().wait()
        else:
            await self._session.clock.until(hub_ts)
