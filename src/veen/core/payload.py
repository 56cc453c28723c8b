"""payload_hdr: the part of a message that says what its body is, sealed with it. Spec §4.5."""

from dataclasses import dataclass
from hmac import compare_digest
from typing import ClassVar

from veen.core.cbor import Bstr, Map, Uint, Wire
from veen.core.errors import Unverified


@dataclass(frozen=True, slots=True)
class PayloadHdr(Wire):
    """The encrypted header. The hub never sees it."""

    schema: bytes
    parent_id: bytes | None = None
    att_root: bytes | None = None
    cap_ref: bytes | None = None
    expires_at: int | None = None

    LAYOUT: ClassVar = Map(
        "payload_hdr",
        {
            1: Bstr("schema"),
            2: Bstr("parent_id", optional=True),
            3: Bstr("att_root", optional=True),
            4: Bstr("cap_ref", optional=True),
            5: Uint("expires_at", optional=True),
        },
    )

    def check_cap_ref(self, auth_ref: bytes | None) -> None:
        """Raise where the header names another capability than the one the message was admitted under. Spec §6."""
        if self.cap_ref is not None and not compare_digest(self.cap_ref, auth_ref or b""):
            raise Unverified("payload_hdr", "cap_ref is not the message's auth_ref")
