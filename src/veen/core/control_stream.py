"""The control stream: authorized capabilities and registered streams, logged so that replay restores them.

Each authorization or registration is a MSG on the control stream. It is sealed to a key that anyone can derive from
`hub_id`: sealing keeps the message format and hides nothing from an auditor.
"""

from typing import TypeAlias

from veen.core import ciphertext, naming
from veen.core.cap_token import CapToken
from veen.core.ciphertext import PayloadHdr, Place
from veen.core.errors import Malformed
from veen.core.hashing import HASH_BYTES, ht
from veen.core.hpke import DhKey
from veen.core.msg import Msg, sign
from veen.core.profile import Limits
from veen.core.signing import SigningKey

CAP_SCHEMA = naming.schema_id("veen.control.cap.v1")
STREAM_SCHEMA = naming.schema_id("veen.control.stream.v1")

Event: TypeAlias = CapToken | bytes  # an authorized capability, or the id of a registered stream


def reader_key(hub_id: bytes) -> DhKey:
    """The key that opens a hub's control stream. It is public."""
    return DhKey(ht("veen/control-key", hub_id))


def message(key: SigningKey, hub_id: bytes, place: Place, event: Event, pad_block: int) -> Msg:
    """The MSG that logs an event, signed by the hub's own client key."""
    schema, body = (STREAM_SCHEMA, event) if isinstance(event, bytes) else (CAP_SCHEMA, event.encode())
    sealed = ciphertext.seal(reader_key(hub_id).public_key, place, PayloadHdr(schema), body, pad_block)
    return sign(
        key,
        profile_id=place.profile_id,
        label=place.label,
        client_seq=place.client_seq,
        prev_ack=place.prev_ack,
        auth_ref=None,
        ciphertext=sealed,
    )


def event_of(hub_id: bytes, logged: Msg, limits: Limits) -> Event:
    """Decode the event of a control message."""
    opened = ciphertext.open_sealed(reader_key(hub_id), Place.of(logged), logged.ciphertext, limits)
    if opened.header.schema == CAP_SCHEMA:
        return CapToken.decode(opened.body)
    if opened.header.schema == STREAM_SCHEMA and len(opened.body) == HASH_BYTES:
        return opened.body
    raise Malformed("control message", "it contains neither a capability nor a stream id")
