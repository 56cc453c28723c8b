"""Sending to a stream: what is put is sealed in order, sent in batches, and answered once it is proved and on disk.

While one batch is on its way the next is given its places. A place, once taken, is in the outbox: a crash at any moment
leaves either nothing or the bytes to send again.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from veen.client.contradiction import Contradiction
from veen.client.draft import Draft, Sent
from veen.client.hub_session import Contact
from veen.client.message_builder import Sealing
from veen.client.submit_queue import BATCH_MESSAGES, Settled, SubmitQueue, Undecided
from veen.client.tree_follower import Followers
from veen.core import Receipt, Unavailable, VeenError


class OutboxRecovery:
    """Once per run, at the first message."""

    def __init__(self, contact: Contact, followers: Followers) -> None:
        self._contact = contact
        self._followers = followers
        self._lock = asyncio.Lock()
        self._done = False
        self.settled: list[Settled] = []  # what was found, and what became of it

    async def run(self) -> list[Settled]:
        """Empty the outbox of this hub's messages. Raises `Unavailable` where the hub does not answer."""
        async with self._lock:
            if not self._done:
                for hub_id, label in self._contact.dir.outbox.places():
                    if hub_id == self._contact.hub_id:
                        await self._empty(label)
                self._done = True
        return self.settled

    async def _empty(self, label: bytes) -> None:
        lane = SubmitQueue(self._contact, self._followers.of(label), 0, asyncio.Lock())
        while lane.waiting:
            self.settled += await lane.push()


_MAX_QUEUED = 1 << 14
_MAX_PLACES = 4  # how often one message is given a new place before its refusal is final


@dataclass(slots=True)
class _Item:
    draft: Draft
    future: "asyncio.Future[Sent]"
    places: int = 0


class Sender:
    """One stream's outgoing messages, in the order of `put`."""

    def __init__(self, contact: Contact, followers: Followers, sealing: Sealing, recovery: OutboxRecovery) -> None:
        self._contact = contact
        self._followers = followers
        self._sealing = sealing
        self._recovery = recovery
        self._placing = asyncio.Lock()
        self._queue: deque[_Item] = deque()
        self._items: dict[bytes, _Item] = {}  # by leaf: sealed, and not yet answered
        self._lane: SubmitQueue | None = None
        self._woken = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._broken: BaseException | None = None
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def put(self, draft: Draft) -> "asyncio.Future[Sent]":
        """Queue a message. The future is done once its receipt is verified, the tree has followed, and it is on disk.

        It fails with `Refused` where the hub says no, `Undecided` where nobody knows, `Contradiction` where the hub
        was caught at a lie, after which nothing more is sent. Sizes are refused here and now.
        """
        if self._broken:
            raise self._broken.with_traceback(None)
        self._sealing.check(draft)
        future: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        self._queue.append(_Item(draft, future))
        self._idle.clear()
        self._woken.set()
        return future

    @property
    def is_full(self) -> bool:
        """Whether a producer should `await drain()` before it puts more."""
        return len(self._queue) >= _MAX_QUEUED

    async def drain(self) -> None:
        """Wait until everything that was put has been answered, one way or the other."""
        await self._idle.wait()

    async def close(self) -> None:
        """Stop. What has no answer stays in the outbox."""
        self._task.cancel()
        await asyncio.wait([self._task])

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Nobody is left waiting for a task that is gone, least of all where it ended by a mistake of ours."""
        mistake = None if task.cancelled() else task.exception()
        self._broken = mistake or Unavailable("the sender was closed")
        for item in (*self._items.values(), *self._queue):
            if mistake and not item.future.done():
                item.future.set_exception(mistake)
        self._fail(Unavailable("the sender was closed"))
        self._items.clear()

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self._recovery.run()
                while self._queue or (self._lane and self._lane.waiting):
                    await self._round()
            except Contradiction as error:
                self._broken = error
                self._fail(error)
            except VeenError as error:
                self._fail(error)
            self._idle.set()

    async def _round(self) -> None:
        """Send what has a place, and give places to what has none meanwhile."""
        lane = self._lane
        if lane is None or not lane.waiting:
            await self._seal_next()
            return
        push = asyncio.create_task(lane.push())
        try:
            if self._queue and len(lane.waiting) <= BATCH_MESSAGES:
                await self._seal_next()
            settled = await push
        except BaseException:
            push.cancel()
            await asyncio.wait([push])
            raise
        await self._answer(settled, lane)

    async def _seal_next(self) -> None:
        """Places for the next few of the queue. Where there are none to be had, those few are told."""
        async with self._placing:
            group = self._next_group()
            try:
                lane = self._lane_now()
                if lane is None:
                    return
                sealed = await self._sealing.place(lane.follower, lane.epoch, [item.draft for item in group])
            except VeenError as error:
                for item in group:
                    self._queue.popleft()
                    _refuse(item, error)
                return
            for item, pending in zip(group, sealed, strict=False):
                self._queue.popleft()
                self._items[pending.leaf_hash] = item
            lane.put(sealed)

    def _next_group(self) -> list[_Item]:
        """Messages with attachments go alone: theirs must be at the hub first."""
        group: list[_Item] = []
        for item in self._queue:
            if len(group) == BATCH_MESSAGES or (group and item.draft.files):
                break
            group.append(item)
            if item.draft.files:
                break
        return group

    def _lane_now(self) -> SubmitQueue | None:
        """The lane of the hub's present epoch; None while the one before it still has something to send."""
        epoch = self._contact.labels.epoch(self._contact.clock.now())
        if self._lane is None or self._lane.epoch != epoch:
            if self._lane and self._lane.waiting:
                return None
            label = self._contact.labels.label(self._sealing.stream_id, epoch)
            self._lane = SubmitQueue(self._contact, self._followers.of(label), epoch, self._placing)
        return self._lane

    async def _answer(self, settled: Sequence[Settled], lane: SubmitQueue) -> None:
        """Tell those who wait, and put those that lost their places back in front, in their order."""
        again: list[_Item] = []
        for one in settled:
            item = self._items.pop(one.pending.leaf_hash, None)
            if item is None:
                continue
            if isinstance(one.outcome, Receipt):
                if not item.future.done():
                    item.future.set_result(Sent(lane.epoch, one.outcome))
            elif one.anew and item.places < _MAX_PLACES:
                item.places += 1
                again.append(item)
            else:
                _refuse(item, one.outcome)
        if again:
            self._queue.extendleft(reversed(again))
            await self._contact.refresh()

    def _fail(self, error: VeenError) -> None:
        """Tell everyone who waits. What has a place keeps it, and is sent again with whatever is put next."""
        for leaf, item in self._items.items():
            _refuse(item, error if isinstance(error, Contradiction) else Undecided(leaf, error))
        for item in self._queue:
            _refuse(item, error)
        self._queue.clear()
        self._idle.set()


def _refuse(item: _Item, error: VeenError) -> None:
    if not item.future.done():
        item.future.set_exception(error)
