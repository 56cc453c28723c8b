"""Events from a command, a file, a pipe, or the spool of a program that logs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse
from veen.cli.kit import output
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.state_options import options_command
from veen.cli.kit.values import moment
from veen.cli.recorder.recorder_options import Origin, Subject, app, at_hub

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.client.draft import Sent

_LINE_TYPE = "json.line"
LineType: TypeAlias = Annotated[
    str,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="the event type of a line that does not say its own",
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
    event_type: Annotated[str, typer.Argument(metavar="TYPE", help="what kind of event it is")],
    subject: Annotated[str, typer.Option("--subject", metavar="ID", help="whose doing it is")],
    origin: Origin,
    payload: Annotated[str, typer.Option("--payload", metavar="JSON", help="what happened")] = "{}",
    event_time: Annotated[
        int | None,
        typer.Option(
            "--time", metavar="TIME", help="when, in seconds since 1970 or as a date", show_default="now", parser=moment
        ),
    ] = None,
) -> None:
    """Record one event, and verify the hub's receipt.

    An event type without a stream, an origin that is not the producer's and a payload that is too large are refused
    before anything is sent.
    """
    import time

    from veen.core import Malformed, canonical_json
    from veen.overlays.record import RecordEvent
    from veen.recorder import normalize, routes_of

    try:
        content = normalize.payload_of(canonical_json.parse(payload.encode(), "payload", exact=True))
    except Malformed as error:
        raise Misuse(str(error), "give JSON, for example --payload '{\"ok\": true}'") from None
    when = time.time_ns() // 1_000_000 if event_time is None else event_time * 1_000
    event = RecordEvent(subject, event_type, when, origin, content)
    flaw = event.flaw()
    if flaw is not None:
        raise Misuse(flaw, "give a subject, a type and an origin that say something")

    async def work(client: "Client") -> "tuple[str, Sent]":
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
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a file of JSON objects, one on each line")],
    origin: Origin,
    subject: Subject = None,
    event_type: LineType = _LINE_TYPE,
    once: Annotated[bool, typer.Option("--once", help="what is there, and then end")] = False,
) -> None:
    """Record the JSON lines of a file, as they are written to it.

    Goes on where it was left, each line exactly once, also when the file is rotated. A line that has subject_id,
    event_type, event_time or origin says them; what is no JSON object is set aside.
    """
    from veen.cli.kit import open_session
    from veen.cli.recorder.ship import Input, state_file
    from veen.recorder.json_lines import JsonLines
    from veen.recorder.normalize import Defaults

    if once and not file.exists():
        raise Misuse(f"there is no file {file}", "without --once it is waited for")
    defaults = Defaults(origin, event_type, subject)
    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        state = state_file(folder, file)
        feed = JsonLines(file, state, defaults, follow=not once, notify=output.remark)
        Input(asked, folder).run(feed)


@options_command(HubOptions, app, "pipe", "veen recorder pipe --origin shop --type job.line --client shop")
def pipe(asked: HubOptions, origin: Origin, subject: Subject = None, event_type: LineType = _LINE_TYPE) -> None:
    """Record the JSON lines that come in on standard input.

    Each is on disk before the next is read, and sent from there: what was taken in is recorded exactly once, also
    when this is killed. A pipe cannot be read again, so what it held then is its writer's to repeat.
    """
    import sys
    from threading import Thread

    from veen.cli.kit import open_session
    from veen.cli.recorder.ship import Input, own_folder
    from veen.recorder import SpoolFeed, SpoolWriter
    from veen.recorder.normalize import Defaults
    from veen.recorder.stdin_source import spool_lines

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
    spool: Annotated[Path, typer.Argument(metavar="DIR", help="the spool of a program that logs")],
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="what the source of its events is called")
    ] = "log",
    once: Annotated[bool, typer.Option("--once", help="what is there, and then end")] = False,
) -> None:
    """Send what a program's RecorderHandler has spooled.

    The program writes to disk and never waits for a hub; this sends, each event exactly once.
    """
    from veen.cli.kit import open_session
    from veen.cli.recorder.ship import Input
    from veen.recorder import SpoolFeed

    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        Input(asked, folder).run(SpoolFeed(spool, name, follow=not once))


@options_command(
    HubOptions, app, "retry", "veen recorder retry --client shop", "veen recorder retry --client shop --json"
)
def retry(asked: HubOptions) -> None:
    """Send again what inputs set aside, once its types have streams.

    Each event goes under the source and the place that it had, so one that was recorded after all is known for a copy.
    What still cannot be recorded is set aside anew.
    """
    from veen.cli.kit import open_session
    from veen.cli.recorder.ship import Input, own_folder
    from veen.recorder.retry_feed import RetryFeed

    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        running = Input(asked, folder)
        with folder.sending():  # an input of this client would be writing to that file
            again = RetryFeed(own_folder(folder))
        if running.run(again.feed):
            again.finish()
