"""State that a command tells of: from a hub or a data directory, at any place, with what proves it."""

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
from veen.state.state_at import StateAt
from veen.state.state_proof import prove
from veen.state.state_view import StateView
from veen.storage.paths import Folders

S = TypeVar("S")
M = TypeVar("M")
T = TypeVar("T")

_OF_A_LOG = ("chunk", "entry", "journal", "log")  # what is malformed where a data directory is damaged


@dataclass(frozen=True, slots=True)
class StateAnswer:
    """What a command found: `facts` or a table for people, `data` for JSON, and the parts that it follows from.

    `text`, where it is given, is all that is shown without JSON: what a script wants to take as it is.
    """

    facts: Mapping[str, output.Value] = field(default_factory=dict)
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[output.Value]] = ()
    data: Mapping[str, object] = field(default_factory=dict)
    parts: tuple[bytes, ...] = ()
    steps: tuple[FoldStep, ...] | None = (
        None  # what the answer shows, where that is more than what its parts follow from
    )
    text: str | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StateBasis:
    """The log that an answer is of, and the evidence for it where that was asked for."""

    hub_id: bytes
    stream: str
    at: At
    mmr_root: bytes | None
    state_hash: bytes | None = None
    evidence: Evidence | None = None


def show_state(
    asked: ReadOptions,
    overlay: Overlay[S, M],
    look: Callable[[StateAt[S, M]], StateAnswer],
    *,
    stream: str | None = None,
) -> None:
    """Look at the state that the options name, and show what was found. `stream` is the one where none is named."""
    from veen.cli.kit import render_state

    if asked.out is not None:
        output_files.check_new(asked.out)

    async def ask(view: StateView[S, M], name: str) -> tuple[StateAnswer, StateBasis]:
        async with view.reading(parse_place(asked.at, view)) as reading:
            found = look(reading)
            return found, await basis_of(asked, view, reading, name, found)

    found, basis = with_view(asked, overlay, ask, stream=stream)
    render_state.show_answer(found, basis, asked)


async def basis_of(
    asked: ReadOptions, view: StateView[S, M], reading: StateAt[S, M], name: str, found: StateAnswer
) -> StateBasis:
    """What an answer is of, with the evidence for it where the options ask for that."""
    hub_id, at = view.source.known.identity.hub_id, reading.at
    root = (await view.source.receipt(view.stream_id, at)).mmr_root if at.stream_seq else None
    if not asked.prove and asked.out is None:
        return StateBasis(hub_id, name, at, root)
    if not found.parts:
        raise Misuse("this answer follows from the whole log", "veen snapshot make writes a file that binds it to that")
    made = await prove(view, reading, *found.parts, steps=found.steps)
    return StateBasis(hub_id, name, at, root, reading.state_hash(*found.parts), made)


def with_view(
    asked: ReadOptions | FollowOptions,
    overlay: Overlay[S, M],
    work: Callable[[StateView[S, M], str], Awaitable[T]],
    *,
    stream: str | None = None,
) -> T:
    """Do something with the view that the options name: of a hub, or of a data directory."""
    name = stream if asked.stream is None and stream is not None else context_file.need_stream(asked.stream)
    data_dir = asked.data_dir if isinstance(asked, ReadOptions) else None
    call = asked.call()
    url = call.url() if data_dir is None else ""
    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder, cache_hints(name, overlay.CLASS):
        need_reader_key(folder, name)
        if data_dir is None:

            async def met(client: Client) -> T:
                async with StateView.of(client, name, overlay, cached=not asked.no_cache) as view:
                    return await work(view, name)

            return call.run_with(folder, url, met)

        async def read(source: DirectorySource) -> T:
            async with StateView(source, name, overlay, cached=not asked.no_cache) as view:
                return await work(view, name)

        with data_dir_hints(data_dir):
            return asyncio.run(read(DirectorySource(data_dir, folder, pinning.pinned_key(asked.pin))))


def parse_place(text: str | None, view: StateView[S, M]) -> At | None:
    """What --at names; without an epoch, that of the hub's present one."""
    if text is None:
        return None
    epoch, _, seq = text.rpartition(":")
    if not all(part.isascii() and part.isdigit() and len(part) < 20 for part in ((epoch, seq) if epoch else (seq,))):
        raise Misuse(f"--at {text} names no entry", "give --at SEQ, or --at EPOCH:SEQ")
    return At(int(epoch) if epoch else view.present_epoch(), int(seq))


def need_reader_key(folder: ClientDir, stream: str) -> None:
    keys, stream_id = folder.stream_keys, naming.stream_id(stream)
    if keys.secret(stream_id) is None:
        error = hinted(
            Unavailable(f"there is no reader key of stream {stream!r} here: its state cannot be told"),
            f"veen stream-key import FILE takes in the one that readers of {stream} have",
        )
        if keys.public(stream_id) is None:
            hinted(error, f"veen stream-key create {stream} makes it, where nobody has one yet")
        raise error


@contextmanager
def data_dir_hints(data_dir: Path) -> Iterator[None]:
    """What to do about a data directory that is none, or is damaged."""
    try:
        yield
    except Unavailable as error:
        if not Folders(data_dir).identity.exists():
            hinted(error, f"{data_dir} is no data directory of a hub, and no copy of one: check the path")
        raise
    except Malformed as error:
        if error.what in _OF_A_LOG:
            hinted(error, f"the log is damaged: veen fsck {data_dir} tells where, while no hub runs on it")
        raise


@contextmanager
def cache_hints(stream: str, overlay_class: str) -> Iterator[None]:
    """What to do about what is kept, where it does not go with the log or cannot be used."""
    try:
        yield
    except (Malformed, Unverified) as error:
        if error.what == "cache":
            if isinstance(error, Unverified):
                hinted(error, "the log is not the one that was read before, and that is worth looking into")
            hinted(error, f"veen fold --overlay {overlay_class} --stream {stream} --forget drops what was kept of it")
        raise
    except Unavailable as error:
        if str(error).startswith("the cache"):
            hinted(error, "--no-cache does without")
        raise
