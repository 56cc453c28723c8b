"""`veen recorder otlp` and `syslog`: events that other programs send."""

import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse
from plumbing.cli.extras import install_hint
from veen.cli.kit import open_session, output
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.state_options import options_command
from veen.cli.kit.values import Address, address
from veen.cli.recorder.recorder_options import Origin, Subject, app
from veen.cli.recorder.ship import Input, own_folder
from veen.core import Unavailable
from veen.overlays.record import RecordEvent

if TYPE_CHECKING:
    from veen.recorder import SpoolWriter
    from veen.recorder.normalize import Defaults
    from veen.recorder.otlp_server import OtlpServer
    from veen.recorder.syslog import SyslogListener

    Refusal: TypeAlias = Callable[[RecordEvent], str | None]
    MakeListener: TypeAlias = Callable[[SpoolWriter, Refusal], SyslogListener | OtlpServer]

OTLP_TYPE, SYSLOG_TYPE = "otel.log", "syslog.message"  # default event types

Certificate: TypeAlias = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="serve TLS with this certificate in PEM")
]
CertificateKey: TypeAlias = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="key of the certificate in PEM")
]
ClientCa: TypeAlias = Annotated[
    Path | None,
    typer.Option("--tls-client-ca", metavar="FILE", help="require client certificates of these authorities"),
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
            help="address to listen on",
            show_default="127.0.0.1:4318",
            parser=address,
        ),
    ] = None,
    event_type: Annotated[
        str,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="event type of records without an event name",
            show_default=OTLP_TYPE,
        ),
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
    from veen.recorder.normalize import Defaults

    try:
        from veen.recorder import otlp_server
    except ImportError:
        missing = Unavailable("the OpenTelemetry packages are not installed")
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
            "--subject", metavar="ID", help="subject of all messages", show_default="the host name in the message"
        ),
    ] = None,
    listen: Annotated[
        Address | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="address to listen on",
            show_default="127.0.0.1:5514",
            parser=address,
        ),
    ] = None,
    transport: Annotated[
        str, typer.Option("--transport", metavar="WORD", help="udp, tcp or both; with a certificate, TCP uses TLS")
    ] = "both",
    event_type: Annotated[
        str,
        typer.Option("--type", metavar="TYPE", help="event type of every message", show_default=SYSLOG_TYPE),
    ] = SYSLOG_TYPE,
    cert: Certificate = None,
    key: CertificateKey = None,
    client_ca: ClientCa = None,
) -> None:
    """Record syslog messages (RFC 5424) over UDP, TCP or TLS.

    Messages are written to disk at once and sent from there exactly once. If the sender numbers its messages (the
    sequenceId of RFC 5424), a repeated message is recognised. The command does not start if --type has no stream.
    """
    from veen.recorder.normalize import Defaults
    from veen.recorder.syslog import SyslogListener

    if transport not in ("udp", "tcp", "both"):
        raise Misuse(f"there is no transport {transport!r}", "give udp, tcp or both")
    defaults, tls = Defaults(origin, event_type, subject), _tls(cert, key, client_ca)

    where = listen or Address("127.0.0.1", 5_514)

    def make(writer: "SpoolWriter", refusal: "Refusal") -> "SyslogListener":
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


def _listen(asked: HubOptions, name: str, defaults: "Defaults", make: "MakeListener", *, sync: bool) -> None:
    from veen.recorder import SpoolFeed, SpoolWriter

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
