"""Logs that administer a realm: label classes, schemas, authority records, revocations, capabilities."""

from collections.abc import Callable
from dataclasses import replace

from vectors.form import Doc, secret, signing_key
from vectors.overlays.logs import Line, folded, msg_id
from veen.core import cap_token, naming
from veen.core.cap_token import CapToken, Rate
from veen.core.hashing import U64_MAX, h
from veen.overlays.authority import AUTHORITIES, AuthorityEvent
from veen.overlays.authorization import (
    AUTHORIZATIONS,
    OPERATOR_REVOCATIONS,
    REVOCATIONS,
    OperatorRevocationEvent,
    RevocationEvent,
    ShownPresentation,
    ShownToken,
)
from veen.overlays.stream_catalog import LABEL_CLASSES, SCHEMAS, LabelClass, SchemaDescriptor

REALM, LABEL, OTHER_LABEL = (secret(f"overlay {name}") for name in ("realm", "classified", "classified too"))
HUBS = tuple(sorted(secret(f"overlay hub {number}") for number in range(3)))
STREAMS = tuple(naming.stream_id(name) for name in ("doors", "windows"))
ISSUER, STRANGER = signing_key("overlay issuer"), signing_key("overlay stranger")
SUBJECT = signing_key("overlay subject").public_key

LABEL_CLASS_LOG = (
    Line("a class", LabelClass(LABEL, "log")),
    Line("the last class is the class", LabelClass(LABEL, "user", "high", 31_536_000)),
    Line("a mirrored copy of the first changes nothing", LabelClass(LABEL, "log"), msg_id(1), client=1),
    Line("another label, of a class that nobody has heard of", LabelClass(OTHER_LABEL, "greenhouse", None, 0)),
    Line("a class of nothing", LabelClass(LABEL, "log"), body=b"\xa1\x65class\x63log"),
    Line("a payload that does not open", LabelClass(LABEL, "bulk"), sealed=True),
)
SCHEMA_LOG = (
    Line(
        "a schema under the hash of its name",
        SchemaDescriptor(naming.schema_id("kv.delete.v1"), "kv.delete.v1", "v1", ts=5),
    ),
    Line(
        "registered anew at the same time: the later place counts",
        SchemaDescriptor(h(b"kv.delete.v1"), "kv", "v2", ts=5),
    ),
    Line("with an earlier time", SchemaDescriptor(h(b"kv.delete.v1"), "kv.delete.v1", "v0", ts=4)),
    Line(
        "under an id that does not follow from the name", SchemaDescriptor(STREAMS[0], "kv.delete.v1", "v1", ts=U64_MAX)
    ),
    Line(
        "of an operation profile, with all there can be",
        SchemaDescriptor(h(b"veen/schema:access.grant.v1"), "access.grant.v1", "v1", "urn:x", SUBJECT, 6),
    ),
    Line("a mirrored copy of the first", SchemaDescriptor(h(b"kv.delete.v1"), "kv.delete.v1", "v1", ts=5), msg_id(1)),
    Line("without a time", SchemaDescriptor(LABEL, "n", "v"), body=SchemaDescriptor(LABEL, "n", "v").encode()[:-4]),
)


def _authority(hub: int, ts: int, ttl: int, policy: str = "single-primary", stream: int = 0) -> AuthorityEvent:
    return AuthorityEvent(REALM, STREAMS[stream], HUBS[hub], HUBS[:hub], policy, ts, ttl)


AUTHORITY_LOG = (
    Line("the second hub is primary for a while", _authority(1, 100, 50)),
    Line("the first hub, while that holds: it waits", _authority(0, 120, 50)),
    Line("a record that is never active", _authority(2, 90, 0)),
    Line("one whose time another takes as a whole", _authority(0, 110, 40)),
    Line("one that began earlier and ended later: it takes the place of the first", _authority(2, 90, 65)),
    Line("of the same time with a lower primary", _authority(0, 90, 10, "multi-primary")),
    Line("another stream", _authority(0, U64_MAX, U64_MAX, "multi-primary", 1)),
    Line("a mirrored copy of the first: it is behind another by now", _authority(1, 100, 50), msg_id(1), client=1),
    Line(
        "a policy that there is not",
        _authority(0, 5, 5),
        body=_authority(0, 5, 5).encode().replace(b"\x6esingle-primary", b"\x6bunspecified"),
    ),
)


def _revocation(kind: str, ts: int, ttl: int | None = None, reason: str | None = None) -> RevocationEvent:
    return RevocationEvent(kind, SUBJECT, reason, ts, ttl)


REVOCATION_LOG = (
    Line("a client key, for a while", _revocation("client-id", 100, 50, "lost")),
    Line("the same, overlapping", _revocation("client-id", 120, 50)),
    Line("what is revoked already at all of that time", _revocation("client-id", 110, 40)),
    Line("at no time", _revocation("client-id", 500, 0)),
    Line("a longer one from the same second on", _revocation("client-id", 100, 60, "still lost")),
    Line("the same bytes as an auth_ref", _revocation("auth-ref", 7)),
    Line("for good, later", _revocation("client-id", 1000)),
    Line("for good, earlier: it says all that the others say", _revocation("client-id", 99)),
    Line("a mirrored copy of the first", _revocation("client-id", 100, 50, "lost"), msg_id(1), client=1),
    Line("a token by its hash", RevocationEvent("cap-token", LABEL, None, U64_MAX, U64_MAX)),
    Line(
        "of something else",
        _revocation("auth-ref", 7),
        body=_revocation("auth-ref", 7).encode().replace(b"\x68auth-ref", b"\x66issuer"),
    ),
)


def _by_operator(kind: str, ts: int, ttl: int | None = None) -> OperatorRevocationEvent:
    return OperatorRevocationEvent(kind, SUBJECT, None, ts, ttl)


OPERATOR_REVOCATION_LOG = (
    Line("a client key, for a while", _by_operator("client-id", 100, 50)),
    Line("a capability, for good", _by_operator("auth-ref", 120)),
    Line("the key again, from a later second on", _by_operator("client-id", 130, 60)),
    Line("covered by the first", _by_operator("client-id", 110, 10)),
    Line("a token by its hash", OperatorRevocationEvent("cap-token", LABEL, "leaked", U64_MAX, U64_MAX)),
    Line(
        "of something else",
        _by_operator("auth-ref", 7),
        body=_by_operator("auth-ref", 7).encode().replace(b"\x68auth-ref", b"\x66issuer"),
    ),
)


def _capability(token: CapToken) -> ShownToken:
    return ShownToken.decode(token.encode())


def _presented(token: CapToken, hub_id: bytes, not_after: int) -> ShownPresentation:
    return ShownPresentation.decode(cap_token.present(ISSUER, token, hub_id, not_after).encode())


_TOKEN = cap_token.mint(ISSUER, SUBJECT, STREAMS, 3600, Rate(10, 100))
_SHORT = cap_token.mint(ISSUER, SUBJECT, STREAMS[:1], 0)
_LONG, _OTHER = (cap_token.mint(ISSUER, SUBJECT, STREAMS, ttl) for ttl in (7200, 7201))
_HUB = secret("overlay hub")
_FORGED = replace(_capability(_TOKEN), sig_chain=cap_token.mint(STRANGER, SUBJECT, STREAMS, 3600).sig_chain)

AUTHORIZATION_LOG = (
    Line("a capability", _capability(_TOKEN)),
    Line("the same again: it is not renewed", _capability(_TOKEN), after=60),
    Line("signed again by its issuer: another capability", _capability(cap_token.resign(_TOKEN, ISSUER))),
    Line("one for a single second, without a rate", _capability(_SHORT)),
    Line("one whose signature is somebody else's", _FORGED),
    Line("a byte too many", _capability(_SHORT), body=_SHORT.encode() + b"\0"),
    Line("a presentation", _presented(_LONG, _HUB, 90)),
    Line("another one of the same token: the first counts", _presented(_LONG, _HUB, U64_MAX)),
    Line("one whose date was altered", replace(_presented(_OTHER, _HUB, 90), not_after=91)),
)

GENERATED: dict[str, Callable[[], Doc]] = {
    "authority.json": lambda: folded(AUTHORITIES, AUTHORITY_LOG),
    "authorization.json": lambda: folded(AUTHORIZATIONS, AUTHORIZATION_LOG),
    "label-class.json": lambda: folded(LABEL_CLASSES, LABEL_CLASS_LOG),
    "operator-revocation.json": lambda: folded(OPERATOR_REVOCATIONS, OPERATOR_REVOCATION_LOG),
    "revocation.json": lambda: folded(REVOCATIONS, REVOCATION_LOG),
    "schema.json": lambda: folded(SCHEMAS, SCHEMA_LOG),
}
