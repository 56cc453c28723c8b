"""`veen op capability`: the capability that a logged grant stands for. 001, spec-3 §3.3."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbing.cli.command import Misuse
from veen.cli.kit import output
from veen.cli.kit.state_options import FollowOptions, follow_command
from veen.cli.op.op_check import OperationId

if TYPE_CHECKING:
    from veen.cli.op.op_check import OpReading
    from veen.overlays.operations import AccessGrant
    from veen.state.state_view import StateView


def add(app: typer.Typer) -> None:
    """Declare it in the group."""
    follow_command(
        app,
        "capability",
        "veen op capability 3f7a0c… --issuer operator --cap-out bob.cap --stream ops",
    )(capability)


def capability(
    asked: FollowOptions,
    operation: OperationId,
    issuer: Annotated[Path, typer.Option("--issuer", metavar="DIR", help="whose word it is: a client directory")],
    cap_out: Annotated[Path, typer.Option("--cap-out", metavar="FILE", help="the file to make")],
    card: Annotated[
        Path | None,
        typer.Option("--card", metavar="DIR|FILE", help="the subject's card: a token for each client_id on it"),
    ] = None,
) -> None:
    """Make the capability that a grant in the log stands for.

    It is for the subject of the grant, for its streams and at its rate, and admits as long as the grant stands if a hub
    is shown it now: veen cap authorize does that. Its auth_ref is what an access.revoke names. A grant that is revoked
    or has run out makes none. Where the subject is a long-term key, --card says which client ids are its own.
    """
    from veen.cli.kit import open_session, output_files, read_state
    from veen.client import cbor_sequence
    from veen.overlays.operations import OPERATIONS, token_of

    output_files.check_new(cap_out)

    async def work(view: "StateView[Any, Any]", name: str) -> "tuple[AccessGrant, int]":
        async with view.reading() as reading:
            grant = _grant(reading, operation)
            await _need_standing(view, grant, not asked.no_cache)
            return grant, reading.now

    grant, now = read_state.with_view(asked, OPERATIONS, work)
    with open_session.open_client_dir(issuer, asked.passphrase_file) as folder:
        try:
            tokens = [token_of(grant, folder.identity.id_sign, now, client_id) for client_id in _clients(grant, card)]
        except ValueError as error:
            raise Misuse(str(error), "a grant with a later expiry_time is needed") from None
    output_files.write_new(cap_out, cbor_sequence.encode(tokens))
    rows: dict[str, output.Value] = {
        "auth_ref": tokens[0].auth_ref() if len(tokens) == 1 else None,
        "issuer": tokens[0].issuer_pk,
        "subject": grant.subject_identity,
        "tokens": len(tokens),
        "ttl": tokens[0].allow.ttl,
        "file": str(cap_out),
    }
    output.facts(rows, asked.as_json, {**rows, "auth_refs": [token.auth_ref() for token in tokens]})


def _clients(grant: "AccessGrant", card: Path | None) -> tuple[bytes, ...]:
    """The clients that get a token: the subject itself, or those on its card."""
    from veen.cli.kit import key_files

    if card is None:
        return (grant.subject_identity,)
    found = key_files.read_card(card)
    if found.id_sign != grant.subject_identity:
        raise Misuse(f"{card} is not the card of the subject", f"the subject is {grant.subject_identity.hex()}")
    return found.client_ids


def _grant(reading: "OpReading", operation: str) -> "AccessGrant":
    from veen.cli.op import op_check
    from veen.overlays.operations import AccessGrant

    one = op_check.found(reading, operation)
    if not isinstance(one.event, AccessGrant):
        raise Misuse(f"{operation} is no access.grant", "veen op list --kind access.grant shows them")
    return one.event


async def _need_standing(view: "StateView[Any, Any]", grant: "AccessGrant", cached: bool) -> None:
    """Refuse a grant that someone took back."""
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable
    from veen.overlays.operations import ACCESS
    from veen.state.state_view import StateView

    async with StateView(view.source, view.stream_id, ACCESS, cached=cached) as access, access.reading() as reading:
        if not any(one.grant == grant for one in reading.state(grant.subject_identity).grants):
            raise hinted(Unavailable("the grant was revoked"), "veen fold --overlay access.grant shows what stands")
