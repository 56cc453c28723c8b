"""What a hub's own log says of a capability, and sessions as commands show them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse
from veen.cli.kit import output, read_state
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.sanitize import printable
from veen.cli.realm import realm_state
from veen.core import Unavailable, control_stream, naming
from veen.overlays.admin import AUTHORIZATIONS
from veen.overlays.identity import IdentityGrant, Session
from veen.state.state_view import StateView

if TYPE_CHECKING:
    from veen.cli.kit import output
    from veen.overlays.identity import IdentityOverlay, OrgStream, Scope
    from veen.overlays.identity.identity_state import State
    from veen.state.entry_source import EntrySource
    from veen.state.state_at import StateAt

    IdReading: TypeAlias = StateAt[State, State]


_HINTS = (
    "veen cap authorize FILE shows a hub a capability, and its time begins",
    "--issued-at TIME says when it began, where that was at another hub",
)


async def grant_of(source: "EntrySource", auth_ref: bytes, *, cached: bool) -> IdentityGrant:
    """The capability of an auth_ref, and when its time began: from the hub's control stream, which anyone may read."""
    hub_id = source.known.identity.hub_id
    stream_id = naming.control_stream(hub_id)
    realm_state.know(source, stream_id, control_stream.reader_key(hub_id))
    with read_state.cache_hints(stream_id.hex(), AUTHORIZATIONS.CLASS):
        async with StateView(source, stream_id, AUTHORIZATIONS, cached=cached) as view, view.reading() as reading:
            found = reading.states.get(auth_ref)
    if not found:
        raise hinted(Unavailable(f"this hub was never shown the capability {auth_ref.hex()}"), *_HINTS)
    return IdentityGrant(found[0].event, found[0].hub_ts)


def shown_session(session: Session, proved: tuple[bytes, ...]) -> read_state.StateAnswer:
    """Whose account it is, and by what."""
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
    str | None, typer.Option("--realm", metavar="NAME|HEX", help="in this realm alone", show_default="in all of them")
]
ScopedTo: TypeAlias = Annotated[
    str | None,
    typer.Option("--scoped", metavar="NAME|HEX", help="the organization's twin in one realm, under its scoped id"),
]
Principal: TypeAlias = Annotated[
    str | None,
    typer.Option("--principal", metavar="HEX|PATH", help="whose: a key, client directory or card; else your own"),
]
Org: TypeAlias = Annotated[
    str | None,
    typer.Option("--org", metavar="HEX|PATH", help="an org_id, client directory or card; else that of your own keys"),
]
Account: TypeAlias = Annotated[
    str | None, typer.Option("--account", metavar="HEX", help="whose: a ctx_id; else your own in the realm")
]
Accounts: TypeAlias = Annotated[list[str], typer.Argument(metavar="CTX_ID", help="which accounts, each by its ctx_id")]


def own_key(client: Path | None) -> bytes:
    """The long-term key of the client directory: a principal's, or an organization's."""
    from veen.cli.kit import context_file, key_files

    return key_files.read_card(context_file.need_client(client)).id_sign


def principal_of(given: str | None, client: Path | None) -> bytes:
    return own_key(client) if given is None else _key_of(given, "principal")


def org_of(given: str | None, client: Path | None) -> bytes:
    """An org_id in hex is one already; a path leads to the key it is derived from."""
    from veen.overlays.identity import org_id

    if given is None:
        return org_id(own_key(client))
    try:
        return id_of(given, "an org_id")
    except Misuse:
        return org_id(_key_of(given, "org"))


def realm_of(given: str) -> bytes:
    from veen.cli.kit import values

    try:
        return values.realm(given)
    except ValueError as error:
        raise Misuse(str(error), "give --realm NAME") from None


def realm_or_all(given: str | None) -> bytes | None:
    return None if given is None else realm_of(given)


def id_of(text: str, what: str) -> bytes:
    from veen.cli.kit import values

    return values.id_of(text, what)


def ids_of(listed: Sequence[str], what: str) -> tuple[bytes, ...]:
    """Ids in hex, as many as one event can list."""
    from veen.overlays.identity.identity_events import MAX_LISTED

    if len(listed) > MAX_LISTED:
        raise Misuse(f"{len(listed)} at once, above {MAX_LISTED}", "give them in several commands")
    return tuple(id_of(one, what) for one in listed)


def account_of(given: str | None, realm_id: bytes, client: Path | None) -> bytes:
    from veen.overlays.identity import ctx_id

    return ctx_id(own_key(client), realm_id) if given is None else id_of(given, "a ctx_id")


def org_scope(given: str | None, scoped: str | None, client: Path | None) -> "OrgStream":
    """The organization's stream, or that of its twin in one realm."""
    from veen.overlays.identity import OrgStream

    return OrgStream(org_of(given, client), realm_or_all(scoped))


def folding(scope: "Scope", stream: str | None) -> "tuple[IdentityOverlay, str | None]":
    """What to fold, and the stream where none is named: one that is named may hold what several would.

    Named or not, a stream that follows from the scope is of that alone.
    """
    from veen.core import naming
    from veen.overlays.identity import IDENTITY, IdentityOverlay

    own = stream is None or naming.stream_id(stream) == scope.stream_id
    return (IdentityOverlay(scope), scope.stream_id.hex()) if own else (IDENTITY, None)


def pair_of(text: str) -> tuple[str, str]:
    """NAME=TEXT."""
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise Misuse(f"{text!r} is not NAME=TEXT", "write the name, an equals sign, and the text")
    return name, value


def shown(names: Mapping[str, bytes | None]) -> "dict[str, output.Value]":
    """Ids as facts."""
    return {name: value for name, value in names.items() if value is not None}


def now() -> int:
    """The clock of this machine: what the events of ID say of when is their writers' word."""
    from time import time

    return int(time())


def _key_of(text: str, option: str) -> bytes:
    from veen.cli.kit import values

    try:
        return values.card_key(text)
    except ValueError as error:
        raise Misuse(str(error), f"give --{option} HEX, or the path of a client directory or card") from None
