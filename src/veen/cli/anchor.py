"""`veen anchor`: checkpoints bound to something that their hub cannot change."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, command, group
from veen.cli.kit import output, values
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.common_options import ClientDir, JsonOption, Stream
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.state_options import options_command

if TYPE_CHECKING:
    from veen.bridge.anchors import Anchored, AnchorStore, Backend
    from veen.bridge.anchors.service import PublishedAnchor
    from veen.client.client import Client


KINDS = ("file", "git", "tsa", "hub")
_HINT = "give --to file:PATH, git:REPO[#BRANCH], tsa:URL or hub:URL"

Target: TypeAlias = Annotated[
    str,
    typer.Option("--to", metavar="KIND:WHERE", help="file:PATH, git:REPO[#BRANCH], tsa:URL or hub:URL"),
]
AnchorPin: TypeAlias = Annotated[
    str | None,
    typer.Option("--anchor-pin", metavar="HEX|PATH", help="of a hub that is anchored at: who it must be"),
]
AnchorStream: TypeAlias = Annotated[
    str, typer.Option("--anchor-stream", metavar="NAME", help="of such a hub: the stream there")
]


def target_of(text: str) -> tuple[str, str]:
    """What --to names: a kind, and where."""
    kind, _, where = text.partition(":")
    if kind not in KINDS or not where:
        raise Misuse(f"{text!r} names no place for anchors", _HINT)
    if kind != "hub":
        return kind, where
    try:
        return kind, values.url(where)
    except ValueError as error:
        raise Misuse(str(error), _HINT) from None


@dataclass(frozen=True, slots=True)
class Targets:
    """What the options say of a backend."""

    to: str
    tsa_root: Path | None
    remote: str | None
    anchor_pin: str | None
    anchor_stream: str

    def check(self) -> None:
        """Refuse before the work what cannot be."""
        kind, _ = target_of(self.to)
        if kind == "tsa" and self.tsa_root is None:
            raise Misuse("a time stamp cannot be verified without its root", "give --tsa-root PEM")
        if self.remote is not None and kind != "git":
            raise Misuse("--remote is of git", "leave it out, or give --to git:REPO")

    def backend(self) -> "Backend":
        """Of every kind but a hub, which must be met first."""
        kind, where = target_of(self.to)
        if kind == "file":
            return _file(Path(where))
        if kind == "git":
            return _git(where, self.remote)
        assert self.tsa_root is not None
        return _tsa(where, self.tsa_root)

    @staticmethod
    def verifying(
        kind: str, file: Path | None, git: str | None, tsa_root: Path | None, anchor_pin: str | None
    ) -> "Backend":
        """What an anchor of some kind is held against."""
        from veen.bridge.anchors.backends import OtherHub
        from veen.cli.kit import pinning

        if kind == "file" and file is not None:
            return _file(file)
        if kind == "git" and git is not None:
            return _git(git, None)
        if kind == "tsa" and tsa_root is not None:
            return _tsa(None, tsa_root)
        pin = pinning.pinned_key(anchor_pin)
        if kind == "hub" and pin is not None:
            return OtherHub(None, pin)
        wanted = {"file": "--file FILE", "git": "--git REPO", "tsa": "--tsa-root PEM", "hub": "--anchor-pin HEX|PATH"}
        raise Misuse(f"it is not known what this anchor of kind {kind!r} is held against", f"give {wanted.get(kind)}")


def _file(path: Path) -> "Backend":
    from veen.bridge.anchors.backends import FileLog

    return FileLog(path)


def _git(text: str, remote: str | None) -> "Backend":
    from veen.bridge.anchors.backends import DEFAULT_BRANCH, GitRepo

    path, _, branch = text.partition("#")
    return GitRepo(Path(path), branch or DEFAULT_BRANCH, remote)


def _tsa(url: str | None, root: Path) -> "Backend":
    from veen.bridge.anchors.backends import TimeStampingAuthority

    return TimeStampingAuthority(url, root)


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


@options_command(
    HubOptions,
    app,
    "publish",
    "veen anchor publish --stream doors --to file:/var/log/veen-anchors",
    "veen anchor publish --stream doors --to git:anchors.git",
    "veen anchor publish --stream doors --to tsa:https://tsa.example/ --tsa-root tsa.pem",
    "veen anchor publish --stream doors --to hub:https://other.example --anchor-pin 5f1c8a…",
)
def publish(
    asked: HubOptions,
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
    from veen.cli.kit import context_file

    name = context_file.need_stream(stream)
    given = Targets(to, tsa_root, remote, anchor_pin, anchor_stream)

    async def work(client: "Client", backend: "Backend", kept: "AnchorStore") -> "PublishedAnchor":
        from veen.bridge import anchors

        return await anchors.publish(client, name, backend, kept, upto_seq=upto)

    _tell([_anchoring(asked, given, store, work)], asked.as_json, one=True)


@options_command(
    HubOptions,
    app,
    "run",
    "veen anchor run --stream doors --to git:anchors.git --every-entries 10000 --every-seconds 300",
    "veen anchor run --stream doors --to file:anchors --every-entries 1 --once",
)
def run(
    asked: HubOptions,
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
    from veen.bridge.anchors import Cadence, service
    from veen.cli.kit import context_file

    name = context_file.need_stream(stream)
    if every_entries is None and every_seconds is None:
        raise Misuse("there is no cadence", "give --every-entries N, --every-seconds N, or both")
    cadence = Cadence(every_entries, every_seconds)
    given = Targets(to, tsa_root, remote, anchor_pin, anchor_stream)

    async def work(client: "Client", backend: "Backend", kept: "AnchorStore") -> "list[PublishedAnchor]":
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
    from veen.bridge.anchors import AnchorStore
    from veen.bridge.anchors.service import PublishedAnchor
    from veen.cli.kit import context_file

    folder = context_file.need_client(client) / "anchors" if store is None else store
    _tell([PublishedAnchor(path, one) for path, one in AnchorStore(folder)], as_json)


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
    from veen.bridge import anchors
    from veen.bridge.anchors import service
    from veen.cli.kit import pinning

    anchor = pinning.pinned_key(pin)
    assert anchor is not None
    rows: list[tuple[output.Value, ...]] = []
    for path in files:
        found = service.read_anchor(path)
        backend = Targets.verifying(found.ref.kind, file, git, tsa_root, anchor_pin)
        ts = asyncio.run(anchors.verify(found, backend, anchor))
        root = found.checkpoint.mmr_root
        rows.append((str(path), found.checkpoint.upto_seq, root, found.ref.kind, ts, Marked("holds", Tone.GOOD)))
    output.table(("file", "upto_seq", "root", "kind", "anchored_at", "verdict"), rows, as_json)


def _anchoring(
    asked: HubOptions,
    given: Targets,
    store: Path | None,
    work: "Callable[[Client, Backend, AnchorStore], Awaitable[T]]",
) -> T:
    from veen.bridge.anchors import AnchorStore

    given.check()
    call = asked.call()

    async def met(client: "Client") -> T:
        kept = AnchorStore(client.dir.path / "anchors" if store is None else store)
        async with _backend(client, given, asked.first_use) as backend:
            return await work(client, backend, kept)

    return call.run(met)


@asynccontextmanager
async def _backend(client: "Client", given: Targets, first_use: bool) -> "AsyncIterator[Backend]":
    from veen.bridge.anchors.backends import OtherHub
    from veen.cli.bridge.bridge_options import source_client

    if target_of(given.to)[0] != "hub":
        yield given.backend()
        return
    async with source_client(client, target_of(given.to)[1], given.anchor_pin, first_use) as other:
        yield OtherHub(other, other.hub_id, given.anchor_stream)


def _tell(found: "list[PublishedAnchor]", as_json: bool, *, one: bool = False) -> None:
    rows = [_row(done.path, done.anchored) for done in found]
    if one:
        output.facts(dict(zip(_COLUMNS, rows[0], strict=True)), as_json)
    else:
        output.table(_COLUMNS, rows, as_json)


def _row(path: Path, anchored: "Anchored") -> tuple[output.Value, ...]:
    ref = anchored.ref
    place = (anchored.stream_id, anchored.checkpoint.upto_seq, anchored.checkpoint.mmr_root)
    return *place, ref.kind, ref.place, output.moment(ref.statement.ts), str(path)
