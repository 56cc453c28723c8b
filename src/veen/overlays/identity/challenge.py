"""Authentication without a message: an application asks, a device signs. The checks are those of §9.2.

A challenge is asked once and is short-lived. It names who asks, so that an answer is of no use to anyone else.
"""

from dataclasses import dataclass
from typing import ClassVar

from veen.core import CapToken, SigningKey, Unverified, signing
from veen.core.cbor import Bstr, Nested, Text, Uint, Wire
from veen.core.hashing import ht
from veen.core.limits import MAX_TEXT_BYTES
from veen.core.signing import SIGNATURE_BYTES
from veen.overlays.fields import body
from veen.overlays.identity.auth import Grant, Policy, Session, admit
from veen.overlays.identity.views import States

MAX_CHALLENGE_SEC = 300
CLOCK_SKEW_SEC = 30


@dataclass(frozen=True, slots=True)
class Challenge(Wire):
    """`audience` is the name under which people know who asks; `nonce` is fresh randomness."""

    audience: str
    realm_id: bytes
    nonce: bytes
    issued_at: int
    expires_at: int

    LAYOUT: ClassVar = body(
        "id.auth.challenge.v1",
        Text("audience", MAX_TEXT_BYTES),
        Bstr("realm_id"),
        Bstr("nonce"),
        Uint("issued_at"),
        Uint("expires_at"),
    )

    def flaw(self) -> str | None:
        if not self.audience:
            return "it does not say who asks"
        lasts = self.expires_at - self.issued_at
        return None if 0 <= lasts <= MAX_CHALLENGE_SEC else f"it does not last for 0 to {MAX_CHALLENGE_SEC} seconds"

    def check_time(self, now: int) -> None:
        if not self.issued_at - CLOCK_SKEW_SEC <= now <= self.expires_at:
            raise Unverified("challenge", f"it holds from {self.issued_at} to {self.expires_at}")


@dataclass(frozen=True, slots=True)
class Answer(Wire):
    """A device's signature over a challenge and the capability it shows."""

    challenge_hash: bytes
    token: CapToken
    sig: bytes

    LAYOUT: ClassVar = body(
        "id.auth.answer.v1", Bstr("challenge_hash"), Nested("token", CapToken), Bstr("sig", SIGNATURE_BYTES)
    )


def answer(challenge: Challenge, device: SigningKey, token: CapToken, *, audience: str, now: int) -> Answer:
    """The device's answer. Refuses to sign for another audience than the one its user means, and too late."""
    if challenge.audience != audience:
        raise Unverified("challenge", f"it is asked by {challenge.audience!r}, not by {audience!r}")
    challenge.check_time(now)
    token.verify()
    if token.subject_pk != device.public_key:
        raise Unverified("challenge", "the capability is not for this device's key")
    return Answer(_hash(challenge), token, device.sign(_digest(challenge, token)))


def verify(
    challenge: Challenge, answered: Answer, policy: Policy, states: States, *, issued_at: int, now: int
) -> Session:
    """Whom the answer is from. `challenge` is the application's own copy, which it takes no second answer to.

    `issued_at` is when a hub took the capability into its log.
    """
    challenge.check_time(now)
    if challenge.realm_id != policy.realm_id:
        raise Unverified("challenge", "it is of another realm")
    if answered.challenge_hash != _hash(challenge):
        raise Unverified("answer", "it answers another challenge")
    token = answered.token
    signing.verify(token.subject_pk, _digest(challenge, token), answered.sig, "answer")
    return admit(token.subject_pk, Grant(token, issued_at), policy, states, now=now)


def _hash(challenge: Challenge) -> bytes:
    return ht("id/auth/challenge", challenge.encode())


def _digest(challenge: Challenge, token: CapToken) -> bytes:
    return ht("id/auth/answer", _hash(challenge) + token.auth_ref())
