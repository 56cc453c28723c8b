"""Commands that read state or send events. A command is a coroutine; it returns its result, which is then printed.

    @read_command(app, "get", "veen kv get door --stream settings")
    async def get(session: ReadSession, key: Key) -> Answer:
        state = await session.open(KV)
        return Answer({"key": key, "value": state.state(key).value}, parts=(key,))

    @send_command(app, "retry", "veen queue retry 9e3c07… --stream letters")
    async def retry(session: SendSession, task: TaskId) -> SentResult:
        return await session.send(QUEUE, TaskRetry(task), {"task": task})

The client directory is opened, and the hub contacted, when the command first needs them. So a mistake on the command
line is reported before anything else.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import typer

from plumbing.cli.command import F, Misuse, misuse, options_command
from veen.cli.kit import context_file, key_files, open_session, output, output_files, pinning
from veen.cli.kit.common_options import FollowOptions, HubOptions, ReadOptions, SendOptions
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.result import Column, Moment, Result, cell, fixed
from veen.cli.kit.sanitize import line_of, short, text_of
from veen.client import ClientDir, cbor_sequence
from veen.client.client import Client
from veen.client.evidence import Evidence
from veen.client.sender import Undecided
from veen.core import Malformed, Receipt, Refused, Unavailable, Unverified, naming
from veen.overlays import AnyOverlay, At, Event, EventFault, FoldStep, Overlay
from veen.state.directory_source import DirectorySource
from veen.state.entry_source import EntrySource, HubSource
from veen.state.event_sender import EventRefused, EventSender, SentEvent
from veen.state.state_proof import prove
from veen.state.state_view import StateAt, StateView, shown
from veen.storage.paths import Folders

S = TypeVar("S")
M = TypeVar("M")
E = TypeVar("E", bound=Event)
O = TypeVar("O", bound=HubOptions)  # noqa: E741

_LOG_PARTS = ("chunk", "entry", "journal", "log")  # `Malformed.what` of errors that mean a damaged data directory


@dataclass(frozen=True, slots=True)
class StateBasis:
    """The log that an answer was computed from, and the evidence for the answer if requested."""

    hub_id: bytes
    stream: str
    at: At
    mmr_root: bytes | None
    state_hash: bytes | None = None
    evidence: Evidence | None = None
    file: Path | None = None  # where the evidence goes


@dataclass(frozen=True, slots=True)
class Answer(Result):
    """A result that was computed from the state of a stream: by default the one that the command opened last."""

    data: Mapping[str, Any]
    _: KW_ONLY
    parts: tuple[bytes, ...] = ()  # the parts that prove it
    steps: tuple[FoldStep, ...] | None = None  # entries to prove, if the answer shows more than `parts` depend on
    state: StateAt[Any, Any] | None = None
    basis: StateBasis | None = None  # added when the command has ended

    def print(self, as_json: bool) -> None:
        basis = self.basis
        assert basis is not None
        if basis.evidence is not None and basis.file is not None:
            output_files.write_new(basis.file, basis.evidence.encode())
        Result.print(replace(self, data={**self.data, **_basis_data(basis)}) if as_json else self, as_json)
        if basis.evidence is not None and not as_json:
            _show_evidence(basis, basis.evidence)


@dataclass(frozen=True, slots=True)
class SentResult(Result):
    """The result of sending an event. Printing it raises `Refused` if the state did not apply the event."""

    _: KW_ONLY
    event: SentEvent

    def show(self, as_json: bool) -> None:
        Result.show(self, as_json)
        if not self.event.applied:
            # The event is in the log, but an entry between the check and this one made it a fault.
            raise hinted(
                Refused("E.STATE", "another entry came first, so the state did not apply this one"),
                "read the state again before you send another event",
            )


class StateSession(Generic[O]):
    """The client directory, and the hub or the data directory, that the options of a command name."""

    def __init__(self, options: O) -> None:
        self.options = options
        self.data_dir: Path | None = getattr(options, "data_dir", None)
        self.cached = not getattr(options, "no_cache", False)
        self._call = options.call()
        self._folder: ClientDir | None = None
        self._folders = ExitStack()
        self._resources = AsyncExitStack()
        self._readings = AsyncExitStack()
        self._source: EntrySource | None = None
        self._hinted: set[str] = set()
        self._views: list[StateView[Any, Any]] = []
        self._opened: list[tuple[StateAt[Any, Any], StateView[Any, Any], str]] = []

    async def run(self, work: Callable[..., Awaitable[Result | None]], given: Mapping[str, Any]) -> Result | None:
        """Run a command. The result of a command that answers from state includes the log that it is based on."""
        with self._folders:
            async with self._resources, self._readings:
                result = await work(self, **given)
                return replace(result, basis=await self._basis(result)) if isinstance(result, Answer) else result

    @property
    def folder(self) -> ClientDir:
        """The client directory."""
        if self._folder is None:
            if self.data_dir is None:
                self._call.url()
            opened = open_session.open_client_dir(self.options.client, self.options.passphrase_file)
            self._folder = self._folders.enter_context(opened)
        return self._folder

    async def source(self) -> EntrySource:
        """The hub or the data directory."""
        if self._source is None and self.data_dir is not None:
            self._resources.enter_context(data_dir_hints(self.data_dir))
            pin = pinning.pinned_key(self.options.pin)
            self._source = DirectorySource(self.data_dir, self.folder, pin)
        elif self._source is None:
            contact = self._call.connected(self.folder, self._call.url())
            self._source = HubSource(await self._resources.enter_async_context(contact))
        return self._source

    async def client(self) -> Client:
        source = await self.source()
        assert isinstance(source, HubSource)
        return source.client

    def stream(self, default: str | None = None) -> str:
        """The stream of --stream, else the default, else that of the context."""
        given: str | None = getattr(self.options, "stream", None)
        return default if given is None and default is not None else context_file.need_stream(given)

    async def view(self, overlay: Overlay[S, M], stream: str) -> StateView[S, M]:
        """A view of a stream, open until the command ends."""
        for known in self._views:
            if known.overlay is overlay and known.stream_id == naming.stream_id(stream):
                return known
        need_reader_key(self.folder, stream)
        self._add_hints(f"cache of {stream}", cache_hints(stream, overlay.CLASS))
        view = StateView(await self.source(), stream, overlay, cached=self.cached)
        self._views.append(view)
        return await self._resources.enter_async_context(view)

    async def open(self, overlay: Overlay[S, M], default: str | None = None) -> StateAt[S, M]:
        """The state of the stream that the options name, after the entry that they name."""
        return await self.open_at(overlay, self.stream(default))

    async def open_at(self, overlay: Overlay[S, M], stream: str) -> StateAt[S, M]:
        """The state of a stream after the entry that the options name."""
        view = await self.view(overlay, stream)
        return await self._read(view, stream, parse_place(getattr(self.options, "at", None), view))

    async def open_other(self, overlay: Overlay[S, M], stream: str) -> StateAt[S, M]:
        """The current state of another stream."""
        return await self._read(await self.view(overlay, stream), stream, None)

    def view_of(self, state: StateAt[S, M]) -> StateView[S, M]:
        """The view that a state was read from."""
        return next(view for one, view, _ in self._opened if one is state)

    async def close_states(self) -> None:
        """End the use of all states, so that new entries can be folded."""
        await self._readings.aclose()
        self._opened.clear()

    async def disconnect(self) -> None:
        """Close the hub's session. It is contacted again when the command needs it."""
        await self.close_states()
        await self._resources.aclose()
        self._views.clear()
        self._hinted.clear()
        self._source = None

    def _add_hints(self, about: str, hints: AbstractContextManager[None]) -> None:
        """Add hints to errors until the command ends. Each kind is added once, so no hint is repeated."""
        if about not in self._hinted:
            self._hinted.add(about)
            self._resources.enter_context(hints)

    async def _read(self, view: StateView[S, M], name: str, at: At | None) -> StateAt[S, M]:
        state = await self._readings.enter_async_context(view.reading(at))
        self._opened.append((state, view, name))
        return state

    async def _basis(self, answer: Answer) -> StateBasis:
        wanted = self._opened[-1][0] if answer.state is None else answer.state
        state, view, name = next(one for one in self._opened if one[0] is wanted)
        root = (await view.source.receipt(view.stream_id, state.at)).mmr_root if state.at.stream_seq else None
        basis = StateBasis(view.source.known.identity.hub_id, name, state.at, root)
        options: Any = self.options
        if not options.prove and options.out is None:
            return basis
        if not answer.parts:
            raise Misuse(
                "no single entry proves this answer: it depends on the whole log",
                "veen snapshot make writes a file that binds the state to the log",
            )
        made = await prove(view, state, *answer.parts, steps=answer.steps)
        return replace(basis, state_hash=state.state_hash(*answer.parts), evidence=made, file=options.out)


ReadSession: TypeAlias = StateSession[ReadOptions]
FollowSession: TypeAlias = StateSession[FollowOptions]


class SendSession(StateSession[SendOptions]):
    """A session that sends events to the hub, with the capabilities that the options name, if any."""

    async def source(self) -> EntrySource:
        if self._source is None:
            path = context_file.cap_of(self.options.cap)
            given = key_files.read_capabilities(path) if path else ()
            await super().source()
            if given:
                self.folder.caps.add_all(cbor_sequence.encode(given))
        return await super().source()

    def check_keys(self, stream: str) -> None:
        if self.folder.stream_keys.public(naming.stream_id(stream)) is None:
            raise hinted(
                Unavailable(f"the client directory has no key of stream {stream!r}, and messages are sealed to it"),
                f"veen stream-key import FILE adds the key that readers of {stream} exported",
                f"veen stream-key create {stream} creates it, if the stream is new",
            )
        if not self.options.blind:
            need_reader_key(self.folder, stream)

    def create_key(self, stream: str) -> None:
        """Create the key of a stream that this client itself starts, if there is none."""
        if self.folder.stream_keys.public(naming.stream_id(stream)) is None:
            self.folder.stream_keys.create(stream)
            output.remark(
                f"created the key of stream {stream}; veen stream-key export {stream} writes it for other readers"
            )

    def reject_blind(self, what: str = "the state before it sends") -> None:
        """Raise `Misuse` for --blind, because the command reads the stream."""
        if self.options.blind:
            raise Misuse(f"this command needs to read {what}", "leave out --blind")

    async def open(self, overlay: Overlay[S, M], default: str | None = None) -> StateAt[S, M]:
        self.reject_blind()
        self.check_keys(self.stream(default))
        return await super().open(overlay, default)

    async def open_unless_blind(self, overlay: Overlay[S, M], default: str | None = None) -> StateAt[S, M] | None:
        return None if self.options.blind else await self.open(overlay, default)

    async def at_hub(self, overlay: Overlay[S, M], default: str | None = None) -> tuple[Client, str]:
        """The client and the stream's name, once the client has the keys of the stream."""
        name = self.stream(default)
        self.check_keys(name)
        self._add_hints(f"cache of {name}", cache_hints(name, overlay.CLASS))
        self._add_hints("send", send_hints(f"veen fold --overlay {overlay.CLASS} shows the state"))
        return await self.client(), name

    async def send(
        self,
        overlay: Overlay[S, M],
        event: Event | Callable[[int], Event],
        data: Mapping[str, Any],
        *,
        facts: Sequence[Column] | None = None,
        default: str | None = None,
        parent_id: bytes | None = None,
        expires_in: int | None = None,
    ) -> SentResult:
        """Send an event, or the event of the hub's time, unless the state rejects it. `data` and `facts` describe it.

        With --blind the event is sent without a check.
        """
        client, name = await self.at_hub(overlay, default)
        now = client.session.clock.now()
        made = sendable(event if isinstance(event, Event) else event(now))
        expires_at = None if expires_in is None else now + expires_in
        if self.options.blind:
            body = made.encode()
            sent = await client.send(name, body, schema=made.SCHEMA, parent_id=parent_id, expires_at=expires_at)
            return self.sent(SentEvent(sent), data, facts)
        opened = [state for state, view, stream in self._opened if stream == name and view.overlay is overlay]
        state = opened[-1] if opened else await self.open_other(overlay, name)
        sender = EventSender(self.view_of(state))
        sender.check(state, made, parent_id)
        await self.close_states()
        return self.sent(await sender.send_unchecked(made, parent_id=parent_id, expires_at=expires_at), data, facts)

    def sent(self, event: SentEvent, data: Mapping[str, Any], facts: Sequence[Column] | None = None) -> SentResult:
        """The receipt of an event, and whether the state applied it."""
        sent, reasons = event.sent, [fault.reason for fault in event.faults]
        outcome = Marked("applied", Tone.GOOD)
        if self.options.blind:
            outcome = Marked("not checked (--blind)", Tone.WARN)
        elif reasons:
            outcome = Marked(f"not applied: {'; '.join(reasons)}", Tone.BAD)
        document = {
            **data,
            "stream_seq": sent.stream_seq,
            "msg_id": sent.msg_id,
            "hub_ts": Moment(sent.receipt.hub_ts),
            "epoch": sent.epoch,
            "label": sent.label,
            "mmr_root": sent.receipt.mmr_root,
            "receipt": sent.receipt.encode(),
            "taken": None if self.options.blind else event.applied,
            "faults": reasons,
        }
        own = fixed(tuple(data) if facts is None else facts, data)
        lines = (*own, "stream_seq", "msg_id", "hub_ts", ("state", lambda _: outcome))
        return SentResult(document, facts=lines, event=event)


def state_command(
    session: type[Any], options: type[HubOptions], app: typer.Typer, name: str, *examples: str
) -> Callable[[F], F]:
    """Declare a command whose first argument is a session with these options."""

    def run(work: Callable[..., Awaitable[Result | None]], given_options: Any, **given: Any) -> None:
        run_session(session, given_options, work, **given)

    return options_command(options, app, name, *examples, runner=run)


def run_session(session: type[Any], options: Any, work: Callable[..., Awaitable[Result | None]], **given: Any) -> None:
    """Run `work` with a session, and print the result."""
    if getattr(options, "out", None) is not None:
        output_files.check_new(options.out)
    result = asyncio.run(session(options).run(work, given))
    if result is not None:
        result.show(options.as_json)


read_command = partial(state_command, StateSession, ReadOptions)  # a command that shows state
follow_command = partial(state_command, StateSession, FollowOptions)  # a command that runs on as entries arrive
send_command = partial(state_command, SendSession, SendOptions)  # a command that sends an event


def sendable(event: E) -> E:
    """Return the event. Raises `Misuse` if it does not fit into a message."""
    with misuse("change the value that the message names; --help describes it"):
        event.encode()
    return event


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


@contextmanager
def send_hints(*more: str) -> Iterator[None]:
    """Add hints to errors about an event that was not sent, or whose outcome is not known."""
    try:
        yield
    except EventRefused as error:
        raise hinted(error, "nothing was sent", *more) from None
    except Undecided as error:
        raise hinted(error, "do not send it again: veen send --outbox completes it and shows the outcome") from None


def _basis_data(basis: StateBasis) -> dict[str, Any]:
    made = basis.evidence
    data = {
        "stream": basis.stream,
        "hub_id": basis.hub_id,
        "at": place_data(basis.at),
        "mmr_root": basis.mmr_root,
    }
    if made is None:
        return data
    entries = [
        {
            "label": receipt.label,
            "stream_seq": receipt.stream_seq,
            "msg_id": receipt.leaf_hash,
            "hub_ts": receipt.hub_ts,
            "receipt": receipt.encode(),
        }
        for receipt in _receipts(made)
    ]
    stored = {"bytes": made.encode()} if basis.file is None else {"file": str(basis.file)}
    return {**data, "state_hash": basis.state_hash, "evidence": {"entries": entries, **stored}}


def _show_evidence(basis: StateBasis, made: Evidence) -> None:
    if sys.stdout.isatty():
        sys.stdout.write("\n")
    file = {"evidence": str(basis.file)} if basis.file else {}
    rows = {"state_hash": basis.state_hash, "log of": shown(basis.at), "mmr_root": basis.mmr_root, **file}
    output.facts(rows, False)
    listed = [("entry", one.stream_seq, output.moment(one.hub_ts), short(one.leaf_hash)) for one in _receipts(made)]
    output.table(("what", "entry", "hub_ts", "msg_id"), listed, False)


def _receipts(made: Evidence) -> list[Receipt]:
    """Return the receipts of the exhibited entries."""
    leaves = {one.msg.leaf_hash() for one in made.exhibits}
    return [receipt for receipt in made.receipts if receipt.leaf_hash in leaves]


def place_data(at: At) -> dict[str, int]:
    return {"epoch": at.epoch, "stream_seq": at.stream_seq}


def entry_of(row: Mapping[str, Any]) -> str:
    """The place of a row's entry."""
    return shown(At(row["epoch"], row["stream_seq"]))


ENTRY: Column = ("entry", entry_of)
STEP_COLUMNS: tuple[Column, ...] = (ENTRY, "hub_ts", "client_id")
FAULT_COLUMNS: tuple[Column, ...] = (ENTRY, "kind", ("part", lambda row: part_name(row["part"])), "reason")


def step_data(step: FoldStep) -> dict[str, Any]:
    """The place, time, client and id of a step's entry. `STEP_COLUMNS` shows it."""
    entry = step.entry
    sent = {"hub_ts": Moment(entry.hub_ts), "client_id": entry.client_id, "msg_id": entry.msg_id}
    return {**place_data(entry.at), **sent}


def fault_data(faults: Iterable[EventFault]) -> list[dict[str, Any]]:
    """Faults as rows for `FAULT_COLUMNS`."""
    return [{**place_data(one.place), "kind": one.kind, "reason": one.reason, "part": one.part} for one in faults]


def add_faults(
    app: typer.Typer,
    command: str,
    open_state: Callable[[Any], Awaitable[StateAt[Any, Any]]],
    *,
    example: str = "",
    options: type[HubOptions] = ReadOptions,
) -> None:
    """Add `faults` to a command group: it lists the entries that the overlay could not apply."""

    async def faults(session: StateSession[Any]) -> Answer:
        return faults_answer(command, await open_state(session))

    faults.__doc__ = f"""List the entries that {command} could not apply, with the reasons.

    They stay in the log. Every command skips them.
    """
    examples = (f"{command} faults{example}", f"{command} faults --at 100 --json")
    state_command(StateSession, options, app, "faults", *examples)(faults)


def faults_answer(command: str, state: StateAt[Any, Any]) -> Answer:
    found = fault_data(state.faults())
    remarks = () if found else (f"no faults: {command} applied every entry that it reads",)
    return Answer({"faults": found}, rows="faults", columns=FAULT_COLUMNS, remarks=remarks)


def part_name(part: bytes | None) -> output.Value:
    """The name of a part: its text if it is text, else hex."""
    if part is None:
        return None
    return line_of(part) if text_of(part) is not None else short(part)


def key_data(key: bytes) -> dict[str, Any]:
    """A key for JSON: its bytes, and its text or None."""
    return {"key": key, "key_text": text_of(key)}


def part_data(kind: AnyOverlay, part: bytes, state: Any) -> dict[str, Any]:
    """A part of any overlay's state."""
    return {"part": part, "state": kind.plain(part, state)}


def plain_line(part: bytes, state: Mapping[str, Any]) -> str:
    """The plain state of a part as NAME=VALUE on one line."""
    words = {name: _word(plain_cell(one)) for name, one in state.items() if one is not None and one != part}
    return " ".join(f"{name}={word}" for name, word in words.items())


def plain_cell(value: Any) -> output.Value:
    """A value of a plain state as text. Bytes that are text are shown as text."""
    return part_name(value) if isinstance(value, bytes) else cell(value)


def plain_facts(names: Iterable[str]) -> list[Column]:
    """Lines for these values of a plain state."""

    def line(name: str) -> Column:
        return name, lambda data: plain_cell(data[name])

    return [line(name) for name in names]


def _word(value: output.Value) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
