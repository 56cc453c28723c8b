"""`veen id context`: the account of a principal in one realm."""

from typing import TYPE_CHECKING, Annotated

import typer

from plumbing.cli.command import group
from veen.cli.id.principals import Account, Realm
from veen.cli.kit.state_options import ReadOptions, SendOptions, read_command, send_command

if TYPE_CHECKING:
    from veen.cli.id.principals import IdReading
    from veen.cli.kit.read_state import StateAnswer

app = group(
    "context",
    """Set and show accounts: what a principal is called in one realm.

    The ctx_id of an account follows from its principal and its realm, and nobody can tell from two of them that they
    are the same principal's.
    """,
)


@send_command(app, "set", "veen id context set --client ann --realm shop --name Ann")
def set_(
    asked: SendOptions,
    realm: Realm,
    name: Annotated[str | None, typer.Option("--name", metavar="TEXT", help="what the account is called")] = None,
    avatar: Annotated[str | None, typer.Option("--avatar", metavar="HEX", help="a picture, by its coid")] = None,
    pref: Annotated[
        list[str] | None, typer.Option("--pref", metavar="NAME=TEXT", help="a preference that goes with the account")
    ] = None,
) -> None:
    """Give the account of your own keys in a realm a profile.

    It stands in place of the one before. The key of its stream is made where there is none.
    """
    from veen.cli.id import principals
    from veen.cli.kit import send_event
    from veen.core import cbor
    from veen.overlays.identity import CtxProfile, CtxStream, views

    scope = CtxStream.of(principals.own_key(asked.client), principals.realm_of(realm))
    prefs = dict(principals.pair_of(one) for one in pref or ())
    said = (name, None if avatar is None else principals.id_of(avatar, "a coid"), cbor.encode(prefs) if prefs else None)
    overlay, stream = principals.folding(scope, asked.stream)

    def make(reading: "IdReading | None") -> CtxProfile:
        found = None if reading is None else views.ctx_profile(reading.states, scope.ctx_id, scope.realm_id)
        # Under the time that stands, where a clock was ahead of ours: then the later entry wins.
        ts = principals.now() if found is None else max(principals.now(), found.updated_at)
        return CtxProfile(scope.ctx_id, scope.realm_id, *said, ts)

    shown = principals.shown({"ctx_id": scope.ctx_id, "realm_id": scope.realm_id})
    send_event.send_checked(asked, overlay, make, shown, stream=stream, blind=make(None), begins=True)


@read_command(
    app, "show", "veen id context show --client ann --realm shop", "veen id context show --realm shop --prove"
)
def show(asked: ReadOptions, realm: Realm, account: Account = None) -> None:
    """Show an account: its profile, and whether its stream says anything of it yet."""
    from veen.cli.id import principals
    from veen.cli.kit import output, read_state, render_state
    from veen.cli.kit.exit_status import hinted
    from veen.cli.kit.sanitize import printable
    from veen.core import Unavailable, cbor
    from veen.overlays.identity import CtxStream, identity_state, views

    realm_id = principals.realm_of(realm)
    ctx_id = principals.account_of(account, realm_id, asked.client)
    overlay, stream = principals.folding(CtxStream(ctx_id, realm_id), asked.stream)

    def look(reading: "IdReading") -> "StateAnswer":
        found = views.ctx_profile(reading.states, ctx_id, realm_id)
        if found is None:
            raise hinted(Unavailable("nothing is said of this account"), "veen id context set gives it a profile")
        prefs = None if found.prefs is None else cbor.decode(found.prefs)
        names = principals.shown({"ctx_id": ctx_id, "realm_id": realm_id})
        said = {
            "avatar_coid": found.avatar_coid,
            "prefs": render_state.plain_json(prefs),
            "updated_at": found.updated_at,
        }
        facts: dict[str, output.Value] = {
            **names,
            "display_name": None if found.display_name is None else printable(found.display_name),
            "avatar_coid": found.avatar_coid,
            "prefs": render_state.plain_cell(prefs),
            "updated_at": output.moment(found.updated_at),
        }
        data = {**names, "display_name": found.display_name, **said}
        return read_state.StateAnswer(facts=facts, data=data, parts=(identity_state.ctx(ctx_id, realm_id),))

    read_state.show_state(asked, overlay, look, stream=stream)
