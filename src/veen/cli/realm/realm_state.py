"""Options, state and events of the realm commands. A realm's streams are derived from its id: there is no --stream."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Generic, TypeAlias, TypeVar

from plumbing.cli.command import option
from veen.cli.kit import output
from veen.cli.kit.common_options import Cap, HubOptions, NoCache, StateOptions
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.result import Column, Moment, Result
from veen.cli.kit.state_session import SendSession, StateSession, add_faults, send_hints, state_command
from veen.cli.kit.values import moment, realm
from veen.core import DhKey, Refused, admin
from veen.overlays import Event, Overlay
from veen.overlays.admin_records import Records
from veen.overlays.authority import Authorities, AuthorityEvent
from veen.overlays.authorization import REVOCATIONS, RevocationEvent
from veen.overlays.stream_catalog import LABEL_CLASSES, SCHEMAS, LabelClass, SchemaDescriptor
from veen.state.entry_source import EntrySource, HubSource
from veen.state.event_sender import EventRefused, EventSender, SentEvent
from veen.state.state_view import StateAt

S = TypeVar("S")
M = TypeVar("M")

RealmOption: TypeAlias = Annotated[
    bytes | None,
    option(
        "--realm NAME|HEX",
        "the realm, by name or id",
        default="the hub's own, else the realm named veen",
        parser=realm,
    ),
]
When: TypeAlias = Annotated[
    int | None,
    option(
        "--when TIME",
        "the state at this time, in seconds since 1970 or as a date",
        default="now; with --at, the time of that entry",
        parser=moment,
    ),
]
From: TypeAlias = Annotated[
    int | None,
    option("--from TIME", "the start, in seconds since 1970 or as a date", default="now", parser=moment),
]


@dataclass(frozen=True, slots=True)
class RealmReadOptions(StateOptions):
    """Options of a command that shows state of a realm."""

    realm: RealmOption = None
    when: When = None


@dataclass(frozen=True, slots=True)
class RealmSendOptions(HubOptions):
    """Options of a command that sends events for a realm."""

    realm: RealmOption = None
    no_cache: NoCache = False
    cap: Cap = None
    blind: ClassVar[bool] = False


RealmSession: TypeAlias = StateSession[RealmReadOptions]
realm_read_command = partial(state_command, StateSession, RealmReadOptions)
realm_send_command = partial(state_command, SendSession, RealmSendOptions)


@dataclass(frozen=True, slots=True)
class AdminStream(Generic[S, M]):
    """One of a realm's streams: its id and its overlay, both derived from the realm id."""

    stream_id: Callable[[bytes], bytes]
    overlay: Callable[[bytes], Overlay[S, M]]

    async def open(self, session: StateSession[Any], *, current: bool = False) -> "RealmState[S, M]":
        """The state of the stream, at the place and time that the options name; with `current`, at its end."""
        source = await session.source()
        realm_id = realm_of(source, session.options.realm)
        stream_id = self.stream_id(realm_id)
        add_public_reader_key(source, stream_id, admin.reader_key(stream_id))
        open_state = session.open_other if current else session.open
        reading = await open_state(self.overlay(realm_id), stream_id.hex())
        now, at = (getattr(session.options, name, None) for name in ("when", "at"))
        if now is None and at is not None and not current and reading.at.stream_seq:
            now = (await source.receipt(stream_id, reading.at)).hub_ts
        return RealmState(source, reading, realm_id, current_time(source) if now is None else now)


REVOKED: AdminStream[Records[RevocationEvent], Records[RevocationEvent]] = AdminStream(
    admin.revocation_stream, lambda realm_id: REVOCATIONS
)
AUTHORITY: AdminStream[Records[AuthorityEvent], Records[AuthorityEvent]] = AdminStream(
    admin.fed_admin_stream, Authorities
)
CLASSES: AdminStream[Records[LabelClass], Records[LabelClass]] = AdminStream(
    admin.label_class_stream, lambda realm_id: LABEL_CLASSES
)
REGISTRY: AdminStream[Records[SchemaDescriptor], Records[SchemaDescriptor]] = AdminStream(
    admin.schema_meta_stream, lambda realm_id: SCHEMAS
)


@dataclass(frozen=True, slots=True)
class RealmState(Generic[S, M]):
    """The state of one of a realm's streams, and the time that the command is about."""

    source: EntrySource
    reading: StateAt[S, M]
    realm_id: bytes
    now: int

    def label(self, stream_id: bytes) -> bytes:
        """The label of a stream at `now`."""
        return self.source.label(stream_id, self.source.known.profile.epoch(self.now))


def current_time(source: EntrySource) -> int:
    """The hub's time, or for a data directory the time of this machine."""
    return source.now() if isinstance(source, HubSource) else int(time.time())


def realm_of(source: EntrySource, given: bytes | None) -> bytes:
    """The given realm, else the hub's own, else the global realm."""
    return given or source.known.identity.realm_id or admin.GLOBAL_REALM


def add_public_reader_key(source: EntrySource, stream_id: bytes, key: DhKey) -> None:
    """Add the reader key of a stream that anyone may read to the client directory."""
    if source.folder.stream_keys.secret(stream_id) is None:
        source.folder.stream_keys.import_secret(stream_id.hex(), key)


def add_realm_faults(app: Any, command: str, stream: AdminStream[Any, Any]) -> None:
    """Add the command `faults` to a group."""

    async def open_state(session: RealmSession) -> StateAt[Any, Any]:
        return (await stream.open(session)).reading

    add_faults(app, command, open_state, options=RealmReadOptions)


_CAPABILITY_ERRORS = ("CAP_MISSING", "AUTH_REF", "CAP_TTL")


@dataclass(frozen=True, slots=True)
class PreparedEvent:
    """An event to send, the name under which it is listed, and what to show of it."""

    event: Event
    name: bytes
    data: dict[str, Any]
    facts: Sequence[Column]
    remark: str | None = None


async def send_events(session: SendSession, state: RealmState[Any, Any], events: Sequence[PreparedEvent]) -> Result:
    """Send events to a realm's stream, after a check against its state, and return their receipts.

    Events that the state rejects are reported and skipped. If it rejects all of them, `EventRefused` is raised.
    """
    sender = EventSender(session.view_of(state.reading))
    try:
        with send_hints():
            accepted = _accepted(sender, events, state.reading)
            await session.close_states()
            sent = [(one, await sender.send_unchecked(one.event)) for one in accepted]
    except Refused as refused:
        if refused.detail_enum in _CAPABILITY_ERRORS:
            hinted(refused, "give --cap FILE with a capability for the stream that veen authority streams shows")
        raise
    if len(sent) == 1:
        ((one, outcome),) = sent
        return session.sent(outcome, one.data, one.facts)
    columns = (("target", "_name"), ("entry", "stream_seq"), "hub_ts", ("state", "_state"))
    return Result([_sent_data(*one) for one in sent], columns=columns)


def _accepted(sender: EventSender[S, M], events: Sequence[PreparedEvent], state: StateAt[S, M]) -> list[PreparedEvent]:
    """The events that the state accepts. Raises `EventRefused` if it rejects all of them."""
    accepted: list[PreparedEvent] = []
    refused: list[tuple[PreparedEvent, EventRefused]] = []
    for one in events:
        try:
            sender.check(state, one.event)
        except EventRefused as error:
            refused.append((one, error))
        else:
            accepted.append(one)
    if not accepted:
        raise refused[0][1]
    for one, refusal in refused:
        output.remark(f"skipped {one.name.hex()[:12]}…: {refusal.faults[0].reason}")
    for one in accepted:
        if one.remark:
            output.remark(one.remark)
    return accepted


def _sent_data(one: PreparedEvent, outcome: SentEvent) -> dict[str, Any]:
    sent, faults = outcome.sent, "; ".join(fault.reason for fault in outcome.faults)
    return {
        **one.data,
        "stream_seq": sent.stream_seq,
        "msg_id": sent.msg_id,
        "hub_ts": Moment(sent.receipt.hub_ts),
        "receipt": sent.receipt.encode(),
        "taken": outcome.applied,
        "_name": one.name,
        "_state": Marked(f"not applied: {faults}", Tone.BAD) if faults else Marked("applied", Tone.GOOD),
    }
