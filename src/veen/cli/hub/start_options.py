"""The options of `veen hub start`. An option that is not given is None, because the configuration file may set it."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer

from veen.cli.kit import values

Listen: TypeAlias = Annotated[
    values.Address | None,
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        help="address to listen on; port 0 lets the system choose",
        show_default="127.0.0.1:37411",
        parser=values.address,
    ),
]
Foreground: TypeAlias = Annotated[
    bool, typer.Option("--foreground", help="run in this process, with the log on standard error")
]
AdmissionOption: TypeAlias = Annotated[
    Literal["open", "capability"] | None,
    typer.Option("--admission", metavar="open|capability", help="who may write", show_default="capability"),
]
Issuer: TypeAlias = Annotated[
    list[bytes] | None,
    typer.Option(
        "--issuer",
        metavar="HEX|PATH",
        help="an issuer whose capabilities are accepted: a public key, client directory or card",
        parser=values.card_key,
    ),
]
Witness: TypeAlias = Annotated[
    list[bytes] | None,
    typer.Option(
        "--witness", metavar="HEX", help="a witness whose cosignatures are accepted", parser=values.public_key
    ),
]
Config: TypeAlias = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="settings in TOML")]
Profile: TypeAlias = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="use [profile.NAME] of the settings file")
]
Workers: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--workers", metavar="N", min=0, help="verification processes; 0 verifies in a thread", show_default="cores - 1"
    ),
]
TlsCert: TypeAlias = Annotated[Path | None, typer.Option("--tls-cert", metavar="FILE", help="certificate chain in PEM")]
TlsKey: TypeAlias = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="key of the certificate in PEM")
]
LogSubmits: TypeAlias = Annotated[
    bool | None, typer.Option("--log-submits", help="write one log line per submit", show_default=False)
]
OpenToTheNetwork: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--open-to-the-network", help="permit open admission on an address outside this machine", show_default=False
    ),
]
PowDifficulty: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--pow-difficulty",
        metavar="BITS",
        min=0,
        help="difficulty of the proof of work for each message; 0 requires none",
        show_default="0",
    ),
]
AllowNetwork: TypeAlias = Annotated[
    list[Any] | None,  # networks; typer does not support a list of unions
    typer.Option("--allow-network", metavar="CIDR", help="accept messages only from here", parser=values.network),
]
DenyNetwork: TypeAlias = Annotated[
    list[Any] | None,
    typer.Option("--deny-network", metavar="CIDR", help="reject messages from here", parser=values.network),
]
LogFile: TypeAlias = Annotated[
    Path | None, typer.Option("--log-file", metavar="FILE", help="log file of a background hub")
]
ReadyFd: TypeAlias = Annotated[int | None, typer.Option("--ready-fd", metavar="N", hidden=True)]
