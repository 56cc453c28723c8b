"""`veen query serve`: the query service."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse
from plumbing.http import tls_context
from veen.cli.kit import output
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.context_file import need_client
from veen.cli.kit.state_options import options_command
from veen.cli.kit.values import Address, address
from veen.cli.query.query_options import Source, TablesDir, Trust, app
from veen.client.client import Client
from veen.client.trust import Pin
from veen.core import HubIdentity
from veen.query.query_limits import DEFAULTS, QueryLimits

if TYPE_CHECKING:
    from veen.query.query_server import Settings

_PORT = 37_420
_DAY_S = 86_400

Names: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--name", metavar="HOST", help="a host name that requests may use, for example behind a proxy"),
]
Workers: TypeAlias = Annotated[
    int, typer.Option("--workers", metavar="N", min=1, max=64, help="queries that run at the same time")
]
MaxRows: TypeAlias = Annotated[
    int, typer.Option("--max-rows", metavar="N", min=1, help="maximum rows of a result, and events verified for it")
]
MaxBytes: TypeAlias = Annotated[int, typer.Option("--max-bytes", metavar="N", min=1, help="maximum bytes of a result")]
MaxTime: TypeAlias = Annotated[
    int, durations.whole_option("--max-time", least=1, most=_DAY_S, help="time limit of a query")
]
MaxOpen: TypeAlias = Annotated[
    int, typer.Option("--max-open", metavar="N", min=1, help="maximum unfinished queries of one principal")
]


@options_command(
    HubOptions,
    app,
    "serve",
    "veen query serve queries --tables tables --client service",
    "veen query serve queries --tables tables --source http://127.0.0.1:37411 --client service",
)
def serve(
    asked: HubOptions,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="folder of the service, for queries and results")],
    tables: TablesDir,
    source: Source = None,
    listen: Annotated[
        Address | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="address to listen on",
            show_default=f"127.0.0.1:{_PORT}",
            parser=address,
        ),
    ] = None,
    cert: Annotated[Path | None, typer.Option("--tls-cert", metavar="FILE", help="serve TLS with this chain")] = None,
    key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="key of the certificate")] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option("--tls-client-ca", metavar="FILE", help="certificate authority of client certificates"),
    ] = None,
    names: Names = None,
    trust: Trust = None,
    workers: Workers = 2,
    spark: Annotated[bool, typer.Option("--spark", help="run large queries on Spark, which must be installed")] = False,
    max_rows: MaxRows = DEFAULTS.max_rows,
    max_bytes: MaxBytes = DEFAULTS.max_bytes,
    max_time: MaxTime = int(DEFAULTS.max_run_s),
    max_open: MaxOpen = DEFAULTS.max_open,
) -> None:
    """Accept queries over HTTP, record and run them, and record their results.

    The file DIR/principals.json says who may query which streams; veen query token writes it. By default the service
    listens on this machine only and rejects requests with another Host or Origin. A query that exceeds a limit is
    stopped. Queries that were running when the service stopped or was killed continue when it starts again.
    """
    from veen.pipeline.decoding import Keys
    from veen.query.query_server import Settings

    if (cert is None) != (key is None) or (client_ca is not None and cert is None):
        raise Misuse("--tls-cert and --tls-key must be given together", "give both; --tls-client-ca needs them")
    where = listen or Address("127.0.0.1", _PORT)
    passphrase = None if asked.passphrase_file is None else str(asked.passphrase_file)
    settings = Settings(
        folder,
        tables,
        where.host,
        where.port,
        tls_context(cert, key, client_ca) if cert and key else None,
        source,
        Keys((str(need_client(asked.client)),), passphrase),
        identities(trust),
        _session if spark else None,
        workers,
        QueryLimits(max_rows, max_bytes, max_run_s=max_time, max_open=max_open),
        tuple(names or ()),
    )
    call = asked.call()
    call.run(lambda client: _serve(client, settings, asked.as_json))


def identities(trust: list[Path] | None) -> dict[bytes, HubIdentity]:
    """Identity records of the hubs that events were imported from."""

    found = {}
    for path in trust or ():
        record = Pin.of_file(path).record
        if record is None:
            raise Misuse(f"{path} is not an identity file", "give the hub's identity file or data directory")
        found[record.hub_id] = record
    return found


def _session():  # type: ignore[no-untyped-def]
    from veen.pipeline import session

    return session()


async def _serve(client: Client, settings: "Settings", as_json: bool) -> None:
    from veen.query.query_server import serving

    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)

    def report(where: str, error: BaseException) -> None:
        output.remark(f"{where}: {type(error).__name__}: {error}")

    async with serving(client, settings, report) as server:
        scheme = "http" if settings.tls is None else "https"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        output.facts({"url": f"{scheme}://{host}:{server.port}", "hub_id": client.hub_id}, as_json)
        sys.stdout.flush()
        await stopped.wait()
