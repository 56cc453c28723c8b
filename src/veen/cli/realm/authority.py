"""`veen authority`: the primary hub of each stream of a realm."""

from typing import Annotated, Any, TypeAlias

from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, group, option, options_command
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.result import Column, Moment, Result, fields_of
from veen.cli.kit.state_session import Answer, SendSession, StateSession, run_session
from veen.cli.kit.values import key_parser
from veen.cli.realm import realm_state
from veen.cli.realm.realm_state import (
    AUTHORITY,
    From,
    PreparedEvent,
    RealmReadOptions,
    RealmSession,
    add_realm_faults,
    realm_read_command,
    realm_send_command,
)
from veen.core import admin, naming
from veen.core.hashing import HASH_BYTES
from veen.overlays.admin_records import Slot, slots
from veen.overlays.authority import AuthorityEvent, contested, label_authority, part_of

app = group(
    "authority",
    """Set and show the primary hub of each stream of a realm.

    A record names the primary hub of a stream for a period. A later record for an overlapping period takes effect when
    the earlier one ends. A hub that was initialized with --realm rejects messages for streams whose only primary is
    another hub.
    """,
)

StreamName: TypeAlias = Annotated[str, argument("STREAM", "the stream, by name or 64 hex digits")]
_hub_id = key_parser("the id of a hub")
_SLOT_COLUMNS: tuple[Column, ...] = (
    "primary_hub",
    "policy",
    "from",
    "until",
    ("entry", "stream_seq"),
    ("now", lambda row: Marked("in effect", Tone.GOOD) if row["counts"] else None),
)


@realm_send_command(
    app,
    "set",
    "veen authority set doors --ttl 86400 --cap admin.cap",
    "veen authority set doors --primary 4be1… --policy multi-primary --from 2030-01-31 --ttl 86400",
)
async def set_(
    session: SendSession,
    stream: StreamName,
    ttl: Annotated[int, durations.whole_option("--ttl", least=1, help="the length of the period")],
    primary: Annotated[
        bytes | None, option("--primary HEX", "the hub_id of the primary", default="this hub", parser=_hub_id)
    ] = None,
    replica: Annotated[list[bytes] | None, option("--replica HEX", "the hub_id of a replica", parser=_hub_id)] = None,
    policy: Annotated[str, option("--policy WORD", "single-primary or multi-primary")] = "single-primary",
    since: From = None,
) -> Result:
    """Set the primary hub of a stream for a period."""
    allowed = [str(one) for one in admin.AuthorityPolicy if one is not admin.AuthorityPolicy.UNSPECIFIED]
    if policy not in allowed:
        raise Misuse(f"there is no policy {policy!r}", f"give --policy {' or '.join(allowed)}")
    state = await AUTHORITY.open(session)
    stream_id, ts = naming.stream_id(stream), state.now if since is None else since
    hub = state.source.known.identity.hub_id if primary is None else primary
    event = AuthorityEvent(state.realm_id, stream_id, hub, tuple(replica or ()), policy, ts, ttl)
    records = state.reading.state(part_of(state.realm_id, stream_id))
    ahead = [slot for slot in slots(records) if slot.has(ts) and slot.record.event.rank() < event.rank()]
    remark = None
    if ahead:
        remark = f"entry {ahead[0].record.stream_seq} is in effect until {ahead[0].end}; this record takes effect then"
    data = fields_of(event, "realm_id", "stream_id", "primary_hub", "replica_hubs", "policy", "ts", "ttl")
    data |= {"_stream": stream, "_from": Moment(ts), "_until": Moment.of(event.end)}
    facts = (("stream", "_stream"), "primary_hub", "policy", ("from", "_from"), ("until", "_until"))
    return await realm_state.send_events(session, state, [PreparedEvent(event, stream_id, data, facts, remark)])


@realm_read_command(app, "show", "veen authority show doors", "veen authority show doors --when 2030-01-31 --prove")
async def show(session: RealmSession, stream: StreamName) -> Answer:
    """Show the primary hub of a stream, now or at another time, and all its records."""
    state, stream_id = await AUTHORITY.open(session), naming.stream_id(stream)
    part, label = part_of(state.realm_id, stream_id), state.label(stream_id)
    records = state.reading.state(part)
    found = label_authority(
        state.reading.states, label, state.now, lambda label: stream_id, lambda label: state.realm_id
    )
    waiting = contested(records, state.now)
    data = {
        "realm_id": state.realm_id,
        "stream_id": stream_id,
        "label": label,
        "when": state.now,
        "policy": found.policy,
        "primary_hub": found.primary_hub,
        "records": [_slot_data(slot, state.now) for slot in slots(records)],
        "_stream": stream,
        "_role": _role(found.primary_hub, state.source.known.identity.hub_id),
    }
    return Answer(
        data,
        facts=(("stream", "_stream"), "policy", "primary_hub", ("this hub", "_role")),
        rows="records",
        columns=_SLOT_COLUMNS,
        parts=(part,) if records else (),
        remarks=(f"{len(waiting)} more active records take effect when this one ends",) if waiting else (),
    )


@realm_read_command(app, "list", "veen authority list", "veen authority list --all --json")
async def list_(
    session: RealmSession, every: Annotated[bool, option("--all", "also past and future records")] = False
) -> Answer:
    """List the streams that have a primary hub."""
    state = await AUTHORITY.open(session)
    found = [
        (part, slot)
        for part, records in sorted(state.reading.states.items())
        for slot in slots(records)
        if every or slot.has(state.now)
    ]
    data = [{"stream_id": part[HASH_BYTES:], **_slot_data(slot, state.now)} for part, slot in found]
    return Answer(
        {"realm_id": state.realm_id, "when": state.now, "records": data},
        rows="records",
        columns=("stream_id", *_SLOT_COLUMNS),
        parts=tuple(dict.fromkeys(part for part, _ in found)),
    )


@options_command(
    RealmReadOptions, app, "streams", "veen authority streams", "veen authority streams --realm town --json"
)
def streams(options: RealmReadOptions) -> None:
    """Show the administrative streams of a realm.

    The capabilities of its administrators must name them.
    """

    async def of_the_hub(session: RealmSession) -> Result:
        return _streams(realm_state.realm_of(await session.source(), None))

    if options.realm is None:
        run_session(StateSession, options, of_the_hub)
    else:
        _streams(options.realm).show(options.as_json)


def _streams(realm_id: bytes) -> Result:
    names = ("authority", "revocation", "label-class", "schema")
    return Result({"realm_id": realm_id, **dict(zip(names, admin.admin_streams(realm_id), strict=True))})


def _role(primary: bytes | None, hub_id: bytes) -> str:
    if primary is None:
        return "no record"
    return "primary" if primary == hub_id else "not primary"


def _slot_data(slot: Slot[AuthorityEvent], now: int) -> dict[str, Any]:
    return {
        **fields_of(slot.record.event, "primary_hub", "replica_hubs", "policy", "ts", "ttl"),
        "from": Moment(slot.start),
        "until": Moment.of(slot.end),
        "counts": slot.has(now),
        **slot.record.where(),
    }


add_realm_faults(app, "veen authority", AUTHORITY)
