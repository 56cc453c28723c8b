"""A real hub on 127.0.0.1 in a thread of the test, and a plain client that builds, seals and signs messages."""

import asyncio
import http.client
import inspect
import json
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from plumbing.durable import Disk
from veen.core import (
    CapPresentation,
    CapToken,
    DhKey,
    Limits,
    Msg,
    PayloadHdr,
    Place,
    Profile,
    Rate,
    Receipt,
    SigningKey,
    cap_token,
    cbor,
    ciphertext,
    msg,
    naming,
    strict_json,
    wire_json,
)
from veen.core.cap_token import Capability
from veen.core.cbor import Wire
from veen.core.cbor.value import read_value
from veen.core.envelopes import (
    AuthorizeResponse,
    ErrorEnvelope,
    RevocationRequest,
    StreamRegistration,
    SubmitRequest,
    SubmitResponse,
)
from veen.core.hashing import ht
from veen.hub.admission_rules import Admission
from veen.hub.config import HubConfig
from veen.hub.hub_time import ClockReading, system_clocks
from veen.hub.service import HubService
from veen.storage import metadata

PATIENCE_S = 300.0  # for what hangs, not for what is slow
START = 1_750_000_000
FAR = START + 100 * 365 * 86_400  # the not_after of presentations whose end does not matter
TOKEN = "operator-of-the-test"
ISSUER = SigningKey(b"\x01" * 32)
WITNESS = SigningKey(b"\x02" * 32)
SCHEMA = naming.schema_id("test.v1")
CBOR, JSON = "application/cbor", "application/json"

W = TypeVar("W", bound=Wire)
T = TypeVar("T")


def until(condition: Callable[[], bool]) -> None:
    """Repeat a check until it is true. Each check sends a request to the hub, so no sleep is needed."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, (
            f"timed out after {PATIENCE_S} s waiting for: {inspect.getsource(condition).strip()}"
        )


class Clock:
    """The wall clock and the boot clock of a machine, set by the test."""

    def __init__(self, now: float = START) -> None:
        self._reading = ClockReading(now, 0.0)

    def __call__(self) -> float:
        return self._reading.wall

    def read(self) -> ClockReading:
        return self._reading

    @property
    def now(self) -> float:
        """The wall clock. Setting it lets time pass; setting it back moves only the wall clock."""
        return self._reading.wall

    @now.setter
    def now(self, wall: float) -> None:
        before, boot = self._reading
        self._reading = ClockReading(wall, boot + max(0.0, wall - before))

    def step(self, seconds: float) -> None:
        """Someone sets the wall clock. No time passes."""
        self._reading = self._reading._replace(wall=self._reading.wall + seconds)


@dataclass(frozen=True)
class Reply:
    """A response as received."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def is_json(self) -> bool:
        return self.headers.get("content-type") == JSON

    def read(self, cls: type[W], status: int = 200) -> W:
        """The object in the body, in CBOR or JSON."""
        assert self.status == status, f"{self.status}: {self.body!r}"
        return wire_json.decode(cls, self.body) if self.is_json else cls.decode(self.body)

    def json(self, status: int = 200) -> dict[str, Any]:
        assert self.status == status, f"{self.status}: {self.body!r}"
        found = strict_json.decode(self.body, "answer")
        assert isinstance(found, dict)
        return found

    def receipt(self) -> Receipt:
        return self.read(SubmitResponse).receipt

    def error(self) -> ErrorEnvelope:
        assert self.status >= 400, f"{self.status}: not an error"
        return self.read(ErrorEnvelope, self.status)

    def refusal(self) -> tuple[int, str, str | None, str | None]:
        """`(status, code, stage, detail_enum)`."""
        error = self.error().refused()
        return self.status, error.code, error.stage, error.detail_enum


def presented(token: CapToken, hub_id: bytes, not_after: int = FAR, key: SigningKey = ISSUER) -> CapPresentation:
    """A presentation by the formula of docs/wire.md, also of a token that no issuer would sign."""
    unsigned = CapPresentation(hub_id, not_after, token, bytes(64))
    return replace(unsigned, sig=key.sign(ht("veen/cap-presentation", unsigned.unsigned())))


def make_dir(
    root: Path,
    profile: Profile | None = None,
    limits: Limits | None = None,
    now: int = START,
    realm_id: bytes | None = None,
) -> Path:
    """A new data directory under `root`."""
    path = root / "hub"
    metadata.create(Disk(), path, profile or Profile(), limits or Limits(), now, realm_id)
    return path


@dataclass
class Hub:
    """One run of a hub on a data directory."""

    data_dir: Path
    clock: Callable[[], float] = field(default_factory=Clock)
    disk: Disk | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def start(self) -> "Hub":
        given = {
            "port": 0,
            "workers": 0,
            "issuers": frozenset({ISSUER.public_key}),
            "witnesses": frozenset({WITNESS.public_key}),
            "operator_token": TOKEN,
            **self.settings,
        }
        assert isinstance(self.clock, Clock) or self.clock is time.time
        clocks = self.clock.read if isinstance(self.clock, Clock) else system_clocks
        self.service = HubService(HubConfig(self.data_dir, **given), disk=self.disk, clocks=clocks)
        self.loop = asyncio.new_event_loop()
        self._thread = Thread(target=self.loop.run_forever, name="hub")
        self._thread.start()
        try:
            self.do(self.service.start())
        except BaseException:
            self._end_loop()
            raise
        self.port = self.service.server.port
        return self

    def do(self, work: Awaitable[T]) -> T:
        """Run a coroutine on the hub's loop and return its result."""

        async def wrapped() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(wrapped(), self.loop).result(PATIENCE_S)

    def stop(self, grace_s: float = PATIENCE_S) -> None:
        self.do(self.service.stop(grace_s))
        self._end_loop()

    def abandon(self) -> None:
        """End a hub whose disk is broken, without draining."""
        self.do(let_go(self.service))
        self._end_loop()

    def _end_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def again(self, **changes: Any) -> "Hub":
        """The next run on the same directory."""
        return replace(self, **changes).start()

    # Requests.

    def ask(self, method: str, path: str, body: bytes = b"", /, **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            sent = {name.replace("_", "-"): text for name, text in headers.items()}
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            found = {name.lower(): text for name, text in answer.getheaders()}
            return Reply(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, b"", **headers)

    def post(self, path: str, body: bytes | Wire, **headers: str) -> Reply:
        data = body.encode() if isinstance(body, Wire) else body
        return self.ask("POST", path, data, **{"content_type": CBOR, **headers})

    def post_json(self, path: str, body: bytes | Wire, **headers: str) -> Reply:
        data = wire_json.encode(body) if isinstance(body, Wire) else body
        return self.ask("POST", path, data, **{"content_type": JSON, **headers})

    def submit(self, message: Msg) -> Reply:
        return self.post("/v1/submit", SubmitRequest(message))

    def batch(self, *items: bytes) -> list[Receipt | ErrorEnvelope]:
        """The answers to a batch, in order."""
        reply = self.post("/tooling/submit-batch", b"".join(items))
        assert reply.status == 200, reply.body
        assert reply.headers["content-type"] == "application/cbor-seq"
        found: list[Receipt | ErrorEnvelope] = []
        pos = 0
        while pos < len(reply.body):
            value, end = read_value(reply.body, pos)
            item = reply.body[pos:end]
            found.append(ErrorEnvelope.decode(item) if isinstance(value, dict) else Receipt.decode(item))
            pos = end
        return found

    def authorize(self, capability: Capability) -> Reply:
        """Authorize a capability; a token in a presentation for this hub."""
        shown = self.presented(capability) if isinstance(capability, CapToken) else capability
        return self.post("/tooling/authorize", shown)

    def presented(self, token: CapToken, not_after: int = FAR) -> CapPresentation:
        return presented(token, self.service.rules.hub_id, not_after)

    def register(self, stream: bytes) -> Receipt:
        reply = self.post("/tooling/streams", StreamRegistration(stream), authorization=f"Bearer {TOKEN}")
        return reply.receipt()

    def revoke(self, kind: str, target: bytes, ttl: int | None = None, reason: str | None = None) -> Reply:
        request = RevocationRequest(kind, target, reason, ttl)
        return self.post("/tooling/revoke", request, authorization=f"Bearer {TOKEN}")

    def status(self) -> dict[str, Any]:
        return self.get("/tooling/status").json()

    # Names.

    @property
    def hub_pk(self) -> bytes:
        return self.service.hub_metadata.identity.newest.hub_pk

    def label(self, stream: str | bytes, epoch: int | None = None) -> bytes:
        rules = self.service.rules
        name = naming.stream_id(stream) if isinstance(stream, str) else stream
        now = rules.profile.epoch(int(self.clock())) if epoch is None else epoch
        return naming.label(rules.routing_key, name, now)

    def writer(self, stream: str = "s", key: SigningKey | None = None, token: CapToken | None = None) -> "Writer":
        return Writer(self, self.label(stream), key or SigningKey.generate(), token.auth_ref() if token else None)

    def granted(self, stream: str = "s", ttl: int = 1000, rate: Rate | None = None) -> "Writer":
        """A writer with an authorised capability."""
        key = SigningKey.generate()
        token = cap_token.mint(ISSUER, key.public_key, [naming.stream_id(stream)], ttl, rate)
        self.authorize(token).read(AuthorizeResponse)
        return self.writer(stream, key, token)


async def let_go(service: HubService) -> None:
    """Simulate the end of the process of a broken hub, so that nothing outlives the loop and the store."""
    await service.server.stop(0.0)
    service._background.cancel()
    service.pipeline._verifier.close()
    catch_up = service.pipeline._catch_up
    catch_up.stop_timer()
    await asyncio.to_thread(catch_up.close)
    service.close()


@contextmanager
def own_port() -> Iterator[int]:
    """A port for a hub that restarts: while it is down, no one else is given the port."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the hub can listen on it nevertheless
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@contextmanager
def running(
    data_dir: Path, clock: Callable[[], float] | None = None, disk: Disk | None = None, **settings: Any
) -> Iterator[Hub]:
    """A hub with open admission by default."""
    with own_port() as port:
        hub = Hub(data_dir, clock or Clock(), disk, {"admission": Admission.OPEN, "port": port, **settings}).start()
        try:
            yield hub
        finally:
            hub.stop()


@contextmanager
def log_file(path: Path) -> Iterator[Path]:
    """Captures the log of hubs that start inside the block; complete when the last of them has stopped.

    `capfd` cannot keep the log of a hub that a fixture starts. It closes its file at the end of the setup, and a thread
    of the hub may open another one with that descriptor before the test begins.
    """
    with path.open("w") as file, redirect_stderr(file):
        yield path
        until(lambda: path.read_text().endswith('"event":"stopped"}\n'))


def log_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def hub_key(hub: Hub) -> SigningKey:
    """The hub's own key: with it, a test can sign anything as the hub."""
    key = metadata.read_signing_key(hub.service.folders, hub.service.hub_metadata.identity.newest.key_id)
    assert isinstance(key, SigningKey)
    return key


READER = DhKey(b"\x07" * 32)


@dataclass
class Writer:
    """A client of one label with correct sequence numbers; any field can be overridden."""

    hub: Hub
    label: bytes
    key: SigningKey
    auth_ref: bytes | None = None
    client_seq: int = 0
    prev_ack: int = 0

    def message(self, body: bytes = b"hello", **given: Any) -> Msg:
        """The next message, with overridden fields, signed as it is."""
        rules = self.hub.service.rules
        place = Place(
            rules.profile_id, self.label, self.key.public_key, self.client_seq + 1, self.prev_ack, self.auth_ref
        )
        wanted = {name: given.pop(name) for name in tuple(given) if name in Place.__slots__}
        place = replace(place, **wanted)
        sealed = given.pop("ciphertext", None)
        if sealed is None:
            sealed = ciphertext.seal(READER.public_key, place, PayloadHdr(SCHEMA), body, rules.profile.pad_block)
        signed = msg.sign(
            self.key,
            profile_id=place.profile_id,
            label=place.label,
            client_seq=place.client_seq,
            prev_ack=place.prev_ack,
            auth_ref=place.auth_ref,
            ciphertext=sealed,
        )
        return self.signed(replace(signed, **given)) if given and "sig" not in given else replace(signed, **given)

    def signed(self, message: Msg) -> Msg:
        """Sign the message, whatever its content."""
        return replace(message, sig=self.key.sign(msg.signing_digest(message.encode())))

    def send(self, body: bytes = b"hello", **given: Any) -> Receipt:
        """Submit the next message; fails if it is rejected."""
        message = self.message(body, **given)
        receipt = self.hub.submit(message).receipt()
        self.accepted(message)
        return receipt

    def accepted(self, message: Msg) -> None:
        self.client_seq, self.prev_ack = message.client_seq, message.prev_ack

    def next_messages(self, count: int) -> list[bytes]:
        """Encoded consecutive messages for a batch, assumed to be accepted."""
        found = []
        for _ in range(count):
            message = self.message()
            self.accepted(message)
            found.append(message.encode())
        return found

    def send_many(self, count: int) -> list[Receipt]:
        return [self.send(b"%d" % number) for number in range(count)]


def encoded_with(message: Msg, **fields: bytes) -> bytes:
    """The MSG with some fields replaced by encoded items: for encodings that no encoder writes."""
    layout = Msg.LAYOUT.kinds
    values = [1, *(getattr(message, kind.name) for kind in layout if not kind.fixed)]
    items = [fields.get(kind.name, cbor.encode(value)) for kind, value in zip(layout, values, strict=True)]
    return b"\x8a" + b"".join(items)


def envelope(encoded: bytes) -> bytes:
    """A submit request around these bytes."""
    return b"\xa2\x01\x01\x02" + encoded
