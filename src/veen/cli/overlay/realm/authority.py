"""`veen authority`: which hub orders which stream of a realm."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from terminalface import durations
from terminalface.command import Misuse, group
from veen.cli.overlay import faults
from veen.cli.overlay.declaring import taking
from veen.cli.overlay.realm.options import From, RealmReads, RealmSays, hub_id

if TYPE_CHECKING:
    from veen.cli import output
    from veen.cli.overlay.asking import Answer
    from veen.cli.overlay.realm.realm import AdminStream, Look
    from veen.cli.overlay.realm.saying import Saying
    from veen.overlays.admin.authority import Authority
    from veen.overlays.admin.lasting import Slot
    from veen.overlays.admin.records import Record
    from veen.state.source import Source

    Records: TypeAlias = tuple[Record[Authority], ...]
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


@taking(
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
    from veen.cli import output
    from veen.cli.overlay.realm import realm, saying
    from veen.core import admin, naming
    from veen.overlays.admin.authority import Authority, part_of
    from veen.overlays.admin.lasting import slots

    allowed = [str(one) for one in admin.Policy if one is not admin.Policy.UNSPECIFIED]
    if policy not in allowed:
        raise Misuse(f"there is no policy {policy!r}", f"give --policy {' or '.join(allowed)}")

    def make(look: "Looked") -> "list[Saying]":
        stream_id, ts = naming.stream_id(stream), look.now if since is None else since
        hub = look.source.known.identity.hub_id if primary is None else primary
        event = Authority(look.realm_id, stream_id, hub, tuple(replica or ()), policy, ts, ttl)
        state = look.reading.state(part_of(look.realm_id, stream_id))
        ahead = [slot for slot in slots(state) if slot.has(ts) and slot.record.said.rank() < event.rank()]
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
        return [saying.Saying(event, stream_id, shown, told, remark)]

    saying.say(asked, realm.AUTHORITY, make)


@taking(RealmReads, app, "show", "veen authority show doors", "veen authority show doors --when 2030-01-31 --prove")
def show(asked: RealmReads, stream: StreamName) -> None:
    """Show which hub orders a stream, now or at any other time, and what is planned."""
    from veen.cli import output
    from veen.cli.overlay import asking
    from veen.cli.overlay.realm import realm
    from veen.core import naming
    from veen.overlays.admin.authority import contested, label_authority, part_of
    from veen.overlays.admin.lasting import slots

    def look(here: "Looked") -> "Answer":
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
        return asking.Answer(facts=facts, columns=columns, rows=rows, data=data, parts=parts, remarks=remarks)

    realm.answer(asked, realm.AUTHORITY, look)


@taking(RealmReads, app, "list", "veen authority list", "veen authority list --all --json")
def list_(
    asked: RealmReads,
    every: Annotated[bool, typer.Option("--all", help="also what is over, or is yet to begin")] = False,
) -> None:
    """List the streams that have a primary, and which hub that is."""
    from veen.cli.client.showing import short
    from veen.cli.overlay import asking
    from veen.cli.overlay.realm import realm
    from veen.core.hashing import HASH_BYTES
    from veen.overlays.admin.lasting import slots

    def look(here: "Looked") -> "Answer":
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
        return asking.Answer(columns=columns, rows=rows, data=told, parts=tuple(dict.fromkeys(parts)))

    realm.answer(asked, realm.AUTHORITY, look)


@taking(RealmReads, app, "streams", "veen authority streams", "veen authority streams --realm town --json")
def streams(asked: RealmReads) -> None:
    """Show the streams of a realm, for its administrators' capabilities to name."""
    from veen.cli import output
    from veen.cli.overlay.realm import realm
    from veen.core import admin

    async def work(source: "Source") -> bytes:
        return realm.realm_of(source, None)

    realm_id = realm.visiting(asked, work) if asked.realm is None else asked.realm
    names = ("authority", "revocation", "label-class", "schema")
    found: dict[str, output.Value] = dict(zip(names, admin.admin_streams(realm_id), strict=True))
    output.facts({"realm_id": realm_id, **found}, asked.as_json)


def _here(primary: bytes | None, hub_id: bytes) -> str:
    if primary is None:
        return "nobody has said"
    return "primary" if primary == hub_id else "not primary"


def _slot_row(slot: "Slot[Authority]", now: int) -> "tuple[output.Value, ...]":
    from veen.cli import output
    from veen.cli.client.showing import short
    from veen.cli.output import Marked, Tone

    said = slot.record.said
    holds = Marked("counts", Tone.GOOD) if slot.has(now) else None
    times = output.moment(slot.start), output.moment(slot.end)
    return short(said.primary_hub), said.policy, *times, slot.record.stream_seq, holds


def _slot_data(slot: "Slot[Authority]", now: int) -> dict[str, object]:
    said = slot.record.said
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
    from veen.cli.overlay.realm import realm

    return realm.AUTHORITY


faults.add_of_realm(app, "veen authority", _stream)
