"""The command group `veen bridge` and its shared options."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, group
from veen.bridge.mirror import MirrorRoute
from veen.cli.kit import pinning, values
from veen.client.client import Client
from veen.client.trust import FIRST_USE, Pin

app = group(
    "bridge",
    """Copy events between hubs together with their proofs.

    Across an air gap, bundles carry events in one direction, and both zones keep a record. Between hubs that can reach
    each other, streams are mirrored.
    """,
)

Trust: TypeAlias = Annotated[
    list[str],
    typer.Option("--trust", metavar="HEX|PATH", help="a trusted source hub: its id, or any value of --pin"),
]
Map: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="FROM=TO",
        help="prefix of source streams, and the prefix of their streams in this zone",
        show_default="export/=import/",
    ),
]
Operator: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--operator", metavar="TEXT", help="name of the operator, for the record", show_default="the client's id"
    ),
]
Every: TypeAlias = Annotated[float, durations.option("--every", least=0.1, help="how long to wait between checks")]

SourceHub: TypeAlias = Annotated[
    str, typer.Option("--source-hub", metavar="URL", help="the source hub", parser=values.url)
]
SourcePin: TypeAlias = Annotated[
    str | None, typer.Option("--source-pin", metavar="HEX|PATH", help="pin of the source hub, like --pin")
]


def trusted(texts: list[str]) -> frozenset[bytes]:
    """The hub ids of the trusted sources."""

    found = set()
    for text in texts:
        pin: Pin = pinning.parse(text)
        hub_id = pin.record.hub_id if pin.record else pin.key
        if hub_id is None:
            raise Misuse(f"--trust {text} is a certificate, which signs no bundles", "give the hub id or identity file")
        found.add(hub_id)
    return frozenset(found)


def need_folder(path: Path) -> Path:
    if not path.is_dir():
        raise Misuse(f"there is no folder {path}", "create it first")
    return path


def routes(texts: list[str], records: str | None, *, copies: bool) -> list[MirrorRoute]:
    """Parse routes of the form STREAM or STREAM=TARGET."""

    found = []
    for text in texts:
        source, given, target = text.partition("=")
        if not source or (given and not target):
            raise Misuse(f"{text!r} is not STREAM or STREAM=TARGET", "name a stream of the source hub")
        found.append(MirrorRoute(source, target or source, records, copies))
    return found


@asynccontextmanager
async def source_client(target: Client, url: str, pin: str | None, first_use: bool) -> AsyncIterator[Client]:
    """A client of the source hub with the keys of the target's client."""

    trust = pinning.for_hub(pin, url) if pin is not None else None
    if trust is None and first_use and target.dir.state.hub_of(url) is None:
        trust = FIRST_USE
    if trust is None and target.dir.state.hub_of(url) is None:
        raise Misuse(
            f"the hub at {url} is not known to this client yet",
            f"pin it with --source-pin HEX|PATH: {pinning.PIN_SOURCES}",
        )
    async with Client(url, target.dir, pin=trust) as source:
        if source.hub_id == target.hub_id:
            raise Misuse("source and target are the same hub", "name two different hubs")
        yield source
