"""Options of commands that act as a client, and `HubOptions`, which groups them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from plumbing.cli.command import option
from veen.cli.kit.common_options import ClientDir, HubUrl, JsonOption

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from veen.cli.kit.open_session import HubCall
    from veen.client import client_dir

Policy: TypeAlias = Annotated[
    Path | None,
    option("--policy FILE", "a policy file: which witnesses must have cosigned, such as 2 of 3"),
]
PassphraseFile: TypeAlias = Annotated[
    Path | None,
    option(
        "--passphrase-file FILE",
        "file with the keystore's passphrase; else VEEN_PASSPHRASE, else a prompt",
        envvar="VEEN_PASSPHRASE_FILE",
    ),
]
NoPassphrase: TypeAlias = Annotated[
    bool, option("--no-passphrase", "store the keys unencrypted: anyone who can read the file can use them")
]
HubPin: TypeAlias = Annotated[
    str | None,
    option(
        "--pin HEX|PATH",
        "the hub to accept at first contact: its id, a key fingerprint, cert: and a certificate fingerprint, or "
        "the hub's data directory, identity file or certificate",
    ),
]
ReaderPin: TypeAlias = Annotated[
    str | None,
    option("--reader HEX|FILE", "the stream's reader key: its public_key, or a file from veen stream-key export"),
]
TrustEmbedded: TypeAlias = Annotated[
    bool,
    option("--trust-embedded", "instead of --pin: take the hub id from the file, although anyone could have made it"),
]
TrustOnFirstUse: TypeAlias = Annotated[
    bool,
    option(
        "--trust-on-first-use",
        "at first contact accept the hub that answers, unchecked, and require the same hub from then on",
    ),
]
Epoch: TypeAlias = Annotated[int | None, option("--epoch N", "only this epoch", default="all epochs", min=0)]
EpochOfPlace: TypeAlias = Annotated[
    int | None, option("--epoch N", "the epoch", default="the newest one with entries", min=0)
]
OutFile: TypeAlias = Annotated[Path | None, option("--out FILE", "also write its bytes to FILE")]


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of a command that uses a client directory and contacts no hub."""

    client: ClientDir = None
    passphrase_file: PassphraseFile = None
    as_json: JsonOption = False

    def open(self) -> "AbstractContextManager[client_dir.ClientDir]":
        from veen.cli.kit.open_session import open_client_dir

        return open_client_dir(self.client, self.passphrase_file)


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
