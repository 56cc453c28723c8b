"""`veen id handle`: memorable names for the accounts and organizations of a realm."""

from typing import Annotated, TypeAlias

from plumbing.cli.command import Misuse, argument, group, option
from veen.cli.id import principals
from veen.cli.id.principals import Account, Realm, ScopeSender
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Moment, fields_of
from veen.cli.kit.state_session import Answer, ReadSession, SendSession, SentResult, read_command, send_command
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

Handle: TypeAlias = Annotated[str, argument("HANDLE", "the handle, such as @ann")]


@send_command(
    app, "set", "veen id handle set @ann --realm shop --client ann", "veen id handle set @firm --realm shop --org firm"
)
async def set_(
    session: SendSession,
    handle: Handle,
    realm: Realm,
    account: Account = None,
    org: Annotated[
        bytes | None,
        option("--org HEX|PATH", "for an organization: org_id, directory or card", parser=principals.org_id_of),
    ] = None,
    reassign: Annotated[bool, option("--reassign", "even if it names another account or organization")] = False,
) -> SentResult:
    """Assign a handle to an account, or with --org to an organization."""
    flaw = handle_flaw(handle)
    if flaw is not None:
        raise Misuse(f"{handle!r} is not a valid handle", flaw)
    if org is not None and account is not None:
        raise Misuse("--account and --org contradict each other", "give one of them")
    kind, target = (CTX, principals.account_of(account, realm, session)) if org is None else (ORG, org)
    sender = ScopeSender(session, HandleStream(realm))
    state = await sender.state()
    found = None if state is None else identity_views.handle(state.states, realm, handle)
    if found is not None and found.target_id != target and not reassign:
        raise hinted(Unavailable(f"{handle} is already assigned to {found.target_id.hex()}"), "--reassign changes that")
    event = HandleMap(realm, handle, kind, target, principals.now(found.ts if found else 0))
    return await sender.send(event, handle=handle, realm_id=realm, target_id=target)


@read_command(
    app, "resolve", "veen id handle resolve @ann --realm shop", "veen id handle resolve @ann --realm shop --prove"
)
async def resolve(session: ReadSession, handle: Handle, realm: Realm) -> Answer:
    """Show the account or organization of a handle."""
    state = await principals.open_scope(session, HandleStream(realm))
    found = identity_views.handle(state.states, realm, handle)
    if found is None:
        raise hinted(Unavailable(f"handle {handle!r} is not assigned"), "veen id handle list shows the assigned ones")
    data = {"handle": handle, **fields_of(found, "target_type", "target_id"), "ts": Moment(found.ts)}
    return Answer(data, parts=(identity.handle(realm, handle),))


@read_command(app, "list", "veen id handle list --realm shop", "veen id handle list --realm shop --json")
async def list_(session: ReadSession, realm: Realm) -> Answer:
    """List the handles of a realm with their accounts and organizations."""
    states = dict((await principals.open_scope(session, HandleStream(realm))).states)
    named = sorted(part for part in states if part.startswith(identity.HANDLE + realm))
    found = [one.record for part in named if isinstance(one := states[part], LatestHandle)]
    return Answer(
        {
            "realm_id": realm,
            "handles": [fields_of(one, "handle", "target_type", "target_id", "ts") for one in found],
        },
        rows="handles",
        columns=("handle", "target_type", "target_id"),
        parts=tuple(named),
    )
