"""ed25519.json: signatures on which libraries disagree, and whether the rule of VEEN accepts them."""

from dataclasses import dataclass

from vectors.ed25519_points import BASE, TORSION, L, Point, challenge, decode_leniently
from vectors.form import Doc, signing_key
from veen.core import signing

SECRET = 0x5EC2E7 << 200
NONCE = 0x20CE << 200
KEY_POINT = SECRET * BASE
NONCE_POINT = NONCE * BASE

# (multiple of the order-8 point, one of its encodings): eight canonical ones, six others.
CANONICAL = [(i, TORSION[i].encode()) for i in range(8)]
NON_CANONICAL = [(i, string) for i in range(8) for string in TORSION[i].non_canonical()]


@dataclass(frozen=True, slots=True)
class Forgery:
    """A signature for which [8][S]B = [8]R + [8][k]A holds by construction: only the rule decides if it is valid."""

    public_key: bytes
    message: bytes
    signature: bytes

    def sides(self) -> tuple[Point, Point]:
        """[S]B and R + [k]A, computed from the bytes."""
        r_bytes, s = self.signature[:32], int.from_bytes(self.signature[32:], "little")
        k = challenge(r_bytes, self.public_key, self.message)
        return s * BASE, decode_leniently(r_bytes) + k * decode_leniently(self.public_key)


def forge(public_key: bytes, a: int, i: int, r_bytes: bytes, r: int, j: int, *, cofactorless: bool = True) -> Forgery:
    """By A = [a]B + [i]T with R = [r]B + [j]T, over a message for which [S]B = R + [k]A holds, or does not."""
    for number in range(1000):
        message = number.to_bytes(4, "big")
        k = challenge(r_bytes, public_key, message)
        if ((j + k * i) % 8 == 0) == cofactorless:
            return Forgery(public_key, message, r_bytes + ((r + k * a) % L).to_bytes(32, "little"))
    raise AssertionError("no message gives such a signature")


def small_order_key(i: int, string: bytes) -> Forgery:
    return forge(string, 0, i, NONCE_POINT.encode(), NONCE, 0)


def small_order_nonce(j: int, string: bytes) -> Forgery:
    # With a key that has a component of order 8, some message cancels every R.
    return forge((KEY_POINT + TORSION[1]).encode(), SECRET, 1, string, 0, j)


def mixed_order(i: int, j: int, *, cofactorless: bool) -> Forgery:
    public_key, r_bytes = (KEY_POINT + TORSION[i]).encode(), (NONCE_POINT + TORSION[j]).encode()
    return forge(public_key, SECRET, i, r_bytes, NONCE, j, cofactorless=cofactorless)


def cancels(i: int, j: int) -> bool:
    """Whether some k makes [j]T + [k][i]T the identity."""
    return any((j + k * i) % 8 == 0 for k in range(8))


PAIRS = [(i, j) for i in range(8) for j in range(8)]


def signatures() -> Doc:
    return {
        "about": "Ed25519 signatures for which the equation holds, with or without the cofactor; `valid` is our rule.",
        "signatures": [
            {
                "name": name,
                "public_key": one.public_key,
                "message": one.message,
                "signature": one.signature,
                "valid": signing.is_valid(one.public_key, one.message, one.signature),
            }
            for name, one in _cases()
        ],
    }


def _cases() -> list[tuple[str, Forgery]]:
    key = signing_key("hub")
    honest = Forgery(key.public_key, b"a message", key.sign(b"a message"))
    s = int.from_bytes(honest.signature[32:], "little")
    cases = [("honest", honest)]
    for multiple in range(1, 16):
        longer = honest.signature[:32] + (s + multiple * L).to_bytes(32, "little")
        cases.append((f"S + {multiple} L", Forgery(honest.public_key, honest.message, longer)))
    for n, string in CANONICAL:
        cases.append((f"A of small order, {n} T", small_order_key(n, string)))
        cases.append((f"R of small order, {n} T", small_order_nonce(n, string)))
    for n, string in NON_CANONICAL:
        cases.append((f"A of small order, {n} T, not canonical", small_order_key(n, string)))
        cases.append((f"R of small order, {n} T, not canonical", small_order_nonce(n, string)))
    for i, j in PAIRS:
        if cancels(i, j):
            cases.append((f"A + {i} T, R + {j} T", mixed_order(i, j, cofactorless=True)))
        if (i, j) != (0, 0):
            cases.append((f"A + {i} T, R + {j} T, only with the cofactor", mixed_order(i, j, cofactorless=False)))
    for bit in (0, 254, 255, 256, 511):
        flipped = (int.from_bytes(honest.signature, "little") ^ 1 << bit).to_bytes(64, "little")
        cases.append((f"bit {bit} flipped", Forgery(honest.public_key, honest.message, flipped)))
    return cases
