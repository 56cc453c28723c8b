"""Sending to a stream: messages are sealed in order, sent in batches, and answered once verified and on disk.

While one batch is being sent, the next one gets its places. A message with a place is in the outbox, so a crash leaves
either nothing or the bytes to send again.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from veen.client.contradiction import Contradiction
from veen.client.draft import Draft, Sent
from veen.client.hub_session import HubSession
from veen.client.message_builder import MessageBuilder
from veen.client.submit_queue import BATCH_MESSAGES, Settled, SubmitQueue, Undecided
from veen.client.tree_follower import Followers
from veen.core import Receipt, Unavailable, VeenError


class OutboxRecovery:
    """Sends the outbox of earlier runs, once per run, before the first message."""

    def __init__(self, session: HubSession, followers: Followers) -> None:
        self._session = session
        self._followers = followers
        self._lock = asyncio.Lock()
        self._done = False
        self.settled: list[Settled] = []  # the messages found, with their outcomes

    async def run(self) -> list[Settled]:
        """Send this hub's messages in the outbox. Raises `Unavailable` if the hub does not answer."""
        async with self._lock:
            if not self._done:
                for hub_id, label in self._session.dir.outbox.places():
                    if hub_id == self._session.hub_id:
                        await self._empty(label)
                self._done = True
        return self.settled

    async def _empty(self, label: bytes) -> None:
        queue = SubmitQueue(self._session, self._followers.of(label), 0, asyncio.Lock())
        while queue.waiting:
            self.settled += await queue.push()


_MAX_QUEUED = 1 << 14
_MAX_PLACES = 4  # how often a message gets a new place before its rejection is final


@dataclass(slots=True)
class _Item:
    draft: Draft
    future: "asyncio.Future[Sent]"
    places: int = 0


class Sender:
    """The outgoing messages of one stream, in the order of `put`."""

    def __init__(
        self, session: HubSession, followers: Followers, builder: MessageBuilder, recovery: OutboxRecovery
    ) -> None:
        self._session = session
        self._followers = followers
        self._builder = builder
        self._recovery = recovery
        self._placing = asyncio.Lock()
        self._queue: deque[_Item] = deque()
        self._items: dict[bytes, _Item] = {}  # by leaf_hash: sealed and not yet answered
        self._submit_queue: SubmitQueue | None = None
        self._woken = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._broken: BaseException | None = None
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def put(self, draft: Draft) -> "asyncio.Future[Sent]":
        """Queue a message. The future completes once the receipt is verified, in the tree and on disk.

        It fails with `Refused` if the hub rejects the message, `Undecided` if the result is unknown, and
        `Contradiction` if the hub contradicted itself, after which nothing more is sent. Sizes are checked at once.
        """
        if self._broken:
            raise self._broken.with_traceback(None)
        self._builder.check(draft)
        future: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        self._queue.append(_Item(draft, future))
        self._idle.clear()
        self._woken.set()
        return future

    @property
    def is_full(self) -> bool:
        """Whether a producer should `await drain()` before the next `put`."""
        return len(self._queue) >= _MAX_QUEUED

    async def drain(self) -> None:
        """Wait until everything that was put has an outcome."""
        await self._idle.wait()

    async def close(self) -> None:
        """Stop. Messages without an answer stay in the outbox."""
        self._task.cancel()
        await asyncio.wait([self._task])

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Fail all waiting futures, with the task's own error if it failed by a bug."""
        bug = None if task.cancelled() else task.exception()
        self._broken = bug or Unavailable("the sender was closed")
        for item in (*self._items.values(), *self._queue):
            if bug and not item.future.done():
                item.future.set_exception(bug)
        self._fail(Unavailable("the sender was closed"))
        self._items.clear()

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self._recovery.run()
                while self._queue or (self._submit_queue and self._submit_queue.waiting):
                    await self._round()
            except Contradiction as error:
                self._broken = error
                self._fail(error)
            except VeenError as error:
                self._fail(error)
            self._idle.set()

    async def _round(self) -> None:
        """Send the messages that have places, and meanwhile give places to the next ones."""
        queue = self._submit_queue
        if queue is None or not queue.waiting:
            await self._seal_next()
            return
        push = asyncio.create_task(queue.push())
        try:
            if self._queue and len(queue.waiting) <= BATCH_MESSAGES:
                await self._seal_next()
            settled = await push
        except BaseException:
            push.cancel()
            await asyncio.wait([push])
            raise
        await self._answer(settled, queue)

    async def _seal_next(self) -> None:
        """Give places to the next group of the queue. If that fails, the whole group fails."""
        async with self._placing:
            group = self._next_group()
            try:
                queue = self._current_queue()
                if queue is None:
                    return
                sealed = await self._builder.place(queue.follower, queue.epoch, [item.draft for item in group])
            except VeenError as error:
                for item in group:
                    self._queue.popleft()
                    _refuse(item, error)
                return
            for item, pending in zip(group, sealed, strict=False):
                self._queue.popleft()
                self._items[pending.leaf_hash] = item
            queue.put(sealed)

    def _next_group(self) -> list[_Item]:
        """Messages with attachments are sent alone, because their attachments must be uploaded first."""
        group: list[_Item] = []
        for item in self._queue:
            if len(group) == BATCH_MESSAGES or (group and item.draft.files):
                break
            group.append(item)
            if item.draft.files:
                break
        return group

    def _current_queue(self) -> SubmitQueue | None:
        """The submit queue of the hub's current epoch; None while the previous one still has messages to send."""
        epoch = self._session.labels.epoch(self._session.clock.now())
        if self._submit_queue is None or self._submit_queue.epoch != epoch:
            if self._submit_queue and self._submit_queue.waiting:
                return None
            label = self._session.labels.label(self._builder.stream_id, epoch)
            self._submit_queue = SubmitQueue(self._session, self._followers.of(label), epoch, self._placing)
        return self._submit_queue

    async def _answer(self, settled: Sequence[Settled], queue: SubmitQueue) -> None:
        """Complete the futures, and put messages that lost their places back to the front, in order."""
        again: list[_Item] = []
        for one in settled:
            item = self._items.pop(one.pending.leaf_hash, None)
            if item is None:
                continue
            if isinstance(one.outcome, Receipt):
                if not item.future.done():
                    item.future.set_result(Sent(queue.epoch, one.outcome))
            elif one.resend and item.places < _MAX_PLACES:
                item.places += 1
                again.append(item)
            else:
                _refuse(item, one.outcome)
        if again:
            self._queue.extendleft(reversed(again))
            await self._session.refresh()

    def _fail(self, error: VeenError) -> None:
        """Fail all waiting futures. Messages with a place keep it, and are sent with whatever is put next."""
        for leaf, item in self._items.items():
            _refuse(item, error if isinstance(error, Contradiction) else Undecided(leaf, error))
        for item in self._queue:
            _refuse(item, error)
        self._queue.clear()
        self._idle.set()


def _refuse(item: _Item, error: VeenError) -> None:
    if not item.future.done():
        item.future.set_exception(error)
