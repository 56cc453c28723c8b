"""How a group's secret reaches a member: in a private letter, in the namespace of private messages. No I/O.

invitation   = "VEIL group 1\\n" || [name, share]
"""

from dataclasses import dataclass

from veil.codec import heads
from veil.codec.heads import ARRAY, TEXT, Reader
from veil.errors import Malformed
from veil.runtime.contacts import MAX_NAME_BYTES, check_name
from veil.sealing.groups import GroupSecret

MAGIC = b"VEIL group 1\n"
_FIELDS = 2
_MAX_SHARE_BYTES = 128


@dataclass(frozen=True, slots=True)
class Invitation:
    """A generation of a group's secret, and what the group is called by who sends it."""

    name: str
    secret: GroupSecret

    def encode(self) -> bytes:
        share = heads.byte_string(self.secret.encode())
        return MAGIC + heads.head(ARRAY, _FIELDS) + heads.text(self.name) + share

    @classmethod
    def decode(cls, payload: bytes) -> "Invitation":
        if not payload.startswith(MAGIC):
            raise Malformed("invitation", "it is none")
        reader = Reader(payload[len(MAGIC) :], "invitation")
        reader.exactly(ARRAY, _FIELDS)
        data = reader.take(reader.head(TEXT, MAX_NAME_BYTES))
        share = reader.byte_string(_MAX_SHARE_BYTES)
        reader.end()
        try:
            name = data.decode()
        except UnicodeDecodeError:
            raise Malformed("invitation", "a name that is not UTF-8") from None
        check_name(name)
        return cls(name, GroupSecret.decode(share))
