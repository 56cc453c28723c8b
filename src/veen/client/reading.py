"""Reading a stream through its epochs, once or for ever."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from veen.client.contact import Contact
from veen.client.entry import Entry, Opener
from veen.client.feed import Feed
from veen.client.follower import Followers
from veen.client.reader import LabelReader, Range
from veen.core import DhKey, Refused, Unavailable

_AHEAD = 4  # pages that wait for a slow consumer


class StreamReader:
    """One way through one stream."""

    def __init__(
        self, contact: Contact, followers: Followers, stream_id: bytes, key: DhKey | None, wanted: Range
    ) -> None:
        self._contact = contact
        self._followers = followers
        self._stream_id = stream_id
        self._opener = Opener(key)
        self._wanted = wanted

    async def read(self, epoch: int) -> AsyncGenerator[Entry, None]:
        """The entries of one epoch, as far as they go."""
        async with aclosing(self._label(epoch, self._wanted).pages()) as pages:
            async for page in pages:
                for entry in page:
                    yield entry

    async def follow(self, epoch: int) -> AsyncGenerator[Entry, None]:
        """From an epoch on, for ever. Around its end an epoch is followed together with the one after it."""
        pages: asyncio.Queue[list[Entry] | BaseException] = asyncio.Queue(_AHEAD)
        guide = asyncio.create_task(self._guide(epoch, pages))
        try:
            while True:
                page = await pages.get()
                if isinstance(page, BaseException):
                    raise page
                for entry in page:
                    yield entry
        finally:
            guide.cancel()
            await asyncio.wait([guide])

    def _label(self, epoch: int, wanted: Range) -> LabelReader:
        label = self._contact.labels.label(self._stream_id, epoch)
        return LabelReader(self._contact, self._followers.of(label), epoch, self._opener, wanted)

    async def _guide(self, epoch: int, pages: "asyncio.Queue[list[Entry] | BaseException]") -> None:
        """One task per epoch: the next begins when the hub's time comes to it, the last ends when skew allows."""
        try:
            async with asyncio.TaskGroup() as group:
                wanted = self._wanted
                while True:
                    group.create_task(self._live(self._label(epoch, wanted), epoch, pages))
                    await self._until(self._contact.labels.ends_at(epoch))
                    epoch, wanted = epoch + 1, Range(with_proof=wanted.with_proof)
        except BaseExceptionGroup as group_error:
            await pages.put(group_error.exceptions[0])

    async def _live(self, reader: LabelReader, epoch: int, pages: "asyncio.Queue[list[Entry] | BaseException]") -> None:
        ends = self._contact.labels.ends_at(epoch)
        closing = None if ends is None else ends + self._contact.trust.limits.max_epoch_skew_sec
        async with aclosing(self._batches(reader, closing)) as batches:
            async for batch in batches:
                await pages.put(batch)

    async def _batches(self, reader: LabelReader, closing: int | None) -> AsyncGenerator[list[Entry], None]:
        """Catch up by pages, then listen; when the line breaks, the same again, until nothing more can come."""
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
                async with aclosing(self._listen(reader, closing)) as heard:
                    async for batch in heard:
                        failures = 0
                        yield batch
            except Unavailable as error:
                failures += 1
                if failures >= self._contact.link.patience.attempts:
                    raise
                await asyncio.sleep(self._contact.link.pause_s(error, failures))

    async def _listen(self, reader: LabelReader, closing: int | None) -> AsyncGenerator[list[Entry], None]:
        try:
            feed = await Feed.open(self._contact.link, reader.label, reader.next_seq)
        except Refused:
            await asyncio.sleep(self._contact.link.patience.poll_s)
            return
        if closing is not None:
            asyncio.get_running_loop().call_later(max(closing + 1 - self._now(), 0), feed.close)
        try:
            async for items in feed.items():
                yield await reader.take(items)
        finally:
            feed.close()

    def _now(self) -> int:
        return self._contact.clock.now()

    async def _until(self, hub_ts: int | None) -> None:
        """Sleep until it is that time at the hub; for ever where there are no epochs."""
        if hub_ts is None:
            await asyncio.Event().wait()
        else:
            await self._contact.clock.until(hub_ts)
