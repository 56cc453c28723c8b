"""Shared by the `veen id` commands: options, ids from options, the overlay to fold, and sessions."""

from time import time
from typing import Annotated, Any, TypeAlias

from plumbing.cli.command import Misuse, argument, misuse, option
from veen.cli.kit import values
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Moment, listed
from veen.cli.kit.state_session import Answer, SendSession, SentResult, StateSession
from veen.cli.realm import realm_state
from veen.core import CapPresentation, Unavailable, control_stream, naming
from veen.core.cap_token import token_of
from veen.core.hashing import U64_MAX
from veen.overlays import Event
from veen.overlays.authorization import AUTHORIZATIONS
from veen.overlays.identity import IDENTITY, IdentityOverlay, State
from veen.overlays.identity_auth import IdentityGrant, Session
from veen.overlays.identity_events import MAX_LISTED, OrgStream, Scope, ctx_id, org_id
from veen.state.state_view import StateAt

IdState: TypeAlias = StateAt[State, State]


def _key_parser(name: str) -> Any:
    def parse(text: str) -> bytes:
        with misuse(f"give --{name} HEX, or the path of a client directory or card"):
            return values.card_key(text)

    return parse


def realm_id_of(text: str) -> bytes:
    """Parse a realm name, or a realm id in hex."""
    with misuse("give --realm NAME"):
        return values.realm(text)


def org_id_of(text: str) -> bytes:
    """Parse an org_id in hex, or derive it from the key of a client directory or card."""
    named: bytes = values.hex_id(text) or org_id(_key_parser("org")(text))
    return named


account_id = values.id_parser("a ctx_id")
Realm: TypeAlias = Annotated[bytes, option("--realm NAME|HEX", "the realm, by its name or its id", parser=realm_id_of)]
InRealm: TypeAlias = Annotated[
    bytes | None, option("--realm NAME|HEX", "only in this realm", default="all realms", parser=realm_id_of)
]
ScopedTo: TypeAlias = Annotated[
    bytes | None,
    option("--scoped NAME|HEX", "the organization's twin in one realm, under its scoped id", parser=realm_id_of),
]
Principal: TypeAlias = Annotated[
    bytes | None,
    option(
        "--principal HEX|PATH", "a key, client directory or card; default: your own", parser=_key_parser("principal")
    ),
]
Org: TypeAlias = Annotated[
    bytes | None,
    option("--org HEX|PATH", "an org_id, client directory or card; default: of your own keys", parser=org_id_of),
]
Account: TypeAlias = Annotated[
    bytes | None, option("--account HEX", "a ctx_id; default: your own account in the realm", parser=account_id)
]
Accounts: TypeAlias = Annotated[list[bytes], argument("CTX_ID", "the accounts, each by its ctx_id", parser=account_id)]
Reason: TypeAlias = Annotated[str | None, option("--reason TEXT", "the reason")]


_HINTS = (
    "veen cap authorize FILE presents the capability to the hub, which starts its time to live",
    "--issued-at TIME gives the start, if the capability was presented to another hub",
)


async def grant_of(session: StateSession[Any], auth_ref: bytes) -> IdentityGrant:
    """The capability of an auth_ref and its start time, from the hub's control stream, which anyone may read."""
    source = await session.source()
    hub_id = source.known.identity.hub_id
    stream_id = naming.control_stream(hub_id)
    realm_state.add_public_reader_key(source, stream_id, control_stream.reader_key(hub_id))
    found = (await session.open_other(AUTHORIZATIONS, stream_id.hex())).states.get(auth_ref)
    if not found:
        raise hinted(Unavailable(f"capability {auth_ref.hex()} was never presented to this hub"), *_HINTS)
    shown = found[0].event
    end = shown.not_after if isinstance(shown, CapPresentation) else U64_MAX
    return IdentityGrant(token_of(shown), found[0].hub_ts, end)


def shown_session(session: Session, proved: tuple[bytes, ...]) -> Answer:
    """A session as an answer: the account, and the device and capability that prove it."""
    names = {
        "ctx_id": session.ctx_id,
        "org_id": session.org_id,
        "realm_id": session.realm_id,
        "device_pk": session.subject_pk,
        "issuer": session.issuer_pk,
        "auth_ref": session.auth_ref,
    }
    data = {**names, "expires_at": Moment.of(session.expires_at), "roles": sorted(session.roles)}
    return Answer(data, facts=(*present(**names), "expires_at", ("roles", listed("roles"))), parts=proved)


def own_key(session: StateSession[Any]) -> bytes:
    """The long-term key of the client directory, which is that of a principal or an organization."""
    return session.folder.card.id_sign


def account_of(given: bytes | None, realm_id: bytes, session: StateSession[Any]) -> bytes:
    return ctx_id(own_key(session), realm_id) if given is None else given


def org_scope(given: bytes | None, scoped: bytes | None, session: StateSession[Any]) -> OrgStream:
    """The organization's stream, or that of its twin in the realm `scoped`."""
    return OrgStream(org_id(own_key(session)) if given is None else given, scoped)


def listable(ids: list[bytes] | None) -> tuple[bytes, ...] | None:
    """Ids for an event, at most as many as one event can list."""
    if ids and len(ids) > MAX_LISTED:
        raise Misuse(f"{len(ids)} ids are given, above the limit of {MAX_LISTED}", "give them in several commands")
    return tuple(ids) if ids else None


def folding(scope: Scope, stream: str | None) -> tuple[IdentityOverlay, str | None]:
    """The overlay for a scope, and the default stream.

    The scope's own stream, named by --stream or not, is folded for that scope only. Any other stream that --stream
    names may hold several principals, accounts and organizations.
    """
    own = stream is None or naming.stream_id(stream) == scope.stream_id
    return (IdentityOverlay(scope), scope.stream_id.hex()) if own else (IDENTITY, None)


async def open_scope(session: StateSession[Any], scope: Scope) -> IdState:
    return await session.open(*folding(scope, session.options.stream))


class ScopeSender:
    """Sends events to the stream of a principal, an account, an organization or handles."""

    def __init__(self, session: SendSession, scope: Scope, *, begins: bool = False) -> None:
        """With `begins`, the key of the stream is created if there is none."""
        self._session = session
        self._overlay, self._stream = folding(scope, session.options.stream)
        if begins:
            session.create_key(session.stream(self._stream))

    async def state(self) -> IdState | None:
        """The current state; None with --blind."""
        return await self._session.open_unless_blind(self._overlay, self._stream)

    async def send(self, event: Event, **shown: Any) -> SentResult:
        """Send an event, and show these values if they are not None."""
        return await self._session.send(self._overlay, event, present(**shown), default=self._stream)


def pairs_of(texts: list[str] | None) -> dict[str, str]:
    """Parse each NAME=TEXT."""
    pairs = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not name or not sign:
            raise Misuse(f"{text!r} is not NAME=TEXT", "write the name, an equals sign, and the text")
        pairs[name] = value
    return pairs


def present(**names: Any) -> dict[str, Any]:
    """The values that are not None."""
    return {name: value for name, value in names.items() if value is not None}


def now(at_least: int = 0) -> int:
    """The time of this machine. Times in identity events are claims of their writers.

    `at_least` is the time of the current record. If its writer's clock was ahead, equal times let the later entry win.
    """
    return max(int(time()), at_least)
