"""`veen id`: who people, devices and organizations are, without accounts at anyone's."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from terminalface.command import command, group
from veen.cli.options import ClientDir, JsonOption
from veen.cli.overlay.declaring import Reads, Says, reads, says
from veen.cli.overlay.identity import contexts, devices, groups, handling, links, messages, orgs, roles
from veen.cli.overlay.identity.whom import Principal

if TYPE_CHECKING:
    from veen.cli.overlay.asking import Answer
    from veen.cli.overlay.identity.whom import IdReading
    from veen.overlays.identity import Scope

app = group(
    "id",
    """Keep identities: principals, their devices, accounts per realm, organizations, handles.

    A principal is the long-term key of a client directory, and so is an organization. Each has a stream of its own that
    follows from its key, and so has every account; --stream names another one, where several are kept together.
    """,
)
for _under in (devices, contexts, orgs, groups, roles, handling, links, messages):
    app.add_typer(_under.app)


ScopeRealm: TypeAlias = Annotated[
    str | None, typer.Option("--realm", metavar="NAME|HEX", help="the stream of the account in this realm")
]
ScopeOrg: TypeAlias = Annotated[
    str | None, typer.Option("--org", metavar="HEX|PATH", help="that of an organization: org_id, directory or card")
]
ScopeHandles: TypeAlias = Annotated[bool, typer.Option("--handles", help="that of the handles of --realm")]


@says(app, "create", "veen id create --client ann", "veen id create --client ann --info name=Ann")
def create(
    asked: Says,
    info: Annotated[
        list[str] | None, typer.Option("--info", metavar="NAME=TEXT", help="something to say of the principal")
    ] = None,
) -> None:
    """Begin a principal, or say something else of it.

    The key of its stream is made where there is none. A second record may bring other info; the key it is of, and when
    it began, stay as they are.
    """
    from veen.cli.overlay import saying
    from veen.cli.overlay.identity import whom
    from veen.core import cbor
    from veen.overlays.identity import Principal, PrincipalStream

    principal_pk = whom.own_key(asked.client)
    said = dict(whom.pair_of(one) for one in info or ())
    event = Principal(principal_pk, whom.now(), cbor.encode(said) if said else None)
    overlay, stream = whom.folding(PrincipalStream(principal_pk), asked.stream)
    shown = whom.shown({"principal_pk": principal_pk})
    saying.say(asked, overlay, lambda _: event, shown, stream=stream, blind=event, begins=True)


@reads(app, "show", "veen id show --client ann", "veen id show --principal ann.card --prove --json")
def show(asked: Reads, principal: Principal = None) -> None:
    """Show a principal: when it began, and what is said of it."""
    from veen.cli import output
    from veen.cli.failures import hinted
    from veen.cli.overlay import asking, telling
    from veen.cli.overlay.identity import whom
    from veen.core import Unavailable, cbor
    from veen.overlays.identity import PrincipalStream, parts, principal_id, views

    principal_pk = whom.principal_of(principal, asked.client)
    overlay, stream = whom.folding(PrincipalStream(principal_pk), asked.stream)

    def look(reading: "IdReading") -> "Answer":
        part = parts.principal(principal_pk)
        found = views.principal(reading.states, principal_pk)
        if found is None:
            raise hinted(Unavailable("nothing is said of this principal"), "veen id create begins one")
        info = None if found.info is None else cbor.decode(found.info)
        names = {"principal_pk": principal_pk, "principal_id": principal_id(principal_pk)}
        rows: dict[str, output.Value] = {**names, "created_at": output.moment(found.created_at)}
        data = {**names, "created_at": found.created_at, "info": telling.plain_json(info)}
        return asking.Answer(facts={**rows, "info": telling.plain_cell(info)}, data=data, parts=(part,))

    asking.answer(asked, overlay, look, stream=stream)


@says(
    app,
    "revoke",
    "veen id revoke --client ann --auth-ref 64-HEX-DIGITS --reason lost",
    "veen id revoke --client ann --realm shop --account 64-HEX-DIGITS",
)
def revoke(
    asked: Says,
    auth_ref: Annotated[
        str | None, typer.Option("--auth-ref", metavar="HEX", help="a capability, by its auth_ref")
    ] = None,
    account: Annotated[str | None, typer.Option("--account", metavar="HEX", help="an account, by its ctx_id")] = None,
    realm: Annotated[
        str | None,
        typer.Option(
            "--realm", metavar="NAME|HEX", help="where the account is disabled", show_default="wherever it is"
        ),
    ] = None,
    as_org: Annotated[bool, typer.Option("--as-org", help="as the organization of your own keys")] = False,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="why")] = None,
) -> None:
    """Revoke a capability, an account or an organization.

    With --as-org and neither of the others it is the organization itself. A revocation is for good, and holds from
    its entry on: applications that read the stream refuse what it names.
    """
    from terminalface.command import Misuse
    from veen.cli.overlay import saying
    from veen.cli.overlay.identity import whom
    from veen.overlays.identity import OrgStream, PrincipalStream, Revocation, Scope, org_id

    own = whom.own_key(asked.client)
    if auth_ref is None and account is None and not as_org:
        raise Misuse("nothing is named that could be revoked", "give --auth-ref HEX or --account HEX")
    scope: Scope = OrgStream(org_id(own)) if as_org else PrincipalStream(own)
    named = {
        "revoked_auth_ref": None if auth_ref is None else whom.id_of(auth_ref, "an auth_ref"),
        "ctx_id": None if account is None else whom.id_of(account, "a ctx_id"),
        "realm_id": whom.realm_or_all(realm),
    }
    by = {"principal_pk": None if as_org else own, "org_id": org_id(own) if as_org else None}
    event = Revocation(**by, **named, reason=reason, ts=whom.now())
    overlay, stream = whom.folding(scope, asked.stream)
    saying.say(asked, overlay, lambda _: event, whom.shown({**by, **named}), stream=stream, blind=event)


@command(app, "stream", "veen id stream --client ann", "veen id stream --client ann --realm shop")
def stream(
    principal: Principal = None,
    realm: ScopeRealm = None,
    org: ScopeOrg = None,
    handles: ScopeHandles = False,
    client: ClientDir = None,
    as_json: JsonOption = False,
) -> None:
    """Show which stream a principal, an account, an organization or handles are on.

    With --org and --realm it is that of the organization's twin in the realm.
    """
    import sys

    from veen.cli import output

    scope = _scope(principal, realm, org, handles, client)
    if as_json:
        named = {field.name: getattr(scope, field.name) for field in fields(scope)}
        output.document({**named, "stream_id": scope.stream_id})
    else:
        sys.stdout.write(scope.stream_id.hex() + "\n")


@reads(app, "faults", "veen id faults --client ann", "veen id faults --org company.card --at 100 --json")
def faults(
    asked: Reads,
    principal: Principal = None,
    realm: ScopeRealm = None,
    org: ScopeOrg = None,
    handles: ScopeHandles = False,
) -> None:
    """List the entries that changed nothing for id, with their reasons.

    They stay in the log, and no command stops at them. A stream of one principal, account or organization says nothing
    of another; on one that --stream names, several may be kept together.
    """
    from veen.cli.overlay import asking
    from veen.cli.overlay.faults import listed
    from veen.cli.overlay.identity import whom

    overlay, stream = whom.folding(_scope(principal, realm, org, handles, asked.client), asked.stream)
    asking.answer(asked, overlay, listed("veen id"), stream=stream)


def _scope(principal: str | None, realm: str | None, org: str | None, handles: bool, client: Path | None) -> "Scope":
    """Whose stream the options name."""
    from terminalface.command import Misuse
    from veen.cli.overlay.identity import whom
    from veen.overlays.identity import CtxStream, HandleStream, OrgStream, PrincipalStream

    realm_id = whom.realm_or_all(realm)
    if handles:
        if realm_id is None:
            raise Misuse("handles are of a realm", "give --realm NAME")
        return HandleStream(realm_id)
    if org is not None:
        return OrgStream(whom.org_of(org, client), realm_id)
    if realm_id is not None:
        return CtxStream.of(whom.principal_of(principal, client), realm_id)
    return PrincipalStream(whom.principal_of(principal, client))
