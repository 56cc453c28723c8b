"""`veen recorder send|tail|pipe|ship|retry`: events from an option, a file, a pipe or a spool."""

import sys
import time
from pathlib import Path
from threading import Thread
from typing import Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse
from veen.cli.kit import open_session, output
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.state_options import options_command
from veen.cli.kit.values import moment
from veen.cli.recorder.recorder_options import Origin, Subject, app, at_hub
from veen.cli.recorder.ship import Input, own_folder, state_file
from veen.client.client import Client
from veen.client.sender import Sent
from veen.core import Malformed, canonical_json
from veen.overlays.record import RecordEvent

_LINE_TYPE = "json.line"
Once: TypeAlias = Annotated[bool, typer.Option("--once", help="record existing events, then exit")]
LineType: TypeAlias = Annotated[
    str,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="event type of lines that do not name one",
        show_default=_LINE_TYPE,
    ),
]


@options_command(
    HubOptions,
    app,
    "send",
    "veen recorder send login --subject alice --origin shop --payload '{\"ok\": true}' --client shop",
)
def send(
    asked: HubOptions,
    event_type: Annotated[str, typer.Argument(metavar="TYPE", help="the event type")],
    subject: Annotated[str, typer.Option("--subject", metavar="ID", help="the subject of the event")],
    origin: Origin,
    payload: Annotated[str, typer.Option("--payload", metavar="JSON", help="the payload")] = "{}",
    event_time: Annotated[
        int | None,
        typer.Option(
            "--time",
            metavar="TIME",
            help="event time, in seconds since 1970 or as a date",
            show_default="now",
            parser=moment,
        ),
    ] = None,
) -> None:
    """Record one event and verify the hub's receipt.

    An event type without a stream, an origin of another producer and a payload that is too large are rejected before
    anything is sent.
    """
    from veen.recorder import normalize, routes_of

    try:
        content = normalize.payload_of(canonical_json.parse(payload.encode(), "payload", exact=True))
    except Malformed as error:
        raise Misuse(str(error), "give JSON, for example --payload '{\"ok\": true}'") from None
    when = time.time_ns() // 1_000_000 if event_time is None else event_time * 1_000
    event = RecordEvent(subject, event_type, when, origin, content)
    flaw = event.flaw()
    if flaw is not None:
        raise Misuse(flaw, "check TYPE, --subject and --origin")

    async def work(client: Client) -> tuple[str, Sent]:
        stream = (await routes_of(client)).stream(event)
        return stream, await client.send(stream, event.encode(), schema=event.SCHEMA)

    stream, sent = at_hub(asked, work)
    rows: dict[str, output.Value] = {
        "stream": stream,
        "stream_seq": sent.stream_seq,
        "msg_id": sent.msg_id,
        "hub_ts": output.moment(sent.receipt.hub_ts),
    }
    data = {**rows, "hub_ts": sent.receipt.hub_ts, "epoch": sent.epoch, "receipt": sent.receipt.encode()}
    output.facts(rows, asked.as_json, data)


@options_command(
    HubOptions,
    app,
    "tail",
    "veen recorder tail app.jsonl --origin shop --client shop",
    "veen recorder tail app.jsonl --origin shop --type http.request --once --client shop",
)
def tail(
    asked: HubOptions,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a file with one JSON object per line")],
    origin: Origin,
    subject: Subject = None,
    event_type: LineType = _LINE_TYPE,
    once: Once = False,
) -> None:
    """Record the JSON lines of a file as they are written.

    The command continues where it stopped and records each line exactly once, even if the file is rotated. The fields
    subject_id, event_type, event_time and origin of a line take precedence over the options. Lines that are not JSON
    objects are set aside.
    """
    from veen.recorder.json_lines import JsonLines
    from veen.recorder.normalize import Defaults

    if once and not file.exists():
        raise Misuse(f"there is no file {file}", "leave out --once to wait for it")
    defaults = Defaults(origin, event_type, subject)
    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        state = state_file(folder, file)
        feed = JsonLines(file, state, defaults, follow=not once, notify=output.remark)
        Input(asked, folder).run(feed)


@options_command(HubOptions, app, "pipe", "veen recorder pipe --origin shop --type job.line --client shop")
def pipe(asked: HubOptions, origin: Origin, subject: Subject = None, event_type: LineType = _LINE_TYPE) -> None:
    """Record the JSON lines of standard input.

    Each line is on disk before the next is read, and is sent from there: a line that was read is recorded exactly once,
    even if the command is killed. Lines that were still in the pipe are lost then; their writer must repeat them.
    """
    from veen.recorder import SpoolFeed, SpoolWriter
    from veen.recorder.json_lines import spool_lines
    from veen.recorder.normalize import Defaults

    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        place = own_folder(folder, "spool", "pipe")
        running = Input(asked, folder)
        writer, feed = SpoolWriter(place), SpoolFeed(place, "pipe")

        def read() -> None:
            spool_lines(sys.stdin.buffer, writer, Defaults(origin, event_type, subject))
            writer.close()
            feed.end()

        running.run(feed, opened=Thread(target=read, daemon=True).start)


@options_command(
    HubOptions,
    app,
    "ship",
    "veen recorder ship spool --client shop",
    "veen recorder ship spool --once --client shop --json",
)
def ship(
    asked: HubOptions,
    spool: Annotated[Path, typer.Argument(metavar="DIR", help="spool folder of the program")],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="name of the event source")] = "log",
    once: Once = False,
) -> None:
    """Send the events that a program's RecorderHandler has spooled.

    The program only writes to disk and never waits for a hub. This command sends each event exactly once.
    """
    from veen.recorder import SpoolFeed

    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        Input(asked, folder).run(SpoolFeed(spool, name, follow=not once))


@options_command(
    HubOptions, app, "retry", "veen recorder retry --client shop", "veen recorder retry --client shop --json"
)
def retry(asked: HubOptions) -> None:
    """Send events again that were set aside, after their types got a stream.

    Each event keeps its source and position, so an event that was recorded already is recognised as a copy. Events that
    still cannot be recorded are set aside again.
    """
    from veen.recorder.shipper import RetryFeed

    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        running = Input(asked, folder)
        with folder.sending():  # no other input of this client writes to that file meanwhile
            again = RetryFeed(own_folder(folder))
        if running.run(again.feed):
            again.finish()
