"""Read state for a command: from a hub or a data directory, at any place, with evidence if requested."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from plumbing.cli.command import Misuse
from veen.cli.kit import context_file, open_session, output, output_files, pinning
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.state_options import FollowOptions, ReadOptions
from veen.client import ClientDir
from veen.client.client import Client
from veen.client.evidence import Evidence
from veen.core import Malformed, Unavailable, Unverified, naming
from veen.overlays import At, FoldStep, Overlay
from veen.state.directory_source import DirectorySource
from veen.state.state_proof import prove
from veen.state.state_view import StateAt, StateView
from veen.storage.paths import Folders

S = TypeVar("S")
M = TypeVar("M")
T = TypeVar("T")

_LOG_PARTS = ("chunk", "entry", "journal", "log")  # `Malformed.what` of errors that mean a damaged data directory


@dataclass(frozen=True, slots=True)
class StateAnswer:
    """The result of a command: `facts` or a table for people, `data` for JSON, and the parts it was computed from.

    `text`, if given, is the only output without --json, for scripts that use the value as it is.
    """

    facts: Mapping[str, output.Value] = field(default_factory=dict)
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[output.Value]] = ()
    data: Mapping[str, object] = field(default_factory=dict)
    parts: tuple[bytes, ...] = ()
    steps: tuple[FoldStep, ...] | None = None  # entries to prove, if the answer shows more than `parts` depend on
    text: str | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StateBasis:
    """The log that an answer was computed from, and the evidence for the answer if requested."""

    hub_id: bytes
    stream: str
    at: At
    mmr_root: bytes | None
    state_hash: bytes | None = None
    evidence: Evidence | None = None


def show_state(
    options: ReadOptions,
    overlay: Overlay[S, M],
    look: Callable[[StateAt[S, M]], StateAnswer],
    *,
    stream: str | None = None,
) -> None:
    """Read the state that the options name and show what `look` returns. `stream` is the default stream."""
    from veen.cli.kit import render_state

    if options.out is not None:
        output_files.check_new(options.out)

    async def read(view: StateView[S, M], name: str) -> tuple[StateAnswer, StateBasis]:
        async with view.reading(parse_place(options.at, view)) as reading:
            found = look(reading)
            return found, await basis_of(options, view, reading, name, found)

    found, basis = with_view(options, overlay, read, stream=stream)
    render_state.show_answer(found, basis, options)


async def basis_of(
    options: ReadOptions, view: StateView[S, M], reading: StateAt[S, M], name: str, found: StateAnswer
) -> StateBasis:
    """Return the log that an answer was computed from, with evidence if the options request it."""
    hub_id, at = view.source.known.identity.hub_id, reading.at
    root = (await view.source.receipt(view.stream_id, at)).mmr_root if at.stream_seq else None
    if not options.prove and options.out is None:
        return StateBasis(hub_id, name, at, root)
    if not found.parts:
        raise Misuse(
            "this answer depends on the whole log, so single entries do not prove it",
            "veen snapshot make writes a file that binds the state to the log",
        )
    made = await prove(view, reading, *found.parts, steps=found.steps)
    return StateBasis(hub_id, name, at, root, reading.state_hash(*found.parts), made)


def with_view(
    options: ReadOptions | FollowOptions,
    overlay: Overlay[S, M],
    work: Callable[[StateView[S, M], str], Awaitable[T]],
    *,
    stream: str | None = None,
) -> T:
    """Run `work` with a view of the hub or data directory that the options name."""
    name = stream if options.stream is None and stream is not None else context_file.need_stream(options.stream)
    data_dir = options.data_dir if isinstance(options, ReadOptions) else None
    call = options.call()
    url = call.url() if data_dir is None else ""
    with (
        open_session.open_client_dir(options.client, options.passphrase_file) as folder,
        cache_hints(name, overlay.CLASS),
    ):
        need_reader_key(folder, name)
        if data_dir is None:

            async def run(client: Client) -> T:
                async with StateView.of(client, name, overlay, cached=not options.no_cache) as view:
                    return await work(view, name)

            return call.run_with(folder, url, run)

        async def read(source: DirectorySource) -> T:
            async with StateView(source, name, overlay, cached=not options.no_cache) as view:
                return await work(view, name)

        with data_dir_hints(data_dir):
            return asyncio.run(read(DirectorySource(data_dir, folder, pinning.pinned_key(options.pin))))


def parse_place(text: str | None, view: StateView[S, M]) -> At | None:
    """Parse --at. Without an epoch it is a place in the hub's current epoch."""
    if text is None:
        return None
    epoch, _, seq = text.rpartition(":")
    if not all(part.isascii() and part.isdigit() and len(part) < 20 for part in ((epoch, seq) if epoch else (seq,))):
        raise Misuse(f"--at {text} is not a place in the log", "give --at SEQ, or --at EPOCH:SEQ")
    return At(int(epoch) if epoch else view.present_epoch(), int(seq))


def need_reader_key(folder: ClientDir, stream: str) -> None:
    keys, stream_id = folder.stream_keys, naming.stream_id(stream)
    if keys.secret(stream_id) is None:
        error = hinted(
            Unavailable(
                f"the client directory has no reader key of stream {stream!r}, so its entries cannot be opened"
            ),
            f"veen stream-key import FILE adds the key that readers of {stream} exported",
        )
        if keys.public(stream_id) is None:
            hinted(error, f"veen stream-key create {stream} creates it, if the stream is new")
        raise error


@contextmanager
def data_dir_hints(data_dir: Path) -> Iterator[None]:
    """Add hints to errors about a path that is not a data directory, or a damaged one."""
    try:
        yield
    except Unavailable as error:
        if not Folders(data_dir).identity.exists():
            hinted(error, f"{data_dir} is neither a hub's data directory nor a copy of one: check the path")
        raise
    except Malformed as error:
        if error.what in _LOG_PARTS:
            hinted(error, f"the log is damaged: stop the hub, then veen fsck {data_dir} locates the damage")
        raise


@contextmanager
def cache_hints(stream: str, overlay_class: str) -> Iterator[None]:
    """Add hints to errors about the state cache: it contradicts the log, is damaged, or cannot be used."""
    try:
        yield
    except (Malformed, Unverified) as error:
        if error.what == "cache":
            if isinstance(error, Unverified):
                hinted(error, "the hub now shows a different log than before; find out why before you go on")
            hinted(error, f"veen fold --overlay {overlay_class} --stream {stream} --forget deletes the cached state")
        raise
    except Unavailable as error:
        if str(error).startswith("the cache"):
            hinted(error, "--no-cache reads the stream without the cache")
        raise
