"""`veen authority`: the primary hub of each stream of a realm."""

from typing import Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, group
from veen.cli.kit import faults_command, output, read_state
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.sanitize import short
from veen.cli.kit.state_options import options_command
from veen.cli.realm import admin_event, realm_state
from veen.cli.realm.admin_event import PreparedEvent
from veen.cli.realm.realm_state import From, RealmReadOptions, RealmSendOptions, RealmState, hub_id
from veen.core import admin, naming
from veen.core.hashing import HASH_BYTES
from veen.overlays.admin_records import AdminRecord, Slot, slots
from veen.overlays.authority import AuthorityEvent, contested, label_authority, part_of
from veen.state.entry_source import EntrySource

Records: TypeAlias = tuple[AdminRecord[AuthorityEvent], ...]
AuthorityState: TypeAlias = RealmState[Records, Records]


app = group(
    "authority",
    """Set and show the primary hub of each stream of a realm.

    A record names the primary hub of a stream for a period. A later record for an overlapping period takes effect when
    the earlier one ends. A hub that was initialized with --realm rejects messages for streams whose only primary is
    another hub.
    """,
)

StreamName: TypeAlias = Annotated[str, typer.Argument(metavar="STREAM", help="the stream, by name or 64 hex digits")]


@options_command(
    RealmSendOptions,
    app,
    "set",
    "veen authority set doors --ttl 86400 --cap admin.cap",
    "veen authority set doors --primary 4be1… --policy multi-primary --from 2030-01-31 --ttl 86400",
)
def set_(
    options: RealmSendOptions,
    stream: StreamName,
    ttl: Annotated[int, durations.whole_option("--ttl", least=1, help="the length of the period")],
    primary: Annotated[
        bytes | None,
        typer.Option(
            "--primary", metavar="HEX", help="the hub_id of the primary", show_default="this hub", parser=hub_id
        ),
    ] = None,
    replica: Annotated[
        list[bytes] | None,
        typer.Option("--replica", metavar="HEX", help="the hub_id of a replica", parser=hub_id),
    ] = None,
    policy: Annotated[
        str, typer.Option("--policy", metavar="WORD", help="single-primary or multi-primary")
    ] = "single-primary",
    since: From = None,
) -> None:
    """Set the primary hub of a stream for a period."""

    allowed = [str(one) for one in admin.AuthorityPolicy if one is not admin.AuthorityPolicy.UNSPECIFIED]
    if policy not in allowed:
        raise Misuse(f"there is no policy {policy!r}", f"give --policy {' or '.join(allowed)}")

    def make(look: AuthorityState) -> list[PreparedEvent]:
        stream_id, ts = naming.stream_id(stream), look.now if since is None else since
        hub = look.source.known.identity.hub_id if primary is None else primary
        event = AuthorityEvent(look.realm_id, stream_id, hub, tuple(replica or ()), policy, ts, ttl)
        records = look.reading.state(part_of(look.realm_id, stream_id))
        ahead = [slot for slot in slots(records) if slot.has(ts) and slot.record.event.rank() < event.rank()]
        remark = None
        if ahead:
            remark = (
                f"entry {ahead[0].record.stream_seq} is in effect until {ahead[0].end}; this record takes effect then"
            )
        shown: dict[str, output.Value] = {
            "stream": stream,
            "primary_hub": hub,
            "policy": policy,
            "from": output.moment(ts),
            "until": output.moment(event.end),
        }
        data = {
            "realm_id": look.realm_id,
            "stream_id": stream_id,
            "primary_hub": hub,
            "replica_hubs": list(replica or ()),
            "policy": policy,
            "ts": ts,
            "ttl": ttl,
        }
        return [admin_event.PreparedEvent(event, stream_id, shown, data, remark)]

    admin_event.send_events(options, realm_state.AUTHORITY, make)


@options_command(
    RealmReadOptions, app, "show", "veen authority show doors", "veen authority show doors --when 2030-01-31 --prove"
)
def show(options: RealmReadOptions, stream: StreamName) -> None:
    """Show the primary hub of a stream, now or at another time, and all its records."""

    def look(state: AuthorityState) -> StateAnswer:
        stream_id = naming.stream_id(stream)
        part = part_of(state.realm_id, stream_id)
        records = state.reading.state(part)
        label = state.label(stream_id)
        found = label_authority(
            state.reading.states, label, state.now, lambda label: stream_id, lambda label: state.realm_id
        )
        facts: dict[str, output.Value] = {
            "stream": stream,
            "policy": str(found.policy),
            "primary_hub": found.primary_hub,
            "this hub": _role(found.primary_hub, state.source.known.identity.hub_id),
        }
        data = {
            "realm_id": state.realm_id,
            "stream_id": stream_id,
            "label": label,
            "when": state.now,
            "policy": found.policy,
            "primary_hub": found.primary_hub,
            "records": [_slot_data(slot, state.now) for slot in slots(records)],
        }
        rows = [_slot_row(slot, state.now) for slot in slots(records)]
        waiting = contested(records, state.now)
        remarks = (f"{len(waiting)} more active records take effect when this one ends",) if waiting else ()
        columns = ("primary_hub", "policy", "from", "until", "entry", "now")
        parts = (part,) if records else ()
        return read_state.StateAnswer(facts=facts, columns=columns, rows=rows, data=data, parts=parts, remarks=remarks)

    realm_state.show_realm_state(options, realm_state.AUTHORITY, look)


@options_command(RealmReadOptions, app, "list", "veen authority list", "veen authority list --all --json")
def list_(
    options: RealmReadOptions,
    every: Annotated[bool, typer.Option("--all", help="also past and future records")] = False,
) -> None:
    """List the streams that have a primary hub."""

    def look(state: AuthorityState) -> StateAnswer:
        rows, data, parts = [], [], []
        for part, records in sorted(state.reading.states.items()):
            for slot in slots(records):
                if every or slot.has(state.now):
                    stream_id = part[HASH_BYTES:]
                    rows.append((short(stream_id), *_slot_row(slot, state.now)))
                    data.append({"stream_id": stream_id, **_slot_data(slot, state.now)})
                    parts.append(part)
        columns = ("stream_id", "primary_hub", "policy", "from", "until", "entry", "now")
        document = {"realm_id": state.realm_id, "when": state.now, "records": data}
        return read_state.StateAnswer(columns=columns, rows=rows, data=document, parts=tuple(dict.fromkeys(parts)))

    realm_state.show_realm_state(options, realm_state.AUTHORITY, look)


@options_command(
    RealmReadOptions, app, "streams", "veen authority streams", "veen authority streams --realm town --json"
)
def streams(options: RealmReadOptions) -> None:
    """Show the administrative streams of a realm.

    The capabilities of its administrators must name them.
    """

    async def work(source: EntrySource) -> bytes:
        return realm_state.realm_of(source, None)

    realm_id = realm_state.with_source(options, work) if options.realm is None else options.realm
    names = ("authority", "revocation", "label-class", "schema")
    found: dict[str, output.Value] = dict(zip(names, admin.admin_streams(realm_id), strict=True))
    output.facts({"realm_id": realm_id, **found}, options.as_json)


def _role(primary: bytes | None, hub_id: bytes) -> str:
    if primary is None:
        return "no record"
    return "primary" if primary == hub_id else "not primary"


def _slot_row(slot: Slot[AuthorityEvent], now: int) -> tuple[output.Value, ...]:
    event = slot.record.event
    status = Marked("in effect", Tone.GOOD) if slot.has(now) else None
    times = output.moment(slot.start), output.moment(slot.end)
    return short(event.primary_hub), event.policy, *times, slot.record.stream_seq, status


def _slot_data(slot: Slot[AuthorityEvent], now: int) -> dict[str, object]:
    event = slot.record.event
    return {
        "primary_hub": event.primary_hub,
        "replica_hubs": event.replica_hubs,
        "policy": event.policy,
        "ts": event.ts,
        "ttl": event.ttl,
        "from": slot.start,
        "until": slot.end,
        "counts": slot.has(now),
        **slot.record.where(),
    }


faults_command.add_for_realm(app, "veen authority", realm_state.AUTHORITY)
