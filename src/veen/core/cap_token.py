"""Capabilities, their presentation to a hub, and the rate bucket of a capability. Spec §6, OP0.3.

A token names neither a hub nor a date. A presentation adds both: the issuer signs that a token may be authorized at one
hub, and that it ends at a date even if it was never used.

A bucket starts full, gains `per_sec` tokens each second up to `burst`, and loses one per accepted message. Its time is
`hub_ts`, which is in the log, so every replay of the log computes the same bucket.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, TypeAlias

from veen.core import signing
from veen.core.admission import BY_DETAIL
from veen.core.cbor import Bstr, ListOf, Nested, Uint, VersionField, Wire, int_map
from veen.core.hashing import U64_MAX, ht
from veen.core.limits import MAX_CAP_CHAIN, MAX_CAP_STREAMS
from veen.core.profile import Limits
from veen.core.signing import SIGNATURE_BYTES, SigningKey

_FIRST_PREVIOUS = bytes(SIGNATURE_BYTES)


@int_map("rate")
class Rate(Wire):
    """The rate of messages: tokens per second, and the size of the bucket."""

    per_sec: Annotated[int, Uint()]
    burst: Annotated[int, Uint()]


@int_map("allow")
class Allow(Wire):
    """The grant of a token: streams, seconds of validity after the hub logs it, and rate."""

    stream_ids: Annotated[tuple[bytes, ...], ListOf(Bstr(name="stream_id"), most=MAX_CAP_STREAMS, least=1)]
    ttl: Annotated[int, Uint()]
    rate: Annotated[Rate | None, Nested(Rate, optional=True)] = None

    def flaw(self) -> str | None:
        ascending = all(a < b for a, b in pairwise(self.stream_ids))
        return None if ascending else "stream_ids are not in strictly ascending order"


@int_map("cap_token", VersionField())
class CapToken(Wire):
    """A capability. The holder of `subject_pk` may use it; the issuer may sign it again, up to eight times in all."""

    issuer_pk: Annotated[bytes, Bstr()]
    subject_pk: Annotated[bytes, Bstr()]
    allow: Annotated[Allow, Nested(Allow)]
    sig_chain: Annotated[tuple[bytes, ...], ListOf(Bstr(SIGNATURE_BYTES, name="link"), most=MAX_CAP_CHAIN, least=1)]

    def auth_ref(self) -> bytes:
        """The id that messages refer to this token by."""
        return ht("veen/cap", self.encode())

    def verify(self) -> None:
        """Raise `Unverified` unless every link is the issuer's signature over the grant and the previous link."""
        previous = _FIRST_PREVIOUS
        for number, link in enumerate(self.sig_chain, 1):
            signing.verify(self.issuer_pk, self._link_digest(previous), link, f"cap_token link {number}")
            previous = link

    def rate_under(self, limits: Limits) -> Rate:
        """The rate that applies at a hub: the token's own, or the hub's limit if the token has none.

        Raises `Refused` if the token's rate is above the hub's limit.
        """
        most = Rate(limits.max_cap_rate_per_sec, limits.max_cap_rate_burst)
        rate = self.allow.rate or most
        if rate.per_sec > most.per_sec or rate.burst > most.burst:
            requested = f"{rate.per_sec}/s, burst {rate.burst}"
            raise BY_DETAIL["CAP_INVALID"].refused(
                f"its rate of {requested} is above this hub's {most.per_sec}/s, burst {most.burst}"
            )
        return rate

    def expires_at(self, issued_at: int) -> int:
        """The last second in which it is valid."""
        return min(issued_at + self.allow.ttl, U64_MAX)

    def expired(self, issued_at: int, hub_ts: int) -> bool:
        return hub_ts > self.expires_at(issued_at)

    def _link_digest(self, previous: bytes) -> bytes:
        return ht("veen/cap-link", self.unsigned() + previous)


@int_map("cap_presentation", VersionField())
class CapPresentation(Wire):
    """A token for one hub until a date, both set by the issuer. A hub logs it as a whole."""

    hub_id: Annotated[bytes, Bstr()]
    not_after: Annotated[int, Uint()]  # the last second in which the token can be valid
    token: Annotated[CapToken, Nested(CapToken)]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]

    def auth_ref(self) -> bytes:
        return self.token.auth_ref()

    def verify(self) -> None:
        """Raise `Unverified` unless the token and the presentation are signed by the token's issuer."""
        self.token.verify()
        signing.verify(self.token.issuer_pk, self._digest(), self.sig, "cap_presentation")

    def expires_at(self, issued_at: int) -> int:
        """The last second in which the token is valid."""
        return min(self.token.expires_at(issued_at), self.not_after)

    def expired(self, issued_at: int, hub_ts: int) -> bool:
        return hub_ts > self.expires_at(issued_at)

    def _digest(self) -> bytes:
        return ht("veen/cap-presentation", self.unsigned())


Capability: TypeAlias = CapToken | CapPresentation

# Both start with version and 32 bytes, always in as many bytes. Key 3 is a byte string or an unsigned integer.
_KEY_3_VALUE = len(b"\xa5\x01\x01\x02\x58\x20") + 32 + len(b"\x03")
_UINT_HEADS = 0x20


def token_of(capability: Capability) -> CapToken:
    return capability.token if isinstance(capability, CapPresentation) else capability


def capability_type(data: bytes, pos: int = 0) -> type[CapToken] | type[CapPresentation]:
    """Whether the CBOR at `pos` is to be decoded as a token or as a presentation."""
    head = data[pos + _KEY_3_VALUE : pos + _KEY_3_VALUE + 1]
    return CapPresentation if head and head[0] < _UINT_HEADS else CapToken


def decode_capability(data: bytes) -> Capability:
    return capability_type(data).decode(data)


def present(issuer: SigningKey, token: CapToken, hub_id: bytes, not_after: int) -> CapPresentation:
    """Allow one hub to authorize a token, until a date. Deterministic. Raises unless the issuer signed the token."""
    _check_own(token, issuer)
    unsigned = CapPresentation(hub_id, not_after, token, bytes(SIGNATURE_BYTES))
    return replace(unsigned, sig=issuer.sign(unsigned._digest()))


def mint(
    issuer: SigningKey, subject_pk: bytes, streams: Iterable[bytes], ttl: int, rate: Rate | None = None
) -> CapToken:
    """A token with one link. Deterministic: the same inputs give the same bytes."""
    allow = Allow(tuple(sorted(set(streams))), ttl, rate)
    return _link(CapToken(issuer.public_key, subject_pk, allow, ()), issuer)


def resign(token: CapToken, issuer: SigningKey) -> CapToken:
    """Add one link by the same issuer, which gives the same grant a new `auth_ref`."""
    _check_own(token, issuer)
    return _link(token, issuer)


def renew(token: CapToken, issuer: SigningKey) -> CapToken:
    """The same grant with a new `auth_ref`, for use after the old one expired at a hub.

    Adds one link. If the chain is full, starts a new chain with a `ttl` that is one second longer. Deterministic, so
    the issuer stores nothing. Spec §6.1.
    """
    if len(token.sig_chain) < MAX_CAP_CHAIN:
        return resign(token, issuer)
    _check_own(token, issuer)
    longer = replace(token.allow, ttl=token.allow.ttl + 1)
    return mint(issuer, token.subject_pk, longer.stream_ids, longer.ttl, longer.rate)


def _check_own(token: CapToken, issuer: SigningKey) -> None:
    if issuer.public_key != token.issuer_pk:
        raise ValueError("only the issuer's key can sign for this token")
    token.verify()


def _link(token: CapToken, issuer: SigningKey) -> CapToken:
    previous = token.sig_chain[-1] if token.sig_chain else _FIRST_PREVIOUS
    linked = replace(token, sig_chain=(*token.sig_chain, issuer.sign(token._link_digest(previous))))
    linked.encode()  # raises ValueError for a token that every hub would reject
    return linked


@dataclass(frozen=True, slots=True)
class Bucket:
    """The number of tokens at one hub time."""

    tokens: int
    hub_ts: int

    @classmethod
    def full(cls, rate: Rate, hub_ts: int) -> "Bucket":
        return cls(rate.burst, hub_ts)

    def refilled(self, rate: Rate, hub_ts: int) -> "Bucket":
        """The bucket at a later time. An earlier time changes nothing."""
        elapsed = max(0, hub_ts - self.hub_ts)
        return Bucket(min(rate.burst, self.tokens + elapsed * rate.per_sec), max(self.hub_ts, hub_ts))

    def take(self, rate: Rate, hub_ts: int) -> "Bucket | None":
        """The bucket after one more accepted message, or None if it is empty."""
        now = self.refilled(rate, hub_ts)
        return Bucket(now.tokens - 1, now.hub_ts) if now.tokens else None

    def retry_after(self, rate: Rate) -> int | None:
        """Whole seconds until there is a token; None if there will never be one."""
        if self.tokens and rate.burst:
            return 0
        return 1 if rate.per_sec and rate.burst else None


def replay(rate: Rate, accepted: Iterable[int]) -> Bucket | None:
    """The bucket after messages accepted at these times; None before the first. Rejected messages do not count."""
    bucket: Bucket | None = None
    for hub_ts in accepted:
        bucket = (bucket or Bucket.full(rate, hub_ts)).take(rate, hub_ts)
        if bucket is None:
            raise ValueError(f"the message at hub_ts {hub_ts} exceeds this rate and cannot have been accepted")
    return bucket
