"""Options that several commands share are fields of one dataclass. A command receives them as its first argument:

@options_command(HubOptions, app, "export", "veen bridge export --stream doors")
def export(options: HubOptions, stream: Stream = None) -> None:
    ...
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, get_type_hints

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, command, option
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.common_options import Cap, Stream

F = TypeVar("F", bound=Callable[..., Any])
_MAX_UINT64 = (1 << 64) - 1
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


def options_command(
    options: type[Any], app: typer.Typer, name: str, *examples: str, runner: Callable[..., None] | None = None
) -> Callable[[F], F]:
    """Declare a command whose first argument is a dataclass of options.

    A `runner` calls the command itself: it is called as `runner(work, options, **given)`.

    The help text lists the command's own options first, then the fields of the dataclass. Subclasses of `HubOptions`
    list the fields of `HubOptions` last; other dataclasses list their fields in order.
    """
    shared_types, kind = get_type_hints(options, include_extras=True), inspect.Parameter.KEYWORD_ONLY
    empty = inspect.Parameter.empty
    defaults = {field.name: empty if field.default is MISSING else field.default for field in fields(options)}
    if issubclass(options, HubOptions):
        own_first = [name for base in options.__mro__ for name in inspect.get_annotations(base)]
        defaults = {name: defaults[name] for name in own_first if name in defaults}
    shared = [
        inspect.Parameter(name, kind, default=default, annotation=shared_types[name])
        for name, default in defaults.items()
    ]

    def declare(work: F) -> F:
        own_types = get_type_hints(work, include_extras=True)
        own = [*inspect.signature(work).parameters.values()][1:]
        parameters = [one.replace(kind=kind, annotation=own_types[one.name]) for one in own] + shared

        def run(**given: Any) -> None:
            _check_numbers(given)
            shared_values = options(**{one.name: given.pop(one.name) for one in shared})
            if runner is None:
                work(shared_values, **given)
            else:
                runner(work, shared_values, **given)

        run.__name__, run.__doc__ = work.__name__, work.__doc__
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command(app, name, *examples)(run)
        return work

    return declare


def _check_numbers(given: Mapping[str, Any]) -> None:
    """Numbers in events have 64 bits."""
    for name, value in given.items():
        if isinstance(value, int) and abs(value) > _MAX_UINT64:
            raise Misuse(f"{name.replace('_', '-')}: {value} needs more than 64 bits", f"give at most {_MAX_UINT64}")
