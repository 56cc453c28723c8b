"""`veen recorder replay` and `audit`: read events by range or time, and check who wrote them."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from plumbing.cli.command import Misuse
from veen.cli.kit import output, sanitize
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.sanitize import printable, short
from veen.cli.kit.state_options import options_command
from veen.cli.kit.values import moment
from veen.cli.recorder.recorder_options import FromLog, app, from_log
from veen.core import Unverified
from veen.state.entry_source import EntrySource

if TYPE_CHECKING:
    from veen.recorder import CheckpointVerdict, ReplayedEvent, Replayer, ReplaySpan

Time: TypeAlias = int | None
_MAX_SHOWN_CHARS, _SEQ_WIDTH = 2_000, 6


@options_command(
    FromLog,
    app,
    "replay",
    "veen recorder replay record/app/web --from 100 --to 200 --client admin --json",
    "veen recorder replay record/app/web record/security/login --since 2030-01-31 --until 2030-02-01",
    "veen recorder replay record/app/web --checkpoint last.checkpoint --with-proofs --json",
)
def replay(
    asked: FromLog,
    streams: Annotated[list[str], typer.Argument(metavar="STREAM", help="the streams, replayed one after the other")],
    first: Annotated[
        int | None, typer.Option("--from", metavar="N", min=1, help="the first entry", show_default="1")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--to", metavar="N", min=1, help="the last entry, included", show_default="the end")
    ] = None,
    since: Annotated[
        int | None,
        typer.Option("--since", metavar="TIME", help="the first second, in hub time", parser=moment),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option("--until", metavar="TIME", help="the last second, included", show_default="now", parser=moment),
    ] = None,
    epoch: Annotated[
        int | None, typer.Option("--epoch", metavar="N", min=0, help="epoch of the range", show_default="the latest")
    ] = None,
    with_proofs: Annotated[
        bool, typer.Option("--with-proofs", help="with the receipt and inclusion proof of each event")
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint", metavar="FILE", help="verify this checkpoint first, and replay only what it covers"
        ),
    ] = None,
) -> None:
    """Replay the events of streams by range or by time, in log order.

    Ranges and times include both ends. Every entry is verified before it is shown: the hub's signature, and inclusion
    in a tree that the hub signed. In a pipe each event is one line: number, time, principal_id, type, subject, origin,
    payload. The command never prompts, so scripts can run it.
    """
    by_time = since is not None or until is not None
    if by_time and (first is not None or last is not None):
        raise Misuse("a range and a time cannot be combined", "give --from and --to, or --since and --until")
    if not by_time and first is not None and last is not None and last < first:
        raise Misuse(f"--to {last} is before --from {first}", "give the lower number first")

    async def work(source: EntrySource) -> None:
        from veen.recorder import RecorderCheckpoint, Replayer, verify

        verdict = None
        if checkpoint is not None:
            verdict = await verify(source, RecorderCheckpoint.decode(checkpoint.read_bytes()))
        for stream in streams:
            replayer = Replayer(source, stream)
            spans = await _window(replayer, since, until) if by_time else await _range(replayer, epoch, first, last)
            for span in _covered(spans, stream, verdict):
                async for one in replayer.replay(span):
                    _show(stream, one, asked.as_json, with_proofs)

    from_log(asked, work)


async def _window(replayer: "Replayer", since: Time, until: Time) -> "list[ReplaySpan]":
    start, end = since or 0, (1 << 63) if until is None else until
    if end < start:
        raise Misuse("--until is before --since", "give the earlier time first")
    return await replayer.window(start, end)


async def _range(replayer: "Replayer", epoch: int | None, first: Time, last: Time) -> "list[ReplaySpan]":
    from veen.recorder import ReplaySpan

    epochs = [*await replayer.source.epochs(replayer.stream_id, None)] if epoch is None else [epoch]
    for one in reversed(epochs):
        end = await replayer.last_seq(one) if last is None else last
        if end >= (first or 1):
            return [ReplaySpan(one, first or 1, end)]
    return []


def _covered(spans: "list[ReplaySpan]", stream: str, verdict: "CheckpointVerdict | None") -> "list[ReplaySpan]":

    if verdict is None:
        return spans
    kept = []
    for span in spans:
        end = min(span.to_seq, verdict.checkpoint.last_seq(stream, span.epoch))
        if end >= span.from_seq:
            kept.append(replace(span, to_seq=end))
        if end < span.to_seq:
            output.remark(f"{stream}: entries after {end} are not covered by the checkpoint and were left out")
    return kept


def _show(stream: str, one: "ReplayedEvent", as_json: bool, with_proofs: bool) -> None:

    entry, event = one.entry, one.event
    if as_json:
        data: dict[str, Any] = {
            "stream": stream,
            "epoch": entry.epoch,
            "hub_commit_seq": entry.stream_seq,
            "hub_commit_time": entry.hub_ts,
            "principal_id": entry.client_id.hex(),
            "msg_id": entry.msg_id.hex(),
            "flaw": one.flaw,
        }
        if event is not None:
            data |= {name: getattr(event, name) for name in ("subject_id", "event_type", "event_time", "origin")}
            position = event.position.hex() if isinstance(event.position, bytes) else event.position
            data |= {"payload": event.value(), "source": event.source, "position": position}
        if with_proofs:
            data |= {"receipt": one.receipt.encode().hex(), "proof": one.proof.encode().hex()}
        output.line(data)
        return
    texts = (event.event_type, event.subject_id, event.origin, event.content) if event else ("", "", "", one.flaw or "")
    if sys.stdout.isatty():
        _print(one, [printable(text) for text in texts], with_proofs)
        return
    cells = [str(entry.stream_seq), str(entry.hub_ts), entry.client_id.hex()[:16], *map(printable, texts)]
    if with_proofs:
        cells.append(one.receipt.mmr_root.hex())
    sys.stdout.write("\t".join(cells) + "\n")


def _print(one: "ReplayedEvent", texts: list[str], with_proofs: bool) -> None:
    """Print an event on a terminal, in the style of `veen stream`."""
    from rich.text import Text

    entry, (event_type, subject, origin, content) = one.entry, texts
    shown = content if len(content) <= _MAX_SHOWN_CHARS else f"{content[:_MAX_SHOWN_CHARS]}…"
    line = Text.assemble(
        (f"{entry.stream_seq:>{_SEQ_WIDTH}}", "cyan"),
        (f"  {sanitize.when(entry.hub_ts)}  {entry.client_id.hex()[:8]}  ", "dim"),
        f"{event_type}  {subject}  " if event_type else "",
        (f"({origin})  " if origin else "", "dim"),
        (shown, "" if one.flaw is None else "yellow"),
    )
    console = output.console()
    console.print(line, soft_wrap=True)
    if with_proofs:
        root = sanitize.short_hex(one.receipt.mmr_root)
        console.print(Text(f"{'':>{_SEQ_WIDTH}}  proved up to root {root}", "dim"), soft_wrap=True)


@options_command(
    FromLog, app, "audit", "veen recorder audit --client admin", "veen recorder audit --client admin --json"
)
def audit(asked: FromLog) -> None:
    """List who wrote what, and find events that break the administrator's rules.

    The command reads every stream of the recorder and checks the key, the origin and the stream of each event. The exit
    status is 4 if an event breaks a rule.
    """
    from veen.recorder.replay import EventAudit, audit

    async def work(source: EntrySource) -> EventAudit:
        return await audit(source)

    found = from_log(asked, work)
    rows = [(one.principal_id, one.producer, one.stream, one.origin, one.events) for one in found.uses]
    listed = [{"principal_id": a, "producer": b, "stream": c, "origin": d, "events": e} for a, b, c, d, e in rows]
    strays = [{"stream": one.stream, "stream_seq": one.stream_seq, "reason": one.reason} for one in found.strays]
    if asked.as_json:
        output.document({"uses": listed, "strays": strays, "copies": found.copies})
    else:
        seen = [(short(principal), *rest) for principal, *rest in rows]
        output.table(("principal_id", "producer", "stream", "origin", "events"), seen, False)
    if found.strays:
        first = found.strays[0]
        what = f"{len(found.strays)} events break the rules of the recorder: {first.stream} {first.stream_seq}"
        raise hinted(Unverified("recorder", f"{what}: {first.reason}"), "--json lists all of them")
