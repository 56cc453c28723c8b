"""Shared by `veen discover` and `veen connect`: options, filters, and reading a directory at a place and a time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import typer

from plumbing.cli.command import Misuse
from veen.cli.kit import key_files, output, output_files, read_state, render_state, values
from veen.cli.kit.common_options import Stream
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.sanitize import printable, short
from veen.cli.kit.state_options import ReadOptions
from veen.cli.realm.realm_state import When
from veen.core import naming
from veen.overlays import Event, Overlay
from veen.overlays.discovery import DISCOVERY, Descriptor, DescriptorKind, Discovery, HubAdvertise, OverlayAdvertise
from veen.overlays.discovery_query import FILTERS, Filter
from veen.state.state_view import StateAt, StateView

E = TypeVar("E", bound="Event")
S = TypeVar("S")
M = TypeVar("M")


class KindName(StrEnum):
    """The kinds of descriptors, as command arguments."""

    HUB = "hub"
    OVERLAY = "overlay"
    SERVICE = "service"


KindArgument: TypeAlias = Annotated[KindName, typer.Argument(metavar="KIND", help="hub, overlay or service")]
IdArgument: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="its id: 64 hex digits")]
Publishers: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--publisher", metavar="HEX|CARD", help="only entries of this publisher: a client_id, card or directory"
    ),
]
Region: TypeAlias = Annotated[str | None, typer.Option("--region", metavar="NAME", help="in this region")]
Tags: TypeAlias = Annotated[list[str] | None, typer.Option("--tag", metavar="NAME", help="with one of these tags")]


@dataclass(frozen=True, slots=True)
class DirectoryOptions(ReadOptions):
    """Options of a command that reads a directory or connections. See `show_directory`."""

    stream: Stream = None
    publishers: Publishers = None
    when: When = None


def stream_of(kind: str) -> str:
    """Return the name of the well-known stream of a kind."""
    return f"disc.{kind}s.v1"


def overlay_of(publishers: Sequence[str] | None) -> Discovery:
    """Return the overlay that counts only these publishers; all publishers if none is given."""

    return Discovery(one for text in publishers for one in _client_ids(text)) if publishers else DISCOVERY


def _client_ids(text: str) -> tuple[bytes, ...]:
    """Parse a client_id, or read those on a card."""

    try:
        return (values.public_key(text),)
    except ValueError:
        return key_files.read_card(Path(text)).client_ids


def show_directory(
    options: DirectoryOptions,
    overlay: Overlay[S, M],
    look: Callable[[StateAt[S, M], int], StateAnswer],
    *,
    stream: str,
) -> None:
    """Read the state at the place and time that the options name, and show what `look` returns.

    `stream` is the default stream.
    """

    if options.out is not None:
        output_files.check_new(options.out)

    async def work(view: StateView[S, M], name: str) -> tuple[StateAnswer, read_state.StateBasis]:
        async with view.reading(read_state.parse_place(options.at, view)) as reading:
            found = look(reading, await answer_time(view, reading, options.at is not None, options.when))
            return found, await read_state.basis_of(options, view, reading, name, found)

    found, basis = read_state.with_view(options, overlay, work, stream=stream)
    render_state.show_answer(found, basis, options)


async def answer_time(view: StateView[S, M], reading: StateAt[S, M], dated: bool, when: int | None = None) -> int:
    """Return the time of an answer: --when, else with --at the time of that entry, else the hub's current time."""
    if when is not None:
        return when
    last = (await view.source.receipt(view.stream_id, reading.at)).hub_ts if reading.at.stream_seq else 0
    return last if dated else max(view.source.now(), last)


def sendable(event: E) -> E:
    """Return the event. Raises `Misuse` if it does not fit into a message."""

    try:
        event.encode()
    except ValueError as error:
        raise Misuse(str(error), "shorten the texts and lists of the command") from None
    return event


def filter_of(
    kind: KindName,
    *,
    name: str | None = None,
    method: str | None = None,
    overlay: str | None = None,
    schema: str | None = None,
    region: str | None = None,
    tags: Sequence[str] | None = None,
) -> Filter:
    """Return the filter for a kind. Raises `Misuse` for fields that the kind does not have."""

    form = FILTERS[DescriptorKind(kind)]
    given: dict[str, object] = {
        "name_prefix": name,
        "method": method,
        "overlay_id": None if overlay is None else values.id_of(overlay, "the id of an overlay"),
        "schema": None if schema is None else schema_of(schema),
        "region": region,
        "tags_any": tuple(tags) if tags else None,
    }
    known = {one.name for one in form.LAYOUT.kinds}
    for option, value in given.items():
        if value is not None and option not in known:
            word = option.partition("_")[0]
            raise Misuse(f"--{word} does not apply to {kind}s", f"leave out --{word}, or query another kind")
    return form(**{option: value for option, value in given.items() if option in known})  # type: ignore[arg-type]


def schema_of(text: str) -> bytes:
    """Parse a schema name, or a schema id in hex."""

    return bytes.fromhex(text) if len(text) == 64 else naming.schema_id(text)


COLUMNS: dict[KindName, tuple[str, ...]] = {
    KindName.HUB: ("hub_id", "region", "endpoints", "tags"),
    KindName.OVERLAY: ("overlay_id", "name", "version", "schemas", "tags"),
    KindName.SERVICE: ("service_id", "name", "methods", "regions", "tags"),
}


def row_of(one: Descriptor) -> tuple[output.Value, ...]:
    """Return a descriptor as a table row with `COLUMNS`."""

    def listed(names: Iterable[str]) -> str:
        return printable(", ".join(names))

    if isinstance(one, HubAdvertise):
        urls = listed(endpoint.url for endpoint in one.endpoints)
        return short(one.hub_id), printable(one.region), urls, listed(one.tags)
    if isinstance(one, OverlayAdvertise):
        name, version = printable(one.name), printable(one.version)
        return short(one.overlay_id), name, version, len(one.schemas), listed(one.tags)
    return short(one.service_id), printable(one.name), listed(one.methods), listed(one.regions), listed(one.tags)
