"""`veen revoke`: revocations of a realm, and the status of keys and capabilities at a hub.

The status of a capability joins the hub's control stream, which logs the capabilities that were presented to the hub,
with the realm's revocations.
"""

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import group
from veen.cli.kit import faults_command, output, output_files, read_state, render_state
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.read_state import StateAnswer, StateBasis
from veen.cli.kit.sanitize import printable, short
from veen.cli.kit.state_options import options_command
from veen.cli.realm import admin_event, realm_state
from veen.cli.realm.admin_event import PreparedEvent
from veen.cli.realm.realm_state import From, RealmReadOptions, RealmSendOptions, RealmState
from veen.client import ClientDir
from veen.core import CapToken, naming
from veen.core import control_stream as control
from veen.core.admin import RevocationKind
from veen.overlays import authorization
from veen.overlays.admin_records import AdminRecord, Records, States
from veen.overlays.authorization import AUTHORIZATIONS, CapabilityStatus, RevocationEvent, ShownCapability, Validity
from veen.state.entry_source import EntrySource
from veen.state.state_view import StateAt, StateView

RevocationRecords: TypeAlias = tuple[AdminRecord[RevocationEvent], ...]
RevocationState: TypeAlias = RealmState[RevocationRecords, RevocationRecords]


_TONES = {Validity.VALID: Tone.GOOD, Validity.REVOKED: Tone.BAD, Validity.EXPIRED: Tone.WARN}


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """The status of a key or a capability."""

    kind: RevocationKind
    name: bytes
    validity: Validity | None  # None for a key that is not revoked
    status: CapabilityStatus


class KeyStatusLookup:
    """Statuses of keys and capabilities at one time, from both streams."""

    def __init__(self, logged: States[ShownCapability], revoked: States[RevocationEvent], now: int) -> None:
        self.logged = logged
        self.revoked = revoked
        self.now = now

    def client(self, client_id: bytes) -> KeyStatus:
        found = authorization.revoked(self.revoked, RevocationKind.CLIENT_ID, client_id, self.now)
        validity = Validity.REVOKED if found else None
        return KeyStatus(
            RevocationKind.CLIENT_ID, client_id, validity, CapabilityStatus(validity or Validity.UNKNOWN, revoked=found)
        )

    def capability(self, auth_ref: bytes, token: CapToken | None = None) -> KeyStatus:
        found = authorization.capability_status(self.logged, self.revoked, auth_ref, self.now, token)
        return KeyStatus(RevocationKind.AUTH_REF, auth_ref, found.validity, found)

    def named(self, name: bytes) -> Iterator[KeyStatus]:
        """Yield everything with this name: a capability, a client key and its capabilities, a token."""
        if name in self.logged or authorization.part_of(RevocationKind.AUTH_REF, name) in self.revoked:
            yield self.capability(name)
        held = [auth_ref for auth_ref, _ in authorization.of_client(self.logged, self.revoked, name, self.now)]
        if held or authorization.part_of(RevocationKind.CLIENT_ID, name) in self.revoked:
            yield self.client(name)
            yield from map(self.capability, held)
        for auth_ref, records in self.logged.items():
            if authorization.token_target(records[0].event) == name:
                yield self.capability(auth_ref)
        if authorization.part_of(RevocationKind.CAP_TOKEN, name) in self.revoked:
            found = authorization.revoked(self.revoked, RevocationKind.CAP_TOKEN, name, self.now)
            validity = Validity.REVOKED if found else None
            yield KeyStatus(
                RevocationKind.CAP_TOKEN, name, validity, CapabilityStatus(validity or Validity.UNKNOWN, revoked=found)
            )


async def check_status(
    source: EntrySource, options: RealmReadOptions, what: str | None
) -> tuple[StateAnswer, StateBasis]:
    hub_id = source.known.identity.hub_id
    control_stream = naming.control_stream(hub_id)
    realm_state.add_public_reader_key(source, control_stream, control.reader_key(hub_id))
    async with AsyncExitStack() as stack:
        look = await stack.enter_async_context(realm_state.open_state(source, options, realm_state.REVOKED))
        view = await stack.enter_async_context(
            StateView(source, control_stream, AUTHORIZATIONS, cached=not options.no_cache)
        )
        shown = await stack.enter_async_context(view.reading())
        lookup = KeyStatusLookup(dict(shown.states), dict(look.reading.states), look.now)
        statuses = list(dict.fromkeys(_statuses(lookup, source.folder, what)))
        answer = _answer(statuses, look)
        return await _proved(options, answer, statuses, look, view, shown)


def _statuses(lookup: KeyStatusLookup, folder: ClientDir, what: str | None) -> Iterator[KeyStatus]:
    if what is None:
        for use in folder.writers.history():
            yield lookup.client(use.client_id)
        for token in folder.caps:
            yield lookup.capability(token.auth_ref(), token)
        return
    name = admin_event.hex_id(what)
    if name is not None:
        found = list(lookup.named(name))
        yield from found or [lookup.capability(name)]
        return
    for token in admin_event.tokens(what):
        yield lookup.capability(token.auth_ref(), token)


def _answer(
    statuses: list[KeyStatus], look: RealmState[Records[RevocationEvent], Records[RevocationEvent]]
) -> StateAnswer:
    rows: list[tuple[output.Value, ...]] = []
    data: list[dict[str, object]] = []
    for one in statuses:
        status, validity = one.status, "not revoked" if one.validity is None else str(one.validity)
        revoked = status.revoked.event if status.revoked else None
        tone = Tone.GOOD if one.validity is None else _TONES.get(one.validity, Tone.QUIET)
        reason = None if revoked is None or revoked.reason is None else printable(revoked.reason)
        until = status.expires_at if revoked is None else revoked.end
        rows.append((str(one.kind), short(one.name), Marked(validity, tone), output.moment(until), reason))
        data.append(
            {
                "kind": str(one.kind),
                "name": one.name,
                "worth": one.validity,
                "issued_at": status.issued_at,
                "expires_at": status.expires_at,
                "subject": status.logged.event.subject_pk if status.logged else None,
                "revoked": None
                if status.revoked is None or revoked is None
                else {"from": revoked.ts, "until": revoked.end, "reason": revoked.reason, **status.revoked.where()},
            }
        )
    document = {"realm_id": look.realm_id, "when": look.now, "checked": data}
    return StateAnswer(columns=("kind", "name", "status", "until", "reason"), rows=rows, data=document)


async def _proved(
    options: RealmReadOptions,
    answer: StateAnswer,
    statuses: list[KeyStatus],
    look: RealmState[Records[RevocationEvent], Records[RevocationEvent]],
    view: StateView[Records[ShownCapability], Records[ShownCapability]],
    shown: StateAt[Records[ShownCapability], Records[ShownCapability]],
) -> tuple[StateAnswer, StateBasis]:
    """Add the entries that decide the status: revocations if there are any, else the presented capabilities."""
    decided = [_part(one.status.revoked) for one in statuses if one.status.revoked]
    if decided or not any(one.status.logged for one in statuses):
        found = _with(answer, decided)
        return found, await realm_state.basis(options, look.view, look.reading, found)
    found = _with(answer, [one.name for one in statuses if one.status.logged])
    return found, await realm_state.basis(options, view, shown, found)


def _part(record: AdminRecord[RevocationEvent]) -> bytes:
    return authorization.part_of(record.event.kind, record.event.target)


def _with(answer: StateAnswer, parts: list[bytes]) -> StateAnswer:
    return StateAnswer(columns=answer.columns, rows=answer.rows, data=answer.data, parts=tuple(dict.fromkeys(parts)))


app = group(
    "revoke",
    """Revoke client keys and capabilities, for a time or permanently.

    A revocation is an entry of a realm's stream. Anyone may read it, and it cannot be removed. A hub that was
    initialized with --realm rejects what is revoked in that realm; at other hubs, readers and clients check it.
    """,
)

Reason: TypeAlias = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="the reason, readable by anyone")
]
Ttl: TypeAlias = Annotated[
    int | None, durations.whole_option("--ttl", least=1, help="how long it lasts", show_default="permanently")
]


@options_command(
    RealmSendOptions,
    app,
    "client-id",
    "veen revoke client-id alice.card --reason 'laptop stolen' --cap admin.cap",
    "veen revoke client-id 25fe51b6… --ttl 3600",
)
def client_id(
    options: RealmSendOptions,
    who: Annotated[str, typer.Argument(metavar="HEX|DIR|FILE", help="a client_id, or a client directory or card")],
    reason: Reason = None,
    since: From = None,
    ttl: Ttl = None,
) -> None:
    """Revoke a client key: nothing that it signs is admitted.

    A client changes its client_id every day. A card lists the coming ones, and this revokes all of them.
    """

    _revoke(options, "client-id", admin_event.client_ids(who), reason, since, ttl)


@options_command(
    RealmSendOptions,
    app,
    "auth-ref",
    "veen revoke auth-ref 9f0c2b71… --reason 'left the company' --cap admin.cap",
    "veen revoke auth-ref alice.cap --from 2030-01-31 --ttl 86400",
)
def auth_ref(
    options: RealmSendOptions,
    what: Annotated[str, typer.Argument(metavar="HEX|FILE", help="an auth_ref, or a file of veen cap issue")],
    reason: Reason = None,
    since: From = None,
    ttl: Ttl = None,
) -> None:
    """Revoke a capability by its auth_ref, which messages carry."""

    _revoke(options, "auth-ref", admin_event.auth_refs(what), reason, since, ttl)


@options_command(
    RealmSendOptions,
    app,
    "cap-token",
    "veen revoke cap-token alice.cap --reason 'issued by mistake' --cap admin.cap",
    "veen revoke cap-token 77b0e4c1…",
)
def cap_token(
    options: RealmSendOptions,
    what: Annotated[str, typer.Argument(metavar="HEX|FILE", help="a file of veen cap issue, or the hash of a token")],
    reason: Reason = None,
    since: From = None,
    ttl: Ttl = None,
) -> None:
    """Revoke capabilities by the hashes of their tokens: every token in the file."""

    _revoke(options, "cap-token", admin_event.token_hashes(what), reason, since, ttl)


def _revoke(
    options: RealmSendOptions, kind: str, named: Sequence[bytes], reason: str | None, since: int | None, ttl: int | None
) -> None:
    def make(look: RevocationState) -> list[PreparedEvent]:
        made = []
        for target in named:
            event = RevocationEvent(kind, target, reason, look.now if since is None else since, ttl)
            shown: dict[str, output.Value] = {
                "kind": kind,
                "target": target,
                "from": output.moment(event.ts),
                "until": "permanent" if event.end is None else output.moment(event.end),
            }
            data = {"kind": kind, "target": target, "reason": reason, "ts": event.ts, "ttl": ttl}
            made.append(admin_event.PreparedEvent(event, target, shown, {**data, "realm_id": look.realm_id}))
        return made

    admin_event.send_events(options, realm_state.REVOKED, make)


@options_command(
    RealmReadOptions,
    app,
    "list",
    "veen revoke list",
    "veen revoke list --when 2030-01-31 --json",
    "veen revoke list --all",
)
def list_(
    options: RealmReadOptions,
    every: Annotated[bool, typer.Option("--all", help="also past and future revocations")] = False,
) -> None:
    """List the revocations that are in effect, now or at another time."""

    def look(state: RevocationState) -> StateAnswer:
        rows, data, parts = [], [], []
        for part, records in sorted(state.reading.states.items()):
            kind, target = authorization.target_of_part(part)
            for record in records:
                event, applies = record.event, record.event.applies_at(state.now)
                if not applies and not every:
                    continue
                parts.append(part)
                until = "permanent" if event.end is None else output.moment(event.end)
                reason = None if event.reason is None else printable(event.reason)
                rows.append((str(kind), short(target), output.moment(event.ts), until, reason, record.stream_seq))
                data.append(
                    {
                        "kind": kind,
                        "target": target,
                        "from": event.ts,
                        "until": event.end,
                        "reason": event.reason,
                        "holds": applies,
                        **record.where(),
                    }
                )
        columns = ("kind", "target", "from", "until", "reason", "entry")
        document = {"realm_id": state.realm_id, "when": state.now, "revocations": data}
        return read_state.StateAnswer(columns=columns, rows=rows, data=document, parts=tuple(dict.fromkeys(parts)))

    realm_state.show_realm_state(options, realm_state.REVOKED, look)


@options_command(
    RealmReadOptions,
    app,
    "check",
    "veen revoke check",
    "veen revoke check alice.cap --when 2030-01-31",
    "veen revoke check 9f0c2b71… --data-dir hub --prove",
)
def check(
    options: RealmReadOptions,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="HEX|FILE",
            help="a client_id, auth_ref or token hash, or a file of veen cap issue",
            show_default="the keys and capabilities of this client",
        ),
    ] = None,
) -> None:
    """Show the status of a key or a capability at a hub, now or at another time.

    A capability is valid from its first presentation to the hub until its time to live is over, unless it or its
    subject is revoked. Presentations are in the hub's own log, which anyone may read. --prove shows the deciding entry.
    """

    if options.out is not None:
        output_files.check_new(options.out)

    async def work(source: EntrySource) -> tuple[StateAnswer, StateBasis]:
        return await check_status(source, options, what)

    found, basis = realm_state.with_source(options, work)
    render_state.show_answer(found, basis, options)


faults_command.add_for_realm(app, "veen revoke", realm_state.REVOKED)
