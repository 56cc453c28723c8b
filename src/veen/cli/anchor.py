"""`veen anchor`: checkpoints bound to something that their hub cannot change."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer

from terminalface import durations
from terminalface.command import Misuse, command, group
from veen.cli import output
from veen.cli.anchoroptions import AnchorPin, AnchorStream, Target, Targets, target_of
from veen.cli.client.options import AtHub
from veen.cli.options import ClientDir, JsonOption, Stream
from veen.cli.output import Marked, Tone
from veen.cli.overlay.declaring import taking

if TYPE_CHECKING:
    from veen.bridge.anchoring import Anchored, AnchorStore, Backend
    from veen.bridge.anchoring.service import Published
    from veen.client.client import Client

T = TypeVar("T")

app = group(
    "anchor",
    """Bind checkpoints to something that their hub cannot change.

    Another hub, a time-stamping authority, an append-only file or a git repository. What each gives is kept beside the
    checkpoint it is of, in one file that anyone can verify.
    """,
)

Store: TypeAlias = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", help="where anchors are kept", show_default="anchors/ of the client"),
]
_COLUMNS = ("stream_id", "upto_seq", "root", "kind", "place", "ts", "file")


@taking(
    AtHub,
    app,
    "publish",
    "veen anchor publish --stream doors --to file:/var/log/veen-anchors",
    "veen anchor publish --stream doors --to git:anchors.git",
    "veen anchor publish --stream doors --to tsa:https://tsa.example/ --tsa-root tsa.pem",
    "veen anchor publish --stream doors --to hub:https://other.example --anchor-pin 5f1c8a…",
)
def publish(
    asked: AtHub,
    to: Target,
    stream: Stream = None,
    upto: Annotated[
        int | None, typer.Option("--upto", metavar="N", min=1, help="of the first N entries", show_default="all")
    ] = None,
    tsa_root: Annotated[Path | None, typer.Option("--tsa-root", metavar="PEM", help="of a tsa: its root")] = None,
    remote: Annotated[str | None, typer.Option("--remote", metavar="NAME", help="of git: where to push")] = None,
    anchor_pin: AnchorPin = None,
    anchor_stream: AnchorStream = "anchors",
    store: Store = None,
) -> None:
    """Anchor the checkpoint of a stream, and keep what was given for it beside it.

    What was published is verified at once: what does not hold now will not hold later.
    """
    from veen.cli import contextfile

    name = contextfile.need_stream(stream)
    given = Targets(to, tsa_root, remote, anchor_pin, anchor_stream)

    async def work(client: "Client", backend: "Backend", kept: "AnchorStore") -> "Published":
        from veen.bridge import anchoring

        return await anchoring.publish(client, name, backend, kept, upto_seq=upto)

    _tell([_anchoring(asked, given, store, work)], asked.as_json, one=True)


@taking(
    AtHub,
    app,
    "run",
    "veen anchor run --stream doors --to git:anchors.git --every-entries 10000 --every-seconds 300",
    "veen anchor run --stream doors --to file:anchors --every-entries 1 --once",
)
def run(
    asked: AtHub,
    to: Target,
    stream: Stream = None,
    every_entries: Annotated[
        int | None, typer.Option("--every-entries", metavar="N", min=1, help="after so many entries")
    ] = None,
    every_seconds: Annotated[
        int | None, durations.whole_option("--every-seconds", least=1, help="after so long, where anything is new")
    ] = None,
    poll: Annotated[float, durations.option("--poll", least=0.1, help="how often to look")] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="look once: for a timer of yours")] = False,
    tsa_root: Annotated[Path | None, typer.Option("--tsa-root", metavar="PEM", help="of a tsa: its root")] = None,
    remote: Annotated[str | None, typer.Option("--remote", metavar="NAME", help="of git: where to push")] = None,
    anchor_pin: AnchorPin = None,
    anchor_stream: AnchorStream = "anchors",
    store: Store = None,
) -> None:
    """Anchor a stream by count and by time, for ever.

    What was anchored last is known from the store, so it can be stopped at any time.
    """
    from veen.bridge.anchoring import Cadence, service
    from veen.cli import contextfile

    name = contextfile.need_stream(stream)
    if every_entries is None and every_seconds is None:
        raise Misuse("there is no cadence", "give --every-entries N, --every-seconds N, or both")
    cadence = Cadence(every_entries, every_seconds)
    given = Targets(to, tsa_root, remote, anchor_pin, anchor_stream)

    async def work(client: "Client", backend: "Backend", kept: "AnchorStore") -> "list[Published]":
        if once:
            found = await service.once(client, name, backend, kept, cadence)
            return [] if found is None else [found]
        async for one in service.run(client, name, backend, kept, cadence, poll):
            _tell([one], asked.as_json)
        return []

    done = _anchoring(asked, given, store, work)
    _tell(done, asked.as_json)


@command(app, "list", "veen anchor list --client ann", "veen anchor list --store anchors --json")
def list_(
    store: Store = None,
    client: ClientDir = None,
    as_json: JsonOption = False,
) -> None:
    """List the anchors that are kept, by label and number."""
    from veen.bridge.anchoring import AnchorStore
    from veen.bridge.anchoring.service import Published
    from veen.cli import contextfile

    folder = contextfile.need_client(client) / "anchors" if store is None else store
    _tell([Published(path, one) for path, one in AnchorStore(folder)], as_json)


@command(
    app,
    "verify",
    "veen anchor verify doors.anchor --pin 5f1c8a… --file /var/log/veen-anchors",
    "veen anchor verify doors.anchor --pin 5f1c8a… --tsa-root tsa.pem",
)
def verify(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="anchors, as publish keeps them")],
    pin: Annotated[str, typer.Option("--pin", metavar="HEX|PATH", help="the hub whose checkpoints they must be")],
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="the append-only file")] = None,
    git: Annotated[str | None, typer.Option("--git", metavar="REPO[#BRANCH]", help="the repository")] = None,
    tsa_root: Annotated[Path | None, typer.Option("--tsa-root", metavar="PEM", help="the authority's root")] = None,
    anchor_pin: AnchorPin = None,
    as_json: JsonOption = False,
) -> None:
    """Verify anchors: the hub's signature, and what each checkpoint was anchored to.

    A time stamp and another hub's evidence need nobody's answer; a file and a repository are read.
    """
    from veen.bridge import anchoring
    from veen.bridge.anchoring import keeping
    from veen.cli.client import pins

    anchor = pins.anchor(pin)
    assert anchor is not None
    rows: list[tuple[output.Value, ...]] = []
    for path in files:
        found = keeping.read(path)
        backend = Targets.verifying(found.ref.kind, file, git, tsa_root, anchor_pin)
        ts = asyncio.run(anchoring.verify(found, backend, anchor))
        root = found.checkpoint.mmr_root
        rows.append((str(path), found.checkpoint.upto_seq, root, found.ref.kind, ts, Marked("holds", Tone.GOOD)))
    output.table(("file", "upto_seq", "root", "kind", "anchored_at", "verdict"), rows, as_json)


def _anchoring(
    asked: AtHub,
    given: Targets,
    store: Path | None,
    work: "Callable[[Client, Backend, AnchorStore], Awaitable[T]]",
) -> T:
    from veen.bridge.anchoring import AnchorStore

    given.check()
    call = asked.call()

    async def met(client: "Client") -> T:
        kept = AnchorStore(client.dir.path / "anchors" if store is None else store)
        async with _backend(client, given, asked.first_use) as backend:
            return await work(client, backend, kept)

    return call.run(met)


@asynccontextmanager
async def _backend(client: "Client", given: Targets, first_use: bool) -> "AsyncIterator[Backend]":
    from veen.bridge.anchoring.otherhub import OtherHub
    from veen.cli.bridge.group import source_client

    if target_of(given.to)[0] != "hub":
        yield given.backend()
        return
    async with source_client(client, target_of(given.to)[1], given.anchor_pin, first_use) as other:
        yield OtherHub(other, other.hub_id, given.anchor_stream)


def _tell(found: "list[Published]", as_json: bool, *, one: bool = False) -> None:
    rows = [_row(done.path, done.anchored) for done in found]
    if one:
        output.facts(dict(zip(_COLUMNS, rows[0], strict=True)), as_json)
    else:
        output.table(_COLUMNS, rows, as_json)


def _row(path: Path, anchored: "Anchored") -> tuple[output.Value, ...]:
    ref = anchored.ref
    place = (anchored.stream_id, anchored.checkpoint.upto_seq, anchored.checkpoint.mmr_root)
    return *place, ref.kind, ref.place, output.moment(ref.statement.ts), str(path)
