"""What an earlier run left in the outbox: the very bytes are sent again, before anything new takes a place."""

import asyncio

from veen.client.contact import Contact
from veen.client.follower import Followers
from veen.client.lane import Lane, Settled


class Recovery:
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
        lane = Lane(self._contact, self._followers.of(label), 0, asyncio.Lock())
        while lane.waiting:
            self.settled += await lane.push()
