"""What a check has to hand: the hub, who may write to it, chance with a seed, and what is made once for several."""

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
_FILLED = 11  # 0b1011: a tree with three peaks
_LONGEST_WAIT_SEC = 30
_MOST_ENTRIES = 100_000  # more than any check writes


class ExpiredWriters(NamedTuple):
    """Whose capability has run out, and another writer under the same label; each has one accepted message."""

    owner: Writer
    other: Writer
    last_ts: int


class ExpiredCapabilities(NamedTuple):
    """One who had more to give, and one whose only message was all that the rate allowed."""

    idle: ExpiredWriters
    spent: ExpiredWriters


class CheckContext:
    """One run against one hub. Names and keys are new in every run; only choices follow the seed."""

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
        """A check's choices do not depend on which checks ran before it."""
        self.rng = Random(f"{self._seed}/{check_id}")

    # Time.

    def status(self) -> HubFacts:
        """What the hub says of itself now."""
        return HubFacts.read(self.probe.get("/tooling/status").json())

    def wait_until(self, hub_ts: int) -> None:
        """Until the hub's own time is that, or later."""
        for _ in range(_LONGEST_WAIT_SEC):
            behind = hub_ts - self.status().hub_ts
            if behind <= 0:
                return
            if behind > _LONGEST_WAIT_SEC:
                break
            time.sleep(1)
        raise Failed(f"the hub's status does not get to hub_ts {hub_ts}, though a second passes in a second")

    @property
    def profile(self) -> Profile:
        return self.facts.profile

    # Who may write.

    @property
    def issuer(self) -> SigningKey:
        if self._issuer is None:
            raise Skipped("no issuer key was given")
        return self._issuer

    @property
    def may_write(self) -> bool:
        """Whether a message of ours can be accepted at all."""
        return self._issuer is not None or not self._needs_capability

    @property
    def has_issuer(self) -> bool:
        return self._issuer is not None

    @property
    def _needs_capability(self) -> bool:
        """With epochs a hub must have been told of a stream, and a capability is how it is told."""
        return self.facts.admission != OPEN or bool(self.profile.epoch_sec)

    def need_epochs(self) -> None:
        if not self.profile.epoch_sec:
            raise Skipped("the hub has no epochs")

    def stranger(self, stream_id: bytes | None = None) -> Writer:
        """Someone with a new key and no capability."""
        stream_id = stream_id or token_bytes(32)
        label = self.facts.label(stream_id, self.status().epoch)
        return Writer(self.probe, self.facts, stream_id, label, SigningKey.generate())

    def writer(self, stream_id: bytes | None = None) -> Writer:
        """Someone with a new key who may write to a stream, by default to a new one."""
        if not self.may_write:
            raise Skipped("nobody may write without a capability, and no issuer key was given")
        found = self.stranger(stream_id)
        if self._needs_capability:
            found.auth_ref = self.grant(found).auth_ref()
        return found

    def grant(self, to: Writer, *streams: bytes, ttl: int = _GRANT_SEC, rate: Rate | None = None) -> CapToken:
        """A capability for the writer's key, authorised; for its own stream where none are named."""
        token = cap_token.mint(self.issuer, to.key.public_key, streams or [to.stream_id], ttl, rate)
        self.authorize(token)
        return token

    def authorize(self, token: CapToken) -> AuthorizeResponse:
        """Show the hub a capability that it must take."""
        return self.probe.post("/tooling/authorize", token).offered(AuthorizeResponse)

    # Made once.

    def once(self, make: Callable[["CheckContext"], T]) -> T:
        """What `make` makes, the same for every check of the run, and by the same choices whichever asks first."""
        if make not in self._made:
            before, self.rng = self.rng, Random(f"{self._seed}/{make.__name__}")
            try:
                self._made[make] = make(self)
            finally:
                self.rng = before
        return cast(T, self._made[make])

    @cached_property
    def filled(self) -> tuple[AcceptedMessage, ...]:
        """A label with some entries by one writer: for whoever only reads."""
        writer = self.writer()
        return tuple(writer.send(b"%d" % number) for number in range(_FILLED))

    @cached_property
    def expired(self) -> ExpiredCapabilities:
        """Capabilities that have run out; with short epochs, their labels may have run out with them."""
        idle, spent = self._lapsing(None), self._lapsing(Rate(0, 1))
        self.wait_until(max(idle.last_ts, spent.last_ts) + _SHORT_GRANT_SEC + 1)
        return ExpiredCapabilities(idle, spent)

    def _lapsing(self, rate: Rate | None) -> ExpiredWriters:
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
            expect(after is None or after > cursor, f"next_cursor {after} does not lead on from {cursor}")
            expect(after is None or bool(page.items), f"next_cursor {after} follows an empty page")
            expect(len(found) <= _MOST_ENTRIES, f"a label of ours has no end: {len(found)} entries so far")
            cursor = after
        return found
