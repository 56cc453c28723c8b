"""Options of the commands that act for a client, and what they come to together."""

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
TrustEmbedded: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--trust-embedded", help="without --pin: take the hub id from the file, although anyone could have made it"
    ),
]
TrustOnFirstUse: TypeAlias = Annotated[
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


@dataclass(frozen=True, slots=True)
class HubOptions:
    """Options of a command that talks to a hub: to which, as whom, and why it is believed."""

    hub: HubUrl = None
    client: ClientDir = None
    pin: HubPin = None
    first_use: TrustOnFirstUse = False
    passphrase_file: PassphraseFile = None
    as_json: JsonOption = False

    def call(self) -> "HubCall":
        """What they say together."""
        from veen.cli.kit.open_session import HubCall

        return HubCall(self.hub, self.client, self.passphrase_file, self.pin, self.first_use)
