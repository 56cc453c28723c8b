"""Authorization to upload an attachment. An upload is not a message, so the uploader proves its capability separately.

The proof binds the hub, the attachment, the capability and the time. Replaying it can only upload the same bytes to
the same hub again, which changes nothing.
"""

from dataclasses import replace
from typing import Annotated, Self

from veen.core import signing
from veen.core.cbor import Bstr, Uint, VersionField, Wire, int_map
from veen.core.errors import Malformed, Unverified
from veen.core.hashing import ht, u64be
from veen.core.limits import MAX_UPLOAD_SKEW_SEC
from veen.core.signing import SIGNATURE_BYTES, SigningKey

SCHEME = "veen-upload"  # scheme of the HTTP header `Authorization`, followed by the proof in lowercase hex


@int_map("upload proof", VersionField())
class UploadProof(Wire):
    """The subject of a capability uploads an attachment of `size` sealed bytes at the time `made_at`."""

    auth_ref: Annotated[bytes, Bstr()]
    size: Annotated[int, Uint()]
    made_at: Annotated[int, Uint()]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]

    def verify(self, hub_id: bytes, coid: bytes, subject_pk: bytes) -> None:
        """Raise `Unverified` unless the capability's subject signed it for this attachment and this hub."""
        signing.verify(subject_pk, self._digest(hub_id, coid), self.sig, "upload proof")

    def check_time(self, hub_ts: int) -> None:
        """Raise `Unverified` unless `made_at` is within `MAX_UPLOAD_SKEW_SEC` of the hub's time."""
        if abs(self.made_at - hub_ts) > MAX_UPLOAD_SKEW_SEC:
            raise Unverified("upload proof", f"made at {self.made_at}, more than {MAX_UPLOAD_SKEW_SEC} s from {hub_ts}")

    def header(self) -> str:
        """The value of the `Authorization` header."""
        return f"{SCHEME} {self.encode().hex()}"

    @classmethod
    def from_header(cls, text: str) -> Self:
        """Parse the value of an `Authorization` header."""
        scheme, _, shown = text.partition(" ")
        if scheme.lower() != SCHEME:
            raise Malformed("upload proof", f"the scheme is not {SCHEME}")
        try:
            encoded = bytes.fromhex(shown)
        except ValueError:
            encoded = b""
        if not encoded or encoded.hex() != shown:
            raise Malformed("upload proof", "not lowercase hex")
        return cls.decode(encoded)

    def _digest(self, hub_id: bytes, coid: bytes) -> bytes:
        return ht("veen/att-put", hub_id + coid + self.auth_ref + u64be(self.size) + u64be(self.made_at))


def sign(key: SigningKey, *, hub_id: bytes, coid: bytes, auth_ref: bytes, size: int, made_at: int) -> UploadProof:
    """Sign the proof for one attachment. `key` is the capability's subject."""
    unsigned = UploadProof(auth_ref, size, made_at, bytes(SIGNATURE_BYTES))
    return replace(unsigned, sig=key.sign(unsigned._digest(hub_id, coid)))
