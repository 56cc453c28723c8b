"""Options that many commands have, and classes that group them. `kit.context_file` supplies the ones not given."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from plumbing.cli import durations
from plumbing.cli.command import option
from veen.cli.kit import values

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from veen.cli.kit.open_session import HubCall
    from veen.client import client_dir

MAX_SECONDS = 10_000_000_000  # three centuries: a larger number is a typing error

JsonOption: TypeAlias = Annotated[bool, option("--json", "the result as JSON")]
DataDir: TypeAlias = Annotated[Path, option("--data-dir DIR", "the hub's data directory")]
LocalDir: TypeAlias = Annotated[
    Path | None, option("--data-dir DIR", "the data directory of a hub on this machine, instead of --hub")
]
HubUrl: TypeAlias = Annotated[
    str | None,
    option("--hub URL", "the hub's address; default: the context's", envvar="VEEN_HUB"),
]
ClientDir: TypeAlias = Annotated[
    Path | None,
    option("--client DIR", "the client directory; default: the context's", envvar="VEEN_CLIENT"),
]
Stream: TypeAlias = Annotated[
    str | None,
    option("--stream NAME", "the stream, by name or 64 hex digits; default: the context's"),
]
Cap: TypeAlias = Annotated[Path | None, option("--cap FILE", "the capability file; default: the context's")]
Policy: TypeAlias = Annotated[
    Path | None,
    option("--policy FILE", "a policy file: which witnesses must have cosigned, such as 2 of 3"),
]
TrustedWitness: TypeAlias = Annotated[
    list[bytes] | None,
    option("--witness HEX", "a witness that you trust; it signs only with active keys", parser=values.public_key),
]
AnchoredIn: TypeAlias = Annotated[
    str | None, option("--anchored-in TARGET", "where the anchors are: file:PATH, git:REPO or tsa:")
]
TsaRoot: TypeAlias = Annotated[Path | None, option("--tsa-root PEM", "for tsa: the root certificate of the authority")]
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


AtOption: TypeAlias = Annotated[
    str | None,
    option("--at [EPOCH:]SEQ", "the state after this entry", default="the last entry"),
]
Prove: TypeAlias = Annotated[bool, option("--prove", "also show the entries that prove the answer")]
ProofFile: TypeAlias = Annotated[
    Path | None,
    option("--out FILE", "write the proof to FILE, as evidence that others can verify"),
]
FromDirectory: TypeAlias = Annotated[
    Path | None,
    option("--data-dir DIR", "read a hub's data directory, or a copy of it, instead of a hub"),
]
NoCache: TypeAlias = Annotated[
    bool, option("--no-cache", "read the whole stream, without the cached state, and cache nothing")
]
Blind: TypeAlias = Annotated[
    bool, option("--blind", "send without checking the state first: for writers without the reader key")
]
ExpiresIn: TypeAlias = Annotated[
    int | None,
    durations.whole_option("--expires-in", least=1, most=MAX_SECONDS, help="ignore the event after this time"),
]


@dataclass(frozen=True, slots=True)
class StateOptions(HubOptions):
    """Options of a command that shows state of a stream that the command itself determines."""

    at: AtOption = None
    prove: Prove = False
    out: ProofFile = None
    data_dir: FromDirectory = None
    no_cache: NoCache = False


@dataclass(frozen=True, slots=True)
class ReadOptions(StateOptions):
    """Options of a command that shows the state of --stream."""

    stream: Stream = None


@dataclass(frozen=True, slots=True)
class FollowOptions(HubOptions):
    """Options of a command that runs on as new entries arrive."""

    stream: Stream = None
    no_cache: NoCache = False


@dataclass(frozen=True, slots=True)
class SendOptions(HubOptions):
    """Options of a command that sends an event."""

    stream: Stream = None
    blind: Blind = False
    no_cache: NoCache = False
    cap: Cap = None
