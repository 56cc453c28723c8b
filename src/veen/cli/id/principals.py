"""Shared by the `veen id` commands: options, ids from options, the overlay to fold, and sessions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import time
from typing import Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse
from veen.cli.kit import context_file, key_files, output, read_state, values
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.sanitize import printable
from veen.cli.realm import realm_state
from veen.core import Unavailable, control_stream, naming
from veen.overlays.authorization import AUTHORIZATIONS
from veen.overlays.identity import IDENTITY, IdentityOverlay, State
from veen.overlays.identity_auth import IdentityGrant, Session
from veen.overlays.identity_events import MAX_LISTED, OrgStream, Scope, ctx_id, org_id
from veen.state.entry_source import EntrySource
from veen.state.state_view import StateAt, StateView

IdReading: TypeAlias = StateAt[State, State]


_HINTS = (
    "veen cap authorize FILE presents the capability to the hub, which starts its time to live",
    "--issued-at TIME gives the start, if the capability was presented to another hub",
)


async def grant_of(source: EntrySource, auth_ref: bytes, *, cached: bool) -> IdentityGrant:
    """Return the capability of an auth_ref and its start time from the hub's control stream, which anyone may read."""
    hub_id = source.known.identity.hub_id
    stream_id = naming.control_stream(hub_id)
    realm_state.add_public_reader_key(source, stream_id, control_stream.reader_key(hub_id))
    with read_state.cache_hints(stream_id.hex(), AUTHORIZATIONS.CLASS):
        async with StateView(source, stream_id, AUTHORIZATIONS, cached=cached) as view, view.reading() as reading:
            found = reading.states.get(auth_ref)
    if not found:
        raise hinted(Unavailable(f"capability {auth_ref.hex()} was never presented to this hub"), *_HINTS)
    return IdentityGrant(found[0].event, found[0].hub_ts)


def shown_session(session: Session, proved: tuple[bytes, ...]) -> read_state.StateAnswer:
    """Return a session as an answer: the account, and the device and capability that prove it."""
    names = {
        "ctx_id": session.ctx_id,
        "org_id": session.org_id,
        "realm_id": session.realm_id,
        "device_pk": session.subject_pk,
        "issuer": session.issuer_pk,
        "auth_ref": session.auth_ref,
    }
    roles = sorted(session.roles)
    facts: dict[str, output.Value] = {name: one for name, one in names.items() if one is not None}
    facts |= {"expires_at": output.moment(session.expires_at), "roles": printable(", ".join(roles)) or None}
    data = {**names, "expires_at": session.expires_at, "roles": roles}
    return read_state.StateAnswer(facts=facts, data=data, parts=proved)


Realm: TypeAlias = Annotated[str, typer.Option("--realm", metavar="NAME|HEX", help="the realm, by its name or its id")]
InRealm: TypeAlias = Annotated[
    str | None, typer.Option("--realm", metavar="NAME|HEX", help="only in this realm", show_default="all realms")
]
ScopedTo: TypeAlias = Annotated[
    str | None,
    typer.Option("--scoped", metavar="NAME|HEX", help="the organization's twin in one realm, under its scoped id"),
]
Principal: TypeAlias = Annotated[
    str | None,
    typer.Option("--principal", metavar="HEX|PATH", help="a key, client directory or card; default: your own"),
]
Org: TypeAlias = Annotated[
    str | None,
    typer.Option("--org", metavar="HEX|PATH", help="an org_id, client directory or card; default: of your own keys"),
]
Account: TypeAlias = Annotated[
    str | None, typer.Option("--account", metavar="HEX", help="a ctx_id; default: your own account in the realm")
]
Accounts: TypeAlias = Annotated[list[str], typer.Argument(metavar="CTX_ID", help="the accounts, each by its ctx_id")]


def own_key(client: Path | None) -> bytes:
    """Return the long-term key of the client directory, which is that of a principal or an organization."""

    return key_files.read_card(context_file.need_client(client)).id_sign


def principal_of(given: str | None, client: Path | None) -> bytes:
    return own_key(client) if given is None else _key_of(given, "principal")


def org_of(given: str | None, client: Path | None) -> bytes:
    """Return the org_id given in hex, or derive it from the key of a client directory or card."""

    if given is None:
        return org_id(own_key(client))
    try:
        return id_of(given, "an org_id")
    except Misuse:
        return org_id(_key_of(given, "org"))


def realm_of(given: str) -> bytes:
    try:
        return values.realm(given)
    except ValueError as error:
        raise Misuse(str(error), "give --realm NAME") from None


def realm_or_all(given: str | None) -> bytes | None:
    return None if given is None else realm_of(given)


def id_of(text: str, what: str) -> bytes:
    return values.id_of(text, what)


def ids_of(listed: Sequence[str], what: str) -> tuple[bytes, ...]:
    """Parse ids in hex, at most as many as one event can list."""

    if len(listed) > MAX_LISTED:
        raise Misuse(f"{len(listed)} ids are given, above the limit of {MAX_LISTED}", "give them in several commands")
    return tuple(id_of(one, what) for one in listed)


def account_of(given: str | None, realm_id: bytes, client: Path | None) -> bytes:
    return ctx_id(own_key(client), realm_id) if given is None else id_of(given, "a ctx_id")


def org_scope(given: str | None, scoped: str | None, client: Path | None) -> OrgStream:
    """Return the organization's stream, or that of its twin in the realm `scoped`."""

    return OrgStream(org_of(given, client), realm_or_all(scoped))


def folding(scope: Scope, stream: str | None) -> tuple[IdentityOverlay, str | None]:
    """Return the overlay for a scope, and the default stream.

    The scope's own stream, named by --stream or not, is folded for that scope only. Any other stream that --stream
    names may hold several principals, accounts and organizations.
    """

    own = stream is None or naming.stream_id(stream) == scope.stream_id
    return (IdentityOverlay(scope), scope.stream_id.hex()) if own else (IDENTITY, None)


def pair_of(text: str) -> tuple[str, str]:
    """Parse NAME=TEXT."""
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise Misuse(f"{text!r} is not NAME=TEXT", "write the name, an equals sign, and the text")
    return name, value


def shown(names: Mapping[str, bytes | None]) -> dict[str, output.Value]:
    """Return the ids that are given, as facts to show."""
    return {name: value for name, value in names.items() if value is not None}


def now() -> int:
    """Return the time of this machine. Times in identity events are claims of their writers."""

    return int(time())


def _key_of(text: str, option: str) -> bytes:
    try:
        return values.card_key(text)
    except ValueError as error:
        raise Misuse(str(error), f"give --{option} HEX, or the path of a client directory or card") from None
