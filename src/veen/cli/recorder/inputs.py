"""Inputs of `veen recorder`: events from an option, a file, a pipe, a spool, OpenTelemetry or syslog."""

import asyncio
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing import service_process
from plumbing.cli import install_hint
from plumbing.cli.command import Misuse, argument, misuse, option, options_command
from veen.cli.kit import open_session, output
from veen.cli.kit.common_options import HubOptions
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Result
from veen.cli.kit.values import Address, listen_option, moment
from veen.cli.recorder.recorder_options import Origin, Subject, at_hub, sent_data, with_hints
from veen.client import ClientDir
from veen.client.client import Client
from veen.client.local_files import DISK
from veen.client.sender import Sent
from veen.core import Malformed, Unavailable, canonical_json
from veen.core.hashing import h
from veen.overlays.record import RecordEvent
from veen.recorder import Routes, SetAside, Shipper, SpoolWriter, normalize, routes_of
from veen.recorder.json_lines import JsonLines, spool_lines
from veen.recorder.normalize import Defaults
from veen.recorder.routes import NotSetUp
from veen.recorder.shipper import REFUSED, RetryFeed
from veen.recorder.spool import SpoolFeed
from veen.recorder.syslog import SyslogListener

if TYPE_CHECKING:
    from veen.recorder.otlp import OtlpServer

    Refusal: TypeAlias = Callable[[RecordEvent], str | None]
    MakeListener: TypeAlias = Callable[[SpoolWriter, Refusal], SyslogListener | OtlpServer]

app = typer.Typer()
FINISH_S = 5.0  # time to send the rest after a signal

Inlet = AbstractAsyncContextManager[object]


def own_folder(folder: ClientDir, *names: str) -> Path:
    """A folder for the state of inputs, in the client directory."""
    path = folder.path.joinpath("recorder", *names)
    DISK.make_folder(path, parents=True)
    return path


class Input:
    """Sends one feed of one producer. While the hub does not answer, events stay in the feed."""

    def __init__(self, asked: HubOptions, folder: ClientDir) -> None:
        self._asked = asked
        self._folder = folder
        self._call = asked.call()
        self._url = self._call.url()
        if folder.state.hub_of(self._url) is None:
            self._call.run_with(folder, self._url, _connect_only)  # pin the hub before anything is sent
        self._shipper: Shipper | None = None
        self._routes: Routes | None = None  # as of check(); the shipper has newer ones

    def check(self, event: RecordEvent) -> None:
        """Raise if events like this one would be set aside. If the hub does not answer, only remark on it."""
        try:
            with with_hints():
                self._routes = self._call.run_with(self._folder, self._url, routes_of)
                self._routes.stream(event)
        except NotSetUp:
            raise
        except Unavailable as error:
            output.remark(f"{error}; the stream of {event.event_type} events is checked once the hub answers")

    def refusal(self, event: RecordEvent) -> str | None:
        """Why an event will be set aside, according to the newest known routes."""
        routes = (self._shipper and self._shipper.routes) or self._routes
        return routes.refusal(event) if routes else None

    def run(
        self, feed: SpoolFeed | JsonLines, inlet: Inlet | None = None, opened: Callable[[], None] | None = None
    ) -> bool:
        """Send until the feed ends or SIGTERM or SIGINT arrives, and print the counts. True if the feed is finished.

        `inlet` is open meanwhile and fills the spool of the feed; `opened` is called once it is open.
        """
        aside = SetAside(own_folder(self._folder) / REFUSED)
        shipper = Shipper(lambda: Client(self._url, self._folder), feed, aside, output.remark)
        self._shipper = shipper
        with with_hints(), closing(feed):
            finished = asyncio.run(self._run_until_signal(shipper, feed, inlet, opened))
        count = shipper.count
        rows: dict[str, output.Value] = {"sent": count.sent, "known": count.known, "refused": count.refused}
        if count.refused:
            rows["set_aside"] = str(aside.path)
            output.remark("events that were set aside are not in the log; veen recorder retry sends them again")
        if count.lost:
            rows["lost"] = count.lost
        output.facts(rows, self._asked.as_json)
        return finished

    async def _run_until_signal(
        self,
        shipper: Shipper,
        feed: SpoolFeed | JsonLines,
        inlet: Inlet | None,
        opened: Callable[[], None] | None,
    ) -> bool:
        stop = asyncio.Event()
        service_process.stop_on_signals(stop.set)
        async with AsyncExitStack() as stack:
            if inlet is not None:
                await stack.enter_async_context(inlet)
            if opened is not None:
                opened()
            service_process.ready(f"sending to {self._url}")
            sending = asyncio.create_task(shipper.run())
            waiting = asyncio.create_task(stop.wait())
            await asyncio.wait([sending, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        feed.end()
        done, _ = await asyncio.wait([sending], timeout=FINISH_S)
        if not done:
            sending.cancel()
            output.remark("the hub does not answer: the remaining events are kept and sent next time")
        with suppress(asyncio.CancelledError):
            await sending
            return True
        return False


async def _connect_only(client: Client) -> None:
    return None


_LINE_TYPE = "json.line"
Once: TypeAlias = Annotated[bool, option("--once", "record existing events, then exit")]
LineType: TypeAlias = Annotated[
    str, option("--type TYPE", "event type of lines that do not name one", show_default=_LINE_TYPE)
]


@options_command(
    HubOptions,
    app,
    "send",
    "veen recorder send login --subject alice --origin shop --payload '{\"ok\": true}' --client shop",
)
def send(
    asked: HubOptions,
    event_type: Annotated[str, argument("TYPE", "the event type")],
    subject: Annotated[str, option("--subject ID", "the subject of the event")],
    origin: Origin,
    payload: Annotated[str, option("--payload JSON", "the payload")] = "{}",
    event_time: Annotated[
        int | None,
        option("--time TIME", "event time, in seconds since 1970 or as a date", show_default="now", parser=moment),
    ] = None,
) -> None:
    """Record one event and verify the hub's receipt.

    An event type without a stream, an origin of another producer and a payload that is too large are rejected before
    anything is sent.
    """
    with misuse("give JSON, for example --payload '{\"ok\": true}'", Malformed):
        content = normalize.payload_of(canonical_json.parse(payload.encode(), "payload", exact=True))
    when = time.time_ns() // 1_000_000 if event_time is None else event_time * 1_000
    event = RecordEvent(subject, event_type, when, origin, content)
    flaw = event.flaw()
    if flaw is not None:
        raise Misuse(flaw, "check TYPE, --subject and --origin")

    async def work(client: Client) -> tuple[str, Sent]:
        stream = (await routes_of(client)).stream(event)
        return stream, await client.send(stream, event.encode(), schema=event.SCHEMA)

    stream, sent = at_hub(asked, work)
    rows = {**sent_data(sent), "epoch": sent.epoch, "receipt": sent.receipt.encode()}
    facts = ("stream", "stream_seq", "msg_id", "hub_ts")
    Result({"stream": stream, **rows}, facts=facts).show(asked.as_json)


@options_command(
    HubOptions,
    app,
    "tail",
    "veen recorder tail app.jsonl --origin shop --client shop",
    "veen recorder tail app.jsonl --origin shop --type http.request --once --client shop",
)
def tail(
    asked: HubOptions,
    file: Annotated[Path, argument("FILE", "a file with one JSON object per line")],
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
    if once and not file.exists():
        raise Misuse(f"there is no file {file}", "leave out --once to wait for it")
    defaults = Defaults(origin, event_type, subject)
    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        state = own_folder(folder, "places") / f"{h(str(file.absolute()).encode()).hex()[:32]}.cbor"
        feed = JsonLines(file, state, defaults, follow=not once, notify=output.remark)
        Input(asked, folder).run(feed)


@options_command(HubOptions, app, "pipe", "veen recorder pipe --origin shop --type job.line --client shop")
def pipe(asked: HubOptions, origin: Origin, subject: Subject = None, event_type: LineType = _LINE_TYPE) -> None:
    """Record the JSON lines of standard input.

    Each line is on disk before the next is read, and is sent from there: a line that was read is recorded exactly once,
    even if the command is killed. Lines that were still in the pipe are lost then; their writer must repeat them.
    """
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
    spool: Annotated[Path, argument("DIR", "spool folder of the program")],
    name: Annotated[str, option("--name NAME", "name of the event source")] = "log",
    once: Once = False,
) -> None:
    """Send the events that a program's RecorderHandler has spooled.

    The program only writes to disk and never waits for a hub. This command sends each event exactly once.
    """
    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        Input(asked, folder).run(SpoolFeed(spool, name, follow=not once))


OTLP_TYPE, SYSLOG_TYPE = "otel.log", "syslog.message"  # default event types
OTLP_PORT, SYSLOG_PORT = 4_318, 5_514

Certificate: TypeAlias = Annotated[Path | None, option("--tls-cert FILE", "serve TLS with this certificate in PEM")]
CertificateKey: TypeAlias = Annotated[Path | None, option("--tls-key FILE", "key of the certificate in PEM")]
ClientCa: TypeAlias = Annotated[
    Path | None, option("--tls-client-ca FILE", "require client certificates of these authorities")
]


@options_command(
    HubOptions,
    app,
    "otlp",
    "veen recorder otlp --origin shop --client shop",
    "veen recorder otlp --origin shop --listen 127.0.0.1:4318 --client shop",
)
def otlp(
    asked: HubOptions,
    origin: Origin,
    subject: Subject = None,
    listen: Annotated[Address | None, listen_option(f"127.0.0.1:{OTLP_PORT}")] = None,
    event_type: Annotated[
        str, option("--type TYPE", "event type of records without an event name", show_default=OTLP_TYPE)
    ] = OTLP_TYPE,
    cert: Certificate = None,
    key: CertificateKey = None,
    client_ca: ClientCa = None,
) -> None:
    """Record logs from OpenTelemetry exporters, by OTLP over HTTP.

    A request is answered once its records are on disk; they are sent from there exactly once. Records of a service
    other than the origin are rejected, because a producer identity belongs to one service. Records whose event type has
    no stream are set aside, and the response tells the exporter how many. The command does not start if the default
    --type has no stream.
    """
    try:
        from veen.recorder.otlp import OtlpServer
    except ImportError:
        missing = Unavailable("the OpenTelemetry packages are not installed")
        raise hinted(missing, install_hint("recorder")) from None
    defaults, tls = Defaults(origin, event_type, subject), _tls(cert, key, client_ca)
    where = listen or Address("127.0.0.1", OTLP_PORT)

    def make(writer: SpoolWriter, refusal: "Refusal") -> "OtlpServer":
        return OtlpServer(writer, defaults, where.host, where.port, tls=tls, refusal=refusal, notify=output.remark)

    _listen(asked, "otlp", defaults, make, sync=True)


@options_command(
    HubOptions,
    app,
    "syslog",
    "veen recorder syslog --origin router --client router",
    "veen recorder syslog --origin router --listen 127.0.0.1:6514 --tls-cert c.pem --tls-key k.pem",
)
def syslog(
    asked: HubOptions,
    origin: Origin,
    subject: Annotated[
        str | None, option("--subject ID", "subject of all messages", show_default="the host name in the message")
    ] = None,
    listen: Annotated[Address | None, listen_option(f"127.0.0.1:{SYSLOG_PORT}")] = None,
    transport: Annotated[
        str, option("--transport WORD", "udp, tcp or both; with a certificate, TCP uses TLS")
    ] = "both",
    event_type: Annotated[
        str, option("--type TYPE", "event type of every message", show_default=SYSLOG_TYPE)
    ] = SYSLOG_TYPE,
    cert: Certificate = None,
    key: CertificateKey = None,
    client_ca: ClientCa = None,
) -> None:
    """Record syslog messages (RFC 5424) over UDP, TCP or TLS.

    Messages are written to disk at once and sent from there exactly once. If the sender numbers its messages (the
    sequenceId of RFC 5424), a repeated message is recognised. The command does not start if --type has no stream.
    """
    if transport not in ("udp", "tcp", "both"):
        raise Misuse(f"there is no transport {transport!r}", "give udp, tcp or both")
    defaults, tls = Defaults(origin, event_type, subject), _tls(cert, key, client_ca)
    where = listen or Address("127.0.0.1", SYSLOG_PORT)

    def make(writer: SpoolWriter, refusal: "Refusal") -> SyslogListener:
        return SyslogListener(
            writer,
            defaults,
            where.host,
            where.port,
            udp=transport != "tcp",
            tcp=transport != "udp",
            tls=tls,
            notify=output.remark,
        )

    _listen(asked, "syslog", defaults, make, sync=False)


@options_command(
    HubOptions, app, "retry", "veen recorder retry --client shop", "veen recorder retry --client shop --json"
)
def retry(asked: HubOptions) -> None:
    """Send events again that were set aside, after their types got a stream.

    Each event keeps its source and position, so an event that was recorded already is recognised as a copy. Events that
    still cannot be recorded are set aside again.
    """
    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        running = Input(asked, folder)
        with folder.sending():  # no other input of this client writes to that file meanwhile
            again = RetryFeed(own_folder(folder))
        if running.run(again.feed):
            again.finish()


def _listen(asked: HubOptions, name: str, defaults: Defaults, make: "MakeListener", *, sync: bool) -> None:
    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        place = own_folder(folder, "spool", name)
        running = Input(asked, folder)
        running.check(defaults.event({}, 0))
        writer = SpoolWriter(place, sync=sync)
        listener = make(writer, running.refusal)

        def opened() -> None:
            output.facts({"listening": listener.port}, asked.as_json)
            sys.stdout.flush()

        running.run(SpoolFeed(place, name), listener, opened)
        writer.close()


def _tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> ssl.SSLContext | None:
    if cert is None:
        if key is not None or client_ca is not None:
            raise Misuse("TLS needs a certificate", "give --tls-cert FILE")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise Misuse(f"cannot use the certificate {cert}: {error}", "give PEM files that belong together") from None
    return context
