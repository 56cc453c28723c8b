"""The current sessions of a node, and the dialler that keeps connections to contacts.

Two nodes may dial each other at the same time, or one may reconnect before the other notices the loss. So a peer may
have several sessions on one lane: the node reads from all and writes to the newest.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from plumbing.background import Tasks
from veil import veil_limits
from veil.lanes import Endpoint, Lane, Session
from veil.lanes.session import LinkSession
from veil.node import Node
from veil.runtime.contacts import Contact
from veil.veil_errors import Unverified, VeilError


@dataclass(slots=True)
class Totals:
    """Statistics of a lane since the start of the node."""

    sessions: int = 0
    frames_sent: int = 0
    frames_delivered: int = 0
    frames_lost: int = 0
    frames_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    dials_failed: int = 0
    strikes: int = 0
    last_fault: str = ""


@dataclass(slots=True)
class _PeerSessions:
    """All sessions with one peer on one lane, the newest last."""

    sessions: list[Session] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class Sessions:
    """Connects sessions to the node: incoming frames, outgoing frames and delivery results."""

    def __init__(self, node: Node, wake_timers: Callable[[], None]) -> None:
        self._node = node
        self._wake_timers = wake_timers
        self._by_peer: dict[tuple[str, bytes], _PeerSessions] = {}
        self._tasks = Tasks()
        self._totals: dict[str, Totals] = {}
        self.on_signal: Callable[[bytes, bytes], None] = lambda peer, data: None

    def __len__(self) -> int:
        return sum(len(entry.sessions) for entry in self._by_peer.values())

    def totals(self, lane: str) -> Totals:
        """The statistics of a lane, with ended and current sessions."""
        found = Totals(**{name: getattr(self._ended(lane), name) for name in Totals.__slots__})
        for name, session in self.all():
            if name == lane:
                found.sessions += 1
                _count(found, session)
        return found

    def all(self) -> Iterator[tuple[str, Session]]:
        for (lane, _), entry in self._by_peer.items():
            for session in entry.sessions:
                yield lane, session

    def dial_failed(self, lane: str, why: str) -> None:
        totals = self._ended(lane)
        totals.dials_failed += 1
        totals.last_fault = why

    def has(self, lane: str, peer: bytes) -> bool:
        return (lane, peer) in self._by_peer

    async def gone(self, lane: str, peer: bytes) -> None:
        """Wait until there is no session with a peer on a lane."""
        entry = self._by_peer.get((lane, peer))
        if entry is not None:
            await entry.gone.wait()

    def wake(self, lane: str, peer: str) -> None:
        entry = self._by_peer.get((lane, bytes.fromhex(peer)))
        if entry is not None:
            entry.sessions[-1].wake()

    def signal(self, peer: bytes, data: bytes) -> bool:
        """Send SIGNAL data to a peer over any session. Return whether one exists."""
        for _, session in self.all():
            if session.peer == peer and isinstance(session, LinkSession) and session.signal(data):
                return True
        return False

    def add(self, lane: str, session: Session) -> None:
        """Add a session. At the limit per peer the oldest one is closed; at the global limit this one."""
        entry = self._by_peer.get((lane, session.peer))
        if len(self) >= veil_limits.MAX_SESSIONS and entry is None:
            self._tasks.start(session.close())
            return
        if entry is None:
            if not self._node.connected(lane, session.peer.hex(), session.peer):
                self._tasks.start(session.close())
                return
            entry = self._by_peer[lane, session.peer] = _PeerSessions()
        entry.sessions.append(session)
        if len(entry.sessions) > veil_limits.MAX_SESSIONS_PER_PEER:
            self._tasks.start(entry.sessions[0].close())
        self._tasks.start(self._run(lane, session, entry))
        self._wake_timers()

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for _, session in list(self.all())), return_exceptions=True)
        await self._tasks.finish()

    async def _run(self, lane: str, session: Session, entry: _PeerSessions) -> None:
        peer = session.peer.hex()
        node = self._node

        def pull(most: int) -> tuple[bytes, ...]:
            return node.take(lane, peer, most) if entry.sessions[-1] is session else ()

        def incoming(frame: bytes) -> None:
            node.receive(lane, peer, frame)
            self._wake_timers()

        session.health.on_outcome = lambda ok, seconds: node.note_sent(lane, peer, ok, seconds)
        if isinstance(session, LinkSession):
            session.on_signal = lambda data: self.on_signal(session.peer, data)
        try:
            await session.run(pull, incoming)
        except VeilError as error:
            self._ended(lane).last_fault = str(error)
        finally:
            self._remove(lane, session, entry)

    def _remove(self, lane: str, session: Session, entry: _PeerSessions) -> None:
        entry.sessions.remove(session)
        session.health.on_outcome = None
        _count(self._ended(lane), session)
        if entry.sessions:
            entry.sessions[-1].wake()
            return
        del self._by_peer[lane, session.peer]
        entry.gone.set()
        self._node.disconnected(lane, session.peer.hex())
        self._wake_timers()

    def _ended(self, lane: str) -> Totals:
        return self._totals.setdefault(lane, Totals())


def _count(totals: Totals, session: Session) -> None:
    health = session.health
    totals.frames_sent += health.frames_sent
    totals.frames_delivered += health.frames_delivered
    totals.frames_lost += health.frames_lost
    totals.frames_received += health.frames_received
    totals.bytes_sent += health.bytes_sent
    totals.bytes_received += health.bytes_received
    totals.strikes += health.strikes


MAX_DIALLED = 512


class Dialler:
    """Keeps connections to contacts, with one task per endpoint."""

    def __init__(self, lanes: dict[str, Lane], sessions: Sessions, own_key: bytes) -> None:
        self._lanes = lanes
        self._sessions = sessions
        self._own_key = own_key
        self._tasks: dict[tuple[bytes, Endpoint], asyncio.Task[None]] = {}
        self._dial_now = asyncio.Event()

    def add(self, contact: Contact) -> None:
        """Dial the endpoints of a contact, and stop dialling its former endpoints."""
        wanted = {(contact.pubkey, endpoint) for endpoint in contact.endpoints if endpoint.scheme in self._lanes}
        self._cancel({target for target in self._tasks if target[0] == contact.pubkey} - wanted)
        if contact.pubkey == self._own_key:
            return
        for target in wanted - self._tasks.keys():
            if len(self._tasks) < MAX_DIALLED:
                self._tasks[target] = asyncio.ensure_future(self._dial_forever(contact, target[1]))

    def remove(self, pubkey: bytes) -> None:
        self._cancel({target for target in self._tasks if target[0] == pubkey})

    def dial_now(self) -> None:
        """Retry all failed endpoints now, because a message was published."""
        self._dial_now.set()
        self._dial_now = asyncio.Event()

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        self._cancel(set(self._tasks))
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cancel(self, targets: set[tuple[bytes, Endpoint]]) -> None:
        for target in targets:
            self._tasks.pop(target).cancel()

    async def _dial_forever(self, contact: Contact, endpoint: Endpoint) -> None:
        lane = endpoint.scheme
        wait = veil_limits.FIRST_REDIAL_SECONDS
        while True:
            await self._sessions.gone(lane, contact.pubkey)
            try:
                session = await self._lanes[lane].dial(endpoint, contact.pubkey, contact.pin)
            except VeilError as error:
                self._sessions.dial_failed(lane, str(error))
                if isinstance(error, Unverified):
                    wait = veil_limits.MAX_REDIAL_SECONDS
                await self._pause(wait)
                wait = min(2 * wait, veil_limits.MAX_REDIAL_SECONDS)
                continue
            self._sessions.add(lane, session)
            wait = veil_limits.FIRST_REDIAL_SECONDS
            await session.closed.wait()
            await self._pause(wait)

    async def _pause(self, seconds: float) -> None:
        """Wait a random time, so nodes do not reconnect at the same moment."""
        try:
            async with asyncio.timeout(seconds * random.uniform(0.5, 1.0)):
                await self._dial_now.wait()
        except TimeoutError:
            return
