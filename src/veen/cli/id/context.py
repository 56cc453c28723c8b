"""`veen id context`: the account of a principal in one realm."""

from typing import Annotated

import typer

from plumbing.cli.command import group
from veen.cli.id import principals
from veen.cli.id.principals import Account, IdReading, Realm
from veen.cli.kit import output, read_state, render_state, send_event
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.sanitize import printable
from veen.cli.kit.state_options import ReadOptions, SendOptions, read_command, send_command
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
def set_(
    options: SendOptions,
    realm: Realm,
    name: Annotated[str | None, typer.Option("--name", metavar="TEXT", help="the display name")] = None,
    avatar: Annotated[str | None, typer.Option("--avatar", metavar="HEX", help="a picture, by its coid")] = None,
    pref: Annotated[
        list[str] | None, typer.Option("--pref", metavar="NAME=TEXT", help="a preference of the account")
    ] = None,
) -> None:
    """Set the profile of the account of your own keys in a realm.

    Replaces the previous profile. Creates the key of the account's stream if there is none.
    """

    scope = CtxStream.of(principals.own_key(options.client), principals.realm_of(realm))
    prefs = dict(principals.pair_of(one) for one in pref or ())
    avatar_coid = None if avatar is None else principals.id_of(avatar, "a coid")
    overlay, stream = principals.folding(scope, options.stream)

    def make(reading: IdReading | None) -> CtxProfile:
        found = None if reading is None else identity_views.ctx_profile(reading.states, scope.ctx_id, scope.realm_id)
        # Not before the current record's time: if its writer's clock was ahead, equal times let the later entry win.
        ts = principals.now() if found is None else max(principals.now(), found.updated_at)
        return CtxProfile(scope.ctx_id, scope.realm_id, name, avatar_coid, cbor.encode(prefs) if prefs else None, ts)

    shown = principals.shown({"ctx_id": scope.ctx_id, "realm_id": scope.realm_id})
    send_event.send_checked(options, overlay, make, shown, stream=stream, blind=make(None), begins=True)


@read_command(
    app, "show", "veen id context show --client ann --realm shop", "veen id context show --realm shop --prove"
)
def show(options: ReadOptions, realm: Realm, account: Account = None) -> None:
    """Show the profile of an account."""

    realm_id = principals.realm_of(realm)
    ctx_id = principals.account_of(account, realm_id, options.client)
    overlay, stream = principals.folding(CtxStream(ctx_id, realm_id), options.stream)

    def look(reading: IdReading) -> StateAnswer:
        found = identity_views.ctx_profile(reading.states, ctx_id, realm_id)
        if found is None:
            raise hinted(Unavailable(f"account {ctx_id.hex()} has no profile"), "veen id context set sets one")
        prefs = None if found.prefs is None else cbor.decode(found.prefs)
        names = principals.shown({"ctx_id": ctx_id, "realm_id": realm_id})
        facts: dict[str, output.Value] = {
            **names,
            "display_name": None if found.display_name is None else printable(found.display_name),
            "avatar_coid": found.avatar_coid,
            "prefs": render_state.plain_cell(prefs),
            "updated_at": output.moment(found.updated_at),
        }
        data = {
            **names,
            "display_name": found.display_name,
            "avatar_coid": found.avatar_coid,
            "prefs": render_state.plain_json(prefs),
            "updated_at": found.updated_at,
        }
        return read_state.StateAnswer(
            facts=facts, data=data, parts=(identity.part_key(identity.CTX, ctx_id, realm_id),)
        )

    read_state.show_state(options, overlay, look, stream=stream)
