"""Events that others send: OTLP logs and syslog."""

import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse
from plumbing.cli.extras import install_hint
from veen.cli.kit import output
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.state_options import options_command
from veen.cli.kit.values import Address, address
from veen.cli.recorder.recorder_options import Origin, Subject, app

if TYPE_CHECKING:
    from veen.overlays.record import RecordEvent
    from veen.recorder import SpoolWriter
    from veen.recorder.normalize import Defaults
    from veen.recorder.otlp_server import OtlpServer
    from veen.recorder.syslog_server import SyslogListener

    Refusal: TypeAlias = Callable[[RecordEvent], str | None]
    Make: TypeAlias = Callable[[SpoolWriter, Refusal], SyslogListener | OtlpServer]

OTLP_TYPE, SYSLOG_TYPE = "otel.log", "syslog.message"  # where nothing else is said

Certificate: TypeAlias = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="speak TLS, with this certificate in PEM form")
]
CertificateKey: TypeAlias = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="the key of that certificate, in PEM form")
]
ClientCa: TypeAlias = Annotated[
    Path | None,
    typer.Option("--tls-client-ca", metavar="FILE", help="take only those whose certificate these authorities signed"),
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
    listen: Annotated[
        Address | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="where exporters send to",
            show_default="127.0.0.1:4318",
            parser=address,
        ),
    ] = None,
    event_type: Annotated[
        str,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="the event type of a record that has no event name",
            show_default=OTLP_TYPE,
        ),
    ] = OTLP_TYPE,
    cert: Certificate = None,
    key: CertificateKey = None,
    client_ca: ClientCa = None,
) -> None:
    """Record logs that OpenTelemetry exporters send, by OTLP over HTTP.

    A request is answered once its records are on disk, and they are sent from there, exactly once. Records of another
    service than the origin are rejected: an identity stands for one. Records whose event type has no stream are set
    aside, and the exporter is told how many. It does not start where --type has none.
    """
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable
    from veen.recorder.normalize import Defaults

    try:
        from veen.recorder import otlp_server
    except ImportError:
        missing = Unavailable("the formats of OpenTelemetry are not installed")
        raise hinted(missing, install_hint("recorder")) from None
    defaults, tls = Defaults(origin, event_type, subject), _tls(cert, key, client_ca)

    where = listen or Address("127.0.0.1", 4_318)

    def make(writer: "SpoolWriter", refusal: "Refusal") -> "OtlpServer":
        return otlp_server.OtlpServer(
            writer, defaults, where.host, where.port, tls=tls, refusal=refusal, notify=output.remark
        )

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
        str | None,
        typer.Option(
            "--subject", metavar="ID", help="whose doing it is", show_default="the host that the message names"
        ),
    ] = None,
    listen: Annotated[
        Address | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="where messages are sent to",
            show_default="127.0.0.1:5514",
            parser=address,
        ),
    ] = None,
    transport: Annotated[
        str, typer.Option("--transport", metavar="WORD", help="udp, tcp, or both; with a certificate it is TLS")
    ] = "both",
    event_type: Annotated[
        str,
        typer.Option("--type", metavar="TYPE", help="the event type of every message", show_default=SYSLOG_TYPE),
    ] = SYSLOG_TYPE,
    cert: Certificate = None,
    key: CertificateKey = None,
    client_ca: ClientCa = None,
) -> None:
    """Record syslog messages, as RFC 5424 has them, over UDP, TCP or TLS.

    What arrives is on disk at once, and sent from there, exactly once. A message that its sender numbers, with the
    sequenceId of RFC 5424, is known when it is sent again. It does not start where --type has no stream.
    """
    from veen.recorder import syslog_server
    from veen.recorder.normalize import Defaults

    if transport not in ("udp", "tcp", "both"):
        raise Misuse(f"there is no transport {transport!r}", "give udp, tcp or both")
    defaults, tls = Defaults(origin, event_type, subject), _tls(cert, key, client_ca)

    where = listen or Address("127.0.0.1", 5_514)

    def make(writer: "SpoolWriter", refusal: "Refusal") -> "SyslogListener":
        return syslog_server.SyslogListener(
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


def _listen(asked: HubOptions, name: str, defaults: "Defaults", make: "Make", *, sync: bool) -> None:
    from veen.cli.kit import open_session
    from veen.cli.recorder.ship import Input, own_folder
    from veen.recorder import SpoolFeed, SpoolWriter

    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        place = own_folder(folder, "spool", name)
        running = Input(asked, folder)
        running.check(defaults.example())
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
        raise Misuse(f"the certificate cannot be used: {error}", "give PEM files that belong together") from None
    return context
