"""The group, and the options that its commands share."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse, group
from veen.cli.kit.client_options import HubOptions, HubPin, PassphraseFile, TrustOnFirstUse
from veen.cli.kit.common_options import ClientDir, HubUrl, JsonOption

if TYPE_CHECKING:
    from veen.cli.kit.open_session import HubCall
    from veen.query.query_client import QueryClient

app = group(
    "query",
    """Ask about recorded events, and prove the answers.

    A service takes queries, records them and what came of them, and keeps the results. Anyone can hold a result against
    the log, or ask again, also in another zone.
    """,
)

_MOST_TOKEN = 4_096

ServiceUrl: TypeAlias = Annotated[
    str, typer.Option("--service", metavar="URL", envvar="VEEN_QUERY", help="the query service")
]
TokenFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", envvar="VEEN_QUERY_TOKEN_FILE", help="where your token is"),
]
Certificate: TypeAlias = Annotated[
    Path | None, typer.Option("--cert", metavar="FILE", help="your certificate, instead of a token")
]
CertificateKey: TypeAlias = Annotated[
    Path | None, typer.Option("--cert-key", metavar="FILE", help="the key of your certificate, in PEM form")
]
ServiceCa: TypeAlias = Annotated[
    Path | None,
    typer.Option("--ca", metavar="FILE", help="who vouches for the service", show_default="whom the system trusts"),
]
TablesDir: TypeAlias = Annotated[
    Path, typer.Option("--tables", metavar="DIR", help="the tables, as veen pipeline run makes them")
]
Source: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--source", metavar="URL|DIR", help="bring the tables up to date from this hub or data directory first"
    ),
]
Trust: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--trust", metavar="PATH", help="papers of a hub that events were imported from: its identity file"),
]


@dataclass(frozen=True, slots=True)
class Asks:
    """Who asks which service."""

    service: ServiceUrl
    token_file: TokenFile = None
    cert: Certificate = None
    cert_key: CertificateKey = None
    ca: ServiceCa = None
    as_json: JsonOption = False


@dataclass(frozen=True, slots=True)
class AsksBoth:
    """Who asks which service, and which hub. What is of the service comes first."""

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

    def call(self) -> "HubCall":
        """The hub's part."""
        return HubOptions(self.hub, self.client, self.pin, self.first_use, self.passphrase_file).call()


def remote(asked: Asks | AsksBoth) -> "QueryClient":
    """The service that is meant."""
    from veen.client import durable
    from veen.query.query_client import QueryClient, ServiceAccess

    if asked.token_file is None and asked.cert is None:
        raise Misuse("neither a token nor a certificate is given", "--token-file FILE names the file of your token")
    if (asked.cert is None) != (asked.cert_key is None):
        raise Misuse("--cert and --cert-key go together", "give both")
    if not asked.service.startswith(("http://", "https://")):
        raise Misuse(f"{asked.service!r} is not an address", "give --service http://HOST:PORT")
    token = None
    if asked.token_file is not None:
        token = durable.read_file(asked.token_file, _MOST_TOKEN).decode("utf-8", "replace").strip()
        if not re.fullmatch(r"[!-~]+", token):
            what = "has no token in it" if not token else "has more or other things in it than a token"
            raise Misuse(f"{asked.token_file} {what}", "veen query token prints one")
    return QueryClient(ServiceAccess(asked.service, token, asked.cert, asked.cert_key, asked.ca))
