"""Identity histories, and the folding rules of id-spec as it writes them: lists, sets and loops, nothing of ours."""

from collections.abc import Callable
from hashlib import sha256
from random import Random
from typing import Any

from tests.overlays.logs import CLIENTS, LogLine, log, msg_id
from veen.core import cbor
from veen.overlays import Event, FoldEntry
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
)

TIMES = (0, 5, 5, 9)
NOWS = (4, 5, 6)


def tagged(tag: str, *content: bytes) -> bytes:
    return sha256(tag.encode() + b"\0" + b"".join(content)).digest()


REALMS = tuple(tagged("id/realm", name) for name in (b"example-app", b"tenant-123"))
PRINCIPALS = CLIENTS[:2]
DEVICE_KEYS = tuple(sha256(b"device %d" % number).digest() for number in range(2))
DEVICE_IDS = tuple(tagged("id/device", key) for key in DEVICE_KEYS)
CTXS = tuple(tagged("id/ctx", PRINCIPALS[0], realm) for realm in REALMS)
ORGS = tuple(tagged("id/org", key) for key in CLIENTS[1:])
GROUPS = tuple(tagged("id/group", ORGS[0], name) for name in (b"staff", b"board"))
ROLES = ("admin", "editor", "no-admin")
HANDLES = ("@ann", "ann@example.com")
AUTH_REFS = (b"\x0a" * 32, b"\x0b" * 32)


def _info(random: Random) -> bytes | None:
    return random.choice([None, cbor.encode({}), cbor.encode({"n": random.randrange(3)})])


def _some(random: Random, listed: tuple[bytes, ...]) -> tuple[bytes, ...] | None:
    return random.choice([None, (), *((one,) for one in listed), listed, listed[::-1]])


def _device(random: Random) -> Event:
    number = random.randrange(2)
    flags = random.choice([None, None, Flags(), Flags(False), Flags(True)])
    label, ends = random.choice([None, "phone"]), random.choice([None, None, 4, 5])
    return Device(random.choice(PRINCIPALS), DEVICE_IDS[number], DEVICE_KEYS[number], CLIENTS[0], label, 1, ends, flags)


def _ctx(random: Random) -> Event:
    name = random.choice([None, "Ann", "Bob"])
    return CtxProfile(random.choice(CTXS), random.choice(REALMS), name, None, _info(random), random.choice(TIMES))


def _binding(kind: type[RoleBinding] | type[RoleRevoke]) -> Callable[[Random], Event]:
    def make(random: Random) -> Event:
        realm, role = random.choice([None, *REALMS]), random.choice(ROLES)
        targets = _some(random, CTXS), _some(random, GROUPS)
        return kind(random.choice(ORGS), realm, role, *targets, random.choice(TIMES))

    return make


def _group(random: Random) -> Event:
    members = _some(random, CTXS), _some(random, CTXS)
    name, realm = random.choice(["Staff", "The Staff"]), random.choice([None, *REALMS])
    return IdentityGroup(random.choice(ORGS), realm, random.choice(GROUPS), name, *members, random.choice(TIMES))


def _handle(random: Random) -> Event:
    kind, target = random.choice([("ctx", CTXS[0]), ("ctx", CTXS[1]), ("org", ORGS[0])])
    return HandleMap(random.choice(REALMS), random.choice(HANDLES), kind, target, random.choice(TIMES))


def _link(random: Random) -> Event:
    ctx, org = random.choice([(CTXS[0], None), (CTXS[1], None), (None, ORGS[0]), (CTXS[0], ORGS[0])])
    said = random.choice(["google", "saml:corp"]), random.choice(["1", "2"])
    return ExternalLink(random.choice(REALMS), ctx, org, *said, _info(random), random.choice(TIMES))


def _revocation(random: Random) -> Event:
    while True:
        event = IdentityRevocation(
            random.choice([None, *PRINCIPALS]),
            random.choice([None, *ORGS]),
            random.choice([None, None, *DEVICE_IDS]),
            random.choice([None, None, *AUTH_REFS]),
            random.choice([None, *REALMS]),
            random.choice([None, None, *CTXS]),
            random.choice([None, "lost"]),
            random.choice(TIMES),
        )
        if event.flaw() is None:
            return event


MAKERS: dict[Callable[[Random], Event], int] = {
    lambda random: IdentityPrincipal(random.choice(PRINCIPALS), random.choice(TIMES), _info(random)): 1,
    _device: 3,
    _ctx: 2,
    lambda random: OrgProfile(
        random.choice(ORGS), random.choice([None, "Org"]), _info(random), 1, random.choice(TIMES)
    ): 1,
    _group: 5,
    _binding(RoleBinding): 3,
    _binding(RoleRevoke): 1,
    _handle: 2,
    _link: 2,
    _revocation: 1,
}


def random_event(random: Random) -> Event:
    return random.choices(list(MAKERS), list(MAKERS.values()))[0](random)


def random_history(random: Random, most: int = 20) -> list[FoldEntry]:
    """Anything anyone may have written, mirrored copies and bodies that do not decode among it."""
    said: list[LogLine] = []
    for number in range(random.randrange(most + 1)):
        if said and random.random() < 0.15:
            of = random.randrange(len(said))
            original = said[of].parent_id or msg_id(of + 1)
            said.append(LogLine(said[of].event, original, spoil=said[of].spoil))
        else:
            spoil = b"\x00" if random.random() < 0.05 else b""
            said.append(
                LogLine(random_event(random), msg_id(100 + number) if random.random() < 0.1 else None, spoil=spoil)
            )
    return log(*said)


class Pseudocode:
    """The rules as they are written. Events are kept in a list, and every question reads all of it."""

    def __init__(self, entries: list[FoldEntry]) -> None:
        self.events: list[tuple[int, Any]] = []
        seen = set()
        for entry in entries:
            steps = IDENTITY.read(entry)
            if not isinstance(steps, tuple) or entry.header is None:
                continue  # unknown keys MUST be rejected, and so on: test_bodies
            original = entry.header.parent_id or entry.msg_id
            if (original, entry.body) not in seen:  # §12.1: (payload hash, parent_id) or original msg_id
                seen.add((original, entry.body))
                (event,) = {step.event for step in steps} or {_decoded(entry)}
                self.events.append((entry.stream_seq, event))

    def of(self, kind: type[Any], **fields: object) -> list[tuple[int, Any]]:
        return [
            (seq, event)
            for seq, event in self.events
            if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
        ]

    def winner(self, found: list[tuple[int, Any]], time: str) -> Any:
        """LWW: the record with maximum (time, stream_seq)."""
        return max(found, key=lambda item: (getattr(item[1], time), item[0]))[1] if found else None

    def principal(self, principal_pk: bytes) -> Any:
        """§6.1: later records MAY override info but MUST NOT change principal_pk."""
        found = [event for _, event in self.of(IdentityPrincipal, principal_pk=principal_pk)]
        if not found:
            return None
        info = None
        for event in found:
            if event.info is not None:
                info = event.info
        return found[0].created_at, info

    def device(self, principal_pk: bytes, device_id: bytes) -> Any:
        """§6.2: the last event determines flags and expiry."""
        found = self.of(Device, principal_pk=principal_pk, device_id=device_id)
        return found[-1][1] if found else None

    def active(self, principal_pk: bytes, device_id: bytes, now: int) -> bool:
        last = self.device(principal_pk, device_id)
        if last is None:
            return False
        for _, event in self.of(IdentityRevocation, device_id=device_id):
            if event.principal_pk in (None, principal_pk):
                return False  # §11.1: MUST treat as INACTIVE even if flags are not updated
        disabled = last.flags is not None and last.flags.disabled is not None and last.flags.disabled
        return not disabled and (last.expires_at is None or now <= last.expires_at)

    def members(self, org_id: bytes, group_id: bytes) -> set[bytes]:
        """§8.2: at least one add event that is not fully tombstoned by later remove events."""
        adds: dict[bytes, set[int]] = {}
        for seq, event in self.of(IdentityGroup, org_id=org_id, group_id=group_id):
            for ctx_id in event.members_remove or ():
                adds[ctx_id] = set()  # tombs for all adds before this event
            for ctx_id in event.members_add or ():
                adds.setdefault(ctx_id, set()).add(seq)
        return {ctx_id for ctx_id, tags in adds.items() if tags}

    def roles(self, org_id: bytes, ctx_id: bytes, realm_id: bytes) -> set[str]:
        """§8.3: additive, from ctx and from its groups; our revocation takes back what came before it."""
        mine = {group_id for group_id in GROUPS if ctx_id in self.members(org_id, group_id)}
        held: set[tuple[str, bytes, bytes | None]] = set()
        for _, event in self.events:
            if isinstance(event, RoleBinding | RoleRevoke) and event.org_id == org_id:
                for target in (*(event.targets_ctx or ()), *(event.targets_group or ())):
                    key = (event.role, target, event.realm_id)
                    held.add(key) if isinstance(event, RoleBinding) else held.discard(key)
        return {role for role, target, realm in held if target in ({ctx_id} | mine) and realm in (None, realm_id)}

    def revoked(self, **fields: object) -> bool:
        """Whether a revocation names this, in this realm or without one."""
        realm = fields.pop("realm_id", None)
        return any(event.realm_id in (None, realm) for _, event in self.of(IdentityRevocation, **fields))

    def org_revoked(self, org_id: bytes, realm_id: bytes) -> bool:
        alone = {"device_id": None, "revoked_auth_ref": None, "ctx_id": None}
        return self.revoked(org_id=org_id, realm_id=realm_id, **alone)


def _decoded(entry: FoldEntry) -> Event:
    """The event of an entry that is for no part: a binding without targets."""
    assert entry.header is not None
    assert entry.body is not None
    (form,) = IDENTITY.schemas[entry.header.schema]
    return form.decode(entry.body)
