"""`veen recorder init|enrol|join|map|move|show`: streams, event types and producers of a recorder."""

from pathlib import Path
from typing import Annotated

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, command, option, options_command
from veen.cli.kit import key_files, open_session, output_files, values
from veen.cli.kit.common_options import ClientDir, HubOptions, JsonOption, PassphraseFile
from veen.cli.kit.result import Column, Result, fields_of, listed
from veen.cli.kit.state_session import Answer, ReadSession, read_command
from veen.cli.recorder.recorder_options import Issuer, at_hub, issuer_key, sent_data, with_hints
from veen.client import local_files
from veen.client.client import Client
from veen.core import Rate
from veen.overlays.record import (
    CHANGES,
    RECORDER_CHANGES,
    producers,
    profile_of,
    stream_flaw,
    stream_of,
    types_of,
)
from veen.recorder import ProducerKit, setup
from veen.state.event_sender import SentEvent

app = typer.Typer()


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
        list[str] | None, option("--type TYPE=STREAM", "map an event type to a stream", parser=_pair)
    ] = None,
    streams: Annotated[list[str] | None, option("--stream NAME", "create a stream without an event type")] = None,
    max_payload: Annotated[
        int | None, option("--max-payload BYTES", "maximum size of a payload", min=1, show_default="65536")
    ] = None,
    retention: Annotated[
        int | None,
        durations.whole_option(
            "--retention",
            least=1,
            help="declared retention of events; veen retention set-classes lets the hub follow it",
            show_default="10 years",
        ),
    ] = None,
    every: Annotated[
        int | None, durations.whole_option("--every", least=1, help="time between checkpoints", show_default="300")
    ] = None,
    every_events: Annotated[
        int | None, option("--every-events N", "events between checkpoints", min=1, show_default="10000")
    ] = None,
    issuer: Issuer = None,
    allow_open: Annotated[bool, option("--allow-open", "permit a hub with open admission, for a trial")] = False,
) -> None:
    """Set up a recorder with this client as its administrator.

    The command creates the keys of the streams, maps event types to streams, classifies their labels for long-term
    retention, and records all of this in the log. Running it again adds what is new. A producer cannot be an
    administrator.
    """
    pairs = dict(one.split("=", 1) for one in types or ())
    if len(pairs) != len(types or ()):
        raise Misuse("an event type is mapped twice", "give --type once for each event type")
    key = issuer_key(issuer, asked)
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
    data = {
        "profile_id": profile.profile_id(),
        "admin": profile.admin_pk,
        **fields_of(profile, "streams", "max_payload_bytes", "retention_sec", "every_sec", "every_events"),
        "said": len(done.events),
        "types": plan.all_types(),
    }
    shown = ("max_payload_bytes", "retention_sec", "every_sec", "every_events", "said")
    facts: list[Column] = ["profile_id", "admin", ("streams", listed("streams")), *shown]
    Result(data, facts=facts).show(asked.as_json)


def _check_streams(*streams: str) -> None:
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
    name: Annotated[str, argument("NAME", "name of the producer")],
    card: Annotated[Path, option("--card DIR|FILE", "identity card or client directory of the producer")],
    origin: Annotated[list[str], option("--origin NAME", "a service whose events it records")],
    stream: Annotated[list[str], option("--stream NAME", "a stream that it may write to")],
    out: Annotated[Path, option("--out FILE", "the file to create for the producer")],
    ttl: Annotated[
        int,
        durations.whole_option(
            "--ttl", least=1, help="how long the capability is valid after it is first authorized", show_default="365d"
        ),
    ] = 31_536_000,
    rate: Annotated[
        values.RateBound | None,
        option(
            "--rate PER_SEC,BURST",
            "maximum events per second, and maximum burst",
            show_default="the hub's limits",
            parser=values.rate,
        ),
    ] = None,
    issuer: Issuer = None,
) -> None:
    """Enrol a producer and write a file with everything it needs.

    Use one identity per service: an audit compares the origin of each event with the key that signed it. The file
    contains capabilities, the public keys of the streams, and the key that opens the map of event types.
    """
    output_files.check_new(out)
    found, key = key_files.read_card(card), issuer_key(issuer, asked)
    bound = None if rate is None else Rate(rate.per_sec, rate.burst)
    _check_streams(*stream)
    enrolment = setup.Enrolment(name, found, tuple(origin), tuple(stream), ttl, bound)

    async def work(client: Client) -> ProducerKit:
        return await setup.enrol(client, enrolment, key)

    kit = at_hub(asked, work)
    output_files.write_new(out, kit.encode(), output_files.SECRET_MODE)
    data = {
        "producer": name,
        "origins": enrolment.origins,
        "streams": [one.name for one in kit.streams],
        "tokens": len(kit.tokens),
        "file": str(out),
    }
    facts = ("producer", ("origins", listed("origins")), ("streams", listed("streams")), "tokens", "file")
    Result(data, facts=facts).show(asked.as_json)


@command(app, "join", "veen recorder join shop.kit --client shop")
def join(
    file: Annotated[Path, argument("KIT", "a file from veen recorder enrol")],
    client: ClientDir = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Make this client a producer with a file from veen recorder enrol."""
    kit = ProducerKit.decode(local_files.read_file(file, 1 << 22))
    with with_hints(), open_session.open_client_dir(client, passphrase_file) as folder:
        kit.join(folder)
    data = {"hub_id": kit.hub_id, "admin": kit.admin_pk, "streams": [one.name for one in kit.streams]}
    Result(data, facts=("hub_id", "admin", ("streams", listed("streams")))).show(as_json)


@options_command(HubOptions, app, "map", "veen recorder map job.done record/app/jobs --client admin")
def map_(
    asked: HubOptions,
    event_type: Annotated[str, argument("TYPE", "an event type that has no stream yet")],
    stream: Annotated[str, argument("STREAM", "the stream for its events")],
) -> None:
    """Map an event type to a stream."""
    _check_streams(stream)

    async def work(client: Client) -> SentEvent:
        return await setup.map_type(client, event_type, stream)

    _show_sent(at_hub(asked, work), {"event_type": event_type, "stream": stream}, asked)


@options_command(
    HubOptions,
    app,
    "move",
    "veen recorder move record/app/web record/app/http --client admin --reason renamed",
    "veen recorder move record/app/web record/app/slow --type http.slow --client admin",
)
def move(
    asked: HubOptions,
    from_stream: Annotated[str, argument("FROM", "the current stream")],
    to_stream: Annotated[str, argument("TO", "the new stream")],
    types: Annotated[
        list[str] | None, option("--type TYPE", "move only this type (a split)", show_default="all types (a rename)")
    ] = None,
    reason: Annotated[str | None, option("--reason TEXT", "reason, for the record")] = None,
) -> None:
    """Move event types to another stream.

    The log records the move as a rename or a split. Existing entries stay where they are.
    """
    _check_streams(from_stream, to_stream)

    async def work(client: Client) -> SentEvent:
        return await setup.move(client, from_stream, to_stream, types or (), reason)

    _show_sent(at_hub(asked, work), {"from_stream": from_stream, "to_stream": to_stream}, asked)


def _show_sent(event: SentEvent, shown: dict[str, str], asked: HubOptions) -> None:
    rows = {**shown, **sent_data(event.sent), "taken": event.applied}
    Result({**rows, "receipt": event.sent.receipt.encode()}, facts=tuple(rows)).show(asked.as_json)


@read_command(app, "show", "veen recorder show --client admin", "veen recorder show --client admin --at 12 --json")
async def show(session: ReadSession) -> Answer:
    """Show the map of event types, the producers and the profile."""
    states = dict((await session.open(RECORDER_CHANGES, CHANGES)).states)
    types = {one: stream_of(states, one) for one in types_of(states)}
    enrolled, profile = producers(states), profile_of(states)
    rows: list[tuple[object, ...]] = [("type", one, at) for one, at in types.items()]
    rows += [("producer", one.name, ", ".join(one.origins)) for one in enrolled]
    profile_data = None
    if profile is not None:
        rows.append(("profile", profile.profile_id().hex(), f"{len(profile.streams)} streams"))
        names = ("hub_id", "admin_pk", "streams", "max_payload_bytes", "retention_sec", "every_sec", "every_events")
        profile_data = {"profile_id": profile.profile_id(), **fields_of(profile, *names)}
    columns = ("what", "name", "where")
    data = {
        "types": types,
        "producers": [fields_of(one, "name", "client_ids", "origins", "streams") for one in enrolled],
        "profile": profile_data,
        "_rows": [dict(zip(columns, row, strict=True)) for row in rows],
    }
    return Answer(data, rows="_rows", columns=columns, parts=tuple(states))
