"""A running node: core, lanes, contacts and timers in one event loop."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from plumbing.sodium import SigningKey
from veil.lanes import Certificate, Endpoint, Lane, LinkLane
from veil.lanes.file_lane import FileLane
from veil.lanes.quic import QuicLane
from veil.lanes.session import AuthenticatedLane
from veil.lanes.tls_lane import TlsLane, TorLane
from veil.lanes.webrtc import CarriedSignalling, Carry, FolderSignalling, WebRtcLane
from veil.lanes.websocket_lane import WebSocketLane
from veil.node import Event, LaneClass, LaneSpec, Node, NodeConfig, StoreFault, Subscription
from veil.objects import Namespace
from veil.runtime import data_directory, groups
from veil.runtime.contacts import MAX_ENDPOINTS, AddressBook, AddressBookEntry, Contact
from veil.runtime.data_directory import DataDirectory, Settings, host_port
from veil.runtime.groups import Groups
from veil.runtime.sessions import Dialler, Sessions
from veil.store import DiskStore, StoreFailed
from veil.veil_errors import Unavailable, VeilError

# The file lane is in the fast class: it may be the only lane of a node, and requests for missing shards are slow there.
CLASSES = {
    "quic": LaneClass.FAST,
    "tls": LaneClass.FAST,
    "webrtc": LaneClass.FAST,
    "file": LaneClass.FAST,
    "wss": LaneClass.FALLBACK,
    "tor": LaneClass.FALLBACK,
}
SPECS = tuple(LaneSpec(name, klass) for name, klass in CLASSES.items())


@dataclass(slots=True)
class Lanes:
    """Running lanes, and the reasons why others are absent. SIGNAL data of peers goes to `carried`."""

    carried: CarriedSignalling
    running: dict[str, Lane] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(endpoint for lane in self.running.values() for endpoint in lane.endpoints)


def make_lanes(
    settings: Settings, certificate: Certificate, key: SigningKey, carry: Carry, settle: Callable[[], None]
) -> Lanes:
    """Create all lanes. A lane that fails is absent, and the others run. `settle` commits received frames."""
    carried = CarriedSignalling(carry)
    lanes = Lanes(carried=carried)
    for name in CLASSES:
        listen = next(iter(_of(settings.listen, name)), None)
        announce = _of(settings.announce, name)
        try:
            if name == "file":
                lanes.running[name] = FileLane(key, Path(listen.path) if listen else None, settle)
            elif name == "webrtc":
                lanes.running[name] = AuthenticatedLane(_webrtc(settings, key, listen, carried), key)
            else:
                lanes.running[name] = AuthenticatedLane(_sockets(name, settings, certificate, listen, announce), key)
        except VeilError as error:
            lanes.absent[name] = error.reason
    return lanes


def _of(texts: tuple[str, ...], name: str) -> tuple[Endpoint, ...]:
    return tuple(endpoint for endpoint in map(Endpoint.parse, texts) if endpoint.scheme == name)


def _sockets(
    name: str, settings: Settings, certificate: Certificate, listen: Endpoint | None, announce: tuple[Endpoint, ...]
) -> LinkLane:
    match name:
        case "quic":
            return QuicLane(certificate, listen, announce)
        case "wss":
            return WebSocketLane(certificate, listen, announce)
        case "tls":
            return TlsLane(certificate, listen, announce)
    if not settings.proxy:
        raise Unavailable("the tor lane", "no proxy is set; use veil node set --proxy 127.0.0.1:9050")
    return TorLane(certificate, host_port(settings.proxy), listen, announce, isolate=True)


def _webrtc(settings: Settings, key: SigningKey, listen: Endpoint | None, carried: CarriedSignalling) -> LinkLane:
    """Offers use the folder of the endpoint if it has one, else an existing session."""
    directory = Path(listen.path) if listen and listen.path else None
    signalling = FolderSignalling(key.public_key, directory, carried)
    return WebRtcLane(signalling, (listen,) if listen else (), settings.stun)


_WILDCARD_HOSTS = ("0.0.0.0", "::")
_MS = 1000
_LOG = logging.getLogger("veil")


class Host:
    """A running node with its I/O. `listeners` are called with each event once it is committed."""

    def __init__(self, directory: DataDirectory, config: NodeConfig | None = None) -> None:
        directory.check()
        self.directory = directory
        self.settings = data_directory.load_settings(directory)
        ring = groups.load_keyring(directory)
        self.started_at = time.time()
        self.book = AddressBook(directory)
        self.listeners: set[Callable[[Event], None]] = set()
        self._fault: StoreFault | None = None
        directory.lock()
        self.certificate = Certificate.load_or_make(directory.certificate)
        config = config or NodeConfig(lanes=SPECS, relay_all=self.settings.relay_all)
        self.node = Node(
            config,
            DiskStore(directory.store),
            ring.identity,
            clock=time.time,
            random=random.SystemRandom(),
            on_ready=self._ready,
            on_store=self._store_changed,
        )
        self._wake = asyncio.Event()
        self.sessions = Sessions(self.node, self.wake_timers)
        self.groups = Groups(directory, ring, self.book, self.node)
        self.lanes = make_lanes(self.settings, self.certificate, ring.signing, self.sessions.signal, self.node.settle)
        self.sessions.on_signal = self.lanes.carried.arrived
        self.dialler = Dialler(self.lanes.running, self.sessions, ring.signing.public_key)
        self.stopping = asyncio.Event()
        self._clock: asyncio.Task[None] | None = None
        self._contact: Contact | None = None

    async def start(self) -> None:
        """Start all lanes and dial all contacts."""
        self.node.subscribe(Subscription.mailbox(Namespace.PRIVATE))
        with suppress(Unavailable):  # retried with the next event
            self.groups.catch_up()
        self.node.on_event = self._on_event
        for name, lane in list(self.lanes.running.items()):
            try:
                await lane.start(partial(self.sessions.add, name))
            except VeilError as error:
                self.lanes.absent[name] = str(error)
                del self.lanes.running[name]
        self._clock = asyncio.ensure_future(self._run_timers())
        for entry in self.book:
            self.dialler.add(entry.contact)

    async def stop(self) -> None:
        """Stop in the order that loses nothing: no new connections, close the sessions, then the store."""
        await self.dialler.stop()
        for lane in self.lanes.running.values():
            await lane.stop()
        await self.sessions.close()
        if self._clock is not None:
            self._clock.cancel()
            await asyncio.gather(self._clock, return_exceptions=True)
        self.node.close()
        self.directory.unlock()

    @property
    def contact(self) -> Contact:
        """The contact of this node. It is the same until endpoints or name change."""
        ring, places = self.groups.ring, tuple(self._reachable())[:MAX_ENDPOINTS]
        if self._contact is None or (self._contact.endpoints, self._contact.name) != (places, ring.name):
            made_ms = int(time.time() * _MS)
            self._contact = Contact.make(
                ring.signing, ring.delivery.public_key, self.certificate.pin, made_ms, ring.name, places
            )
        return self._contact

    def add_contact(self, contact: Contact, name: str = "") -> AddressBookEntry:
        entry = self.book.add(contact, name)
        self.dialler.add(contact)
        return entry

    def remove_contact(self, pubkey: bytes) -> bool:
        removed = self.book.remove(pubkey)
        self.dialler.remove(pubkey)
        return removed

    def wake_timers(self) -> None:
        """Recompute the next timer, after a call that may have scheduled an earlier one."""
        self._wake.set()

    def _reachable(self) -> Iterator[Endpoint]:
        """Endpoints for contacts. Wildcard addresses are useless to others."""
        for endpoint in self.lanes.endpoints:
            if endpoint.host not in _WILDCARD_HOSTS:
                yield endpoint

    def _ready(self, lane: str, peer: str) -> None:
        self.sessions.wake(lane, peer)

    def _store_changed(self, fault: StoreFault | None) -> None:
        if fault is not None:
            _LOG.error(
                "veil: store cannot write since %s: %s; the node rejects messages and frames until it can",
                _moment(fault.since),
                fault.reason,
            )
        elif self._fault is not None:
            _LOG.warning("veil: store writes again after a failure since %s", _moment(self._fault.since))
        self._fault = fault

    def _on_event(self, event: Event) -> None:
        with suppress(Unavailable):  # retried with the next event
            self.groups.on_event(event)
        for listener in tuple(self.listeners):
            listener(event)

    async def _run_timers(self) -> None:
        while True:
            due = self.node.next_due()
            wait = None if due is None else max(0.0, due - time.time())
            try:
                async with asyncio.timeout(wait):
                    await self._wake.wait()
                    self._wake.clear()
            except TimeoutError:
                pass
            try:
                self.node.tick()
            except StoreFailed as error:
                _LOG.critical("veil: the node stops: %s", error)
                self.stopping.set()
                return


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
