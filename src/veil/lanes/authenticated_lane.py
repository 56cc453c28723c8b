"""Turns a lane of links into a lane of sessions: both ends of a link authenticate before any other message.

The number of unauthenticated links and the time for authentication are bounded. A peer that violates the protocol gets
no error message, and an address with repeated violations is banned for a while.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from plumbing.sodium import SigningKey
from veil.lanes import lane_limits, session
from veil.lanes.certificate import check_pin
from veil.lanes.endpoint import Endpoint
from veil.lanes.lane import Accept, LaneLink, LinkLane, Session
from veil.veil_errors import Malformed, Unverified, VeilError


class Banlist:
    """Addresses that violated the protocol, with the count of violations and the end of the ban."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def is_banned(self, address: str) -> bool:
        strikes, until = self._until.get(address, (0, 0.0))
        return strikes >= lane_limits.MAX_STRIKES and self._clock() < until

    def strike(self, address: str) -> None:
        strikes, until = self._until.pop(address, (0, 0.0))
        if until < self._clock():
            strikes = 0
        self._until[address] = (strikes + 1, self._clock() + lane_limits.BAN_SECONDS)
        while len(self._until) > lane_limits.MAX_BANS:
            self._until.popitem(last=False)


class AuthenticatedLane:
    """Authenticates the links of a `LinkLane` with the key of the node."""

    def __init__(self, lane: LinkLane, key: SigningKey) -> None:
        self.unauthenticated = 0
        self.refused = 0
        self.banlist = Banlist()
        self._lane = lane
        self._key = key
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        return self._lane.name

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return self._lane.endpoints

    async def start(self, accept: Accept) -> None:
        await self._lane.start(lambda link: self._on_link(link, accept))

    async def dial(self, endpoint: Endpoint, peer: bytes, pin: bytes | None) -> Session:
        link = await self._lane.dial(endpoint, peer)
        try:
            check_pin(link.binding, pin if self._lane.pinned else None)
        except Unverified:
            await link.close()
            raise
        return await session.dial(link, self._key, peer)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._lane.stop()

    def _on_link(self, link: LaneLink, accept: Accept) -> None:
        task = asyncio.ensure_future(self._authenticate(link, accept))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _authenticate(self, link: LaneLink, accept: Accept) -> None:
        address = link.remote.rpartition(":")[0]
        if self.unauthenticated >= lane_limits.MAX_UNAUTHENTICATED or self.banlist.is_banned(address):
            self.refused += 1
            await link.close()
            return
        self.unauthenticated += 1
        try:
            with suppress(VeilError):
                accept(await self._handshake(link, address))
        finally:
            self.unauthenticated -= 1

    async def _handshake(self, link: LaneLink, address: str) -> session.LinkSession:
        def strike() -> None:
            if not self._lane.shares_addresses:
                self.banlist.strike(address)

        try:
            authenticated = await session.answer(link, self._key)
        except (Malformed, Unverified):
            self.refused += 1
            strike()
            raise
        authenticated.on_fault = strike
        return authenticated
