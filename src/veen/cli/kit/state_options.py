"""Options of commands that read state or send events."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from plumbing.cli import durations
from plumbing.cli.command import option
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.common_options import Cap, Stream

MAX_SECONDS = 10_000_000_000  # three centuries: a larger number is a typing error

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
