"""`veen id handle`: memorable names for the accounts and organizations of a realm."""

from typing import Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse, group
from veen.cli.id import principals
from veen.cli.id.principals import Account, IdReading, Realm
from veen.cli.kit import output, read_state, send_event
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.sanitize import short
from veen.cli.kit.state_options import ReadOptions, SendOptions, read_command, send_command
from veen.core import Unavailable
from veen.overlays import identity, identity_views
from veen.overlays.identity import LatestHandle
from veen.overlays.identity_events import CTX, ORG, HandleMap, HandleStream, handle_flaw

app = group(
    "handle",
    """Set and resolve handles: names for accounts and organizations.

    The handles of a realm are on one stream. Every writer of that stream can reassign a handle, and the last entry
    counts. Handles are lower-case: @user, user or user@example.com.
    """,
)

Handle: TypeAlias = Annotated[str, typer.Argument(metavar="HANDLE", help="the handle, such as @ann")]


@send_command(
    app, "set", "veen id handle set @ann --realm shop --client ann", "veen id handle set @firm --realm shop --org firm"
)
def set_(
    options: SendOptions,
    handle: Handle,
    realm: Realm,
    account: Account = None,
    org: Annotated[
        str | None, typer.Option("--org", metavar="HEX|PATH", help="for an organization: org_id, directory or card")
    ] = None,
    reassign: Annotated[
        bool, typer.Option("--reassign", help="even if it names another account or organization")
    ] = False,
) -> None:
    """Assign a handle to an account, or with --org to an organization."""

    flaw = handle_flaw(handle)
    if flaw is not None:
        raise Misuse(f"{handle!r} is not a valid handle", flaw)
    if org is not None and account is not None:
        raise Misuse("--account and --org contradict each other", "give one of them")
    realm_id = principals.realm_of(realm)
    if org is None:
        kind, target = CTX, principals.account_of(account, realm_id, options.client)
    else:
        kind, target = ORG, principals.org_of(org, options.client)
    overlay, stream = principals.folding(HandleStream(realm_id), options.stream)

    def make(reading: IdReading | None) -> HandleMap:
        found = None if reading is None else identity_views.handle(reading.states, realm_id, handle)
        if found is not None and found.target_id != target and not reassign:
            raise hinted(
                Unavailable(f"{handle} is already assigned to {found.target_id.hex()}"), "--reassign changes that"
            )
        # Not before the current record's time, so that a record with a time in the future does not block a handle.
        ts = principals.now() if found is None else max(principals.now(), found.ts)
        return HandleMap(realm_id, handle, kind, target, ts)

    shown = {"handle": handle, **principals.shown({"realm_id": realm_id, "target_id": target})}
    send_event.send_checked(options, overlay, make, shown, stream=stream, blind=make(None))


@read_command(
    app, "resolve", "veen id handle resolve @ann --realm shop", "veen id handle resolve @ann --realm shop --prove"
)
def resolve(options: ReadOptions, handle: Handle, realm: Realm) -> None:
    """Show the account or organization of a handle."""

    realm_id = principals.realm_of(realm)
    overlay, stream = principals.folding(HandleStream(realm_id), options.stream)

    def look(reading: IdReading) -> StateAnswer:
        found = identity_views.handle(reading.states, realm_id, handle)
        if found is None:
            raise hinted(
                Unavailable(f"handle {handle!r} is not assigned"), "veen id handle list shows the assigned ones"
            )
        facts: dict[str, output.Value] = {
            "handle": handle,
            "target_type": found.target_type,
            "target_id": found.target_id,
            "ts": output.moment(found.ts),
        }
        return read_state.StateAnswer(
            facts=facts, data={**facts, "ts": found.ts}, parts=(identity.handle(realm_id, handle),)
        )

    read_state.show_state(options, overlay, look, stream=stream)


@read_command(app, "list", "veen id handle list --realm shop", "veen id handle list --realm shop --json")
def list_(options: ReadOptions, realm: Realm) -> None:
    """List the handles of a realm with their accounts and organizations."""

    realm_id = principals.realm_of(realm)
    overlay, stream = principals.folding(HandleStream(realm_id), options.stream)

    def look(reading: IdReading) -> StateAnswer:
        states = dict(reading.states)
        named = sorted(part for part in states if part.startswith(identity.HANDLE + realm_id))
        found = [one.record for part in named if isinstance(one := states[part], LatestHandle)]
        rows = [(one.handle, one.target_type, short(one.target_id)) for one in found]
        data = [
            {"handle": one.handle, "target_type": one.target_type, "target_id": one.target_id, "ts": one.ts}
            for one in found
        ]
        return read_state.StateAnswer(
            columns=("handle", "target_type", "target_id"),
            rows=rows,
            data={"realm_id": realm_id, "handles": data},
            parts=tuple(named),
        )

    read_state.show_state(options, overlay, look, stream=stream)
