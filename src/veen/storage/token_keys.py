"""Ed25519 keys in PKCS#11 tokens. Needs the extra `pkcs11`. Failures of a token are `OSError`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pkcs11
from pkcs11 import Attribute, KeyType, Mechanism, ObjectClass, PKCS11Error
from pkcs11.util.ec import encode_named_curve_parameters

from plumbing.sodium import PUBLIC_KEY_BYTES

_ED25519 = "1.3.101.112"
_DER_OCTETS = bytes([4, PUBLIC_KEY_BYTES])


class TokenKey:
    """A key in a token. The session stays open as long as the process."""

    def __init__(self, session: pkcs11.Session, label: str) -> None:
        self._session = session
        with _failures("the token has no usable key of that label"):
            self._private = session.get_key(object_class=ObjectClass.PRIVATE_KEY, label=label)
            point = session.get_key(object_class=ObjectClass.PUBLIC_KEY, label=label)[Attribute.EC_POINT]
        self.public_key: bytes = bytes(point).removeprefix(_DER_OCTETS)  # some tokens give the bare point

    def sign(self, message: bytes) -> bytes:
        with _failures("the token does not sign"):
            return bytes(self._private.sign(message, mechanism=Mechanism.EDDSA))  # type: ignore[attr-defined]

    def sign_many(self, digests: Sequence[bytes]) -> list[bytes]:
        return [self.sign(digest) for digest in digests]


def make_key(module: Path, token: str, pin: bytes, label: str) -> TokenKey:
    """Make a key in the token. Its secret half cannot be read."""
    session = _open(module, token, pin)
    with _failures("the token cannot make an Ed25519 key"):
        curve = {Attribute.EC_PARAMS: encode_named_curve_parameters(_ED25519)}
        parameters = session.create_domain_parameters(KeyType.EC_EDWARDS, curve, local=True)
        parameters.generate_keypair(mechanism=Mechanism.EC_EDWARDS_KEY_PAIR_GEN, store=True, label=label)
    return TokenKey(session, label)


def load_key(module: Path, token: str, pin: bytes, label: str) -> TokenKey:
    return TokenKey(_open(module, token, pin), label)


def destroy_key(module: Path, token: str, pin: bytes, label: str) -> None:
    """Remove both halves of a key from the token. A key that is gone already is no error."""
    session = _open(module, token, pin)
    with _failures("the token cannot destroy the key"):
        for found in list(session.get_objects({Attribute.LABEL: label})):
            found.destroy()


def _open(module: Path, token: str, pin: bytes) -> pkcs11.Session:
    """A session. Each process has one per token: logging in twice is an error."""
    if (module, token) not in _sessions:
        with _failures(f"the token {token} of {module} cannot be opened"):
            found = pkcs11.lib(str(module)).get_token(token_label=token)
            _sessions[module, token] = found.open(rw=True, user_pin=pin.decode())
    return _sessions[module, token]


_sessions: dict[tuple[Path, str], pkcs11.Session] = {}


@contextmanager
def _failures(what: str) -> Iterator[None]:
    try:
        yield
    except PKCS11Error as error:
        raise OSError(f"{what}: {type(error).__name__} {error}".rstrip()) from error
