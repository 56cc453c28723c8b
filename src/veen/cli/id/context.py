"""`veen id context`: the account of a principal in one realm."""

from typing import Annotated

from plumbing.cli.command import group, option
from veen.cli.id import principals
from veen.cli.id.principals import Account, Realm, ScopeSender
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Moment, fields_of
from veen.cli.kit.state_session import Answer, ReadSession, SendSession, SentResult, read_command, send_command
from veen.cli.kit.values import id_parser
from veen.core import Unavailable, cbor
from veen.overlays import identity, identity_views
from veen.overlays.identity_events import CtxProfile, CtxStream

app = group(
    "context",
    """Set and show accounts: the profile of a principal in one realm.

    The ctx_id of an account is derived from its principal and its realm. Two ctx_ids of one principal cannot be linked
    without its key.
    """,
)


@send_command(app, "set", "veen id context set --client ann --realm shop --name Ann")
async def set_(
    session: SendSession,
    realm: Realm,
    name: Annotated[str | None, option("--name TEXT", "the display name")] = None,
    avatar: Annotated[
        bytes | None, option("--avatar HEX", "a picture, by its coid", parser=id_parser("a coid"))
    ] = None,
    pref: Annotated[list[str] | None, option("--pref NAME=TEXT", "a preference of the account")] = None,
) -> SentResult:
    """Set the profile of the account of your own keys in a realm.

    Replaces the previous profile. Creates the key of the account's stream if there is none.
    """
    prefs = principals.pairs_of(pref)
    scope = CtxStream.of(principals.own_key(session), realm)
    sender = ScopeSender(session, scope, begins=True)
    state = await sender.state()
    found = None if state is None else identity_views.ctx_profile(state.states, scope.ctx_id, realm)
    ts = principals.now(found.updated_at if found else 0)
    event = CtxProfile(scope.ctx_id, realm, name, avatar, cbor.encode(prefs) if prefs else None, ts)
    return await sender.send(event, ctx_id=scope.ctx_id, realm_id=realm)


@read_command(
    app, "show", "veen id context show --client ann --realm shop", "veen id context show --realm shop --prove"
)
async def show(session: ReadSession, realm: Realm, account: Account = None) -> Answer:
    """Show the profile of an account."""
    ctx_id = principals.account_of(account, realm, session)
    state = await principals.open_scope(session, CtxStream(ctx_id, realm))
    found = identity_views.ctx_profile(state.states, ctx_id, realm)
    if found is None:
        raise hinted(Unavailable(f"account {ctx_id.hex()} has no profile"), "veen id context set sets one")
    data = {
        "ctx_id": ctx_id,
        "realm_id": realm,
        **fields_of(found, "display_name", "avatar_coid"),
        "prefs": None if found.prefs is None else cbor.decode(found.prefs),
        "updated_at": Moment(found.updated_at),
    }
    return Answer(data, parts=(identity.part_key(identity.CTX, ctx_id, realm),))
