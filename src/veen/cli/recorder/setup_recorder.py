"""Setting a recorder up: streams, the map of event types, producers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, command
from veen.cli.kit import output, values
from veen.cli.kit.client_options import HubOptions, PassphraseFile
from veen.cli.kit.common_options import ClientDir, JsonOption
from veen.cli.kit.state_options import ReadOptions, options_command, read_command
from veen.cli.recorder.recorder_options import Issuer, app, at_hub, issuing

if TYPE_CHECKING:
    from veen.cli.kit.read_state import StateAnswer
    from veen.overlays.overlay import Walk
    from veen.overlays.record import RecorderSetting
    from veen.state.event_sender import SentEvent
    from veen.state.state_at import StateAt

    Changes: TypeAlias = StateAt[RecorderSetting, Walk]


MaxPayload: TypeAlias = Annotated[
    int | None, typer.Option("--max-payload", metavar="BYTES", min=1, help="no larger payloads", show_default="65536")
]
Retention: TypeAlias = Annotated[
    int | None,
    durations.whole_option(
        "--retention",
        least=1,
        help="for how long events should be kept: a declaration, since no hub deletes anything",
        show_default="10 years",
    ),
]
Every: TypeAlias = Annotated[
    int | None, durations.whole_option("--every", least=1, help="checkpoints by time", show_default="300")
]
EveryEvents: TypeAlias = Annotated[
    int | None, typer.Option("--every-events", metavar="N", min=1, help="checkpoints by volume", show_default="10000")
]


def _pair(text: str) -> str:
    name, equals, stream = text.partition("=")
    if not name or not equals or not stream:
        raise ValueError(f"{text!r} is not TYPE=STREAM")
    return text


@options_command(
    HubOptions,
    app,
    "init",
    "veen recorder init --client admin --type http.request=record/app/web",
    "veen recorder init --client admin --stream record/app/jobs --every 60 --every-events 1000",
)
def init(
    asked: HubOptions,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE=STREAM", help="an event type and its stream", parser=_pair),
    ] = None,
    streams: Annotated[
        list[str] | None, typer.Option("--stream", metavar="NAME", help="a stream that has no type yet")
    ] = None,
    max_payload: MaxPayload = None,
    retention: Retention = None,
    every: Every = None,
    every_events: EveryEvents = None,
    issuer: Issuer = None,
    allow_open: Annotated[
        bool, typer.Option("--allow-open", help="at a hub that lets anyone write, to try things out")
    ] = False,
) -> None:
    """Set a recorder up, with this client as its administrator.

    Makes the streams' keys, maps event types to streams, classifies their labels for the long term, and says all of it
    in the log. Doing it again adds what is new. An identity that produces cannot administer.
    """
    from veen.client.client import Client
    from veen.recorder import setup

    pairs = dict(one.split("=", 1) for one in types or ())
    if len(pairs) != len(types or ()):
        raise Misuse("an event type is mapped twice", "each has exactly one stream")
    key = issuing(issuer, asked)
    given = every is not None or every_events is not None
    plan = setup.SetupPlan(
        pairs,
        tuple(streams or ()),
        max_payload,
        retention or setup.LONG_TERM_SEC,
        every if given else setup.DEFAULT_EVERY_SEC,
        every_events if given else setup.DEFAULT_EVERY_EVENTS,
        allow_open,
    )
    _check_streams(*plan.all_streams())

    async def work(client: Client) -> setup.SetupResult:
        return await setup.init(client, plan, key)

    done = at_hub(asked, work)
    profile = done.profile
    rows: dict[str, output.Value] = {
        "profile_id": profile.profile_id(),
        "admin": profile.admin_pk,
        "streams": ", ".join(profile.streams),
        "max_payload_bytes": profile.max_payload_bytes,
        "retention_sec": profile.retention_sec,
        "every_sec": profile.every_sec,
        "every_events": profile.every_events,
        "said": len(done.events),
    }
    output.facts(rows, asked.as_json, {**rows, "streams": profile.streams, "types": plan.all_types()})


def _check_streams(*streams: str) -> None:
    from veen.overlays.record import stream_flaw

    for stream in streams:
        flaw = stream_flaw(stream)
        if flaw is not None:
            raise Misuse(flaw, "for example record/app/web, record/security/login")


@options_command(
    HubOptions,
    app,
    "enrol",
    "veen recorder enrol shop --card shop.card --origin shop --stream record/app/web --out shop.kit",
)
def enrol(
    asked: HubOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="what the producer is called")],
    card: Annotated[
        Path, typer.Option("--card", metavar="DIR|FILE", help="its identity card, or its client directory")
    ],
    origin: Annotated[list[str], typer.Option("--origin", metavar="NAME", help="a service that it speaks for")],
    stream: Annotated[list[str], typer.Option("--stream", metavar="NAME", help="a stream that it may write to")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="the kit to make, for the producer")],
    ttl: Annotated[
        int,
        durations.whole_option(
            "--ttl", least=1, help="for how long, from when the hub is first shown it", show_default="365d"
        ),
    ] = 31_536_000,
    rate: Annotated[
        values.RateBound | None,
        typer.Option(
            "--rate",
            metavar="PER_SEC,BURST",
            help="at most so many events a second, and so many at once",
            show_default="the hub's own bounds",
            parser=values.rate,
        ),
    ] = None,
    issuer: Issuer = None,
) -> None:
    """Make an identity a producer, and write what it needs into a file.

    One identity for each service: whoever audits holds the origin of events against the key that signed them. The kit
    has leave to append, the public keys of the streams, and the key that opens the map.
    """
    from veen.cli.kit import key_files, output_files
    from veen.client.client import Client
    from veen.core import Rate
    from veen.recorder import ProducerKit, setup

    output_files.check_new(out)
    found, key = key_files.read_card(card), issuing(issuer, asked)
    bound = None if rate is None else Rate(rate.per_sec, rate.burst)
    _check_streams(*stream)
    who = setup.Enrolment(name, found, tuple(origin), tuple(stream), ttl, bound)

    async def work(client: Client) -> ProducerKit:
        return await setup.enrol(client, who, key)

    kit = at_hub(asked, work)
    output_files.write_new(out, kit.encode(), output_files.SECRET_MODE)
    rows: dict[str, output.Value] = {
        "producer": name,
        "origins": ", ".join(who.origins),
        "streams": ", ".join(one.name for one in kit.streams),
        "tokens": len(kit.tokens),
        "file": str(out),
    }
    data = {**rows, "origins": who.origins, "streams": [one.name for one in kit.streams]}
    output.facts(rows, asked.as_json, data)


@command(app, "join", "veen recorder join shop.kit --client shop")
def join(
    file: Annotated[Path, typer.Argument(metavar="KIT", help="what veen recorder enrol made")],
    client: ClientDir = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Take in what makes this client a producer."""
    from veen.cli.kit import open_session
    from veen.cli.recorder.recorder_options import advised
    from veen.client import durable
    from veen.recorder import ProducerKit

    kit = ProducerKit.decode(durable.read_file(file, 1 << 22))
    with advised(), open_session.open_client_dir(client, passphrase_file) as folder:
        kit.join(folder)
    streams = [one.name for one in kit.streams]
    rows: dict[str, output.Value] = {"hub_id": kit.hub_id, "admin": kit.admin_pk, "streams": ", ".join(streams)}
    output.facts(rows, as_json, {**rows, "streams": streams})


@options_command(HubOptions, app, "map", "veen recorder map job.done record/app/jobs --client admin")
def map_(
    asked: HubOptions,
    event_type: Annotated[str, typer.Argument(metavar="TYPE", help="an event type that has no stream yet")],
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="the one stream it goes to")],
) -> None:
    """Say which stream the events of a type go to."""
    from veen.client.client import Client
    from veen.recorder import setup

    _check_streams(stream)

    async def work(client: Client) -> "SentEvent":
        return await setup.map_type(client, event_type, stream)

    _tell(at_hub(asked, work), {"event_type": event_type, "stream": stream}, asked)


@options_command(
    HubOptions,
    app,
    "move",
    "veen recorder move record/app/web record/app/http --client admin --reason renamed",
    "veen recorder move record/app/web record/app/slow --type http.slow --client admin",
)
def move(
    asked: HubOptions,
    from_stream: Annotated[str, typer.Argument(metavar="FROM", help="the stream that events go to now")],
    to_stream: Annotated[str, typer.Argument(metavar="TO", help="the one they go to from then on")],
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="only these: a split", show_default="all: a rename"),
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="why, for whoever reads it")] = None,
) -> None:
    """Move event types to another stream.

    The log says so, as a rename or a split; what was written stays where it is.
    """
    from veen.client.client import Client
    from veen.recorder import setup

    _check_streams(from_stream, to_stream)

    async def work(client: Client) -> "SentEvent":
        return await setup.move(client, from_stream, to_stream, types or (), reason)

    _tell(at_hub(asked, work), {"from_stream": from_stream, "to_stream": to_stream}, asked)


def _tell(said: "SentEvent", shown: dict[str, output.Value], asked: HubOptions) -> None:
    sent = said.sent
    rows = {
        **shown,
        "stream_seq": sent.stream_seq,
        "msg_id": sent.msg_id,
        "hub_ts": output.moment(sent.receipt.hub_ts),
        "taken": said.applied,
    }
    output.facts(rows, asked.as_json, {**rows, "hub_ts": sent.receipt.hub_ts, "receipt": sent.receipt.encode()})


@read_command(app, "show", "veen recorder show --client admin", "veen recorder show --client admin --at 12 --json")
def show(asked: ReadOptions) -> None:
    """Show the map of event types, the producers and the profile."""
    from veen.cli.kit import read_state
    from veen.cli.kit.sanitize import printable
    from veen.overlays.record import CHANGES, RECORDER_CHANGES, producers, profile_of, stream_of, types_of

    def look(reading: "Changes") -> "StateAnswer":
        states = dict(reading.states)
        profile = profile_of(states)
        types = {one: stream_of(states, one) for one in types_of(states)}
        enrolled = producers(states)
        rows: list[tuple[output.Value, ...]] = [("type", printable(one), at) for one, at in types.items()]
        rows += [("producer", printable(one.name), printable(", ".join(one.origins))) for one in enrolled]
        if profile is not None:
            rows.append(("profile", profile.profile_id(), f"{len(profile.streams)} streams"))
        listed = [
            {"name": one.name, "client_ids": one.client_ids, "origins": one.origins, "streams": one.streams}
            for one in enrolled
        ]
        told = None
        if profile is not None:
            names = ("hub_id", "admin_pk", "streams", "max_payload_bytes", "retention_sec", "every_sec", "every_events")
            told = {"profile_id": profile.profile_id(), **{name: getattr(profile, name) for name in names}}
        data = {"types": types, "producers": listed, "profile": told}
        return read_state.StateAnswer(columns=("what", "name", "where"), rows=rows, data=data, parts=tuple(states))

    read_state.show_state(asked, RECORDER_CHANGES, look, stream=CHANGES)
