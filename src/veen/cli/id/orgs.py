"""`veen id org`: organizations."""

from typing import Annotated

import typer

from plumbing.cli.command import group
from veen.cli.id import principals
from veen.cli.id.principals import IdReading, Org, ScopedTo
from veen.cli.kit import output, read_state, render_state, send_event
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.sanitize import printable
from veen.cli.kit.state_options import ReadOptions, SendOptions, read_command, send_command
from veen.core import Unavailable, cbor
from veen.overlays import identity, identity_views
from veen.overlays.identity_events import OrgProfile

app = group(
    "org",
    """Create and show organizations.

    An organization is the long-term key of a client directory. With --scoped it has a twin in one realm with its own
    stream, groups and roles.
    """,
)


@send_command(app, "create", "veen id org create --client company --name Company")
def create(
    options: SendOptions,
    name: Annotated[str | None, typer.Option("--name", metavar="TEXT", help="the display name")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option("--meta", metavar="NAME=TEXT", help="information about the organization")
    ] = None,
    scoped: ScopedTo = None,
) -> None:
    """Create the organization of your own keys, or replace its profile.

    Creates the key of its stream if there is none.
    """

    scope = principals.org_scope(None, scoped, options.client)
    pairs = dict(principals.pair_of(one) for one in metadata or ())
    overlay, stream = principals.folding(scope, options.stream)

    def make(reading: IdReading | None) -> OrgProfile:
        found, now = (
            None if reading is None else identity_views.org_profile(reading.states, scope.own_id),
            principals.now(),
        )
        times = (now, now) if found is None else (found.created_at, max(now, found.updated_at))
        return OrgProfile(scope.own_id, name, cbor.encode(pairs) if pairs else None, *times)

    shown = principals.shown({"org_id": scope.own_id, "realm_id": scope.realm_id})
    send_event.send_checked(options, overlay, make, shown, stream=stream, blind=make(None), begins=True)


@read_command(app, "show", "veen id org show --client company", "veen id org show --org company.card --prove")
def show(options: ReadOptions, org: Org = None, scoped: ScopedTo = None) -> None:
    """Show an organization: its profile, and whether it is revoked."""

    scope = principals.org_scope(org, scoped, options.client)
    overlay, stream = principals.folding(scope, options.stream)

    def look(reading: IdReading) -> StateAnswer:
        states, org_id = reading.states, scope.own_id
        found, revoked = (
            identity_views.org_profile(states, org_id),
            identity_views.org_revocation(states, org_id, scope.realm_id),
        )
        if found is None:
            raise hinted(
                Unavailable(f"there is no record of organization {org_id.hex()}"), "veen id org create creates one"
            )
        metadata = None if found.metadata is None else cbor.decode(found.metadata)
        facts: dict[str, output.Value] = {
            "org_id": org_id,
            "display_name": None if found.display_name is None else printable(found.display_name),
            "metadata": render_state.plain_cell(metadata),
            "created_at": output.moment(found.created_at),
            "updated_at": output.moment(found.updated_at),
            "revoked_at": None if revoked is None else output.moment(revoked.ts),
        }
        data = {
            "org_id": org_id,
            "realm_id": scope.realm_id,
            "display_name": found.display_name,
            "metadata": render_state.plain_json(metadata),
            "created_at": found.created_at,
            "updated_at": found.updated_at,
            "revoked_at": None if revoked is None else revoked.ts,
        }
        revocations = [
            part
            for one in {scope.realm_id, None}
            if (part := identity.part_key(identity.REVOKED_ORG, org_id, one)) in states
        ]
        return read_state.StateAnswer(
            facts=facts, data=data, parts=(identity.part_key(identity.ORG, org_id), *revocations)
        )

    read_state.show_state(options, overlay, look, stream=stream)
