"""`veen revoke`: revocations of a realm, and the status of keys and capabilities at a hub.

The status of a capability joins the hub's control stream, which logs the capabilities that were presented to the hub,
with the realm's revocations.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, group, option
from veen.cli.kit.key_files import read_capabilities, read_card
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.result import Moment, Result
from veen.cli.kit.state_session import Answer, SendSession
from veen.cli.kit.values import hex_id
from veen.cli.realm.realm_state import (
    REVOKED,
    From,
    PreparedEvent,
    RealmSession,
    add_public_reader_key,
    add_realm_faults,
    realm_read_command,
    realm_send_command,
    send_events,
)
from veen.client import ClientDir
from veen.client.capabilities import tokens_of
from veen.core import CapToken, naming
from veen.core import control_stream as control
from veen.core.admin import RevocationKind
from veen.core.cap_token import token_of
from veen.overlays import authorization
from veen.overlays.admin_records import States
from veen.overlays.authorization import (
    AUTHORIZATIONS,
    OPERATOR_REVOCATIONS,
    CapabilityStatus,
    RevocationEvent,
    ShownCapability,
    Validity,
)
from veen.state.state_view import StateAt

app = group(
    "revoke",
    """Revoke client keys and capabilities, for a time or permanently.

    A revocation is an entry of a realm's stream. Anyone may read it, and it cannot be removed. A hub that was
    initialized with --realm rejects what is revoked in that realm; at other hubs, readers and clients check it.
    """,
)

Reason: TypeAlias = Annotated[str | None, option("--reason TEXT", "the reason, readable by anyone")]
Ttl: TypeAlias = Annotated[
    int | None, durations.whole_option("--ttl", least=1, help="how long it lasts", show_default="permanently")
]
_TONES = {Validity.VALID: Tone.GOOD, Validity.REVOKED: Tone.BAD, Validity.EXPIRED: Tone.WARN}


def client_ids(text: str) -> Sequence[bytes]:
    """Parse a client_id, or read those on a card."""
    named = hex_id(text)
    return [named] if named else read_card(_existing(text, "a client_id, a client directory or a card")).client_ids


def auth_refs(text: str) -> Sequence[bytes]:
    """Parse an auth_ref, or compute those of the capabilities in a file."""
    named = hex_id(text)
    return [named] if named else [token.auth_ref() for token in tokens(text)]


def token_hashes(text: str) -> Sequence[bytes]:
    """Parse a token hash, or compute those of the capabilities in a file."""
    named = hex_id(text)
    return [named] if named else [authorization.token_target(token) for token in tokens(text)]


def tokens(text: str) -> tuple[CapToken, ...]:
    return tokens_of(read_capabilities(_existing(text, "64 hex digits or a file of capabilities")))


def _existing(text: str, what: str) -> Path:
    path = Path(text)
    if not path.exists():
        raise Misuse(f"{text!r} is not {what}", "give 64 hex digits, or the path of a file")
    return path


def _add_command(
    kind: str, metavar: str, what: str, targets: Callable[[str], Sequence[bytes]], text: str, *examples: str
) -> None:
    """Add the command that revokes one kind of target."""

    async def revoke(
        session: SendSession,
        target: Annotated[str, argument(metavar, what)],
        reason: Reason = None,
        since: From = None,
        ttl: Ttl = None,
    ) -> Result:
        named = targets(target)
        state = await REVOKED.open(session)
        events = [RevocationEvent(kind, one, reason, state.now if since is None else since, ttl) for one in named]
        return await send_events(session, state, [_prepared(state.realm_id, event) for event in events])

    revoke.__doc__ = text
    realm_send_command(app, kind, *examples)(revoke)


def _prepared(realm_id: bytes, event: RevocationEvent) -> PreparedEvent:
    data = {
        "kind": event.kind,
        "target": event.target,
        "reason": event.reason,
        "ts": event.ts,
        "ttl": event.ttl,
        "realm_id": realm_id,
        "_from": Moment(event.ts),
        "_until": "permanent" if event.end is None else Moment(event.end),
    }
    return PreparedEvent(event, event.target, data, ("kind", "target", ("from", "_from"), ("until", "_until")))


_add_command(
    "client-id",
    "HEX|DIR|FILE",
    "a client_id, or a client directory or card",
    client_ids,
    """Revoke a client key: nothing that it signs is admitted.

    A client changes its client_id every day. A card lists the coming ones, and this revokes all of them.
    """,
    "veen revoke client-id alice.card --reason 'laptop stolen' --cap admin.cap",
    "veen revoke client-id 25fe51b6… --ttl 3600",
)
_add_command(
    "auth-ref",
    "HEX|FILE",
    "an auth_ref, or a file of veen cap issue",
    auth_refs,
    "Revoke a capability by its auth_ref, which messages carry.",
    "veen revoke auth-ref 9f0c2b71… --reason 'left the company' --cap admin.cap",
    "veen revoke auth-ref alice.cap --from 2030-01-31 --ttl 86400",
)
_add_command(
    "cap-token",
    "HEX|FILE",
    "a file of veen cap issue, or the hash of a token",
    token_hashes,
    "Revoke capabilities by the hashes of their tokens: every token in the file.",
    "veen revoke cap-token alice.cap --reason 'issued by mistake' --cap admin.cap",
    "veen revoke cap-token 77b0e4c1…",
)


@realm_read_command(
    app, "list", "veen revoke list", "veen revoke list --when 2030-01-31 --json", "veen revoke list --all"
)
async def list_(
    session: RealmSession, every: Annotated[bool, option("--all", "also past and future revocations")] = False
) -> Answer:
    """List the revocations that are in effect, now or at another time."""
    state = await REVOKED.open(session)
    data, parts = [], []
    for part, records in sorted(state.reading.states.items()):
        kind, target = authorization.target_of_part(part)
        for record in records:
            event, applies = record.event, record.event.applies_at(state.now)
            if applies or every:
                parts.append(part)
                span = {"from": Moment(event.ts), "until": Moment.of(event.end), "reason": event.reason}
                data.append({"kind": kind, "target": target, **span, "holds": applies, **record.where()})
    until = ("until", lambda row: "permanent" if row["until"] is None else row["until"])
    return Answer(
        {"realm_id": state.realm_id, "when": state.now, "revocations": data},
        rows="revocations",
        columns=("kind", "target", "from", until, "reason", ("entry", "stream_seq")),
        parts=tuple(dict.fromkeys(parts)),
    )


@realm_read_command(
    app,
    "check",
    "veen revoke check",
    "veen revoke check alice.cap --when 2030-01-31",
    "veen revoke check 9f0c2b71… --data-dir hub --prove",
)
async def check(
    session: RealmSession,
    what: Annotated[
        str | None,
        argument(
            "HEX|FILE",
            "a client_id, auth_ref or token hash, or a file of veen cap issue",
            default="the keys and capabilities of this client",
        ),
    ] = None,
) -> Answer:
    """Show the status of a key or a capability at a hub, now or at another time.

    A capability is valid from its first presentation to the hub until its time to live or its date is over, unless it
    or its subject is revoked, by the realm or by the operator of the hub. Presentations and the operator's revocations
    are in the hub's own log, which anyone may read. --prove shows the deciding entry.
    """
    state = await REVOKED.open(session)
    hub_id = state.source.known.identity.hub_id
    control_stream = naming.control_stream(hub_id)
    add_public_reader_key(state.source, control_stream, control.reader_key(hub_id))
    logged = await session.open_other(AUTHORIZATIONS, control_stream.hex())
    by_operator = await session.open_other(OPERATOR_REVOCATIONS, control_stream.hex())
    revocations = authorization.joined(dict(state.reading.states), dict(by_operator.states))
    lookup = KeyStatusLookup(dict(logged.states), revocations, state.now)
    statuses = list(dict.fromkeys(_statuses(lookup, session.folder, what)))
    # Revocations decide the status if there are any, those of the realm first, else the presented capabilities do.
    decided = [
        authorization.part_of(one.event.kind, one.event.target) for one in (s.status.revoked for s in statuses) if one
    ]
    shown = [one.name for one in statuses if one.status.logged]
    of_realm = [part for part in decided if part in state.reading.states]
    parts: list[bytes] = of_realm
    proving: StateAt[Any, Any] = state.reading
    if decided and not of_realm:
        parts, proving = decided, by_operator
    elif not decided and shown:
        parts, proving = shown, logged
    return Answer(
        {"realm_id": state.realm_id, "when": state.now, "checked": [one.data() for one in statuses]},
        rows="checked",
        columns=("kind", "name", ("status", "_status"), ("until", "_until"), ("reason", "_reason")),
        parts=tuple(dict.fromkeys(parts)),
        state=proving,
    )


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """The status of a key or a capability."""

    kind: RevocationKind
    name: bytes
    validity: Validity | None  # None for a key that is not revoked
    status: CapabilityStatus

    def data(self) -> dict[str, Any]:
        status, record = self.status, self.status.revoked
        revoked = None
        if record is not None:
            event = record.event
            revoked = {"from": event.ts, "until": event.end, "reason": event.reason, **record.where()}
        tone = Tone.GOOD if self.validity is None else _TONES.get(self.validity, Tone.QUIET)
        return {
            "kind": str(self.kind),
            "name": self.name,
            "worth": self.validity,
            "issued_at": status.issued_at,
            "expires_at": status.expires_at,
            "subject": token_of(status.logged.event).subject_pk if status.logged else None,
            "revoked": revoked,
            "_status": Marked("not revoked" if self.validity is None else str(self.validity), tone),
            "_until": Moment.of(status.expires_at if record is None else record.event.end),
            "_reason": None if record is None else record.event.reason,
        }


class KeyStatusLookup:
    """Statuses of keys and capabilities at one time, from both streams."""

    def __init__(self, logged: States[ShownCapability], revoked: States[RevocationEvent], now: int) -> None:
        self.logged = logged
        self.revoked = revoked
        self.now = now

    def target(self, kind: RevocationKind, name: bytes) -> KeyStatus:
        """The status of a client key or a token, which is only revoked or not."""
        found = authorization.revoked(self.revoked, kind, name, self.now)
        status = CapabilityStatus(Validity.REVOKED if found else Validity.UNKNOWN, revoked=found)
        return KeyStatus(kind, name, Validity.REVOKED if found else None, status)

    def capability(self, auth_ref: bytes, token: CapToken | None = None) -> KeyStatus:
        found = authorization.capability_status(self.logged, self.revoked, auth_ref, self.now, token)
        return KeyStatus(RevocationKind.AUTH_REF, auth_ref, found.validity, found)

    def named(self, name: bytes) -> Iterator[KeyStatus]:
        """Yield everything with this name: a capability, a client key and its capabilities, a token."""
        if name in self.logged or authorization.part_of(RevocationKind.AUTH_REF, name) in self.revoked:
            yield self.capability(name)
        held = [auth_ref for auth_ref, _ in authorization.of_client(self.logged, self.revoked, name, self.now)]
        if held or authorization.part_of(RevocationKind.CLIENT_ID, name) in self.revoked:
            yield self.target(RevocationKind.CLIENT_ID, name)
            yield from map(self.capability, held)
        for auth_ref, records in self.logged.items():
            if authorization.token_target(token_of(records[0].event)) == name:
                yield self.capability(auth_ref)
        if authorization.part_of(RevocationKind.CAP_TOKEN, name) in self.revoked:
            yield self.target(RevocationKind.CAP_TOKEN, name)


def _statuses(lookup: KeyStatusLookup, folder: ClientDir, what: str | None) -> Iterator[KeyStatus]:
    if what is None:
        for use in folder.writers.history():
            yield lookup.target(RevocationKind.CLIENT_ID, use.client_id)
        for token in folder.caps:
            yield lookup.capability(token.auth_ref(), token)
        return
    name = hex_id(what)
    if name is not None:
        found = list(lookup.named(name))
        yield from found or [lookup.capability(name)]
        return
    for token in tokens(what):
        yield lookup.capability(token.auth_ref(), token)


add_realm_faults(app, "veen revoke", REVOKED)
