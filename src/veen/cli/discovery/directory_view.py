"""A directory as the commands of `veen discover` and `veen connect` look at it: at a place, and at a time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer

from veen.cli.kit.common_options import Stream
from veen.cli.kit.state_options import ReadOptions
from veen.cli.realm.realm_state import When

if TYPE_CHECKING:
    from veen.cli.kit import output
    from veen.cli.kit.read_state import StateAnswer
    from veen.overlays import Event, Overlay
    from veen.overlays.discovery import Descriptor, Discovery, Filter
    from veen.state.state_at import StateAt
    from veen.state.state_view import StateView

E = TypeVar("E", bound="Event")
S = TypeVar("S")
M = TypeVar("M")


class KindName(StrEnum):
    """What a descriptor describes, as people write it."""

    HUB = "hub"
    OVERLAY = "overlay"
    SERVICE = "service"


KindArgument: TypeAlias = Annotated[KindName, typer.Argument(metavar="KIND", help="hub, overlay or service")]
IdArgument: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="its id: 64 hex digits")]
Publishers: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--publisher", metavar="HEX|CARD", help="count only what they wrote: a client_id, card or folder"),
]
Region: TypeAlias = Annotated[str | None, typer.Option("--region", metavar="NAME", help="in which region")]
Tags: TypeAlias = Annotated[list[str] | None, typer.Option("--tag", metavar="NAME", help="one of these tags")]


@dataclass(frozen=True, slots=True)
class Looks(ReadOptions):
    """Options of a command that looks at a directory, or at connections. `look_at` carries it out."""

    stream: Stream = None
    publishers: Publishers = None
    when: When = None


def stream_of(kind: str) -> str:
    """The well-known stream of a kind."""
    return f"disc.{kind}s.v1"


def overlay_of(publishers: Sequence[str] | None) -> "Discovery":
    """The directory that these publishers make; everybody, where none is named."""
    from veen.overlays.discovery import DISCOVERY, Discovery

    return Discovery(one for text in publishers for one in _client_ids(text)) if publishers else DISCOVERY


def _client_ids(text: str) -> tuple[bytes, ...]:
    """Whoever is meant: a client_id, or all that a card says its owner will write with."""
    from pathlib import Path

    from veen.cli.kit import key_files, values

    try:
        return (values.public_key(text),)
    except ValueError:
        return key_files.read_card(Path(text)).client_ids


def look_at(
    asked: Looks, overlay: "Overlay[S, M]", look: "Callable[[StateAt[S, M], int], StateAnswer]", *, stream: str
) -> None:
    """Show what is found at the place and the time that the options name. `stream` is the one where none is named."""
    from veen.cli.kit import output_files, read_state, render_state

    if asked.out is not None:
        output_files.check_new(asked.out)

    async def work(view: "StateView[S, M]", name: str) -> "tuple[StateAnswer, read_state.StateBasis]":
        async with view.reading(read_state.parse_place(asked.at, view)) as reading:
            found = look(reading, await moment(view, reading, asked.at is not None, asked.when))
            return found, await read_state.basis_of(asked, view, reading, name, found)

    found, basis = read_state.with_view(asked, overlay, work, stream=stream)
    render_state.show_answer(found, basis, asked)


async def moment(view: "StateView[S, M]", reading: "StateAt[S, M]", dated: bool, when: int | None = None) -> int:
    """The time an answer is for: the one that is named, that of the entry that is, or the hub's present."""
    if when is not None:
        return when
    last = (await view.source.receipt(view.stream_id, reading.at)).hub_ts if reading.at.stream_seq else 0
    return last if dated else max(view.source.now(), last)


def sendable(event: "E") -> "E":
    """An event that fits into its body, or `Misuse` with what is too much in it."""
    from plumbing.cli.command import Misuse

    try:
        event.encode()
    except ValueError as error:
        raise Misuse(str(error), "say it with less") from None
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
) -> "Filter":
    """What to look for. Raises `Misuse` for what things of this kind do not have."""
    from plumbing.cli.command import Misuse
    from veen.cli.kit import values
    from veen.overlays.discovery import FILTERS, DescriptorKind

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
            raise Misuse(f"a {kind} is not found by its {word}", f"leave out --{word}, or look for another kind")
    return form(**{option: value for option, value in given.items() if option in known})  # type: ignore[arg-type]


def schema_of(text: str) -> bytes:
    """A schema by its name, or its id in hex."""
    from veen.core import naming

    return bytes.fromhex(text) if len(text) == 64 else naming.schema_id(text)


COLUMNS: dict[KindName, tuple[str, ...]] = {
    KindName.HUB: ("hub_id", "region", "endpoints", "tags"),
    KindName.OVERLAY: ("overlay_id", "name", "version", "schemas", "tags"),
    KindName.SERVICE: ("service_id", "name", "methods", "regions", "tags"),
}


def row_of(one: "Descriptor") -> "tuple[output.Value, ...]":
    """A descriptor in one line, by `COLUMNS`."""
    from veen.cli.kit.sanitize import printable, short
    from veen.overlays.discovery import HubAdvertise, OverlayAdvertise

    def listed(names: Iterable[str]) -> str:
        return printable(", ".join(names))

    if isinstance(one, HubAdvertise):
        urls = listed(endpoint.url for endpoint in one.endpoints)
        return short(one.hub_id), printable(one.region), urls, listed(one.tags)
    if isinstance(one, OverlayAdvertise):
        name, version = printable(one.name), printable(one.version)
        return short(one.overlay_id), name, version, len(one.schemas), listed(one.tags)
    return short(one.service_id), printable(one.name), listed(one.methods), listed(one.regions), listed(one.tags)
