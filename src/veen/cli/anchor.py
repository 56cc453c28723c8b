"""`veen anchor`: bind checkpoints to something that the hub cannot change."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, command, group, misuse, option, options_command
from veen.bridge import anchors
from veen.bridge.anchor_backends import DEFAULT_BRANCH, FileLog, GitRepo, OtherHub, TimeStampingAuthority
from veen.bridge.anchors import Anchored, AnchorStore, Backend, Cadence, PublishedAnchor
from veen.cli.bridge import source_client
from veen.cli.kit import context_file, output, pinning, values
from veen.cli.kit.common_options import ClientDir, HubOptions, JsonOption, Stream, TsaRoot
from veen.cli.kit.output import Marked, Tone
from veen.client.client import Client
from veen.core import Checkpoint
from veen.core.handover import AnchoredLog

T = TypeVar("T")
KINDS = ("file", "git", "tsa", "hub")
_HINT = "give --to file:PATH, git:REPO[#DEFAULT_BRANCH], tsa:URL or hub:URL"

app = group(
    "anchor",
    """Bind checkpoints to something that the hub cannot change.

    A checkpoint can be anchored at another hub, a time-stamping authority, an append-only file or a git repository. The
    anchor and its checkpoint are stored in one file that anyone can verify.
    """,
)

Target: TypeAlias = Annotated[
    str, option("--to KIND:WHERE", "file:PATH, git:REPO[#DEFAULT_BRANCH], tsa:URL or hub:URL")
]
AnchorPin: TypeAlias = Annotated[str | None, option("--anchor-pin HEX|PATH", "for hub: the pin of that hub")]
Store: TypeAlias = Annotated[
    Path | None, option("--store DIR", "folder of the anchor files", show_default="anchors/ in the client directory")
]
_COLUMNS = ("stream_id", "upto_seq", "root", "kind", "place", "ts", "file")


@dataclass(frozen=True, slots=True)
class AnchorOptions(HubOptions):
    """Options of a command that anchors: the target that --to names, and the store."""

    tsa_root: TsaRoot = None
    remote: Annotated[str | None, option("--remote NAME", "for git: the remote to push to")] = None
    anchor_pin: AnchorPin = None
    anchor_stream: Annotated[str, option("--anchor-stream NAME", "for hub: the stream on that hub")] = "anchors"
    store: Store = None

    def run(self, to: str, work: Callable[[Client, Backend, AnchorStore], Awaitable[T]]) -> T:
        """Run `work` at the hub with the backend of --to. Contradictory options are rejected before that."""
        kind, where = target_of(to)
        if kind == "tsa" and self.tsa_root is None:
            raise Misuse("a time stamp cannot be verified without the root certificate", "give --tsa-root PEM")
        if self.remote is not None and kind != "git":
            raise Misuse("--remote needs a git target", "leave it out, or give --to git:REPO")

        async def run_work(client: Client) -> T:
            store = AnchorStore(client.dir.path / "anchors" if self.store is None else self.store)
            if kind != "hub":
                return await work(client, _backend(kind, where, self.tsa_root, self.remote), store)
            async with source_client(client, where, self.anchor_pin, self.first_use) as other:
                return await work(client, OtherHub(other, other.hub_id, self.anchor_stream), store)

        return self.call().run(run_work)


def target_of(text: str) -> tuple[str, str]:
    """Split the value of --to into kind and location."""
    kind, _, where = text.partition(":")
    if kind not in KINDS or not where:
        raise Misuse(f"{text!r} is not an anchor target", _HINT)
    if kind != "hub":
        return kind, where
    with misuse(_HINT):
        return kind, values.url(where)


def _offline_backend(target: str, tsa_root: Path | None) -> Backend:
    """The backend of a target that is verified without a session."""
    kind, _, where = target.partition(":")
    if kind not in ("file", "git", "tsa") or (kind == "tsa" and tsa_root is None):
        raise Misuse(f"{target!r} cannot be verified here", "give file:PATH, git:REPO, or tsa: with --tsa-root PEM")
    return _backend(kind, where, tsa_root)


def _backend(kind: str, where: str, tsa_root: Path | None, remote: str | None = None) -> Backend:
    """The backend of any kind except hub, which needs a session. An authority without URL verifies only."""
    if kind == "file":
        return FileLog(Path(where))
    if kind == "git":
        path, _, branch = where.partition("#")
        return GitRepo(Path(path), branch or DEFAULT_BRANCH, remote)
    assert tsa_root is not None
    return TimeStampingAuthority(where or None, tsa_root)


@dataclass(frozen=True, slots=True)
class VerifiedAnchors:
    """Anchored checkpoints, and the earliest verified time of each."""

    checkpoints: tuple[Checkpoint, ...]
    times: dict[AnchoredLog, int]


def verified_anchors(files: list[Path], target: str | None, tsa_root: Path | None) -> VerifiedAnchors:
    """Verify anchors where they were published, and that the hubs in their files signed the checkpoints.

    The caller must check that these are the hub in question.
    """
    if target is None:
        raise Misuse("an anchor is verified where it was published", "give --anchored-in file:PATH, git:REPO or tsa:")
    backend = _offline_backend(target, tsa_root)
    found = [anchors.read_anchor(file) for file in files]
    times: dict[AnchoredLog, int] = {}
    for one in found:
        ts = asyncio.run(anchors.verify(one, backend, one.source.identity.hub_id))
        signed = one.checkpoint
        log = signed.label_curr, signed.upto_seq, signed.mmr_root
        times[log] = min(ts, times.get(log, ts))
    return VerifiedAnchors(tuple(one.checkpoint for one in found), times)


@options_command(
    AnchorOptions,
    app,
    "publish",
    "veen anchor publish --stream doors --to file:/var/log/veen-anchors",
    "veen anchor publish --stream doors --to git:anchors.git",
    "veen anchor publish --stream doors --to tsa:https://tsa.example/ --tsa-root tsa.pem",
    "veen anchor publish --stream doors --to hub:https://other.example --anchor-pin 5f1c8a…",
)
def publish(
    asked: AnchorOptions,
    to: Target,
    stream: Stream = None,
    upto: Annotated[int | None, option("--upto N", "anchor the first N entries", min=1, show_default="all")] = None,
) -> None:
    """Anchor the checkpoint of a stream and store the anchor.

    The anchor is verified at once.
    """
    name = context_file.need_stream(stream)

    async def work(client: Client, backend: Backend, kept: AnchorStore) -> PublishedAnchor:
        return await anchors.publish(client, name, backend, kept, upto_seq=upto)

    _show([asked.run(to, work)], asked.as_json, one=True)


@options_command(
    AnchorOptions,
    app,
    "run",
    "veen anchor run --stream doors --to git:anchors.git --every-entries 10000 --every-seconds 300",
    "veen anchor run --stream doors --to file:anchors --every-entries 1 --once",
)
def run(
    asked: AnchorOptions,
    to: Target,
    stream: Stream = None,
    every_entries: Annotated[int | None, option("--every-entries N", "anchor after N new entries", min=1)] = None,
    every_seconds: Annotated[
        int | None,
        durations.whole_option("--every-seconds", least=1, help="anchor after this time if there are new entries"),
    ] = None,
    poll: Annotated[float, durations.option("--poll", least=0.1, help="how often to check for new entries")] = 5.0,
    once: Annotated[bool, option("--once", "check once and exit, for use with a timer")] = False,
) -> None:
    """Anchor a stream continuously, by count and by time.

    The last anchor is read from the store, so the command can be stopped and restarted at any time.
    """
    name = context_file.need_stream(stream)
    if every_entries is None and every_seconds is None:
        raise Misuse("missing --every-entries or --every-seconds", "give --every-entries N, --every-seconds N, or both")
    cadence = Cadence(every_entries, every_seconds)

    async def work(client: Client, backend: Backend, kept: AnchorStore) -> list[PublishedAnchor]:
        if once:
            found = await anchors.once(client, name, backend, kept, cadence)
            return [] if found is None else [found]
        async for one in anchors.run(client, name, backend, kept, cadence, poll):
            _show([one], asked.as_json)
        return []

    _show(asked.run(to, work), asked.as_json)


@command(app, "list", "veen anchor list --client ann", "veen anchor list --store anchors --json")
def list_(
    store: Store = None,
    client: ClientDir = None,
    as_json: JsonOption = False,
) -> None:
    """List the stored anchors by label and number."""
    folder = context_file.need_client(client) / "anchors" if store is None else store
    _show([PublishedAnchor(path, one) for path, one in AnchorStore(folder)], as_json)


@command(
    app,
    "verify",
    "veen anchor verify doors.anchor --pin 5f1c8a… --file /var/log/veen-anchors",
    "veen anchor verify doors.anchor --pin 5f1c8a… --tsa-root tsa.pem",
)
def verify(
    files: Annotated[list[Path], argument("FILE", "anchor files from veen anchor publish")],
    pin: Annotated[str, option("--pin HEX|PATH", "the hub that must have signed the checkpoints")],
    file: Annotated[Path | None, option("--file FILE", "the append-only file")] = None,
    git: Annotated[str | None, option("--git REPO[#DEFAULT_BRANCH]", "the repository")] = None,
    tsa_root: TsaRoot = None,
    anchor_pin: AnchorPin = None,
    as_json: JsonOption = False,
) -> None:
    """Verify anchors: the signature of the hub, and the anchor of each checkpoint.

    Time stamps and another hub's evidence are verified offline; anchor files and repositories are read.
    """
    anchor = pinning.pinned_key(pin)
    assert anchor is not None
    rows: list[tuple[output.Value, ...]] = []
    for path in files:
        found = anchors.read_anchor(path)
        backend = _verifying_backend(found.ref.kind, file, git, tsa_root, anchor_pin)
        ts = asyncio.run(anchors.verify(found, backend, anchor))
        root = found.checkpoint.mmr_root
        rows.append((str(path), found.checkpoint.upto_seq, root, found.ref.kind, ts, Marked("holds", Tone.GOOD)))
    output.table(("file", "upto_seq", "root", "kind", "anchored_at", "verdict"), rows, as_json)


def _verifying_backend(
    kind: str, file: Path | None, git: str | None, tsa_root: Path | None, anchor_pin: str | None
) -> Backend:
    """The backend that verifies anchors of this kind."""
    if kind == "file" and file is not None:
        return _backend(kind, str(file), None)
    if kind == "git" and git is not None:
        return _backend(kind, git, None)
    if kind == "tsa" and tsa_root is not None:
        return _backend(kind, "", tsa_root)
    pin = pinning.pinned_key(anchor_pin)
    if kind == "hub" and pin is not None:
        return OtherHub(None, pin)
    wanted = {"file": "--file FILE", "git": "--git REPO", "tsa": "--tsa-root PEM", "hub": "--anchor-pin HEX|PATH"}
    raise Misuse(f"nothing to verify an anchor of kind {kind!r} with", f"give {wanted.get(kind)}")


def _show(found: list[PublishedAnchor], as_json: bool, *, one: bool = False) -> None:
    rows = [_row(done.path, done.anchored) for done in found]
    if one:
        output.facts(dict(zip(_COLUMNS, rows[0], strict=True)), as_json)
    else:
        output.table(_COLUMNS, rows, as_json)


def _row(path: Path, anchored: Anchored) -> tuple[output.Value, ...]:
    ref = anchored.ref
    place = (anchored.stream_id, anchored.checkpoint.upto_seq, anchored.checkpoint.mmr_root)
    return *place, ref.kind, ref.place, output.moment(ref.statement.ts), str(path)
