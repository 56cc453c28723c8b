"""The options of `veen hub start`. One that is not given is None: the configuration file may have it."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer

from veen.cli import values

Listen: TypeAlias = Annotated[
    values.Address | None,
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        help="where to listen; port 0 lets the system choose",
        show_default="127.0.0.1:37411",
        parser=values.address,
    ),
]
Foreground: TypeAlias = Annotated[
    bool, typer.Option("--foreground", help="serve in this process, with the log on standard error")
]
Admission: TypeAlias = Annotated[
    Literal["open", "capability"] | None,
    typer.Option("--admission", metavar="open|capability", help="who may write", show_default="capability"),
]
Issuer: TypeAlias = Annotated[
    list[bytes] | None,
    typer.Option(
        "--issuer",
        metavar="HEX|PATH",
        help="whose capabilities count: a public key, client directory or card",
        parser=values.card_key,
    ),
]
Witness: TypeAlias = Annotated[
    list[bytes] | None,
    typer.Option("--witness", metavar="HEX", help="whose checkpoint signatures count", parser=values.public_key),
]
Config: TypeAlias = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="settings, in TOML")]
Profile: TypeAlias = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="which [profile.NAME] of the settings to take")
]
Workers: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--workers", metavar="N", min=0, help="verification processes; 0 is a thread", show_default="cores - 1"
    ),
]
TlsCert: TypeAlias = Annotated[Path | None, typer.Option("--tls-cert", metavar="FILE", help="certificate chain, PEM")]
TlsKey: TypeAlias = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="its key, PEM")]
LogSubmits: TypeAlias = Annotated[
    bool | None, typer.Option("--log-submits", help="one line of the log per submit", show_default=False)
]
OpenToTheNetwork: TypeAlias = Annotated[
    bool | None,
    typer.Option("--open-to-the-network", help="mean it: open admission beyond this machine", show_default=False),
]
PowDifficulty: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--pow-difficulty",
        metavar="BITS",
        min=0,
        help="the proof of work that a message must come with; 0 asks for none",
        show_default="0",
    ),
]
AllowNetwork: TypeAlias = Annotated[
    list[Any] | None,  # networks; a list of unions is more than typer takes
    typer.Option("--allow-network", metavar="CIDR", help="from where alone messages are taken", parser=values.network),
]
DenyNetwork: TypeAlias = Annotated[
    list[Any] | None,  # networks; a list of unions is more than typer takes
    typer.Option("--deny-network", metavar="CIDR", help="from where no messages are taken", parser=values.network),
]
LogFile: TypeAlias = Annotated[
    Path | None, typer.Option("--log-file", metavar="FILE", help="where a background hub's log goes")
]
ReadyFd: TypeAlias = Annotated[int | None, typer.Option("--ready-fd", metavar="N", hidden=True)]
