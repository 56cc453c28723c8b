"""The rekey ladder: one step per receipt, never back. Spec 001 §9, 002 §9.1.

Nothing on the wire is sealed under these keys: they are there for what two ends agree on beside the log.
"""

from veen.core.hashing import u64be
from veen.core.hkdf import Hmac, hmac32

_NO_SALT = Hmac(b"")


def step(rk: bytes, stream_seq: int) -> bytes:
    """The rung after the receipt at `stream_seq`; the rung before it cannot be worked out from it."""
    return _hkdf(rk, b"veen/rk" + u64be(stream_seq))


def send_key(rk: bytes) -> bytes:
    return _hkdf(rk, b"veen/send")


def recv_key(rk: bytes) -> bytes:
    return _hkdf(rk, b"veen/recv")


def _hkdf(rk: bytes, info: bytes) -> bytes:
    """HKDF without salt and with one block of output, written out because a bulk sender takes one per message."""
    return hmac32(_NO_SALT.digest(rk), info + b"\x01")
