"""`veen recorder checkpoint` and `verify`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from veen.cli.kit import output
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.state_options import options_command
from veen.cli.recorder.recorder_options import FromLog, app, at_hub, from_log
from veen.client.client import Client
from veen.core import Unavailable
from veen.state.entry_source import EntrySource

if TYPE_CHECKING:
    from veen.recorder import CheckpointFolder, CheckpointVerdict, RecorderCheckpoint


CheckpointDir: TypeAlias = Annotated[
    Path | None,
    typer.Option("--folder", metavar="DIR", help="folder of the checkpoints", show_default="in the client directory"),
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
    watch: Annotated[bool, typer.Option("--watch", help="make one whenever it is due, until ctrl-c")] = False,
    folder: CheckpointDir = None,
) -> None:
    """Make a checkpoint of all streams of the recorder.

    It contains the hub's checkpoint of each stream and is signed by the administrator. Each checkpoint names the one
    before it. With --watch, checkpoints are made by time and by number of events, as set with veen recorder init.
    """
    from veen.recorder import CheckpointFolder, make
    from veen.recorder.recorder_checkpoint import make_when_due

    async def work(client: Client) -> None:
        kept = CheckpointFolder(folder) if folder else CheckpointFolder.of(client)
        if not watch:
            made = await make(client, kept.latest())
            _show(made, kept.add(made), asked.as_json)
            return
        async for made in make_when_due(client, kept):
            _show(made, kept.files()[-1], asked.as_json)

    at_hub(asked, work)


def _show(made: "RecorderCheckpoint", path: Path, as_json: bool) -> None:
    rows: dict[str, output.Value] = {
        "log_root": made.log_root,
        "profile_id": made.profile_id,
        "created_at": output.moment(made.created_at // 1_000),
        "streams": len(made.streams),
        "entries": sum(one.last_seq for one in made.positions),
        "file": str(path),
    }
    output.facts(rows, as_json, {**rows, **_data(made)})


def _data(made: "RecorderCheckpoint") -> dict[str, object]:
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
        "hub_id": made.hub_id,
        "hub_pk": made.hub_pk,
        "created_at_ms": made.created_at,
        "admin_pk": made.admin_pk,
        "positions": positions,
        "empty": made.empty,
        "previous": made.previous,
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
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="a checkpoint; else the newest one of this client")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="read every entry that it covers")] = False,
    folder: CheckpointDir = None,
) -> None:
    """Verify a checkpoint against the log: no covered entry is missing or changed.

    The command shows the covered entries of each stream, and the last second (safe_until) up to which all events are
    covered. The exit status is 4 if the log has changed.
    """
    from veen.recorder import RecorderCheckpoint, verify

    async def work(source: EntrySource) -> "CheckpointVerdict":
        data = file.read_bytes() if file else _last(source, folder).read_bytes()
        return await verify(source, RecorderCheckpoint.decode(data), full=full)

    verdict = from_log(asked, work)
    made = verdict.checkpoint
    held = [
        (one.stream, one.epoch, one.last_seq, output.moment(one.last_hub_ts), one.read if full else None)
        for one in verdict.held
    ]
    listed = [
        {
            "stream": one.stream,
            "epoch": one.epoch,
            "last_seq": one.last_seq,
            "last_hub_ts": one.last_hub_ts,
            "next_hub_ts": one.next_hub_ts,
            "read": one.read,
        }
        for one in verdict.held
    ]
    data = {
        "holds": True,
        "log_root": made.log_root,
        "safe_until": verdict.safe_until,
        "profile_known": verdict.profile is not None,
        "held": listed,
        **_data(made),
    }
    if asked.as_json:
        output.document(data)
        return
    output.table(("stream", "epoch", "last_seq", "last hub_ts", "read"), held, False)
    output.facts({"log_root": made.log_root, "safe_until": output.moment(verdict.safe_until)}, False)
    if verdict.profile is None:
        output.remark("this client cannot read the map of event types, so missing streams would not be noticed")


def _last(source: EntrySource, folder: Path | None) -> Path:

    kept = _folder(source, folder).files()
    if not kept:
        raise hinted(Unavailable("this client has no checkpoint"), "veen recorder checkpoint makes one, or name a FILE")
    return kept[-1]


def _folder(source: EntrySource, folder: Path | None) -> "CheckpointFolder":
    from veen.recorder import CheckpointFolder

    if folder is not None:
        return CheckpointFolder(folder)
    return CheckpointFolder.at(source.folder.path, source.known.identity.hub_id)
