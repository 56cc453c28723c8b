"""`veen send`: one message, one message per line of standard input, or what an earlier run left in the outbox."""

import asyncio
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import Annotated, TypeAlias

from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, option, options_command, single
from veen.cli.kit import context_file, key_files, open_session, output
from veen.cli.kit.common_options import Cap, HubOptions, Stream
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.result import Column, Moment, Result
from veen.cli.stream_key import stream_key_hints
from veen.client import ClientDir as ClientDirectory
from veen.client import cbor_sequence
from veen.client.capabilities import at_hub
from veen.client.client import Client
from veen.client.contradiction import Contradiction
from veen.client.sender import DEFAULT_SCHEMA, Draft, Sent, Settled, Undecided
from veen.core import Malformed, Receipt, Refused, Unavailable, VeenError, naming
from veen.core.cap_token import Capability, token_of
from veen.core.limits import MAX_BODY_BYTES

_BLOCK_BYTES = 1 << 16
_MAX_BLOCKS_AHEAD = 16
_MAX_IN_FLIGHT = 4_096


@dataclass(slots=True)
class SentTally:
    sent: int = 0
    first: Sent | None = None
    last: Sent | None = None
    seconds: float = 0.0

    def note(self, sent: Sent) -> None:
        self.sent += 1
        self.first, self.last = self.first or sent, sent


async def send_lines(client: Client, stream: str, schema: bytes, fd: int, report: Callable[[int], None]) -> SentTally:
    """Send one message per line, in order. An error carries hints that say what happened to which line."""
    tally, began = SentTally(), time.monotonic()
    sender = client.sender(stream)
    waiting: deque[asyncio.Future[Sent]] = deque()
    stopped: VeenError | None = None

    async def await_receipts(max_waiting: int) -> None:
        while waiting and (waiting[0].done() or len(waiting) > max_waiting):
            tally.note(await waiting[0])
            waiting.popleft()
            report(tally.sent)

    try:
        try:
            async for line in _lines(fd):
                await await_receipts(_MAX_IN_FLIGHT - 1)  # before put(): a put after a failure would start a retry
                waiting.append(sender.put(Draft(line, schema)))
        except VeenError as error:  # e.g. a line that is too long; the lines before it still get their receipts
            stopped = error
        await await_receipts(0)
        if stopped is not None:
            raise stopped
    except VeenError as error:
        # Later lines may be in the log or in the outbox already. The hints say which ones must not be sent again.
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        raise hinted(error, *line_report(tally.sent, answers, _outbox_size(client))) from None
    except asyncio.CancelledError:  # ctrl-c gets the same report
        await sender.close()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        for text in line_report(tally.sent, answers, _outbox_size(client)):
            output.remark(text)
        raise
    tally.seconds = time.monotonic() - began
    return tally


def _outbox_size(client: Client) -> int:
    """Number of messages in the outbox for this hub. It was empty before the first line."""
    outbox = client.dir.outbox
    return sum(len(outbox.pending(hub_id, label)) for hub_id, label in outbox.places() if hub_id == client.hub_id)


def line_report(before: int, answers: Sequence[Sent | BaseException], outbox_size: int) -> list[str]:
    """Which lines are in the log, which in the outbox, and where to resume. `answers` are for the lines after `before`.

    The outbox keeps lines in order, so it holds the first `outbox_size` of the lines without an answer.
    """
    numbered = list(enumerate(answers, before + 1))
    logged = [*range(1, before + 1), *(number for number, one in numbered if isinstance(one, Sent))]
    undecided = [number for number, one in numbered if isinstance(one, Undecided | Contradiction)]
    kept = undecided[:outbox_size]
    resume = max((*logged, *kept), default=0) + 1
    missing = sorted(set(range(1, resume)).difference(logged, kept))
    report = [f"in the log: {_ranges(logged)}"]
    if kept:
        report.append(
            f"in the outbox: {_ranges(kept)}; do not send them again: veen send --outbox sends them and shows the "
            "outcome"
        )
    if missing:
        report.append(f"neither in the log nor in the outbox, send again: {_ranges(missing)}")
    report.append(f"resume at line {resume}: it and all later lines are neither in the log nor in the outbox")
    return report


def _ranges(numbers: Iterable[int]) -> str:
    """Ascending line numbers as text, such as `lines 1-4, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    if not runs:
        return "no line"
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"line {shown}" if len(runs) == 1 and runs[0][0] == runs[0][1] else f"lines {shown}"


async def _lines(fd: int) -> AsyncIterator[bytes]:
    """Lines without their line ends. The last line may have no line end."""
    rest = b""
    async for block in _blocks(fd):
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield line
        if len(rest) > MAX_BODY_BYTES:
            raise Malformed("standard input", f"a line is longer than {MAX_BODY_BYTES} bytes, the maximum of a message")
    if rest:
        yield rest


async def _blocks(fd: int) -> AsyncIterator[bytes]:
    """Blocks of input as they arrive.

    A daemon thread reads the file descriptor itself, not `sys.stdin`, so a pending read does not delay the exit.
    """
    loop = asyncio.get_running_loop()
    blocks: asyncio.Queue[bytes | OSError] = asyncio.Queue(_MAX_BLOCKS_AHEAD)

    def read() -> None:
        block: bytes | OSError = b"\n"
        while block and not isinstance(block, OSError):
            try:
                block = os.read(fd, _BLOCK_BYTES)
            except OSError as error:
                block = error
            try:
                asyncio.run_coroutine_threadsafe(blocks.put(block), loop).result()
            except (asyncio.CancelledError, RuntimeError):  # the loop has ended
                return

    Thread(target=read, daemon=True).start()
    while block := await blocks.get():
        if isinstance(block, OSError):
            raise block
        yield block


app = single("send")

_STDIN = "-"
_FILE = "@"
Timeout: TypeAlias = Annotated[
    float | None,
    durations.option(
        "--timeout",
        least=0.001,
        help="how long to wait for a complete response; large transfers get more while data moves",
        show_default="30, with a few retries",
    ),
]
_MAX_LISTED = 3  # messages of an earlier run that are listed one by one


@options_command(
    HubOptions,
    app,
    "send",
    'veen send --stream doors --body "door 4 opened"',
    "veen send --stream doors --body @report.json --schema door.report.v1 --attach photo.jpg",
    "veen send --stream doors --lines < door.log",
)
def send(
    asked: HubOptions,
    words: Annotated[list[str] | None, argument("WORD", "misplaced argument", hidden=True)] = None,
    stream: Stream = None,
    body: Annotated[
        str | None, option("--body TEXT|@FILE|-", "the body; @FILE reads a file, - reads standard input")
    ] = None,
    attach: Annotated[list[Path] | None, option("--attach FILE", "a file to attach")] = None,
    lines: Annotated[bool, option("--lines", "send one message per line of standard input, in batches")] = False,
    outbox: Annotated[bool, option("--outbox", "only send what an earlier run left without a receipt")] = False,
    schema: Annotated[
        str | None, option("--schema NAME", "the schema of the body", show_default="veen.bytes.v1")
    ] = None,
    timeout: Timeout = None,
    cap: Cap = None,
) -> None:
    """Send messages to a stream and verify the hub's receipts.

    The body is sealed for the readers of the stream; the hub cannot read it. Once the hub has answered, the client
    keeps each message in its outbox until the receipt is verified. After a crash or a lost connection, the next command
    sends the same bytes again first, so no message is logged twice. If the hub cannot be reached, the message is not
    saved.
    """
    if words:
        raise _misplaced(words[0], lines)
    job = _SendJob(
        context_file.need_stream(stream) if not outbox else "",
        _body(body, attach, lines, outbox),
        tuple(attach or ()),
        DEFAULT_SCHEMA if schema is None else naming.schema_id(schema),
        key_files.read_capabilities(path) if (path := context_file.cap_of(cap)) else (),
    )
    call = replace(asked.call(), timeout_s=timeout)
    url = call.url()
    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        if outbox:
            _show_settled(call.run_with(folder, url, job.recover), asked.as_json)
            return
        _need_stream_key(folder, job.stream)
        if lines:
            with job.hint_if_not_saved("no line was sent, and none is in the outbox"):
                tally = call.run_with(folder, url, job.send_lines)
            _show_tally(job.stream, tally, asked.as_json)
        else:
            with job.hint_if_not_saved("the message was not sent and is not in the outbox; send it again"):
                sent = call.run_with(folder, url, job.send)
            _show_sent(job.stream, sent, asked.as_json)


@dataclass(slots=True)
class _SendJob:
    stream: str
    body: bytes
    attached: tuple[Path, ...]
    schema: bytes
    capabilities: tuple[Capability, ...]
    reports_lines: bool = False  # errors then carry a report about lines

    @contextmanager
    def hint_if_not_saved(self, hint: str) -> Iterator[None]:
        """Add the hint if the hub did not answer before any message had a place: the outbox is then empty."""
        try:
            yield
        except Unavailable as error:
            if not self.reports_lines and not isinstance(error, Undecided):
                hinted(error, hint)
            raise

    async def recover(self, client: Client) -> list[Settled]:
        return list(await client.recover())

    async def send(self, client: Client) -> Sent:
        _remark_settled(await self.recover(client))
        with ExitStack() as stack:
            stack.enter_context(self._with_hints(client))
            await self._authorize(client)
            if self.attached:
                stack.enter_context(output.tally(f"sending {', '.join(path.name for path in self.attached)}"))
            else:
                stack.enter_context(open_session.announce_wait(client.url))
            return await client.send(self.stream, self.body, schema=self.schema, attachments=self.attached)

    async def send_lines(self, client: Client) -> SentTally:
        _remark_settled(await self.recover(client))
        with self._with_hints(client), output.tally("sending", "messages") as report:
            await self._authorize(client)
            self.reports_lines = True
            return await send_lines(client, self.stream, self.schema, sys.stdin.fileno(), report)

    async def _authorize(self, client: Client) -> None:
        """Authorize the capability given with --cap, so it is used before the stored ones."""
        held = client.dir.caps
        if self.capabilities and client.session.status.admission != "open":
            own = client.dir.writers.current().client_id
            for one in at_hub(self.capabilities, client.hub_id):
                if token_of(one).subject_pk == own and held.granted(client.hub_id, one.auth_ref()) is None:
                    await client.authorize(one)
            held.add_all(cbor_sequence.encode(self.capabilities))

    @contextmanager
    def _with_hints(self, client: Client) -> Iterator[None]:
        """Add hints that name this client and stream."""
        try:
            yield
        except Undecided as error:
            if self.reports_lines:
                raise
            raise hinted(error, "do not send it again: veen send --outbox sends it and shows the outcome") from None
        except Refused as refused:
            if refused.detail_enum in ("CAP_MISSING", "CAP_TTL", "CAP_INVALID"):
                card = client.dir.path / "card.cbor"
                issue = (
                    f"veen cap issue --issuer DIR --subject {card} --stream {self.stream} --ttl SECONDS "
                    f"--hub {client.hub_id.hex()} --out FILE"
                )
                hinted(refused, f"an issuer that the hub trusts can issue one: {issue}; then veen send --cap FILE")
            if refused.detail_enum == "CAP_TTL":
                hinted(refused, "or renew the expired one: veen cap renew FILE --issuer DIR --out NEW")
            raise


def _misplaced(word: str, lines: bool) -> Misuse:
    if lines:
        return Misuse(f"--lines reads standard input, not {word!r}", f"veen send … --lines < {shlex.quote(word)}")
    return Misuse(f"unexpected argument {word!r}", "--body TEXT sends a text, --body @FILE the content of a file")


def _body(body: str | None, attach: list[Path] | None, lines: bool, outbox: bool) -> bytes:
    ways = [name for name, given in (("--body", body is not None), ("--lines", lines), ("--outbox", outbox)) if given]
    if len(ways) > 1:
        raise Misuse(f"{ways[0]} and {ways[1]} contradict each other", "give one of them")
    if attach and (lines or outbox):
        raise Misuse(f"--attach cannot be used with {ways[0]}", "send the attachment with one message, without it")
    if lines or outbox:
        return b""
    if body is None:
        if attach:
            return b""
        raise Misuse("nothing to send", "give --body TEXT, --body @FILE, --body -, --lines or --attach FILE")
    if body == _STDIN:
        return sys.stdin.buffer.read()
    return Path(body[1:]).read_bytes() if body.startswith(_FILE) else body.encode()


def _need_stream_key(folder: ClientDirectory, stream: str) -> None:
    if folder.stream_keys.public(naming.stream_id(stream)) is None:
        raise hinted(
            Unavailable(f"this client has no key of stream {stream!r}, so no reader could open the message"),
            *stream_key_hints(stream),
        )


def _show_sent(stream: str, sent: Sent, as_json: bool) -> None:
    receipt = sent.receipt
    rows = {
        "stream": stream,
        "stream_seq": sent.stream_seq,
        "msg_id": sent.msg_id,
        "mmr_root": receipt.mmr_root,
        "hub_ts": Moment(receipt.hub_ts),
    }
    data = {**rows, "label": sent.label, "epoch": sent.epoch, "receipt": receipt.encode()}
    facts: list[Column] = [*rows, ("verified", lambda _: Marked("signature, place and root", Tone.GOOD))]
    Result(data, facts=facts).show(as_json)


def _show_tally(stream: str, tally: SentTally, as_json: bool) -> None:
    first, last = tally.first, tally.last
    rows = {
        "stream": stream,
        "sent": tally.sent,
        "first_seq": first.stream_seq if first else None,
        "last_seq": last.stream_seq if last else None,
        "mmr_root": last.receipt.mmr_root if last else None,
        "seconds": round(tally.seconds, 3),
        "per_sec": round(tally.sent / tally.seconds if tally.seconds else 0.0),
    }
    verified: Column = ("verified", lambda _: Marked("every signature, place and root", Tone.GOOD))
    Result(rows, facts=[*rows, verified] if tally.sent else None).show(as_json)


def _remark_settled(settled: list[Settled]) -> None:
    for one in settled[:_MAX_LISTED]:
        name = f"message {one.pending.leaf_hash.hex()[:12]}… of an earlier run"
        if isinstance(one.outcome, Receipt):
            output.remark(f"{name} is now entry {one.outcome.stream_seq}")
        else:
            output.remark(f"{name} was refused and dropped: {one.outcome}")
    if len(settled) > _MAX_LISTED:
        output.remark(f"and {len(settled) - _MAX_LISTED} more; veen send --outbox lists all of them")


def _show_settled(settled: list[Settled], as_json: bool) -> None:
    rows: list[tuple[output.Value, ...]] = []
    for one in settled:
        receipt = one.outcome if isinstance(one.outcome, Receipt) else None
        became = Marked("accepted", Tone.GOOD) if receipt else Marked(f"refused: {one.outcome}", Tone.BAD)
        rows.append((one.pending.leaf_hash, receipt.stream_seq if receipt else None, became))
    output.table(("msg_id", "stream_seq", "became"), rows, as_json)
    if as_json:
        return
    accepted = sum(isinstance(one.outcome, Receipt) for one in settled)
    output.remark(f"{accepted} accepted, {len(rows) - accepted} refused" if rows else "the outbox is empty")
