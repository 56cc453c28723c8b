"""`veen recorder checkpoint|verify|replay|audit`: prove, read and check recorded events."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.text import Text

from plumbing.cli.command import Misuse, argument, option, options_command
from veen.cli.kit import output, sanitize
from veen.cli.kit.common_options import HubOptions
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Column, Result, fields_of
from veen.cli.kit.sanitize import printable
from veen.cli.kit.values import moment
from veen.cli.recorder.recorder_options import FromLog, at_hub, from_log
from veen.client.client import Client
from veen.core import Unavailable, Unverified
from veen.recorder import (
    CheckpointFolder,
    CheckpointVerdict,
    RecorderCheckpoint,
    ReplayedEvent,
    Replayer,
    ReplaySpan,
    make,
)
from veen.recorder.recorder_checkpoint import make_when_due
from veen.recorder.replay import EventAudit
from veen.state.entry_source import EntrySource

app = typer.Typer()

CheckpointDir: TypeAlias = Annotated[
    Path | None, option("--folder DIR", "folder of the checkpoints", show_default="in the client directory")
]


@options_command(
    HubOptions,
    app,
    "checkpoint",
    "veen recorder checkpoint --client admin",
    "veen recorder checkpoint --client admin --watch --json",
)
def checkpoint(
    asked: HubOptions,
    watch: Annotated[bool, option("--watch", "make one whenever it is due, until ctrl-c")] = False,
    folder: CheckpointDir = None,
) -> None:
    """Make a checkpoint of all streams of the recorder.

    It contains the hub's checkpoint of each stream and is signed by the administrator. Each checkpoint names the one
    before it. With --watch, checkpoints are made by time and by number of events, as set with veen recorder init.
    """

    async def work(client: Client) -> None:
        kept = CheckpointFolder(folder) if folder else CheckpointFolder.of(client)
        if not watch:
            made = await make(client, kept.latest())
            _show_checkpoint(made, kept.add(made), asked.as_json)
            return
        async for made in make_when_due(client, kept):
            _show_checkpoint(made, kept.files()[-1], asked.as_json)

    at_hub(asked, work)


def _show_checkpoint(made: RecorderCheckpoint, path: Path, as_json: bool) -> None:
    rows = {
        "log_root": made.log_root,
        "profile_id": made.profile_id,
        "created_at": output.moment(made.created_at // 1_000),
        "streams": len(made.streams),
        "entries": sum(one.last_seq for one in made.positions),
        "file": str(path),
    }
    Result({**rows, **_data(made)}, facts=tuple(rows)).show(as_json)


def _data(made: RecorderCheckpoint) -> dict[str, object]:
    positions = [
        {
            "stream": one.stream,
            "epoch": one.checkpoint.epoch,
            "last_seq": one.last_seq,
            "mmr_root": one.checkpoint.mmr_root,
        }
        for one in made.positions
    ]
    return {
        **fields_of(made, "hub_id", "hub_pk", "admin_pk", "empty", "previous"),
        "created_at_ms": made.created_at,
        "positions": positions,
        "hash": made.hash(),
    }


@options_command(
    FromLog,
    app,
    "verify",
    "veen recorder verify --client admin",
    "veen recorder verify last.checkpoint --client admin --full --data-dir hub --json",
)
def verify(
    asked: FromLog,
    file: Annotated[Path | None, argument("FILE", "a checkpoint; else the newest one of this client")] = None,
    full: Annotated[bool, option("--full", "read every entry that it covers")] = False,
    folder: CheckpointDir = None,
) -> None:
    """Verify a checkpoint against the log: no covered entry is missing or changed.

    The command shows the covered entries of each stream, and the last second (safe_until) up to which all events are
    covered. The exit status is 4 if the log has changed.
    """
    from veen.recorder import verify

    async def work(source: EntrySource) -> CheckpointVerdict:
        data = file.read_bytes() if file else _last(source, folder).read_bytes()
        return await verify(source, RecorderCheckpoint.decode(data), full=full)

    verdict = from_log(asked, work)
    made, names = verdict.checkpoint, ("stream", "epoch", "last_seq", "last_hub_ts", "next_hub_ts", "read")
    data = {
        "holds": True,
        "log_root": made.log_root,
        "safe_until": verdict.safe_until,
        "profile_known": verdict.profile is not None,
        "held": [fields_of(one, *names) for one in verdict.held],
        **_data(made),
    }
    if asked.as_json:
        output.document(data)
        return
    columns: list[Column] = [
        *names[:3],
        ("last hub_ts", lambda one: output.moment(one["last_hub_ts"])),
        ("read", lambda one: one["read"] if full else None),
    ]
    Result(data, rows="held", columns=columns).show(False)
    output.facts({"log_root": made.log_root, "safe_until": output.moment(verdict.safe_until)}, False)
    if verdict.profile is None:
        output.remark("this client cannot read the map of event types, so missing streams would not be noticed")


def _last(source: EntrySource, folder: Path | None) -> Path:
    folders = (
        CheckpointFolder(folder) if folder else CheckpointFolder.at(source.folder.path, source.known.identity.hub_id)
    )
    kept = folders.files()
    if not kept:
        raise hinted(Unavailable("this client has no checkpoint"), "veen recorder checkpoint makes one, or name a FILE")
    return kept[-1]


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
    streams: Annotated[list[str], argument("STREAM", "the streams, replayed one after the other")],
    first: Annotated[int | None, option("--from N", "the first entry", min=1, show_default="1")] = None,
    last: Annotated[int | None, option("--to N", "the last entry, included", min=1, show_default="the end")] = None,
    since: Annotated[int | None, option("--since TIME", "the first second, in hub time", parser=moment)] = None,
    until: Annotated[
        int | None, option("--until TIME", "the last second, included", show_default="now", parser=moment)
    ] = None,
    epoch: Annotated[int | None, option("--epoch N", "epoch of the range", min=0, show_default="the latest")] = None,
    with_proofs: Annotated[bool, option("--with-proofs", "with the receipt and inclusion proof of each event")] = False,
    checkpoint: Annotated[
        Path | None, option("--checkpoint FILE", "verify this checkpoint first, and replay only what it covers")
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
        from veen.recorder import verify

        verdict = None
        if checkpoint is not None:
            verdict = await verify(source, RecorderCheckpoint.decode(checkpoint.read_bytes()))
        for stream in streams:
            replayer = Replayer(source, stream)
            spans = await _window(replayer, since, until) if by_time else await _range(replayer, epoch, first, last)
            for span in _covered(spans, stream, verdict):
                async for one in replayer.replay(span):
                    _show_event(stream, one, asked.as_json, with_proofs)

    from_log(asked, work)


async def _window(replayer: Replayer, since: Time, until: Time) -> list[ReplaySpan]:
    start, end = since or 0, (1 << 63) if until is None else until
    if end < start:
        raise Misuse("--until is before --since", "give the earlier time first")
    return await replayer.window(start, end)


async def _range(replayer: Replayer, epoch: int | None, first: Time, last: Time) -> list[ReplaySpan]:
    epochs = [*await replayer.source.epochs(replayer.stream_id, None)] if epoch is None else [epoch]
    for one in reversed(epochs):
        end = await replayer.last_seq(one) if last is None else last
        if end >= (first or 1):
            return [ReplaySpan(one, first or 1, end)]
    return []


def _covered(spans: list[ReplaySpan], stream: str, verdict: CheckpointVerdict | None) -> list[ReplaySpan]:
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


def _show_event(stream: str, one: ReplayedEvent, as_json: bool, with_proofs: bool) -> None:
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


def _print(one: ReplayedEvent, texts: list[str], with_proofs: bool) -> None:
    """Print an event on a terminal, in the style of `veen stream`."""
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
    from veen.recorder.replay import audit

    async def work(source: EntrySource) -> EventAudit:
        return await audit(source)

    found = from_log(asked, work)
    columns = ("principal_id", "producer", "stream", "origin", "events")
    data = {
        "uses": [fields_of(one, *columns) for one in found.uses],
        "strays": [fields_of(one, "stream", "stream_seq", "reason") for one in found.strays],
        "copies": found.copies,
    }
    Result(data, rows="uses", columns=columns).show(asked.as_json)
    if found.strays:
        first = found.strays[0]
        what = f"{len(found.strays)} events break the rules of the recorder: {first.stream} {first.stream_seq}"
        raise hinted(Unverified("recorder", f"{what}: {first.reason}"), "--json lists all of them")
