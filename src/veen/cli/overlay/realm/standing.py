"""What keys and capabilities are worth at a hub: its control stream and the realm's revocations, joined."""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

from veen.cli import output
from veen.cli.client.showing import printable, short
from veen.cli.output import Marked, Tone
from veen.cli.overlay.asking import Answer, Basis
from veen.cli.overlay.realm import realm, targets
from veen.cli.overlay.realm.options import RealmReads
from veen.cli.overlay.realm.realm import Look
from veen.client import ClientDir
from veen.core import CapToken, control, naming
from veen.overlays.admin import (
    AUTHORIZATIONS,
    Capability,
    Record,
    Revocation,
    RevocationKind,
    Standing,
    Worth,
    authorization,
    revocation,
)
from veen.overlays.admin.records import Records, States
from veen.state.reading import Reading
from veen.state.source import Source
from veen.state.view import View

_TONES = {Worth.VALID: Tone.GOOD, Worth.REVOKED: Tone.BAD, Worth.EXPIRED: Tone.WARN}


@dataclass(frozen=True, slots=True)
class Judged:
    """A key or a capability, and what it is worth; of a key that is not revoked, nothing is said."""

    kind: RevocationKind
    name: bytes
    worth: Worth | None
    standing: Standing


class Court:
    """Both states, at one time."""

    def __init__(self, logged: States[Capability], revoked: States[Revocation], now: int) -> None:
        self.logged = logged
        self.revoked = revoked
        self.now = now

    def client(self, client_id: bytes) -> Judged:
        found = revocation.revoked(self.revoked, RevocationKind.CLIENT_ID, client_id, self.now)
        worth = Worth.REVOKED if found else None
        return Judged(RevocationKind.CLIENT_ID, client_id, worth, Standing(worth or Worth.UNKNOWN, revoked=found))

    def capability(self, auth_ref: bytes, token: CapToken | None = None) -> Judged:
        found = authorization.standing_of(self.logged, self.revoked, auth_ref, self.now, token)
        return Judged(RevocationKind.AUTH_REF, auth_ref, found.worth, found)

    def named(self, name: bytes) -> Iterator[Judged]:
        """Whatever has this name: a capability, a client key and its capabilities, a token."""
        if name in self.logged or revocation.part_of(RevocationKind.AUTH_REF, name) in self.revoked:
            yield self.capability(name)
        held = [auth_ref for auth_ref, _ in authorization.of_client(self.logged, self.revoked, name, self.now)]
        if held or revocation.part_of(RevocationKind.CLIENT_ID, name) in self.revoked:
            yield self.client(name)
            yield from map(self.capability, held)
        for auth_ref, records in self.logged.items():
            if revocation.token_target(records[0].said) == name:
                yield self.capability(auth_ref)
        if revocation.part_of(RevocationKind.CAP_TOKEN, name) in self.revoked:
            found = revocation.revoked(self.revoked, RevocationKind.CAP_TOKEN, name, self.now)
            worth = Worth.REVOKED if found else None
            yield Judged(RevocationKind.CAP_TOKEN, name, worth, Standing(worth or Worth.UNKNOWN, revoked=found))


async def check(source: Source, asked: RealmReads, what: str | None) -> tuple[Answer, Basis]:
    """What is asked about, and what it is worth."""
    hub_id = source.known.identity.hub_id
    control_stream = naming.control_stream(hub_id)
    realm.know(source, control_stream, control.reader_key(hub_id))
    async with AsyncExitStack() as stack:
        look = await stack.enter_async_context(realm.looking(source, asked, realm.REVOKED))
        view = await stack.enter_async_context(View(source, control_stream, AUTHORIZATIONS, cached=not asked.no_cache))
        shown = await stack.enter_async_context(view.reading())
        court = Court(dict(shown.states), dict(look.reading.states), look.now)
        judged = list(dict.fromkeys(_judge(court, source.folder, what)))
        answer = _answer(judged, look)
        return await _proved(asked, answer, judged, look, view, shown)


def _judge(court: Court, folder: ClientDir, what: str | None) -> Iterator[Judged]:
    if what is None:
        for use in folder.writers.history():
            yield court.client(use.client_id)
        for token in folder.caps:
            yield court.capability(token.auth_ref(), token)
        return
    name = targets.hex_id(what)
    if name is not None:
        found = list(court.named(name))
        yield from found or [court.capability(name)]
        return
    for token in targets.tokens(what):
        yield court.capability(token.auth_ref(), token)


def _answer(judged: list[Judged], look: "Look[Records[Revocation], Records[Revocation]]") -> Answer:
    rows: list[tuple[output.Value, ...]] = []
    data: list[dict[str, object]] = []
    for one in judged:
        standing, worth = one.standing, "not revoked" if one.worth is None else str(one.worth)
        said = standing.revoked.said if standing.revoked else None
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
                "subject": standing.logged.said.subject_pk if standing.logged else None,
                "revoked": None
                if standing.revoked is None or said is None
                else {"from": said.ts, "until": said.end, "reason": said.reason, **standing.revoked.where()},
            }
        )
    told = {"realm_id": look.realm_id, "when": look.now, "checked": data}
    return Answer(columns=("kind", "name", "worth", "until", "reason"), rows=rows, data=told)


async def _proved(
    asked: RealmReads,
    answer: Answer,
    judged: list[Judged],
    look: "Look[Records[Revocation], Records[Revocation]]",
    view: View[Records[Capability], Records[Capability]],
    shown: Reading[Records[Capability], Records[Capability]],
) -> tuple[Answer, Basis]:
    """With the entries that decide: revocations where there are any, else what the hub was shown."""
    decided = [_part(one.standing.revoked) for one in judged if one.standing.revoked]
    if decided or not any(one.standing.logged for one in judged):
        found = _with(answer, decided)
        return found, await realm.basis(asked, look.view, look.reading, found)
    found = _with(answer, [one.name for one in judged if one.standing.logged])
    return found, await realm.basis(asked, view, shown, found)


def _part(record: Record[Revocation]) -> bytes:
    return revocation.part_of(record.said.kind, record.said.target)


def _with(answer: Answer, parts: list[bytes]) -> Answer:
    return Answer(columns=answer.columns, rows=answer.rows, data=answer.data, parts=tuple(dict.fromkeys(parts)))
