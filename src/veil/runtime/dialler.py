"""Keeps a way open to every contact: dials each of its endpoints, and again after longer and longer waits."""

import asyncio
import random

from veil.errors import Unverified, VeilError
from veil.lanes import Endpoint, Lane, bounds
from veil.runtime.contacts import Contact
from veil.runtime.sessions import Sessions

MAX_DIALLED = 512


class Dialler:
    """One task per endpoint of a contact."""

    def __init__(self, lanes: dict[str, Lane], sessions: Sessions, own_key: bytes) -> None:
        self._lanes = lanes
        self._sessions = sessions
        self._own_key = own_key
        self._tasks: dict[tuple[bytes, Endpoint], asyncio.Task[None]] = {}
        self._now = asyncio.Event()

    def keep(self, contact: Contact) -> None:
        """Dial a contact where it says it is, and no longer where it said it was."""
        wanted = {(contact.pubkey, endpoint) for endpoint in contact.endpoints if endpoint.scheme in self._lanes}
        self._cancel({place for place in self._tasks if place[0] == contact.pubkey} - wanted)
        if contact.pubkey == self._own_key:
            return
        for place in wanted - self._tasks.keys():
            if len(self._tasks) < MAX_DIALLED:
                self._tasks[place] = asyncio.ensure_future(self._dial_always(contact, place[1]))

    def drop(self, pubkey: bytes) -> None:
        self._cancel({place for place in self._tasks if place[0] == pubkey})

    def hurry(self) -> None:
        """Something was asked to be said: do not wait any longer where nobody answered so far."""
        self._now.set()
        self._now = asyncio.Event()

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        self._cancel(set(self._tasks))
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cancel(self, places: set[tuple[bytes, Endpoint]]) -> None:
        for place in places:
            self._tasks.pop(place).cancel()

    async def _dial_always(self, contact: Contact, endpoint: Endpoint) -> None:
        lane = endpoint.scheme
        wait = bounds.REDIAL_FIRST_SECONDS
        while True:
            await self._sessions.gone(lane, contact.pubkey)
            try:
                session = await self._lanes[lane].dial(endpoint, contact.pubkey, contact.pin)
            except VeilError as error:
                self._sessions.dial_failed(lane, str(error))
                if isinstance(error, Unverified):
                    wait = bounds.REDIAL_MOST_SECONDS
                await self._pause(wait)
                wait = min(2 * wait, bounds.REDIAL_MOST_SECONDS)
                continue
            self._sessions.add(lane, session)
            wait = bounds.REDIAL_FIRST_SECONDS
            await session.closed.wait()
            await self._pause(wait)

    async def _pause(self, seconds: float) -> None:
        """Not all nodes come back at the same moment."""
        try:
            async with asyncio.timeout(seconds * random.uniform(0.5, 1.0)):
                await self._now.wait()
        except TimeoutError:
            return
