"""The identity log with golden states: every event, every rule of the fold, and every kind of fault."""

from collections.abc import Callable

from vectors.form import Doc, secret
from vectors.overlays.logs import Line, folded, msg_id
from veen.core import cbor
from veen.core.naming import realm_id
from veen.overlays.identity import IDENTITY
from veen.overlays.identity_events import (
    CtxProfile,
    Device,
    ExternalLink,
    Flags,
    HandleMap,
    IdentityGroup,
    IdentityPrincipal,
    IdentityRevocation,
    OrgProfile,
    RoleBinding,
    RoleRevoke,
    ctx_id,
    device_id,
    group_id,
    org_id,
    scoped_org_id,
)

PRINCIPAL, PHONE, LAPTOP, DH, COMPANY = (secret(f"identity {name}") for name in ("ann", "phone", "laptop", "dh", "org"))
REALM = realm_id("example-app")
ANN, BOB = ctx_id(PRINCIPAL, REALM), ctx_id(secret("identity bob"), REALM)
ORG = org_id(COMPANY)
SCOPED = scoped_org_id(ORG, REALM)
STAFF = group_id(SCOPED, "staff")
AUTH_REF = secret("identity auth_ref")


def _device(key: bytes, **rest: object) -> Device:
    fields: dict[str, object] = {"label": None, "created_at": 1_700_000_000, "expires_at": None, "flags": None, **rest}
    return Device(PRINCIPAL, device_id(key), key, DH, *fields.values())  # type: ignore[arg-type]


def _group(
    name: str, add: tuple[bytes, ...] | None, remove: tuple[bytes, ...] | None, updated_at: int
) -> IdentityGroup:
    return IdentityGroup(SCOPED, REALM, STAFF, name, add, remove, updated_at)


_WRONG_ID = _device(PHONE).encode().replace(device_id(PHONE), device_id(LAPTOP))
_NO_TARGET = cbor.encode({"ts": 9})

IDENTITY_LOG = (
    Line("a principal", IdentityPrincipal(PRINCIPAL, 1_700_000_000, cbor.encode({"kind": "person"}))),
    Line("a device", _device(PHONE, label="phone")),
    Line("a second one, which expires", _device(LAPTOP, expires_at=1_800_000_000)),
    Line(
        "a principal again: its info changes, its beginning does not", IdentityPrincipal(PRINCIPAL, 5, cbor.encode({}))
    ),
    Line("a principal without info changes nothing", IdentityPrincipal(PRINCIPAL, 5)),
    Line("the last record of a device holds", _device(PHONE, created_at=1, flags=Flags(True))),
    Line("flags that say nothing", _device(PHONE, flags=Flags())),
    Line("a device_id that is not the one of its key", _device(PHONE), body=_WRONG_ID),
    Line("an account", CtxProfile(ANN, REALM, "Ann", secret("identity avatar"), cbor.encode({"dark": True}), 20)),
    Line("an older profile does not win", CtxProfile(ANN, REALM, "Annie", None, None, 19)),
    Line("an organization", OrgProfile(ORG, "Company", None, 10, 20)),
    Line("of equal times the later profile wins", OrgProfile(ORG, "The Company", cbor.encode({}), 10, 20)),
    Line("a group with two members", _group("Staff", (ANN, BOB), None, 30)),
    Line("one of them leaves, and an older name does not win", _group("Old staff", None, (BOB,), 29)),
    Line("a mirrored add that comes after the remove", _group("Staff", (ANN, BOB), None, 30), msg_id(13), client=1),
    Line("whoever is in both lists is added", _group("All staff", (BOB,), (BOB,), 31)),
    Line("a role for a group and an account", RoleBinding(SCOPED, REALM, "editor", (ANN,), (STAFF,), 40)),
    Line("a role in all realms", RoleBinding(ORG, None, "admin", (ANN,), None, 40)),
    Line("a role is taken back from one of two", RoleRevoke(SCOPED, REALM, "editor", (ANN,), None, 41)),
    Line("a role for nobody", RoleBinding(ORG, None, "admin", None, (), 40)),
    Line("a handle", HandleMap(REALM, "@ann", "ctx", ANN, 50)),
    Line("a handle is given to another", HandleMap(REALM, "@ann", "org", ORG, 50)),
    Line("an older time does not take it", HandleMap(REALM, "@ann", "ctx", BOB, 49)),
    Line(
        "a handle in capitals",
        HandleMap(REALM, "@ann", "ctx", ANN, 51),
        body=HandleMap(REALM, "@ann", "ctx", ANN, 51).encode().replace(b"@ann", b"@Ann"),
    ),
    Line("an outside subject", ExternalLink(REALM, ANN, None, "google", "4711", cbor.encode({"email": "a@b.c"}), 60)),
    Line("the same subject, of an organization too", ExternalLink(REALM, BOB, ORG, "google", "4711", None, 61)),
    Line(
        "a device and its capability are revoked",
        IdentityRevocation(PRINCIPAL, None, device_id(PHONE), AUTH_REF, ts=70),
    ),
    Line(
        "an earlier time of the same",
        IdentityRevocation(PRINCIPAL, None, device_id(PHONE), None, None, None, "lost", 69),
    ),
    Line("a record after the revocation", _device(PHONE)),
    Line("an account is disabled by an organization", IdentityRevocation(None, ORG, None, None, REALM, BOB, None, 71)),
    Line("an organization is revoked", IdentityRevocation(org_id=ORG, reason="wound up", ts=72)),
    Line("a revocation of nothing", IdentityRevocation(org_id=ORG, ts=9), body=_NO_TARGET),
    Line("a payload that does not open", IdentityPrincipal(PRINCIPAL, 0), sealed=True),
)

GENERATED: dict[str, Callable[[], Doc]] = {"identity.json": lambda: folded(IDENTITY, IDENTITY_LOG)}
