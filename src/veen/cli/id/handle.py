"""`veen id handle`: names that people remember, each for an account or an organization of one realm."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli.command import group
from veen.cli.id.principals import Account, Realm
from veen.cli.kit.state_options import ReadOptions, SendOptions, read_command, send_command

if TYPE_CHECKING:
    from veen.cli.id.principals import IdReading
    from veen.cli.kit.read_state import StateAnswer

app = group(
    "handle",
    """Set and resolve handles: names for accounts and organizations.

    The handles of a realm are on one stream. Whoever may write there may give a handle to another, and the last word
    counts. Handles are lower-case: @user, user or user@example.com.
    """,
)

Handle: TypeAlias = Annotated[str, typer.Argument(metavar="HANDLE", help="the handle, such as @ann")]


@send_command(
    app, "set", "veen id handle set @ann --realm shop --client ann", "veen id handle set @firm --realm shop --org firm"
)
def set_(
    asked: SendOptions,
    handle: Handle,
    realm: Realm,
    account: Account = None,
    org: Annotated[
        str | None, typer.Option("--org", metavar="HEX|PATH", help="for an organization: org_id, directory or card")
    ] = None,
    reassign: Annotated[bool, typer.Option("--reassign", help="also where it stands for another")] = False,
) -> None:
    """Let a handle stand for an account, or with --org for an organization."""
    from plumbing.cli.command import Misuse
    from veen.cli.id import principals
    from veen.cli.kit import send_event
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable
    from veen.overlays.identity import HandleMap, HandleStream, views
    from veen.overlays.identity.identity_events import CTX, ORG, handle_flaw

    flaw = handle_flaw(handle)
    if flaw is not None:
        raise Misuse(f"{handle!r} cannot be a handle", flaw)
    if org is not None and account is not None:
        raise Misuse("--account and --org contradict each other", "give one of them")
    realm_id = principals.realm_of(realm)
    if org is None:
        kind, target = CTX, principals.account_of(account, realm_id, asked.client)
    else:
        kind, target = ORG, principals.org_of(org, asked.client)
    overlay, stream = principals.folding(HandleStream(realm_id), asked.stream)

    def make(reading: "IdReading | None") -> HandleMap:
        found = None if reading is None else views.handle(reading.states, realm_id, handle)
        if found is not None and found.target_id != target and not reassign:
            raise hinted(Unavailable(f"{handle} stands for another"), "--reassign gives it to this one all the same")
        # Under the time that stands, where that is ahead of our clock: so nobody keeps a handle by a far time.
        ts = principals.now() if found is None else max(principals.now(), found.ts)
        return HandleMap(realm_id, handle, kind, target, ts)

    shown = {"handle": handle, **principals.shown({"realm_id": realm_id, "target_id": target})}
    send_event.send_checked(asked, overlay, make, shown, stream=stream, blind=make(None))


@read_command(
    app, "resolve", "veen id handle resolve @ann --realm shop", "veen id handle resolve @ann --realm shop --prove"
)
def resolve(asked: ReadOptions, handle: Handle, realm: Realm) -> None:
    """Show whom a handle stands for."""
    from veen.cli.id import principals
    from veen.cli.kit import output, read_state
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable
    from veen.overlays.identity import HandleStream, identity_state, views

    realm_id = principals.realm_of(realm)
    overlay, stream = principals.folding(HandleStream(realm_id), asked.stream)

    def look(reading: "IdReading") -> "StateAnswer":
        found = views.handle(reading.states, realm_id, handle)
        if found is None:
            raise hinted(Unavailable(f"{handle!r} stands for nobody here"), "veen id handle list shows those that do")
        facts: dict[str, output.Value] = {
            "handle": handle,
            "target_type": found.target_type,
            "target_id": found.target_id,
            "ts": output.moment(found.ts),
        }
        return read_state.StateAnswer(
            facts=facts, data={**facts, "ts": found.ts}, parts=(identity_state.handle(realm_id, handle),)
        )

    read_state.show_state(asked, overlay, look, stream=stream)


@read_command(app, "list", "veen id handle list --realm shop", "veen id handle list --realm shop --json")
def list_(asked: ReadOptions, realm: Realm) -> None:
    """List the handles of a realm, and whom each stands for."""
    from veen.cli.id import principals
    from veen.cli.kit import read_state
    from veen.cli.kit.sanitize import short
    from veen.overlays.identity import HandleStream, identity_state
    from veen.overlays.identity.identity_state import LatestHandle

    realm_id = principals.realm_of(realm)
    overlay, stream = principals.folding(HandleStream(realm_id), asked.stream)

    def look(reading: "IdReading") -> "StateAnswer":
        states = dict(reading.states)
        named = sorted(part for part in states if part.startswith(identity_state.HANDLE + realm_id))
        found = [one.record for part in named if isinstance(one := states[part], LatestHandle)]
        rows = [(one.handle, one.target_type, short(one.target_id)) for one in found]
        data = [
            {"handle": one.handle, "target_type": one.target_type, "target_id": one.target_id, "ts": one.ts}
            for one in found
        ]
        told = {"realm_id": realm_id, "handles": data}
        return read_state.StateAnswer(
            columns=("handle", "target_type", "target_id"), rows=rows, data=told, parts=tuple(named)
        )

    read_state.show_state(asked, overlay, look, stream=stream)
