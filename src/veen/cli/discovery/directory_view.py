"""Shared by `veen discover` and `veen connect`: options, filters, and reading a directory at a place and a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

from plumbing.cli.command import Misuse, argument, option
from veen.cli.kit import key_files, values
from veen.cli.kit.common_options import ReadOptions, Stream
from veen.cli.kit.result import Column, listed
from veen.cli.kit.state_session import StateSession, state_command
from veen.cli.realm.realm_state import When
from veen.core import naming
from veen.overlays import Overlay
from veen.overlays.discovery import DISCOVERY, DescriptorKind, Discovery
from veen.overlays.discovery_query import FILTERS, Filter
from veen.state.state_view import StateAt, StateView

S = TypeVar("S")
M = TypeVar("M")


class KindName(StrEnum):
    """The kinds of descriptors, as command arguments."""

    HUB = "hub"
    OVERLAY = "overlay"
    SERVICE = "service"


KindArgument: TypeAlias = Annotated[KindName, argument("KIND", "hub, overlay or service")]
Publishers: TypeAlias = Annotated[
    list[str] | None,
    option("--publisher HEX|CARD", "only entries of this publisher: a client_id, card or directory"),
]
Region: TypeAlias = Annotated[str | None, option("--region NAME", "in this region")]
Tags: TypeAlias = Annotated[list[str] | None, option("--tag NAME", "with one of these tags")]
Method: TypeAlias = Annotated[str | None, option("--method NAME", "services with this method")]


@dataclass(frozen=True, slots=True)
class DirectoryOptions(ReadOptions):
    """Options of a command that reads a directory or connections."""

    stream: Stream = None
    publishers: Publishers = None
    when: When = None


DirectorySession: TypeAlias = StateSession[DirectoryOptions]
directory_command = partial(state_command, StateSession, DirectoryOptions)


def stream_of(kind: str) -> str:
    """Return the name of the well-known stream of a kind."""
    return f"disc.{kind}s.v1"


def overlay_of(publishers: Sequence[str] | None) -> Discovery:
    """The overlay that counts only these publishers; all publishers if none is given."""
    return Discovery(one for text in publishers for one in _client_ids(text)) if publishers else DISCOVERY


def _client_ids(text: str) -> tuple[bytes, ...]:
    """Parse a client_id, or read those on a card."""
    try:
        return (values.public_key(text),)
    except ValueError:
        return key_files.read_card(Path(text)).client_ids


async def open_directory(session: DirectorySession, overlay: Overlay[S, M], default: str) -> tuple[StateAt[S, M], int]:
    """The state at the place that the options name, and the time of the answer."""
    state = await session.open(overlay, default)
    options = session.options
    return state, await answer_time(session.view_of(state), state, options.at is not None, options.when)


async def answer_time(view: StateView[S, M], reading: StateAt[S, M], dated: bool, when: int | None = None) -> int:
    """The time of an answer: --when, else with --at the time of that entry, else the hub's current time."""
    if when is not None:
        return when
    last = (await view.source.receipt(view.stream_id, reading.at)).hub_ts if reading.at.stream_seq else 0
    return last if dated else max(view.source.now(), last)


def filter_of(
    kind: KindName,
    *,
    name: str | None = None,
    method: str | None = None,
    overlay: bytes | None = None,
    schema: str | None = None,
    region: str | None = None,
    tags: Sequence[str] | None = None,
) -> Filter:
    """Return the filter for a kind. Raises `Misuse` for fields that the kind does not have."""
    form = FILTERS[DescriptorKind(kind)]
    given: dict[str, object] = {
        "name_prefix": name,
        "method": method,
        "overlay_id": overlay,
        "schema": None if schema is None else schema_of(schema),
        "region": region,
        "tags_any": tuple(tags) if tags else None,
    }
    known = {one.name for one in form.LAYOUT.kinds}
    for field, value in given.items():
        if value is not None and field not in known:
            word = field.partition("_")[0]
            raise Misuse(f"--{word} does not apply to {kind}s", f"leave out --{word}, or query another kind")
    return form(**{field: value for field, value in given.items() if field in known})  # type: ignore[arg-type]


def schema_of(text: str) -> bytes:
    """Parse a schema name, or a schema id in hex."""
    return bytes.fromhex(text) if len(text) == 64 else naming.schema_id(text)


# How a descriptor, as plain values, is shown in a table.
COLUMNS: dict[KindName, tuple[Column, ...]] = {
    KindName.HUB: (
        "hub_id",
        "region",
        ("endpoints", lambda hub: ", ".join(one["url"] for one in hub["endpoints"])),
        ("tags", listed("tags")),
    ),
    KindName.OVERLAY: (
        "overlay_id",
        "name",
        "version",
        ("schemas", lambda overlay: len(overlay["schemas"])),
        ("tags", listed("tags")),
    ),
    KindName.SERVICE: (
        "service_id",
        "name",
        ("methods", listed("methods")),
        ("regions", listed("regions")),
        ("tags", listed("tags")),
    ),
}
