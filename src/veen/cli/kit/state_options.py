"""How commands over state are declared: the options that all of them share stand in one place each.

A command takes them as one object, its first argument:

    @reads(app, "get", "veen kv get door --stream settings")
    def get(asked: Reads, key: Key) -> None:
        ...
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, get_type_hints

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, command
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.common_options import Cap, Stream

F = TypeVar("F", bound=Callable[..., None])
_MOST = (1 << 64) - 1
MAX_SECONDS = 10_000_000_000  # three centuries: beyond that a number is a slip of the hand

AtOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--at", metavar="[EPOCH:]SEQ", help="as it was after that entry", show_default="the last one"),
]
Prove: TypeAlias = Annotated[bool, typer.Option("--prove", help="with the entries that the answer follows from")]
ProofFile: TypeAlias = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="write what --prove shows there, as evidence for anyone")
]
FromDirectory: TypeAlias = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="read a hub's data directory, or a copy, instead of asking a hub"),
]
NoCache: TypeAlias = Annotated[
    bool, typer.Option("--no-cache", help="read the whole stream again, and keep nothing of it on disk")
]
Blind: TypeAlias = Annotated[
    bool, typer.Option("--blind", help="send without asking the state first: for writers who cannot read")
]
ExpiresIn: TypeAlias = Annotated[
    int | None, durations.whole_option("--expires-in", least=1, most=MAX_SECONDS, help="it is of no use after so long")
]


@dataclass(frozen=True, slots=True)
class StateOptions(HubOptions):
    """Options of a command that tells of state, of whichever stream."""

    at: AtOption = None
    prove: Prove = False
    out: ProofFile = None
    data_dir: FromDirectory = None
    no_cache: NoCache = False


@dataclass(frozen=True, slots=True)
class ReadOptions(StateOptions):
    """Options of a command that tells of the state of a stream. `asking.answer` carries it out."""

    stream: Stream = None


@dataclass(frozen=True, slots=True)
class FollowOptions(HubOptions):
    """Options of a command that goes on as entries come. `asking.follow` carries it out."""

    stream: Stream = None
    no_cache: NoCache = False


@dataclass(frozen=True, slots=True)
class SendOptions(HubOptions):
    """Options of a command that sends an event. `saying.say` carries it out."""

    stream: Stream = None
    blind: Blind = False
    no_cache: NoCache = False
    cap: Cap = None


def read_command(app: typer.Typer, name: str, *examples: str) -> Callable[[F], F]:
    """Declare a command that tells of state."""
    return options_command(ReadOptions, app, name, *examples)


def follow_command(app: typer.Typer, name: str, *examples: str) -> Callable[[F], F]:
    """Declare a command that goes on as entries come."""
    return options_command(FollowOptions, app, name, *examples)


def send_command(app: typer.Typer, name: str, *examples: str) -> Callable[[F], F]:
    """Declare a command that sends an event."""
    return options_command(SendOptions, app, name, *examples)


def options_command(options: type[Any], app: typer.Typer, name: str, *examples: str) -> Callable[[F], F]:
    """Declare a command whose first argument is a dataclass of options, which come after its own.

    Which hub is meant, and as whom, is told last: of what extends `AtHub`, the own options come before those of its
    base. Elsewhere they come after them, as a dataclass has its fields.
    """
    shared, kind = get_type_hints(options, include_extras=True), inspect.Parameter.KEYWORD_ONLY
    found = {field.name: field.default for field in fields(options)}
    if issubclass(options, HubOptions):
        own_first = [name for base in options.__mro__ for name in inspect.get_annotations(base)]
        found = {name: found[name] for name in own_first}
    given_to_all = [inspect.Parameter(name, kind, default=one, annotation=shared[name]) for name, one in found.items()]

    def declare(work: F) -> F:
        own = get_type_hints(work, include_extras=True)
        wanted = [*inspect.signature(work).parameters.values()][1:]
        parameters = [one.replace(kind=kind, annotation=own[one.name]) for one in wanted] + given_to_all

        def run(**given: Any) -> None:
            _check_numbers(given)
            taken = options(**{one.name: given.pop(one.name) for one in given_to_all})
            work(taken, **given)

        run.__name__, run.__doc__ = work.__name__, work.__doc__
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command(app, name, *examples)(run)
        return work

    return declare


def _check_numbers(given: Mapping[str, Any]) -> None:
    """No event has room for a number of more than 64 bits."""
    for name, value in given.items():
        if isinstance(value, int) and abs(value) > _MOST:
            raise Misuse(f"{name.replace('_', '-')}: {value} needs more than 64 bits", f"give at most {_MOST}")
