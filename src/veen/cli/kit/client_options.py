"""Options of commands that act as a client, and `HubOptions`, which groups them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from veen.cli.kit.common_options import ClientDir, HubUrl, JsonOption

if TYPE_CHECKING:
    from veen.cli.kit.open_session import HubCall

PassphraseFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        metavar="FILE",
        envvar="VEEN_PASSPHRASE_FILE",
        help="file with the keystore's passphrase; else VEEN_PASSPHRASE, else a prompt",
    ),
]
NoPassphrase: TypeAlias = Annotated[
    bool, typer.Option("--no-passphrase", help="store the keys unencrypted: anyone who can read the file can use them")
]
HubPin: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--pin",
        metavar="HEX|PATH",
        help="the hub to accept at first contact: its id, a key fingerprint, cert: and a certificate fingerprint, or "
        "the hub's data directory, identity file or certificate",
    ),
]
ReaderPin: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--reader",
        metavar="HEX|FILE",
        help="the stream's reader key: its public_key, or a file from veen stream-key export",
    ),
]
TrustEmbedded: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--trust-embedded", help="instead of --pin: take the hub id from the file, although anyone could have made it"
    ),
]
TrustOnFirstUse: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--trust-on-first-use",
        help="at first contact accept the hub that answers, unchecked, and require the same hub from then on",
    ),
]
Epoch: TypeAlias = Annotated[
    int | None, typer.Option("--epoch", metavar="N", min=0, help="the epoch", show_default="the hub's current one")
]
OutFile: TypeAlias = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="also write its bytes to FILE")]


@dataclass(frozen=True, slots=True)
class HubOptions:
    """Options of a command that contacts a hub: its address, its pin, and the client directory to use."""

    hub: HubUrl = None
    client: ClientDir = None
    pin: HubPin = None
    first_use: TrustOnFirstUse = False
    passphrase_file: PassphraseFile = None
    as_json: JsonOption = False

    def call(self) -> "HubCall":
        from veen.cli.kit.open_session import HubCall

        return HubCall(self.hub, self.client, self.passphrase_file, self.pin, self.first_use)
