"""The admin streams of a realm, and the two kinds of records that bind its hubs. 001, spec-2 §1.3, §2, §4.3.

Admin streams are sealed to keys that are derived from their ids. Anyone who knows the realm can read revocations and
authority records, and check a hub's rejections against them.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, ClassVar, TypeAlias

from veen.core import ciphertext, naming
from veen.core.cbor import Bstr, ListOf, Text, Uint, Wire, text_map
from veen.core.ciphertext import Place
from veen.core.errors import Malformed, Unverified
from veen.core.hashing import HASH_BYTES, ht
from veen.core.hpke import DhKey
from veen.core.limits import MAX_AUTHORITY_TTL_SEC, MAX_BODY_BYTES, MAX_REPLICA_HUBS
from veen.core.msg import Msg
from veen.core.profile import Limits

# The realm of a deployment without realms.
GLOBAL_REALM = naming.realm_id("veen")


def fed_admin_stream(realm_id: bytes) -> bytes:
    """The stream with the authority records."""
    return ht("veen/admin", realm_id)


def revocation_stream(realm_id: bytes) -> bytes:
    """The stream with the revocations."""
    return ht("veen/revocation", realm_id)


def label_class_stream(realm_id: bytes) -> bytes:
    """The stream with the classes of labels."""
    return ht("veen/label-class", realm_id)


def schema_meta_stream(realm_id: bytes) -> bytes:
    """The stream with the descriptions of schemas."""
    return ht("veen/meta-schema", realm_id)


def admin_streams(realm_id: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """All four admin streams."""
    return (
        fed_admin_stream(realm_id),
        revocation_stream(realm_id),
        label_class_stream(realm_id),
        schema_meta_stream(realm_id),
    )


def reader_key(stream_id: bytes) -> DhKey:
    """The key that opens an admin stream. It is public, so that anyone can check a hub against the stream."""
    return DhKey(ht("veen/admin-key", stream_id))


class RevocationKind(StrEnum):
    """The kind of a revoked target."""

    CLIENT_ID = "client-id"
    AUTH_REF = "auth-ref"
    CAP_TOKEN = "cap-token"


@text_map("veen.revocation.v1")
class Revocation(Wire):
    """A client key or a capability is rejected from `ts` on, for `ttl` seconds or permanently. §4.3."""

    kind: Annotated[str, Text(MAX_BODY_BYTES)]
    target: Annotated[bytes, Bstr()]  # client_id, auth_ref, or H(CBOR(cap_token))
    reason: Annotated[str | None, Text(MAX_BODY_BYTES, optional=True)]
    ts: Annotated[int, Uint()]
    ttl: Annotated[int | None, Uint(optional=True)] = None

    NAME: ClassVar = "veen.revocation.v1"
    SCHEMA: ClassVar = naming.schema_id(NAME)

    def flaw(self) -> str | None:
        known = self.kind in RevocationKind.__members__.values()
        return None if known else f"unknown kind of revocation {self.kind!r}"

    @property
    def end(self) -> int | None:
        """The first second in which it no longer applies; None if it is permanent."""
        return None if self.ttl is None else self.ts + self.ttl

    def applies_at(self, now: int) -> bool:
        return self.ts <= now and (self.end is None or now < self.end)


@text_map("veen.control.revocation.v1")
class OperatorRevocation(Revocation):
    """A revocation by the operator of one hub, on that hub's control stream. KEX0.3."""

    NAME: ClassVar = "veen.control.revocation.v1"
    SCHEMA: ClassVar = naming.schema_id(NAME)


class AuthorityPolicy(StrEnum):
    """How many hubs may write to a stream."""

    SINGLE_PRIMARY = "single-primary"
    MULTI_PRIMARY = "multi-primary"
    UNSPECIFIED = "unspecified"  # no record exists; never written to a record


@text_map("veen.fed.authority.v1")
class Authority(Wire):
    """The hub that orders a stream of a realm, from `ts` on for `ttl` seconds. §2.2."""

    realm_id: Annotated[bytes, Bstr()]
    stream_id: Annotated[bytes, Bstr()]
    primary_hub: Annotated[bytes, Bstr()]
    replica_hubs: Annotated[tuple[bytes, ...], ListOf(Bstr(name="hub_id"), most=MAX_REPLICA_HUBS)]
    policy: Annotated[str, Text(MAX_BODY_BYTES)]
    ts: Annotated[int, Uint()]
    ttl: Annotated[int, Uint()]

    NAME: ClassVar = "veen.fed.authority.v1"
    SCHEMA: ClassVar = naming.schema_id(NAME)

    def flaw(self) -> str | None:
        known = self.policy in (AuthorityPolicy.SINGLE_PRIMARY, AuthorityPolicy.MULTI_PRIMARY)
        return None if known else f"unknown policy {self.policy!r}"

    @property
    def end(self) -> int:
        """The first second in which it is no longer active.

        The earliest active record applies, so one that never ended could not be corrected.
        """
        return self.ts + min(self.ttl, MAX_AUTHORITY_TTL_SEC)

    def active_at(self, now: int) -> bool:
        return self.ts <= now < self.end

    def rank(self) -> tuple[int, bytes, bytes]:
        """Sort key. The lowest active record applies: the earliest, then by primary hub, then by bytes."""
        return self.ts, self.primary_hub, self.encode()


def active(records: Iterable[Authority], now: int) -> Authority | None:
    """The record of a stream that applies at a time; None if its authority is unspecified."""
    return min((record for record in records if record.active_at(now)), key=Authority.rank, default=None)


Event: TypeAlias = Revocation | Authority


def binding_streams(realm_id: bytes | None) -> dict[bytes, type[Event]]:
    """The admin streams that bind a hub of that realm, each with the type of its records."""
    if realm_id is None:
        return {}
    return {fed_admin_stream(realm_id): Authority, revocation_stream(realm_id): Revocation}


def event_of(realm_id: bytes, stream_id: bytes, logged: Msg, limits: Limits) -> Event | None:
    """Decode a message on an admin stream; None if it does not bind a hub.

    Only messages with a capability count. Never raises on message content: the message is already in the log, and bad
    content must not stop the hub from reading on.
    """
    wanted = binding_streams(realm_id).get(stream_id)
    if wanted is None or logged.auth_ref is None:
        return None
    try:
        opened = ciphertext.open_sealed(reader_key(stream_id), Place.of(logged), logged.ciphertext, limits)
        if opened.header.schema != wanted.SCHEMA:
            return None
        event = wanted.decode(opened.body)
    except (Malformed, Unverified):
        return None
    return None if isinstance(event, Authority) and event.realm_id != realm_id else event


def write_event(event: Event) -> bytes:
    """Encode an event that binds a hub with its type: its schema, then its body."""
    return event.SCHEMA + event.encode()


def read_event(data: bytes) -> Event:
    """Decode an event that `write_event` encoded."""
    schema, body = data[:HASH_BYTES], data[HASH_BYTES:]
    for cls in (Revocation, OperatorRevocation, Authority):
        if schema == cls.SCHEMA:
            return cls.decode(body)
    raise Malformed("admin event", "unknown schema: neither a revocation nor an authority record")
