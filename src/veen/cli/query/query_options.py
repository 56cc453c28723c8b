"""The command group `veen query` and its shared options."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse, group
from veen.cli.kit.client_options import HubOptions, HubPin, PassphraseFile, TrustOnFirstUse
from veen.cli.kit.common_options import ClientDir, HubUrl, JsonOption
from veen.cli.kit.open_session import HubCall
from veen.client import local_files

if TYPE_CHECKING:
    from veen.query.query_client import QueryClient

app = group(
    "query",
    """Query recorded events, and prove the answers.

    A service accepts queries, records them and their results in the log, and stores the results. Anyone can verify a
    result against the log, or repeat the query, even in another zone.
    """,
)

_MAX_TOKEN_BYTES = 4_096

ServiceUrl: TypeAlias = Annotated[
    str, typer.Option("--service", metavar="URL", envvar="VEEN_QUERY", help="the query service")
]
TokenFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", envvar="VEEN_QUERY_TOKEN_FILE", help="file with your token"),
]
Certificate: TypeAlias = Annotated[
    Path | None, typer.Option("--cert", metavar="FILE", help="your certificate, instead of a token")
]
CertificateKey: TypeAlias = Annotated[
    Path | None, typer.Option("--cert-key", metavar="FILE", help="key of your certificate in PEM")
]
ServiceCa: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--ca", metavar="FILE", help="certificate authority of the service", show_default="those of the system"
    ),
]
TablesDir: TypeAlias = Annotated[Path, typer.Option("--tables", metavar="DIR", help="tables from veen pipeline run")]
Source: TypeAlias = Annotated[
    str | None,
    typer.Option("--source", metavar="URL|DIR", help="first update the tables from this hub or data directory"),
]
Trust: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--trust", metavar="PATH", help="identity file of a hub that events were imported from"),
]


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Options for the query service and the credentials."""

    service: ServiceUrl
    token_file: TokenFile = None
    cert: Certificate = None
    cert_key: CertificateKey = None
    ca: ServiceCa = None
    as_json: JsonOption = False


@dataclass(frozen=True, slots=True)
class ServiceAndHubOptions:
    """Options for the query service, then for the hub. Help lists them in this order."""

    service: ServiceUrl
    token_file: TokenFile = None
    cert: Certificate = None
    cert_key: CertificateKey = None
    ca: ServiceCa = None
    hub: HubUrl = None
    client: ClientDir = None
    pin: HubPin = None
    first_use: TrustOnFirstUse = False
    passphrase_file: PassphraseFile = None
    as_json: JsonOption = False

    def call(self) -> HubCall:
        return HubOptions(self.hub, self.client, self.pin, self.first_use, self.passphrase_file).call()


def remote(asked: ServiceOptions | ServiceAndHubOptions) -> "QueryClient":
    """The client of the service. Raises if the options contradict each other."""
    from veen.query.query_client import QueryClient, ServiceAccess

    if asked.token_file is None and asked.cert is None:
        raise Misuse("missing --token-file or --cert", "--token-file FILE names the file with your token")
    if (asked.cert is None) != (asked.cert_key is None):
        raise Misuse("--cert and --cert-key must be given together", "give both")
    if not asked.service.startswith(("http://", "https://")):
        raise Misuse(f"{asked.service!r} is not an HTTP URL", "give --service http://HOST:PORT")
    token = None
    if asked.token_file is not None:
        token = local_files.read_file(asked.token_file, _MAX_TOKEN_BYTES).decode("utf-8", "replace").strip()
        if not re.fullmatch(r"[!-~]+", token):
            what = "is empty" if not token else "contains more than a token"
            raise Misuse(f"{asked.token_file} {what}", "veen query token prints a token")
    return QueryClient(ServiceAccess(asked.service, token, asked.cert, asked.cert_key, asked.ca))
