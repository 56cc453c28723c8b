"""The rate bucket of a capability: a function of the timestamps of what was accepted, and of nothing else. OP0.3.

A bucket starts full, gains `per_sec` tokens each second up to `burst`, and gives one per accepted message. Since
time is `hub_ts`, which is in the log, anyone who replays the log finds the same bucket.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

from veen.core import signing
from veen.core.admission import BY_DETAIL
from veen.core.cbor import Bstr, ListOf, Map, Nested, Uint, VersionField, Wire
from veen.core.hashing import U64_MAX, ht
from veen.core.hub_limits import Limits
from veen.core.limits import MAX_CAP_CHAIN, MAX_CAP_STREAMS
from veen.core.signing import SIGNATURE_BYTES, SigningKey

_FIRST_PREVIOUS = bytes(SIGNATURE_BYTES)


@dataclass(frozen=True, slots=True)
class Rate(Wire):
    """How many messages a second, and how many at once."""

    per_sec: int
    burst: int

    LAYOUT: ClassVar = Map("rate", {1: Uint("per_sec"), 2: Uint("burst")})


@dataclass(frozen=True, slots=True)
class Allow(Wire):
    """What a token grants: streams, for how many seconds from when the hub logs it, how fast."""

    stream_ids: tuple[bytes, ...]
    ttl: int
    rate: Rate | None = None

    LAYOUT: ClassVar = Map(
        "allow",
        {
            1: ListOf("stream_ids", Bstr("stream_id"), most=MAX_CAP_STREAMS, least=1),
            2: Uint("ttl"),
            3: Nested("rate", Rate, optional=True),
        },
    )

    def flaw(self) -> str | None:
        ascending = all(a < b for a, b in pairwise(self.stream_ids))
        return None if ascending else "stream_ids are not in ascending order, each once"


@dataclass(frozen=True, slots=True)
class CapToken(Wire):
    """A capability. Whoever holds `subject_pk` may use it; the issuer may sign it again, up to eight times in all."""

    issuer_pk: bytes
    subject_pk: bytes
    allow: Allow
    sig_chain: tuple[bytes, ...]

    LAYOUT: ClassVar = Map(
        "cap_token",
        {
            1: VersionField(),
            2: Bstr("issuer_pk"),
            3: Bstr("subject_pk"),
            4: Nested("allow", Allow),
            5: ListOf("sig_chain", Bstr("link", SIGNATURE_BYTES), most=MAX_CAP_CHAIN, least=1),
        },
    )

    def auth_ref(self) -> bytes:
        """The name by which messages refer to this token."""
        return ht("veen/cap", self.encode())

    def verify(self) -> None:
        """Raise unless every link is the issuer's signature over the grant and the link before it."""
        previous = _FIRST_PREVIOUS
        for number, link in enumerate(self.sig_chain, 1):
            signing.verify(self.issuer_pk, self._link_digest(previous), link, f"cap_token link {number}")
            previous = link

    def rate_under(self, limits: Limits) -> Rate:
        """The rate it admits at: its own, which must not be above the hub's, or the hub's where it names none."""
        most = Rate(limits.max_cap_rate_per_sec, limits.max_cap_rate_burst)
        rate = self.allow.rate or most
        if rate.per_sec > most.per_sec or rate.burst > most.burst:
            asked = f"{rate.per_sec}/s, burst {rate.burst}"
            raise BY_DETAIL["CAP_INVALID"].refused(
                f"its rate of {asked} is above this hub's {most.per_sec}/s, burst {most.burst}"
            )
        return rate

    def expires_at(self, issued_at: int) -> int:
        """The last second in which it admits."""
        return min(issued_at + self.allow.ttl, U64_MAX)

    def expired(self, issued_at: int, hub_ts: int) -> bool:
        return hub_ts > self.expires_at(issued_at)

    def _link_digest(self, previous: bytes) -> bytes:
        # Keys 1 to 4 as a map of four: the encoding without its last entry.
        grant = _UNSIGNED.write([self.issuer_pk, self.subject_pk, self.allow])
        return ht("veen/cap-link", grant + previous)


_UNSIGNED = Map("cap_token without sig_chain", dict(zip(range(1, 5), CapToken.LAYOUT.kinds, strict=False)))


def mint(
    issuer: SigningKey, subject_pk: bytes, streams: Iterable[bytes], ttl: int, rate: Rate | None = None
) -> CapToken:
    """A token with one link. The same inputs give the same bytes."""
    allow = Allow(tuple(sorted(set(streams))), ttl, rate)
    return _link(CapToken(issuer.public_key, subject_pk, allow, ()), issuer)


def resign(token: CapToken, issuer: SigningKey) -> CapToken:
    """The token with one more link by the same issuer: a new `auth_ref` for the same grant."""
    _check_own(token, issuer)
    return _link(token, issuer)


def renew(token: CapToken, issuer: SigningKey) -> CapToken:
    """The same grant under a new name, for when a hub has seen the time of the old one end.

    One more link, as the issuer's history of signing. Where there is no room for another, a second more of `ttl` and a
    chain that begins anew. The same token always gives the same next one, so there is nothing to remember. Spec §6.1.
    """
    if len(token.sig_chain) < MAX_CAP_CHAIN:
        return resign(token, issuer)
    _check_own(token, issuer)
    longer = replace(token.allow, ttl=token.allow.ttl + 1)
    return mint(issuer, token.subject_pk, longer.stream_ids, longer.ttl, longer.rate)


def _check_own(token: CapToken, issuer: SigningKey) -> None:
    if issuer.public_key != token.issuer_pk:
        raise ValueError("only the issuer's own key adds a link")
    token.verify()


def _link(token: CapToken, issuer: SigningKey) -> CapToken:
    previous = token.sig_chain[-1] if token.sig_chain else _FIRST_PREVIOUS
    linked = replace(token, sig_chain=(*token.sig_chain, issuer.sign(token._link_digest(previous))))
    linked.encode()  # refuses here, not at the hub, what no hub would take
    return linked


@dataclass(frozen=True, slots=True)
class Bucket:
    """What is left, and as of when."""

    tokens: int
    hub_ts: int

    @classmethod
    def full(cls, rate: Rate, hub_ts: int) -> "Bucket":
        return cls(rate.burst, hub_ts)

    def refilled(self, rate: Rate, hub_ts: int) -> "Bucket":
        """The bucket at a later time; time never runs back."""
        elapsed = max(0, hub_ts - self.hub_ts)
        return Bucket(min(rate.burst, self.tokens + elapsed * rate.per_sec), max(self.hub_ts, hub_ts))

    def take(self, rate: Rate, hub_ts: int) -> "Bucket | None":
        """The bucket after one more accepted message, or None where it is empty."""
        now = self.refilled(rate, hub_ts)
        return Bucket(now.tokens - 1, now.hub_ts) if now.tokens else None

    def retry_after(self, rate: Rate) -> int | None:
        """Whole seconds until one token is back; None where none ever will be."""
        if self.tokens and rate.burst:
            return 0
        return 1 if rate.per_sec and rate.burst else None


def replay(rate: Rate, accepted: Iterable[int]) -> Bucket | None:
    """The bucket after messages accepted at these times; None before the first. Refused messages leave no trace."""
    bucket: Bucket | None = None
    for hub_ts in accepted:
        bucket = (bucket or Bucket.full(rate, hub_ts)).take(rate, hub_ts)
        if bucket is None:
            raise ValueError(f"the message at {hub_ts} cannot have been accepted under this rate")
    return bucket
