"""What keys and capabilities are worth at a hub: its control stream and the realm's revocations, joined."""

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import group
from veen.cli.kit import faults_command, output
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.read_state import StateAnswer, StateBasis
from veen.cli.kit.sanitize import printable, short
from veen.cli.kit.state_options import options_command
from veen.cli.realm import admin_event, realm_state
from veen.cli.realm.realm_state import From, Look, RealmReads, RealmSays
from veen.client import ClientDir
from veen.core import CapToken, naming
from veen.core import control_stream as control
from veen.overlays.admin import (
    AUTHORIZATIONS,
    AdminRecord,
    CapabilityStatus,
    RevocationEvent,
    RevocationKind,
    ShownCapability,
    Validity,
    authorization,
    revocation,
)
from veen.overlays.admin.admin_records import Records, States
from veen.state.entry_source import EntrySource
from veen.state.state_at import StateAt
from veen.state.state_view import StateView

if TYPE_CHECKING:
    from veen.cli.kit.read_state import StateAnswer, StateBasis
    from veen.cli.realm.admin_event import Saying
    from veen.cli.realm.realm_state import AdminStream, Look
    from veen.overlays.admin.admin_records import AdminRecord
    from veen.overlays.admin.revocation import RevocationEvent
    from veen.state.entry_source import EntrySource

    RevocationRecords: TypeAlias = tuple[AdminRecord[RevocationEvent], ...]
    Looked: TypeAlias = Look[RevocationRecords, RevocationRecords]


_TONES = {Validity.VALID: Tone.GOOD, Validity.REVOKED: Tone.BAD, Validity.EXPIRED: Tone.WARN}


@dataclass(frozen=True, slots=True)
class KeyStanding:
    """A key or a capability, and what it is worth; of a key that is not revoked, nothing is said."""

    kind: RevocationKind
    name: bytes
    worth: Validity | None
    standing: CapabilityStatus


class Court:
    """Both states, at one time."""

    def __init__(self, logged: States[ShownCapability], revoked: States[RevocationEvent], now: int) -> None:
        self.logged = logged
        self.revoked = revoked
        self.now = now

    def client(self, client_id: bytes) -> KeyStanding:
        found = revocation.revoked(self.revoked, RevocationKind.CLIENT_ID, client_id, self.now)
        worth = Validity.REVOKED if found else None
        return KeyStanding(
            RevocationKind.CLIENT_ID, client_id, worth, CapabilityStatus(worth or Validity.UNKNOWN, revoked=found)
        )

    def capability(self, auth_ref: bytes, token: CapToken | None = None) -> KeyStanding:
        found = authorization.capability_status(self.logged, self.revoked, auth_ref, self.now, token)
        return KeyStanding(RevocationKind.AUTH_REF, auth_ref, found.validity, found)

    def named(self, name: bytes) -> Iterator[KeyStanding]:
        """Whatever has this name: a capability, a client key and its capabilities, a token."""
        if name in self.logged or revocation.part_of(RevocationKind.AUTH_REF, name) in self.revoked:
            yield self.capability(name)
        held = [auth_ref for auth_ref, _ in authorization.of_client(self.logged, self.revoked, name, self.now)]
        if held or revocation.part_of(RevocationKind.CLIENT_ID, name) in self.revoked:
            yield self.client(name)
            yield from map(self.capability, held)
        for auth_ref, records in self.logged.items():
            if revocation.token_target(records[0].event) == name:
                yield self.capability(auth_ref)
        if revocation.part_of(RevocationKind.CAP_TOKEN, name) in self.revoked:
            found = revocation.revoked(self.revoked, RevocationKind.CAP_TOKEN, name, self.now)
            worth = Validity.REVOKED if found else None
            yield KeyStanding(
                RevocationKind.CAP_TOKEN, name, worth, CapabilityStatus(worth or Validity.UNKNOWN, revoked=found)
            )


async def check_standing(source: EntrySource, asked: RealmReads, what: str | None) -> tuple[StateAnswer, StateBasis]:
    """What is asked about, and what it is worth."""
    hub_id = source.known.identity.hub_id
    control_stream = naming.control_stream(hub_id)
    realm_state.know(source, control_stream, control.reader_key(hub_id))
    async with AsyncExitStack() as stack:
        look = await stack.enter_async_context(realm_state.looking(source, asked, realm_state.REVOKED))
        view = await stack.enter_async_context(
            StateView(source, control_stream, AUTHORIZATIONS, cached=not asked.no_cache)
        )
        shown = await stack.enter_async_context(view.reading())
        court = Court(dict(shown.states), dict(look.reading.states), look.now)
        judged = list(dict.fromkeys(_judge(court, source.folder, what)))
        answer = _answer(judged, look)
        return await _proved(asked, answer, judged, look, view, shown)


def _judge(court: Court, folder: ClientDir, what: str | None) -> Iterator[KeyStanding]:
    if what is None:
        for use in folder.writers.history():
            yield court.client(use.client_id)
        for token in folder.caps:
            yield court.capability(token.auth_ref(), token)
        return
    name = admin_event.hex_id(what)
    if name is not None:
        found = list(court.named(name))
        yield from found or [court.capability(name)]
        return
    for token in admin_event.tokens(what):
        yield court.capability(token.auth_ref(), token)


def _answer(judged: list[KeyStanding], look: "Look[Records[RevocationEvent], Records[RevocationEvent]]") -> StateAnswer:
    rows: list[tuple[output.Value, ...]] = []
    data: list[dict[str, object]] = []
    for one in judged:
        standing, worth = one.standing, "not revoked" if one.worth is None else str(one.worth)
        said = standing.revoked.event if standing.revoked else None
        tone = Tone.GOOD if one.worth is None else _TONES.get(one.worth, Tone.QUIET)
        reason = None if said is None or said.reason is None else printable(said.reason)
        until = standing.expires_at if said is None else said.end
        rows.append((str(one.kind), short(one.name), Marked(worth, tone), output.moment(until), reason))
        data.append(
            {
                "kind": str(one.kind),
                "name": one.name,
                "worth": one.worth,
                "issued_at": standing.issued_at,
                "expires_at": standing.expires_at,
                "subject": standing.logged.event.subject_pk if standing.logged else None,
                "revoked": None
                if standing.revoked is None or said is None
                else {"from": said.ts, "until": said.end, "reason": said.reason, **standing.revoked.where()},
            }
        )
    told = {"realm_id": look.realm_id, "when": look.now, "checked": data}
    return StateAnswer(columns=("kind", "name", "worth", "until", "reason"), rows=rows, data=told)


async def _proved(
    asked: RealmReads,
    answer: StateAnswer,
    judged: list[KeyStanding],
    look: "Look[Records[RevocationEvent], Records[RevocationEvent]]",
    view: StateView[Records[ShownCapability], Records[ShownCapability]],
    shown: StateAt[Records[ShownCapability], Records[ShownCapability]],
) -> tuple[StateAnswer, StateBasis]:
    """With the entries that decide: revocations where there are any, else what the hub was shown."""
    decided = [_part(one.standing.revoked) for one in judged if one.standing.revoked]
    if decided or not any(one.standing.logged for one in judged):
        found = _with(answer, decided)
        return found, await realm_state.basis(asked, look.view, look.reading, found)
    found = _with(answer, [one.name for one in judged if one.standing.logged])
    return found, await realm_state.basis(asked, view, shown, found)


def _part(record: AdminRecord[RevocationEvent]) -> bytes:
    return revocation.part_of(record.event.kind, record.event.target)


def _with(answer: StateAnswer, parts: list[bytes]) -> StateAnswer:
    return StateAnswer(columns=answer.columns, rows=answer.rows, data=answer.data, parts=tuple(dict.fromkeys(parts)))


app = group(
    "revoke",
    """Revoke client keys and capabilities, for a time or for good.

    A revocation is an entry of the realm's log: anyone may read it, and nobody can take it back. A hub that was made
    with --realm refuses what is revoked there; elsewhere, readers and clients go by it.
    """,
)

Reason: TypeAlias = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="why, for whoever reads it")]
Ttl: TypeAlias = Annotated[
    int | None, durations.whole_option("--ttl", least=1, help="for how long", show_default="for good")
]


@options_command(
    RealmSays,
    app,
    "client-id",
    "veen revoke client-id alice.card --reason 'laptop stolen' --cap admin.cap",
    "veen revoke client-id 25fe51b6… --ttl 3600",
)
def client_id(
    asked: RealmSays,
    who: Annotated[
        str, typer.Argument(metavar="HEX|DIR|FILE", help="a client_id, or whose: a client directory or card")
    ],
    reason: Reason = None,
    since: From = None,
    ttl: Ttl = None,
) -> None:
    """Revoke a client key, so that nothing it signs is admitted.

    A client changes its client_id every day. A card lists the next ones, and all of them are revoked.
    """
    from veen.cli.realm import admin_event

    _revoke(asked, "client-id", admin_event.client_ids(who), reason, since, ttl)


@options_command(
    RealmSays,
    app,
    "auth-ref",
    "veen revoke auth-ref 9f0c2b71… --reason 'left the company' --cap admin.cap",
    "veen revoke auth-ref alice.cap --from 2030-01-31 --ttl 86400",
)
def auth_ref(
    asked: RealmSays,
    what: Annotated[str, typer.Argument(metavar="HEX|FILE", help="an auth_ref, or a file that veen cap issue made")],
    reason: Reason = None,
    since: From = None,
    ttl: Ttl = None,
) -> None:
    """Revoke a capability by the name that messages refer to it by."""
    from veen.cli.realm import admin_event

    _revoke(asked, "auth-ref", admin_event.auth_refs(what), reason, since, ttl)


@options_command(
    RealmSays,
    app,
    "cap-token",
    "veen revoke cap-token alice.cap --reason 'issued by mistake' --cap admin.cap",
    "veen revoke cap-token 77b0e4c1…",
)
def cap_token(
    asked: RealmSays,
    what: Annotated[
        str, typer.Argument(metavar="HEX|FILE", help="a file that veen cap issue made, or the hash of a token")
    ],
    reason: Reason = None,
    since: From = None,
    ttl: Ttl = None,
) -> None:
    """Revoke a capability by the hash of its token: each token in the file."""
    from veen.cli.realm import admin_event

    _revoke(asked, "cap-token", admin_event.token_hashes(what), reason, since, ttl)


def _revoke(
    asked: RealmSays, kind: str, named: Sequence[bytes], reason: str | None, since: int | None, ttl: int | None
) -> None:
    from veen.cli.kit import output
    from veen.cli.realm import admin_event, realm_state
    from veen.overlays.admin import RevocationEvent

    def make(look: "Looked") -> "list[Saying]":
        made = []
        for target in named:
            event = RevocationEvent(kind, target, reason, look.now if since is None else since, ttl)
            shown: dict[str, output.Value] = {
                "kind": kind,
                "target": target,
                "from": output.moment(event.ts),
                "until": "for good" if event.end is None else output.moment(event.end),
            }
            data = {"kind": kind, "target": target, "reason": reason, "ts": event.ts, "ttl": ttl}
            made.append(admin_event.Saying(event, target, shown, {**data, "realm_id": look.realm_id}))
        return made

    admin_event.say(asked, realm_state.REVOKED, make)


@options_command(
    RealmReads, app, "list", "veen revoke list", "veen revoke list --when 2030-01-31 --json", "veen revoke list --all"
)
def list_(
    asked: RealmReads,
    every: Annotated[bool, typer.Option("--all", help="also what is over, or is yet to begin")] = False,
) -> None:
    """List what is revoked, now or at any other time."""
    from veen.cli.kit import output, read_state
    from veen.cli.kit.sanitize import printable, short
    from veen.cli.realm import realm_state
    from veen.overlays.admin import revocation

    def look(here: "Looked") -> "StateAnswer":
        rows, data, parts = [], [], []
        for part, state in sorted(here.reading.states.items()):
            kind, target = revocation.target_of_part(part)
            for record in state:
                said, holds = record.event, record.event.applies_at(here.now)
                if not holds and not every:
                    continue
                parts.append(part)
                until = "for good" if said.end is None else output.moment(said.end)
                reason = None if said.reason is None else printable(said.reason)
                rows.append((str(kind), short(target), output.moment(said.ts), until, reason, record.stream_seq))
                data.append(
                    {
                        "kind": kind,
                        "target": target,
                        "from": said.ts,
                        "until": said.end,
                        "reason": said.reason,
                        "holds": holds,
                        **record.where(),
                    }
                )
        columns = ("kind", "target", "from", "until", "reason", "entry")
        told = {"realm_id": here.realm_id, "when": here.now, "revocations": data}
        return read_state.StateAnswer(columns=columns, rows=rows, data=told, parts=tuple(dict.fromkeys(parts)))

    realm_state.answer(asked, realm_state.REVOKED, look)


@options_command(
    RealmReads,
    app,
    "check",
    "veen revoke check",
    "veen revoke check alice.cap --when 2030-01-31",
    "veen revoke check 9f0c2b71… --data-dir hub --prove",
)
def check(
    asked: RealmReads,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="HEX|FILE",
            help="a client_id, auth_ref or token hash, or a file that veen cap issue made",
            show_default="the keys and capabilities of this client",
        ),
    ] = None,
) -> None:
    """Tell what a key or a capability is worth at a hub, now or at any other time.

    A capability is valid from when the hub was first shown it until its time is over, unless it or its subject is
    revoked. What the hub was shown is in its own log, which anyone may read. With --prove, the entry that decides.
    """
    from veen.cli.kit import output_files, render_state
    from veen.cli.realm import realm_state

    if asked.out is not None:
        output_files.check_new(asked.out)

    async def work(source: "EntrySource") -> "tuple[StateAnswer, StateBasis]":
        return await check_standing(source, asked, what)

    found, basis = realm_state.visiting(asked, work)
    render_state.show_answer(found, basis, asked)


def _stream() -> "AdminStream[RevocationRecords, RevocationRecords]":
    from veen.cli.realm import realm_state

    return realm_state.REVOKED


faults_command.add_for_realm(app, "veen revoke", _stream)
