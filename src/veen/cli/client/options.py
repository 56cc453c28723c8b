"""Options of the commands that act for a client, and what they come to together."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

PassphraseFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        metavar="FILE",
        envvar="VEEN_PASSPHRASE_FILE",
        help="where the keystore's passphrase is; else VEEN_PASSPHRASE, else it is asked for",
    ),
]
NoPassphrase: TypeAlias = Annotated[
    bool, typer.Option("--no-passphrase", help="leave the keys unencrypted: whoever reads the file has them")
]
HubPin: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--pin",
        metavar="HEX|PATH",
        help="whom to believe at first contact: the hub's id, a key's fingerprint, cert: and a certificate's, or the "
        "hub's data directory, identity file or certificate",
    ),
]
ReaderPin: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--reader",
        metavar="HEX|FILE",
        help="whose reading it must be: the stream's public_key, or a file that veen stream-key export made",
    ),
]
FirstUse: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--trust-on-first-use",
        help="at first contact believe whichever hub answers, unchecked, and hold it to that from then on",
    ),
]
Epoch: TypeAlias = Annotated[
    int | None, typer.Option("--epoch", metavar="N", min=0, help="in which epoch", show_default="the hub's present one")
]
OutFile: TypeAlias = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="write its bytes there as well")]
