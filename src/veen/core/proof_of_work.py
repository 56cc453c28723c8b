"""The proof-of-work cookie: work that a sender does before a hub reads its message. 001, spec-2 §5.2.

The challenge is derived from the hub and the request alone. So the hub stores nothing to check a cookie, the same
request always gets the same answer, and a cookie is valid for one request only. Spec §8.1.
"""

from hashlib import sha256
from typing import Annotated, ClassVar, Self

from veen.core import naming
from veen.core.cbor import Bytes, Uint, Wire, text_map
from veen.core.errors import Malformed, Unavailable, Unverified
from veen.core.hashing import U64_MAX, h, ht, tag_prefix, u64be
from veen.core.limits import MAX_POW_CHALLENGE_BYTES

HEADER = "veen-pow"  # name of the HTTP request header; its value is the cookie in lowercase hex
_POW = tag_prefix("veen/pow")
_DIGEST_BITS = 256


@text_map("veen.pow.cookie.v1")
class PowCookie(Wire):
    """A nonce with which the hash of a challenge starts with `difficulty` zero bits."""

    challenge: Annotated[bytes, Bytes(MAX_POW_CHALLENGE_BYTES)]
    nonce: Annotated[int, Uint()]
    difficulty: Annotated[int, Uint(most=0xFF)]

    NAME: ClassVar = "veen.pow.cookie.v1"
    SCHEMA: ClassVar = naming.schema_id(NAME)

    def work(self) -> int:
        """The number of leading zero bits."""
        return _DIGEST_BITS - int.from_bytes(h(_POW + self.challenge + u64be(self.nonce)), "big").bit_length()

    def verify(self, challenge: bytes, difficulty: int) -> None:
        """Raise `Unverified` unless it solves this challenge with at least this difficulty, and as many zero bits."""
        if self.challenge != challenge:
            raise Unverified("proof of work", "it solves another challenge")
        if self.difficulty < difficulty:
            raise Unverified("proof of work", f"its difficulty is {self.difficulty}, below the required {difficulty}")
        if self.work() < self.difficulty:
            raise Unverified("proof of work", f"it has {self.work()} zero bits, not {self.difficulty}")

    def header(self) -> str:
        """The value of the request header."""
        return self.encode().hex()

    @classmethod
    def from_header(cls, text: str) -> Self:
        """Parse the value of the request header."""
        try:
            encoded = bytes.fromhex(text)
        except ValueError:
            encoded = b""
        if not encoded or encoded.hex() != text:
            raise Malformed("proof of work", "not lowercase hex")
        return cls.decode(encoded)


def challenge_of(hub_id: bytes, request_body: bytes) -> bytes:
    """The challenge for the sender of a request."""
    return ht("veen/pow-challenge", hub_id + h(request_body))


def solve(challenge: bytes, difficulty: int, *, most_tries: int | None = None) -> PowCookie:
    """Find the lowest valid nonce. Takes about 2^difficulty hashes; raises `Unavailable` after `most_tries`."""
    started = sha256(_POW + challenge)
    bound = 1 << (_DIGEST_BITS - difficulty)
    for nonce in range(min(most_tries or U64_MAX, U64_MAX)):
        tried = started.copy()
        tried.update(nonce.to_bytes(8, "big"))
        if int.from_bytes(tried.digest(), "big") < bound:
            return PowCookie(challenge, nonce, difficulty)
    raise Unavailable(f"no proof of work with {difficulty} zero bits found in {most_tries} tries")
