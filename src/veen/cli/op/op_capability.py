"""`veen op capability`: make the capability of a logged access.grant. 001, spec-3 §3.3."""

from pathlib import Path
from typing import Annotated, Any

import typer

from plumbing.cli.command import Misuse
from veen.cli.kit import key_files, open_session, output, output_files, read_state
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.state_options import FollowOptions, follow_command
from veen.cli.op import op_check
from veen.cli.op.op_check import OperationId, OpReading
from veen.client import cbor_sequence
from veen.core import Unavailable
from veen.overlays.operations.access import ACCESS, token_of
from veen.overlays.operations.operation_events import AccessGrant
from veen.overlays.operations.operation_index import OPERATIONS
from veen.state.state_view import StateView


def add(app: typer.Typer) -> None:
    follow_command(
        app,
        "capability",
        "veen op capability 3f7a0c… --issuer operator --cap-out bob.cap --stream ops",
    )(capability)


def capability(
    options: FollowOptions,
    operation: OperationId,
    issuer: Annotated[Path, typer.Option("--issuer", metavar="DIR", help="the client directory that signs it")],
    cap_out: Annotated[Path, typer.Option("--cap-out", metavar="FILE", help="the file to write")],
    card: Annotated[
        Path | None,
        typer.Option("--card", metavar="DIR|FILE", help="the subject's card: a token for each client_id on it"),
    ] = None,
) -> None:
    """Make the capability of an access.grant in the log.

    It has the subject, the streams and the rate of the grant. Present it to the hub now with veen cap authorize: then
    it expires together with the grant. An access.revoke names its auth_ref. A revoked or expired grant gives no
    capability. If the subject is a long-term key, --card names its client ids.
    """

    output_files.check_new(cap_out)

    async def work(view: StateView[Any, Any], name: str) -> tuple[AccessGrant, int]:
        async with view.reading() as reading:
            grant = _grant(reading, operation)
            await _check_not_revoked(view, grant, not options.no_cache)
            return grant, reading.now

    grant, now = read_state.with_view(options, OPERATIONS, work)
    with open_session.open_client_dir(issuer, options.passphrase_file) as folder:
        try:
            tokens = [token_of(grant, folder.identity.id_sign, now, client_id) for client_id in _clients(grant, card)]
        except ValueError as error:
            raise Misuse(str(error), "send a grant with a later expiry_time") from None
    output_files.write_new(cap_out, cbor_sequence.encode(tokens))
    rows: dict[str, output.Value] = {
        "auth_ref": tokens[0].auth_ref() if len(tokens) == 1 else None,
        "issuer": tokens[0].issuer_pk,
        "subject": grant.subject_identity,
        "tokens": len(tokens),
        "ttl": tokens[0].allow.ttl,
        "file": str(cap_out),
    }
    output.facts(rows, options.as_json, {**rows, "auth_refs": [token.auth_ref() for token in tokens]})


def _clients(grant: AccessGrant, card: Path | None) -> tuple[bytes, ...]:
    """Return the clients that get a token: the subject itself, or the client ids on its card."""

    if card is None:
        return (grant.subject_identity,)
    found = key_files.read_card(card)
    if found.id_sign != grant.subject_identity:
        raise Misuse(f"{card} is not the card of the subject", f"the subject is {grant.subject_identity.hex()}")
    return found.client_ids


def _grant(reading: OpReading, operation: str) -> AccessGrant:
    one = op_check.found(reading, operation)
    if not isinstance(one.event, AccessGrant):
        raise Misuse(f"{operation} is not an access.grant", "veen op list --kind access.grant lists them")
    return one.event


async def _check_not_revoked(view: StateView[Any, Any], grant: AccessGrant, cached: bool) -> None:
    async with StateView(view.source, view.stream_id, ACCESS, cached=cached) as access, access.reading() as reading:
        if not any(one.grant == grant for one in reading.state(grant.subject_identity).grants):
            raise hinted(
                Unavailable("the grant was revoked"), "veen fold --overlay access.grant shows the valid grants"
            )
