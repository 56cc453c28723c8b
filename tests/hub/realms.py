"""A realm for tests, and an administrator who writes to its admin streams."""

from dataclasses import dataclass, field

from tests.hub.client import ISSUER, SCHEMA, Hub, Reply, Writer
from veen.core import CapToken, PayloadHdr, Place, Receipt, SigningKey, admin, cap_token, ciphertext, naming
from veen.core.admin import Authority, AuthorityPolicy, Revocation, RevocationKind
from veen.core.envelopes import AuthorizeResponse
from veen.core.hashing import h

REALM = naming.realm_id("the tests")
REVOCATIONS, AUTHORITIES = admin.revocation_stream(REALM), admin.fed_admin_stream(REALM)
OTHER_HUB = b"\xee" * 32
TTL = 1_000_000


@dataclass
class Admin:
    """Has a capability for both admin streams."""

    hub: Hub
    key: SigningKey = field(default_factory=SigningKey.generate)
    token: CapToken = field(init=False)
    writers: dict[bytes, Writer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.token = cap_token.mint(ISSUER, self.key.public_key, [REVOCATIONS, AUTHORITIES], TTL)
        self.hub.authorize(self.token).read(AuthorizeResponse)

    def at(self, hub: Hub) -> "Admin":
        """The same administrator after a restart."""
        self.hub = hub
        for writer in self.writers.values():
            writer.hub = hub
        return self

    def says(self, event: admin.Event, *, stream: bytes | None = None, body: bytes | None = None) -> Receipt:
        """Submit an entry of an admin stream, which must be accepted; it need not be a valid event."""
        wanted = stream or (REVOCATIONS if isinstance(event, Revocation) else AUTHORITIES)
        return self.writes(wanted, event.SCHEMA, event.encode() if body is None else body).receipt()

    def writes(self, stream: bytes, schema: bytes, body: bytes, reader_pk: bytes | None = None) -> Reply:
        writer = self.writer(stream)
        message = writer.message(ciphertext=sealed(writer, stream, schema, body, reader_pk))
        reply = self.hub.submit(message)
        if reply.status == 200:
            writer.accepted(message)
        return reply

    def writer(self, stream: bytes) -> Writer:
        label = self.hub.label(stream)
        return self.writers.setdefault(label, Writer(self.hub, label, self.key, self.token.auth_ref()))

    def revokes(self, kind: RevocationKind, target: bytes, ts: int | None = None, ttl: int | None = None) -> Receipt:
        return self.says(Revocation(kind, target, "lost", int(self.hub.clock()) if ts is None else ts, ttl))

    def revokes_key(self, key: SigningKey | bytes, ts: int | None = None, ttl: int | None = None) -> Receipt:
        target = key if isinstance(key, bytes) else key.public_key
        return self.revokes(RevocationKind.CLIENT_ID, target, ts, ttl)

    def gives(
        self,
        stream: str,
        primary: bytes,
        policy: AuthorityPolicy = AuthorityPolicy.SINGLE_PRIMARY,
        ts: int | None = None,
        ttl: int = TTL,
    ) -> Receipt:
        """Name the primary hub of a stream."""
        return self.says(self.record(stream, primary, policy, ts, ttl))

    def record(
        self,
        stream: str,
        primary: bytes,
        policy: AuthorityPolicy = AuthorityPolicy.SINGLE_PRIMARY,
        ts: int | None = None,
        ttl: int = TTL,
    ) -> Authority:
        now = int(self.hub.clock()) if ts is None else ts
        return Authority(REALM, naming.stream_id(stream), primary, (), policy, now, ttl)


def sealed(writer: Writer, stream: bytes, schema: bytes = SCHEMA, body: bytes = b"", pk: bytes | None = None) -> bytes:
    """A ciphertext for the next place of a writer that everyone in the realm can open."""
    rules = writer.hub.service.rules
    place = Place(
        rules.profile_id,
        writer.label,
        writer.key.public_key,
        writer.client_seq + 1,
        writer.prev_ack,
        writer.auth_ref,
    )
    reader_pk = pk or admin.reader_key(stream).public_key
    return ciphertext.seal(reader_pk, place, PayloadHdr(schema), body, rules.profile.pad_block)


def names_of(token: CapToken) -> dict[RevocationKind, bytes]:
    """The two names that a capability can be revoked by."""
    return {RevocationKind.AUTH_REF: token.auth_ref(), RevocationKind.CAP_TOKEN: h(token.encode())}
