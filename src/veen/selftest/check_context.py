"""What a check works with: the hub, writers, a seeded random generator, and data shared between checks."""

import time
from collections.abc import Callable
from functools import cached_property
from random import Random
from secrets import token_bytes
from typing import NamedTuple, TypeVar, cast

from veen.core import CapToken, Profile, Rate, SigningKey, cap_token
from veen.core.envelopes import StreamItem, StreamRequest, StreamResponse
from veen.core.limits import MAX_PAGE_ITEMS
from veen.core.tooling_messages import AuthorizeResponse
from veen.selftest.hub_facts import OPEN, HubFacts
from veen.selftest.probe import Probe
from veen.selftest.verdict import Failed, Skipped, expect
from veen.selftest.writer import AcceptedMessage, Writer

T = TypeVar("T")

_GRANT_SEC = 86_400
_SHORT_GRANT_SEC = 2
_FILLED_ENTRIES = 11  # 0b1011: a tree with three peaks
_MAX_WAIT_SEC = 30
_MAX_ENTRIES = 100_000  # more than any check writes


class ExpiredWriters(NamedTuple):
    """A writer with an expired capability and another writer under the same label; each has one accepted message."""

    owner: Writer
    other: Writer
    last_ts: int


class ExpiredCapabilities(NamedTuple):
    """One owner with rate left, and one whose only message used up the rate."""

    idle: ExpiredWriters
    spent: ExpiredWriters


class CheckContext:
    """One run against one hub. Names and keys are new in every run; only random choices follow the seed."""

    def __init__(
        self, probe: Probe, facts: HubFacts, *, issuer: SigningKey | None, pin: bytes | None, seed: int, count: int
    ) -> None:
        self.probe = probe
        self.facts = facts
        self.pin = pin
        self.count = count
        self._issuer = issuer
        self._seed = seed
        self._made: dict[object, object] = {}
        self.rng = Random(seed)

    def begin(self, check_id: str) -> None:
        """Seed the generator for a check, so its choices do not depend on the checks before it."""
        self.rng = Random(f"{self._seed}/{check_id}")

    # Time.

    def status(self) -> HubFacts:
        """The hub's current status."""
        return HubFacts.read(self.probe.get("/tooling/status").json())

    def wait_until(self, hub_ts: int) -> None:
        """Wait until the hub's own time reaches `hub_ts`."""
        for _ in range(_MAX_WAIT_SEC):
            behind = hub_ts - self.status().hub_ts
            if behind <= 0:
                return
            if behind > _MAX_WAIT_SEC:
                break
            time.sleep(1)
        raise Failed(f"the hub's status does not reach hub_ts {hub_ts} although enough time has passed")

    @property
    def profile(self) -> Profile:
        return self.facts.profile

    # Writers.

    @property
    def issuer(self) -> SigningKey:
        if self._issuer is None:
            raise Skipped("no issuer key was given")
        return self._issuer

    @property
    def may_write(self) -> bool:
        """Whether this run can get a message accepted."""
        return self._issuer is not None or not self._needs_capability

    @property
    def has_issuer(self) -> bool:
        return self._issuer is not None

    @property
    def _needs_capability(self) -> bool:
        """With epochs a hub must know a stream, and it learns streams from capabilities."""
        return self.facts.admission != OPEN or bool(self.profile.epoch_sec)

    def need_epochs(self) -> None:
        if not self.profile.epoch_sec:
            raise Skipped("the hub has no epochs")

    def stranger(self, stream_id: bytes | None = None) -> Writer:
        """A writer with a new key and no capability."""
        stream_id = stream_id or token_bytes(32)
        label = self.facts.label(stream_id, self.status().epoch)
        return Writer(self.probe, self.facts, stream_id, label, SigningKey.generate())

    def writer(self, stream_id: bytes | None = None) -> Writer:
        """A writer with a new key and permission for a stream, by default a new one."""
        if not self.may_write:
            raise Skipped("writing needs a capability, and no issuer key was given")
        found = self.stranger(stream_id)
        if self._needs_capability:
            found.auth_ref = self.grant(found).auth_ref()
        return found

    def grant(self, to: Writer, *streams: bytes, ttl: int = _GRANT_SEC, rate: Rate | None = None) -> CapToken:
        """Issue and authorize a capability for the writer's key; by default for its own stream."""
        token = cap_token.mint(self.issuer, to.key.public_key, streams or [to.stream_id], ttl, rate)
        self.authorize(token)
        return token

    def authorize(self, token: CapToken) -> AuthorizeResponse:
        """Present a capability that the hub must accept."""
        return self.probe.post("/tooling/authorize", token).offered(AuthorizeResponse)

    # Shared data.

    def once(self, make: Callable[["CheckContext"], T]) -> T:
        """The result of `make`, shared by all checks. Its random choices do not depend on which check calls first."""
        if make not in self._made:
            before, self.rng = self.rng, Random(f"{self._seed}/{make.__name__}")
            try:
                self._made[make] = make(self)
            finally:
                self.rng = before
        return cast(T, self._made[make])

    @cached_property
    def filled(self) -> tuple[AcceptedMessage, ...]:
        """A label with entries by one writer, for checks that only read."""
        writer = self.writer()
        return tuple(writer.send(b"%d" % number) for number in range(_FILLED_ENTRIES))

    @cached_property
    def expired(self) -> ExpiredCapabilities:
        """Expired capabilities. With short epochs their labels may have expired too."""
        idle, spent = self._short_grant(None), self._short_grant(Rate(0, 1))
        self.wait_until(max(idle.last_ts, spent.last_ts) + _SHORT_GRANT_SEC + 1)
        return ExpiredCapabilities(idle, spent)

    def _short_grant(self, rate: Rate | None) -> ExpiredWriters:
        owner = self.stranger()
        owner.auth_ref = self.grant(owner, ttl=_SHORT_GRANT_SEC, rate=rate).auth_ref()
        last_ts = owner.send().receipt.hub_ts
        other = self.writer(owner.stream_id)
        other.label = owner.label
        other.send()
        return ExpiredWriters(owner, other, last_ts)

    # Reading.

    def page(self, request: StreamRequest) -> StreamResponse:
        return self.probe.post("/v1/stream", request).read(StreamResponse)

    def pages(self, label: bytes, max_items: int = MAX_PAGE_ITEMS, *, with_receipts: bool = False) -> list[StreamItem]:
        """Everything under a label, by following the cursor."""
        found: list[StreamItem] = []
        cursor: int | None = 1
        while cursor is not None:
            asked = StreamRequest(label, 0, cursor=cursor, max_items=max_items, with_receipts=with_receipts)
            page = self.page(asked)
            found += page.items
            after = page.next_cursor
            expect(after is None or after > cursor, f"next_cursor {after} is not after {cursor}")
            expect(after is None or bool(page.items), f"next_cursor {after} follows an empty page")
            expect(len(found) <= _MAX_ENTRIES, f"the label has no end: {len(found)} entries so far")
            cursor = after
        return found
