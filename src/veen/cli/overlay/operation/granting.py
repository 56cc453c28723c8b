"""`veen op capability`: the capability that a logged grant stands for. 001, spec-3 §3.3."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from terminalface.command import Misuse
from veen.cli import output
from veen.cli.overlay.declaring import Follows, follows
from veen.cli.overlay.operation.named import OperationId

if TYPE_CHECKING:
    from veen.cli.overlay.operation.named import OpReading
    from veen.overlays.operations import Grant
    from veen.state.view import View


def add(app: typer.Typer) -> None:
    """Declare it in the group."""
    follows(
        app,
        "capability",
        "veen op capability 3f7a0c… --issuer operator --cap-out bob.cap --stream ops",
    )(capability)


def capability(
    asked: Follows,
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
    from veen.cli.client import calling, files
    from veen.cli.overlay import asking
    from veen.client import sequence
    from veen.overlays.operations import OPERATIONS, token_of

    files.check_new(cap_out)

    async def work(view: "View[Any, Any]", name: str) -> "tuple[Grant, int]":
        async with view.reading() as reading:
            grant = _grant(reading, operation)
            await _need_standing(view, grant, not asked.no_cache)
            return grant, reading.now

    grant, now = asking.viewing(asked, OPERATIONS, work)
    with calling.opened(issuer, asked.passphrase_file) as folder:
        try:
            tokens = [token_of(grant, folder.identity.id_sign, now, client_id) for client_id in _clients(grant, card)]
        except ValueError as error:
            raise Misuse(str(error), "a grant with a later expiry_time is needed") from None
    files.write_new(cap_out, sequence.encode(tokens))
    rows: dict[str, output.Value] = {
        "auth_ref": tokens[0].auth_ref() if len(tokens) == 1 else None,
        "issuer": tokens[0].issuer_pk,
        "subject": grant.subject_identity,
        "tokens": len(tokens),
        "ttl": tokens[0].allow.ttl,
        "file": str(cap_out),
    }
    output.facts(rows, asked.as_json, {**rows, "auth_refs": [token.auth_ref() for token in tokens]})


def _clients(grant: "Grant", card: Path | None) -> tuple[bytes, ...]:
    """The clients that get a token: the subject itself, or those on its card."""
    from veen.cli.client import cards

    if card is None:
        return (grant.subject_identity,)
    found = cards.read(card)
    if found.id_sign != grant.subject_identity:
        raise Misuse(f"{card} is not the card of the subject", f"the subject is {grant.subject_identity.hex()}")
    return found.client_ids


def _grant(reading: "OpReading", operation: str) -> "Grant":
    from veen.cli.overlay.operation import named
    from veen.overlays.operations import Grant

    one = named.found(reading, operation)
    if not isinstance(one.event, Grant):
        raise Misuse(f"{operation} is no access.grant", "veen op list --kind access.grant shows them")
    return one.event


async def _need_standing(view: "View[Any, Any]", grant: "Grant", cached: bool) -> None:
    """Refuse a grant that someone took back."""
    from veen.cli.failures import hinted
    from veen.core import Unavailable
    from veen.overlays.operations import ACCESS
    from veen.state.view import View

    async with View(view.source, view.stream_id, ACCESS, cached=cached) as access, access.reading() as reading:
        if not any(one.grant == grant for one in reading.state(grant.subject_identity).grants):
            raise hinted(Unavailable("the grant was revoked"), "veen fold --overlay access.grant shows what stands")
