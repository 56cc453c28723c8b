"""Sending line by line: as fast as the hub takes them, whether they come from a file or trickle from a program."""

import asyncio
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, command, single
from veen.cli.kit import output
from veen.cli.kit.client_options import HubPin, PassphraseFile, TrustOnFirstUse
from veen.cli.kit.common_options import Cap, ClientDir, HubUrl, JsonOption, Stream
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.output import Marked, Tone
from veen.client.client import Client
from veen.client.contradiction import Contradiction
from veen.client.draft import Draft, Sent
from veen.client.submit_queue import Undecided
from veen.core import Malformed, VeenError
from veen.core.limits import MAX_BODY_BYTES

if TYPE_CHECKING:
    from veen.client import ClientDir as Folder
    from veen.client.client import Client
    from veen.client.draft import Sent
    from veen.client.submit_queue import Settled
    from veen.core import CapToken


_BLOCK_BYTES = 1 << 16
_BLOCKS_AHEAD = 16
_IN_FLIGHT = 4_096


@dataclass(slots=True)
class SentTally:
    """How far it has come."""

    sent: int = 0
    first: Sent | None = None
    last: Sent | None = None
    seconds: float = 0.0

    def note(self, sent: Sent) -> None:
        self.sent += 1
        self.first, self.last = self.first or sent, sent


async def send_lines(client: Client, stream: str, schema: bytes, fd: int, report: Callable[[int], None]) -> SentTally:
    """One message for each line, in order. Raises what stopped it, and says what became of which line."""
    tally, began = SentTally(), time.monotonic()
    sender = client.sender(stream)
    waiting: deque[asyncio.Future[Sent]] = deque()
    stopped: VeenError | None = None

    async def settle(most: int) -> None:
        while waiting and (waiting[0].done() or len(waiting) > most):
            tally.note(await waiting[0])
            waiting.popleft()
            report(tally.sent)

    try:
        try:
            async for line in _lines(fd):
                await settle(_IN_FLIGHT - 1)  # first: what is put after a failure would be tried all over again
                waiting.append(sender.put(Draft(line, schema)))
        except VeenError as error:  # a line that is too long, say: what comes before it is still to be answered
            stopped = error
        await settle(0)
        if stopped is not None:
            raise stopped
    except VeenError as error:
        # Those behind it may be in the log already, or in the outbox: whoever goes on must send neither again.
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        raise hinted(error, *_account(tally.sent, answers, _held(client))) from None
    except asyncio.CancelledError:  # someone has had enough, and is owed the same account
        await sender.close()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        for told in _account(tally.sent, answers, _held(client)):
            output.remark(told)
        raise
    tally.seconds = time.monotonic() - began
    return tally


def _held(client: Client) -> int:
    """How many messages are in the outbox for this hub. It was empty before the first line."""
    outbox = client.dir.outbox
    return sum(len(outbox.pending(hub_id, label)) for hub_id, label in outbox.places() if hub_id == client.hub_id)


def _account(before: int, answers: Sequence[Sent | BaseException], held: int) -> list[str]:
    """Which lines are in the log, which in the outbox, and where to go on. `answers` are of the lines after `before`.

    The outbox holds lines in their order, so of those that have no answer of their own it holds the first.
    """
    numbered = list(enumerate(answers, before + 1))
    logged = [*range(1, before + 1), *(number for number, one in numbered if isinstance(one, Sent))]
    open_ = [number for number, one in numbered if isinstance(one, Undecided | Contradiction)]
    kept = open_[:held]
    resume = max((*logged, *kept), default=0) + 1
    missing = sorted(set(range(1, resume)).difference(logged, kept))
    told = [f"in the log: {_ranges(logged)}"]
    if kept:
        told.append(
            f"in the outbox: {_ranges(kept)}; do not send them again: veen send --outbox finishes them, and tells "
            "the outcome"
        )
    if missing:
        told.append(f"neither in the log nor in the outbox, and to be sent again: {_ranges(missing)}")
    told.append(f"nothing from line {resume} on is in the log or in the outbox: go on there")
    return told


def _ranges(numbers: Iterable[int]) -> str:
    """Line numbers, which ascend, as people write them."""
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
    """Lines without their ends; the last one may have none."""
    rest = b""
    async for block in _blocks(fd):
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield line
        if len(rest) > MAX_BODY_BYTES:
            raise Malformed("standard input", f"a line of more than {MAX_BODY_BYTES} bytes, which no message can hold")
    if rest:
        yield rest


async def _blocks(fd: int) -> AsyncIterator[bytes]:
    """What there is to read, when there is. The thread reads from the descriptor itself and may be left waiting."""
    loop = asyncio.get_running_loop()
    found: asyncio.Queue[bytes | OSError] = asyncio.Queue(_BLOCKS_AHEAD)

    def read() -> None:
        block: bytes | OSError = b"\n"
        while block and not isinstance(block, OSError):
            try:
                block = os.read(fd, _BLOCK_BYTES)
            except OSError as error:
                block = error
            try:
                asyncio.run_coroutine_threadsafe(found.put(block), loop).result()
            except (asyncio.CancelledError, RuntimeError):  # nobody listens any more
                return

    Thread(target=read, daemon=True).start()
    while block := await found.get():
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
        help="give up on an answer that is not complete after so long; large transfers that move get more",
        show_default="30, and again a few times",
    ),
]
_NAMED = 3  # of what an earlier run left, this many are told one by one


@command(
    app,
    "send",
    'veen send --stream doors --body "door 4 opened"',
    "veen send --stream doors --body @report.json --schema door.report.v1 --attach photo.jpg",
    "veen send --stream doors --lines < door.log",
)
def send(
    words: Annotated[list[str] | None, typer.Argument(metavar="WORD", hidden=True, help="out of place")] = None,
    stream: Stream = None,
    body: Annotated[
        str | None, typer.Option("--body", metavar="TEXT|@FILE|-", help="what to say; - is all of standard input")
    ] = None,
    attach: Annotated[list[Path] | None, typer.Option("--attach", metavar="FILE", help="a file to go along")] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="a message for each line of standard input, in batches")
    ] = False,
    outbox: Annotated[bool, typer.Option("--outbox", help="only what an earlier run left without an answer")] = False,
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="NAME", help="what kind of body it is", show_default="veen.bytes.v1"),
    ] = None,
    timeout: Timeout = None,
    cap: Cap = None,
    hub: HubUrl = None,
    client: ClientDir = None,
    pin: HubPin = None,
    first_use: TrustOnFirstUse = False,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Send to a stream, and verify the hub's receipt.

    The body is sealed for the stream's readers; the hub never sees it. Once the hub is met, a message is kept until its
    receipt holds: what a crash or a lost connection leaves behind goes out first next time, byte for byte, so nothing
    is sent twice. Of a hub that cannot be reached nothing is known to seal for, and nothing is kept.
    """
    from veen.cli import cap as caps
    from veen.cli.kit import context_file, open_session
    from veen.client.draft import DEFAULT_SCHEMA
    from veen.core import naming

    if words:
        raise _out_of_place(words[0], lines)
    work = _Work(
        context_file.need_stream(stream) if not outbox else "",
        _body(body, attach, lines, outbox),
        tuple(attach or ()),
        DEFAULT_SCHEMA if schema is None else naming.schema_id(schema),
        caps.read(path) if (path := context_file.cap_of(cap)) else (),
    )
    call = open_session.HubCall(hub, client, passphrase_file, pin, first_use, timeout)
    url = call.url()
    with open_session.open_client_dir(client, passphrase_file) as folder:
        if not outbox:
            _need_key(folder, work.stream)
        if outbox:
            _show_settled(call.run_with(folder, url, work.recover), as_json)
        elif lines:
            with work.unkept("no line was sent, and none is in the outbox"):
                tally = call.run_with(folder, url, work.send_lines)
            _show_tally(work.stream, tally, as_json)
        else:
            with work.unkept("the message was not kept: it was not sent, and is not in the outbox; send it again"):
                sent = call.run_with(folder, url, work.send)
            _show_sent(work.stream, sent, as_json)


class _Work:
    """What is to be sent, and how."""

    def __init__(
        self, stream: str, body: bytes, attached: tuple[Path, ...], schema: bytes, tokens: "tuple[CapToken, ...]"
    ) -> None:
        self.stream = stream
        self._body = body
        self._attached = attached
        self._schema = schema
        self._tokens = tokens
        self._accounted = False

    @contextmanager
    def unkept(self, told: str) -> Iterator[None]:
        """Where the hub did not answer before anything took a place in its log, there is nothing to finish later."""
        from veen.cli.kit.exit_status import hinted
        from veen.client.submit_queue import Undecided
        from veen.core import Unavailable

        try:
            yield
        except Unavailable as error:
            if not self._accounted and not isinstance(error, Undecided):
                hinted(error, told)
            raise

    async def recover(self, client: "Client") -> "list[Settled]":
        return list(await client.recover())

    async def send(self, client: "Client") -> "Sent":
        from veen.cli.kit import open_session

        _tell_settled(await self.recover(client))
        with ExitStack() as shown:
            shown.enter_context(self._advised(client))
            await self._show_leave(client)
            if self._attached:
                shown.enter_context(output.tally(f"sending {', '.join(path.name for path in self._attached)}"))
            else:
                shown.enter_context(open_session.announce_wait(client.url))
            return await client.send(self.stream, self._body, schema=self._schema, attachments=self._attached)

    async def send_lines(self, client: "Client") -> "SentTally":

        _tell_settled(await self.recover(client))
        with self._advised(client), output.tally("sending", "messages") as report:
            await self._show_leave(client)
            self._accounted = True  # from here on it says itself what became of which line
            return await send_lines(client, self.stream, self._schema, sys.stdin.fileno(), report)

    async def _show_leave(self, client: "Client") -> None:
        """The capability that was named comes before others that are held: a hub that takes it is told so first."""
        from veen.client import cbor_sequence

        held = client.dir.caps
        if self._tokens and client.session.status.admission != "open":
            own = client.dir.writers.current().client_id
            for token in self._tokens:
                if token.subject_pk == own and held.granted(client.hub_id, token.auth_ref()) is None:
                    await client.authorize(token)
            held.add_all(cbor_sequence.encode(self._tokens))

    @contextmanager
    def _advised(self, client: "Client") -> Iterator[None]:
        """What to do next, where that depends on who sends what."""
        from veen.cli.kit.exit_status import hinted
        from veen.client.submit_queue import Undecided
        from veen.core import Refused

        try:
            yield
        except Undecided as error:
            if self._accounted:
                raise
            raise hinted(error, "do not send it again: veen send --outbox finishes it, and tells the outcome") from None
        except Refused as refused:
            if refused.detail_enum in ("CAP_MISSING", "CAP_TTL"):
                card = client.dir.path / "card.cbor"
                made = f"veen cap issue --issuer DIR --subject {card} --stream {self.stream} --ttl SECONDS --out FILE"
                hinted(refused, f"an issuer that the hub trusts makes one: {made}; then veen send --cap FILE")
            if refused.detail_enum == "CAP_TTL":
                hinted(refused, "or renews what has expired: veen cap renew FILE --issuer DIR --out NEW")
            raise


def _out_of_place(word: str, lines: bool) -> Misuse:
    """What is sent is not written as a bare word, as people who come here first may think."""
    if lines:
        told = f"--lines takes the lines from standard input, and not from {word!r} by its name"
        return Misuse(told, f"veen send … --lines < {shlex.quote(word)}")
    return Misuse(f"{word!r} follows no option", "--body TEXT says what to send, --body @FILE what is in a file")


def _body(body: str | None, attach: list[Path] | None, lines: bool, outbox: bool) -> bytes:
    """The body that was asked for, one way or the other."""
    ways = [name for name, given in (("--body", body is not None), ("--lines", lines), ("--outbox", outbox)) if given]
    if len(ways) > 1:
        raise Misuse(f"{ways[0]} and {ways[1]} contradict each other", "give one of them")
    if attach and (lines or outbox):
        raise Misuse(f"--attach does not go with {ways[0]}", "attach to one message, with --body or without")
    if lines or outbox:
        return b""
    if body is None:
        if attach:
            return b""
        raise Misuse("there is nothing to send", "give --body TEXT, --body @FILE, --body -, --lines or --attach FILE")
    if body == _STDIN:
        return sys.stdin.buffer.read()
    return Path(body[1:]).read_bytes() if body.startswith(_FILE) else body.encode()


def _need_key(folder: "Folder", stream: str) -> None:
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable, naming

    if folder.stream_keys.public(naming.stream_id(stream)) is None:
        raise hinted(
            Unavailable(f"the key of stream {stream!r} is not known here: nobody could read what is sent"),
            f"veen stream-key import FILE takes in the one that readers of {stream} have",
            f"veen stream-key create {stream} makes it, where nobody has one yet",
        )


def _show_sent(stream: str, sent: "Sent", as_json: bool) -> None:
    receipt = sent.receipt
    rows: dict[str, output.Value] = {
        "stream": stream,
        "stream_seq": sent.stream_seq,
        "msg_id": sent.msg_id,
        "mmr_root": receipt.mmr_root,
        "hub_ts": output.moment(receipt.hub_ts),
    }
    data = {**rows, "hub_ts": receipt.hub_ts, "label": sent.label, "epoch": sent.epoch, "receipt": receipt.encode()}
    output.facts({**rows, "verified": Marked("signature, place and root", Tone.GOOD)}, as_json, data)


def _show_tally(stream: str, tally: "SentTally", as_json: bool) -> None:
    first, last = tally.first, tally.last
    rate = tally.sent / tally.seconds if tally.seconds else 0.0
    rows: dict[str, output.Value] = {
        "stream": stream,
        "sent": tally.sent,
        "first_seq": first.stream_seq if first else None,
        "last_seq": last.stream_seq if last else None,
        "mmr_root": last.receipt.mmr_root if last else None,
        "seconds": round(tally.seconds, 3),
        "per_sec": round(rate),
    }
    verified = Marked("every signature, place and root", Tone.GOOD)
    output.facts({**rows, "verified": verified} if tally.sent else rows, as_json, rows)


def _tell_settled(settled: "list[Settled]") -> None:
    """What became of what an earlier run left."""
    for one in settled[:_NAMED]:
        output.remark(_said(one))
    if len(settled) > _NAMED:
        output.remark(f"so are {len(settled) - _NAMED} more; veen send --outbox would have listed them")


def _said(one: "Settled") -> str:
    from veen.core import Receipt

    name = f"message {one.pending.leaf_hash.hex()[:12]}… of an earlier run"
    if isinstance(one.outcome, Receipt):
        return f"{name} is entry {one.outcome.stream_seq} now"
    return f"{name} is refused and given up: {one.outcome}"


def _show_settled(settled: "list[Settled]", as_json: bool) -> None:
    from veen.core import Receipt

    rows: list[tuple[output.Value, ...]] = []
    for one in settled:
        receipt = one.outcome if isinstance(one.outcome, Receipt) else None
        became = Marked("accepted", Tone.GOOD) if receipt else Marked(f"refused: {one.outcome}", Tone.BAD)
        rows.append((one.pending.leaf_hash, receipt.stream_seq if receipt else None, became))
    output.table(("msg_id", "stream_seq", "became"), rows, as_json)
    if as_json:
        return
    accepted = sum(isinstance(one.outcome, Receipt) for one in settled)
    output.remark(f"{accepted} accepted, {len(rows) - accepted} refused" if rows else "nothing was waiting")
