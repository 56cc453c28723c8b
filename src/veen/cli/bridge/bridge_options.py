"""The group, and the options that its commands share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, group
from veen.cli.kit import values

if TYPE_CHECKING:
    from veen.bridge.mirror import MirrorRoute
    from veen.client.client import Client

app = group(
    "bridge",
    """Carry events from one hub to another, with all that proves them.

    Across an air gap they go in bundles, one way only, and both zones keep a record. Between hubs that can reach each
    other they are mirrored.
    """,
)

Trust: TypeAlias = Annotated[
    list[str],
    typer.Option("--trust", metavar="HEX|PATH", help="a hub that bundles may come from: its id, or what --pin takes"),
]
Map: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="FROM=TO",
        help="by the beginning of its name, the stream that stands for one of the other zone",
        show_default="export/=import/",
    ),
]
Operator: TypeAlias = Annotated[
    str | None,
    typer.Option("--operator", metavar="TEXT", help="who does it, for the record", show_default="the client's own id"),
]
Every: TypeAlias = Annotated[
    float, durations.option("--every", least=0.1, help="how long to wait before looking again")
]

SourceHub: TypeAlias = Annotated[
    str, typer.Option("--source-hub", metavar="URL", help="the hub that messages come from", parser=values.url)
]
SourcePin: TypeAlias = Annotated[
    str | None, typer.Option("--source-pin", metavar="HEX|PATH", help="whom to believe there, as --pin says")
]


def trusted(texts: list[str]) -> frozenset[bytes]:
    """The ids of hubs that are trusted as sources."""
    from veen.cli.kit import pinning
    from veen.client.trust import Pin

    found = set()
    for text in texts:
        pin: Pin = pinning.parse(text)
        hub_id = pin.record.hub_id if pin.record else pin.key
        if hub_id is None:
            raise Misuse("a certificate says nothing of what a hub signed", "give the hub's id, or its papers")
        found.add(hub_id)
    return frozenset(found)


def need_folder(path: Path) -> Path:
    if not path.is_dir():
        raise Misuse(f"there is no folder {path}", "make it first")
    return path


def routes(texts: list[str], records: str | None, *, copies: bool) -> "list[MirrorRoute]":
    """Which streams go where, from STREAM or STREAM=TARGET."""
    from veen.bridge.mirror import MirrorRoute

    found = []
    for text in texts:
        source, given, target = text.partition("=")
        if not source or (given and not target):
            raise Misuse(f"{text!r} is not STREAM or STREAM=TARGET", "name a stream of the source")
        found.append(MirrorRoute(source, target or source, records, copies))
    return found


@asynccontextmanager
async def source_client(target: "Client", url: str, pin: str | None, first_use: bool) -> "AsyncIterator[Client]":
    """The hub that messages come from, met with the same keys."""
    from veen.cli.kit import pinning
    from veen.client.client import Client
    from veen.client.trust import FIRST_USE

    believed = pinning.for_hub(pin, url) if pin is not None else None
    if believed is None and first_use and target.dir.state.hub_of(url) is None:
        believed = FIRST_USE
    if believed is None and target.dir.state.hub_of(url) is None:
        raise Misuse(
            f"nothing is known yet of the hub at {url}", f"--source-pin HEX|PATH names it: {pinning.PIN_SOURCES}"
        )
    async with Client(url, target.dir, pin=believed) as source:
        if source.hub_id == target.hub_id:
            raise Misuse("source and target are the same hub", "a mirror is between two")
        yield source
