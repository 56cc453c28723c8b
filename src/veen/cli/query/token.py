"""`veen query token`: the principals of a query service, their scopes and tokens."""

import ssl
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, command
from veen.cli.kit import output
from veen.cli.kit.common_options import JsonOption
from veen.cli.query.query_options import app
from veen.client.local_files import DISK

if TYPE_CHECKING:
    from veen.query.policy import PolicyBook, QueryPrincipal

_YEAR_S = 365 * 86_400
TokenTtl: TypeAlias = Annotated[
    int, durations.whole_option("--ttl", least=1, show_default="365d", help="how long the token is valid")
]


@command(
    app,
    "token",
    "veen query token queries alice --client-id 5f1c8a… --scope 'record/app/*'",
    "veen query token queries alice --name laptop --ttl 1d",
    "veen query token queries alice --revoke laptop",
    "veen query token queries",
)
def token(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="the folder of the service")],
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="the principal", show_default="list all principals")
    ] = None,
    client_id: Annotated[str | None, typer.Option("--client-id", metavar="HEX", help="the client key of NAME")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="STREAM", help="a stream that NAME may query; STREAM* for a prefix"),
    ] = None,
    sees_all: Annotated[bool, typer.Option("--sees-all", help="let NAME see the results of other principals")] = False,
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="ID", help="the subject that NAME acts for, for the record")
    ] = None,
    cert: Annotated[
        Path | None, typer.Option("--cert", metavar="FILE", help="a client certificate of NAME, instead of a token")
    ] = None,
    token_name: Annotated[str, typer.Option("--name", metavar="TEXT", help="name of the token")] = "default",
    ttl: TokenTtl = _YEAR_S,
    revoke: Annotated[
        str | None, typer.Option("--revoke", metavar="TEXT", help="revoke the token of this name")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Define who may query which streams, and issue tokens.

    A token is shown once; only its hash is stored. Changes take effect at once, even in a running service.
    """
    from veen.query.policy import PolicyBook, QueryPrincipal
    from veen.query.query_server import PRINCIPALS

    DISK.make_folder(folder)
    book = PolicyBook(folder / PRINCIPALS)
    if name is None:
        return _list(book, as_json)
    if revoke is not None:
        book.revoke(name, revoke)
        return output.facts({"principal": name, "revoked": revoke}, as_json)
    made, certificates = book.get(name) or QueryPrincipal(name, client_id or ""), _fingerprints(cert)
    if not (client_id or made.client_id):
        raise Misuse(f"there is no principal {name} yet", "give --client-id HEX, the client key of the principal")
    changed = replace(
        made,
        client_id=client_id or made.client_id,
        scope=made.scope if scope is None else tuple(sorted(set(scope))),
        sees="all" if sees_all else made.sees,
        subject=subject or made.subject,
        certificates=tuple(sorted({*made.certificates, *certificates})),
    )
    _put(book, changed)
    shown: dict[str, output.Value] = {"principal": name}
    if cert is None:
        shown |= {"name": token_name, "token": book.issue(name, token_name, ttl)}
        output.remark("store the token now: it is not shown again")
    output.facts(shown, as_json)


def _put(book: "PolicyBook", principal: "QueryPrincipal") -> None:
    try:
        book.put(principal)
    except ValueError as error:
        raise Misuse(str(error), "a client_id is 64 hex digits: veen card shows them") from None


def _list(book: "PolicyBook", as_json: bool) -> None:
    columns = ("principal", "client_id", "scope", "sees", "tokens", "certificates")
    rows: list[tuple[output.Value, ...]] = []
    data = []
    for one in book.principals():
        names = [token.name for token in one.tokens]
        cells = (" ".join(one.scope), one.sees, " ".join(names), len(one.certificates))
        rows.append((one.name, one.client_id, *cells))
        listed = {"scope": list(one.scope), "sees": one.sees, "tokens": names, "certificates": list(one.certificates)}
        data.append({"principal": one.name, "client_id": one.client_id, **listed})
    output.table(columns, rows, as_json, data)


def _fingerprints(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        return (sha256(ssl.PEM_cert_to_DER_cert(path.read_text())).hexdigest(),)
    except ValueError:
        raise Misuse(f"{path} is not a certificate in PEM", "give the certificate, not its key") from None
