"""`veen authority`: which hub orders which stream of a realm."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, group
from veen.cli.kit import faults_command
from veen.cli.kit.state_options import options_command
from veen.cli.realm.realm_state import From, RealmReads, RealmSays, hub_id

if TYPE_CHECKING:
    from veen.cli.kit import output
    from veen.cli.kit.read_state import StateAnswer
    from veen.cli.realm.admin_event import Saying
    from veen.cli.realm.realm_state import AdminStream, Look
    from veen.overlays.admin.admin_records import AdminRecord, Slot
    from veen.overlays.admin.authority import AuthorityEvent
    from veen.state.entry_source import EntrySource

    Records: TypeAlias = tuple[AdminRecord[AuthorityEvent], ...]
    Looked: TypeAlias = Look[Records, Records]

app = group(
    "authority",
    """Say which hub orders which stream of a realm.

    A record names the hub that is primary for a stream, from when on and for how long. While one holds, a later one
    waits until it ends. A hub that was made with --realm refuses messages for streams of which another is the only
    primary.
    """,
)

StreamName: TypeAlias = Annotated[str, typer.Argument(metavar="STREAM", help="the stream, by name or 64 hex digits")]


@options_command(
    RealmSays,
    app,
    "set",
    "veen authority set doors --ttl 86400 --cap admin.cap",
    "veen authority set doors --primary 4be1… --policy multi-primary --from 2030-01-31 --ttl 86400",
)
def set_(
    asked: RealmSays,
    stream: StreamName,
    ttl: Annotated[int, durations.whole_option("--ttl", least=1, help="for how long")],
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
    """Say which hub is primary for a stream, and for how long."""
    from veen.cli.kit import output
    from veen.cli.realm import admin_event, realm_state
    from veen.core import admin, naming
    from veen.overlays.admin.admin_records import slots
    from veen.overlays.admin.authority import AuthorityEvent, part_of

    allowed = [str(one) for one in admin.AuthorityPolicy if one is not admin.AuthorityPolicy.UNSPECIFIED]
    if policy not in allowed:
        raise Misuse(f"there is no policy {policy!r}", f"give --policy {' or '.join(allowed)}")

    def make(look: "Looked") -> "list[Saying]":
        stream_id, ts = naming.stream_id(stream), look.now if since is None else since
        hub = look.source.known.identity.hub_id if primary is None else primary
        event = AuthorityEvent(look.realm_id, stream_id, hub, tuple(replica or ()), policy, ts, ttl)
        state = look.reading.state(part_of(look.realm_id, stream_id))
        ahead = [slot for slot in slots(state) if slot.has(ts) and slot.record.event.rank() < event.rank()]
        remark = None
        if ahead:
            remark = f"entry {ahead[0].record.stream_seq} holds until {ahead[0].end}: this record counts from then on"
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
        }
        told = {**data, "policy": policy, "ts": ts, "ttl": ttl}
        return [admin_event.Saying(event, stream_id, shown, told, remark)]

    admin_event.say(asked, realm_state.AUTHORITY, make)


@options_command(
    RealmReads, app, "show", "veen authority show doors", "veen authority show doors --when 2030-01-31 --prove"
)
def show(asked: RealmReads, stream: StreamName) -> None:
    """Show which hub orders a stream, now or at any other time, and what is planned."""
    from veen.cli.kit import output, read_state
    from veen.cli.realm import realm_state
    from veen.core import naming
    from veen.overlays.admin.admin_records import slots
    from veen.overlays.admin.authority import contested, label_authority, part_of

    def look(here: "Looked") -> "StateAnswer":
        stream_id = naming.stream_id(stream)
        part = part_of(here.realm_id, stream_id)
        state = here.reading.state(part)
        label = here.label(stream_id)
        found = label_authority(
            here.reading.states, label, here.now, lambda label: stream_id, lambda label: here.realm_id
        )
        facts: dict[str, output.Value] = {
            "stream": stream,
            "policy": str(found.policy),
            "primary_hub": found.primary_hub,
            "here": _here(found.primary_hub, here.source.known.identity.hub_id),
        }
        data = {
            "realm_id": here.realm_id,
            "stream_id": stream_id,
            "label": label,
            "when": here.now,
            "policy": found.policy,
            "primary_hub": found.primary_hub,
            "records": [_slot_data(slot, here.now) for slot in slots(state)],
        }
        rows = [_slot_row(slot, here.now) for slot in slots(state)]
        waiting = contested(state, here.now)
        remarks = (f"{len(waiting)} more are active, and wait for it to end",) if waiting else ()
        columns = ("primary_hub", "policy", "counts from", "until", "entry", "now")
        parts = (part,) if state else ()
        return read_state.StateAnswer(facts=facts, columns=columns, rows=rows, data=data, parts=parts, remarks=remarks)

    realm_state.answer(asked, realm_state.AUTHORITY, look)


@options_command(RealmReads, app, "list", "veen authority list", "veen authority list --all --json")
def list_(
    asked: RealmReads,
    every: Annotated[bool, typer.Option("--all", help="also what is over, or is yet to begin")] = False,
) -> None:
    """List the streams that have a primary, and which hub that is."""
    from veen.cli.kit import read_state
    from veen.cli.kit.sanitize import short
    from veen.cli.realm import realm_state
    from veen.core.hashing import HASH_BYTES
    from veen.overlays.admin.admin_records import slots

    def look(here: "Looked") -> "StateAnswer":
        rows, data, parts = [], [], []
        for part, state in sorted(here.reading.states.items()):
            for slot in slots(state):
                if every or slot.has(here.now):
                    stream_id = part[HASH_BYTES:]
                    rows.append((short(stream_id), *_slot_row(slot, here.now)))
                    data.append({"stream_id": stream_id, **_slot_data(slot, here.now)})
                    parts.append(part)
        columns = ("stream_id", "primary_hub", "policy", "counts from", "until", "entry", "now")
        told = {"realm_id": here.realm_id, "when": here.now, "records": data}
        return read_state.StateAnswer(columns=columns, rows=rows, data=told, parts=tuple(dict.fromkeys(parts)))

    realm_state.answer(asked, realm_state.AUTHORITY, look)


@options_command(RealmReads, app, "streams", "veen authority streams", "veen authority streams --realm town --json")
def streams(asked: RealmReads) -> None:
    """Show the streams of a realm, for its administrators' capabilities to name."""
    from veen.cli.kit import output
    from veen.cli.realm import realm_state
    from veen.core import admin

    async def work(source: "EntrySource") -> bytes:
        return realm_state.realm_of(source, None)

    realm_id = realm_state.visiting(asked, work) if asked.realm is None else asked.realm
    names = ("authority", "revocation", "label-class", "schema")
    found: dict[str, output.Value] = dict(zip(names, admin.admin_streams(realm_id), strict=True))
    output.facts({"realm_id": realm_id, **found}, asked.as_json)


def _here(primary: bytes | None, hub_id: bytes) -> str:
    if primary is None:
        return "nobody has said"
    return "primary" if primary == hub_id else "not primary"


def _slot_row(slot: "Slot[AuthorityEvent]", now: int) -> "tuple[output.Value, ...]":
    from veen.cli.kit import output
    from veen.cli.kit.output import Marked, Tone
    from veen.cli.kit.sanitize import short

    said = slot.record.event
    holds = Marked("counts", Tone.GOOD) if slot.has(now) else None
    times = output.moment(slot.start), output.moment(slot.end)
    return short(said.primary_hub), said.policy, *times, slot.record.stream_seq, holds


def _slot_data(slot: "Slot[AuthorityEvent]", now: int) -> dict[str, object]:
    said = slot.record.event
    return {
        "primary_hub": said.primary_hub,
        "replica_hubs": said.replica_hubs,
        "policy": said.policy,
        "ts": said.ts,
        "ttl": said.ttl,
        "from": slot.start,
        "until": slot.end,
        "counts": slot.has(now),
        **slot.record.where(),
    }


def _stream() -> "AdminStream[Records, Records]":
    from veen.cli.realm import realm_state

    return realm_state.AUTHORITY


faults_command.add_for_realm(app, "veen authority", _stream)
