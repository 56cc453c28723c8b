"""The curve of Ed25519 in plain integers, to build signatures that no honest signer makes. RFC 8032 §5.1.

Slow, and not for secrets.
"""

from dataclasses import dataclass
from hashlib import sha512
from typing import Self

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
SQRT_MINUS_ONE = pow(2, (P - 1) // 4, P)
SIGN_BIT = 1 << 255


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """X, Y, Z and T with x = X/Z, y = Y/Z and xy = T/Z: the addition below has no exceptions (RFC 8032 §5.1.4)."""

    X: int
    Y: int
    Z: int
    T: int

    @classmethod
    def affine(cls, x: int, y: int) -> Self:
        return cls(x, y, 1, x * y % P)

    def __add__(self, other: "Point") -> "Point":
        a = (self.Y - self.X) * (other.Y - other.X)
        b = (self.Y + self.X) * (other.Y + other.X)
        c = 2 * self.T * other.T * D
        d = 2 * self.Z * other.Z
        e, f, g, h = b - a, d - c, d + c, b + a
        return Point(e * f % P, g * h % P, f * g % P, e * h % P)

    def __rmul__(self, n: int) -> "Point":
        total, power = IDENTITY, self
        while n:
            if n & 1:
                total += power
            power += power
            n >>= 1
        return total

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self.encode() == other.encode()

    def __hash__(self) -> int:
        return hash(self.encode())

    def xy(self) -> tuple[int, int]:
        inverse = pow(self.Z, -1, P)
        return self.X * inverse % P, self.Y * inverse % P

    def encode(self) -> bytes:
        x, y = self.xy()
        return (y | (x & 1) * SIGN_BIT).to_bytes(32, "little")

    def non_canonical(self) -> list[bytes]:
        """The other strings that a decoder reads as this point if it reduces y, or lets zero be negative."""
        x, y = self.xy()
        ys = [y] if y + P >= SIGN_BIT else [y, y + P]
        signs = [x & 1] if x else [0, 1]
        strings = [(y | sign * SIGN_BIT).to_bytes(32, "little") for y in ys for sign in signs]
        return [string for string in strings if string != self.encode()]


def decode_leniently(string: bytes) -> Point:
    """RFC 8032 §5.1.3, but y ≥ p is reduced and zero may be negative."""
    number = int.from_bytes(string, "little")
    y = number % SIGN_BIT
    xx = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(xx, (P + 3) // 8, P)
    if (x * x - xx) % P:
        x = x * SQRT_MINUS_ONE % P
    assert (x * x - xx) % P == 0, "not on the curve"
    return Point.affine(x if x & 1 == number >> 255 else P - x, y)


def challenge(r: bytes, public_key: bytes, message: bytes) -> int:
    return int.from_bytes(sha512(r + public_key + message).digest(), "little") % L


IDENTITY = Point.affine(0, 1)
BASE = decode_leniently(bytes.fromhex("58" + "66" * 31))
# The eight points whose order divides 8, as the multiples of one of order 8.
TORSION = tuple(
    i * decode_leniently(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"))
    for i in range(8)
)
