"""Set up a recorder at a hub: streams and keys, event map, label classes, producers. 001, products-spec-1 §3.2.

All settings are in the log, so repeating a setup only adds what is missing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from veen.client import Card, ClientDir, ReaderKey, StreamKey, capabilities, cbor_sequence
from veen.client.client import Client
from veen.core import CapPresentation, CapToken, DhKey, Rate, SigningKey, Unverified, admin, cap_token, naming
from veen.core.cap_token import Capability
from veen.core.cbor import Bstr, Constant, ListOf, Nested, VersionField, Wire, int_map
from veen.overlays import Event, record
from veen.overlays.stream_catalog import LABEL_CLASSES, LabelClass
from veen.recorder.routes import OpenHub, ProducerRoleConflict, RecorderRefused, read_states, required_profile
from veen.recorder.spool import DROPPED
from veen.state.event_sender import EventSender, SentEvent
from veen.state.state_view import StateView


@int_map("recorder kit", VersionField(), Constant("veen/recorder-kit", name="kind"))
class ProducerKit(Wire):
    """Everything a producer needs. Any holder can read the event map; only the owner of its card can write."""

    hub_id: Annotated[bytes, Bstr()]
    admin_pk: Annotated[bytes, Bstr()]
    changes: Annotated[ReaderKey, Nested(ReaderKey)] = field(repr=False)
    streams: Annotated[tuple[StreamKey, ...], ListOf(Nested(StreamKey, name="stream"), most=record.MAX_LISTED, least=1)]
    tokens: Annotated[tuple[CapToken, ...], ListOf(Nested(CapToken, name="token"), most=record.MAX_LISTED, least=1)]
    # of the tokens, for this hub; absent in older kits
    presentations: Annotated[
        tuple[CapPresentation, ...] | None,
        ListOf(Nested(CapPresentation, name="presentation"), most=record.MAX_LISTED, least=1, optional=True),
    ] = None

    def flaw(self) -> str | None:
        return None if self.changes.name == record.CHANGES else f"its reader key is not the key of {record.CHANGES}"

    def join(self, folder: ClientDir) -> None:
        """Import the kit. Raises if it is for another client, or if this client administers the recorder."""
        if folder.card.id_sign == self.admin_pk:
            raise ProducerRoleConflict("this identity administers the recorder; an administrator cannot be a producer")
        for capability in self._capabilities():
            capability.verify()
        own = set(folder.card.client_ids)
        if not any(token.subject_pk in own for token in self.tokens):
            raise Unverified("recorder kit", "it was made for another identity")
        folder.stream_keys.import_secret(record.CHANGES, DhKey(self.changes.secret))
        for stream in self.streams:
            folder.stream_keys.add_public(stream.name, stream.public_key)
        folder.caps.add_all(cbor_sequence.encode(self._capabilities()))

    def _capabilities(self) -> tuple[Capability, ...]:
        return self.presentations or self.tokens


OWN_STREAM = "record/infrastructure/recorder"
LONG_TERM_SEC = 10 * 365 * 86_400
LABEL_CLASS = "log"
ADMIN_TTL_SEC = 10 * 365 * 86_400
DEFAULT_PAYLOAD_BYTES = 65_536
DEFAULT_EVERY_SEC, DEFAULT_EVERY_EVENTS = 300, 10_000


@dataclass(frozen=True, slots=True)
class SetupPlan:
    """The settings of a recorder: event types and their streams, retention, payload limit, checkpoint intervals."""

    types: Mapping[str, str] = field(default_factory=dict)
    streams: tuple[str, ...] = ()  # besides those of the types
    max_payload_bytes: int | None = None
    retention_sec: int = LONG_TERM_SEC
    every_sec: int | None = DEFAULT_EVERY_SEC
    every_events: int | None = DEFAULT_EVERY_EVENTS
    open_admission: bool = False  # accept a hub that does not separate producers, for trials

    def all_types(self) -> dict[str, str]:
        return {DROPPED: OWN_STREAM, **self.types}

    def all_streams(self) -> tuple[str, ...]:
        return tuple(sorted({record.CHANGES, OWN_STREAM, *self.streams, *self.types.values()}))


@dataclass(frozen=True, slots=True)
class SetupResult:
    """The profile, and the events that were added."""

    profile: record.RecorderProfile
    events: tuple[Event, ...]


async def init(client: Client, plan: SetupPlan, issuer: SigningKey | None) -> SetupResult:
    """Set up a recorder with the client as administrator. `issuer` signs capabilities that the hub accepts."""
    _check_admission(client, plan, issuer)
    _make_key(client, record.CHANGES)
    states = await read_states(client)
    _check_admin(client, record.producer_of(states, client.dir.writers.current().client_id), record.profile_of(states))
    for stream in plan.all_streams():
        _make_key(client, stream)
    classes = _label_classes(client)
    if issuer is not None:
        await _grant_admin(client, issuer, (naming.stream_id(record.CHANGES), classes))
    profile = _profile(client, plan, record.profile_of(states))
    events: list[Event] = [] if profile == record.profile_of(states) else [profile]
    for event_type, stream in sorted(plan.all_types().items()):
        found = record.stream_of(states, event_type)
        if found is None:
            events.append(record.MapType(event_type, stream))
        elif found != stream:
            raise RecorderRefused(f"{event_type} is mapped to {found}; to change that, use veen recorder move")
    sent = [await _send_change(client, event) for event in events]
    assert all(one.applied for one in sent)
    labelled = await _classify(client, classes, profile)
    return SetupResult(profile, (*events, *labelled))


def _check_admission(client: Client, plan: SetupPlan, issuer: SigningKey | None) -> None:
    if client.session.status.admission == "open" and not plan.open_admission:
        raise OpenHub("this hub lets anyone write to any stream, so producers are not kept to their streams")
    if client.session.status.admission != "open" and issuer is None:
        raise RecorderRefused("this hub requires capabilities, and no issuer was given")


def _make_key(client: Client, stream: str) -> None:
    if client.dir.stream_keys.secret(naming.stream_id(stream)) is None:
        client.dir.stream_keys.create(stream)


def _check_admin(client: Client, producer: record.Producer | None, profile: record.RecorderProfile | None) -> None:
    if producer is not None:
        raise ProducerRoleConflict(f"this identity is producer {producer.name}; a producer cannot be the administrator")
    if profile is not None and profile.admin_pk != client.dir.card.id_sign:
        raise RecorderRefused(f"this recorder is administered by {profile.admin_pk.hex()[:16]}…")


def _profile(client: Client, plan: SetupPlan, known: record.RecorderProfile | None) -> record.RecorderProfile:
    """Streams are only added: entries of existing ones stay covered by checkpoints."""
    most = client.session.trust.limits.max_body_bytes
    wanted = min(DEFAULT_PAYLOAD_BYTES, most) if plan.max_payload_bytes is None else plan.max_payload_bytes
    if wanted > most:
        raise RecorderRefused(f"payloads of {wanted} bytes exceed the hub's body limit of {most} bytes")
    streams = sorted({*plan.all_streams(), *(known.streams if known else ())})
    return record.RecorderProfile(
        client.hub_id,
        client.dir.card.id_sign,
        tuple(streams),
        wanted,
        plan.retention_sec,
        plan.every_sec,
        plan.every_events,
    )


def _label_classes(client: Client) -> bytes:
    """The stream of label classes. Its reader key is public."""
    realm_id = client.session.trust.known.identity.realm_id or admin.GLOBAL_REALM
    stream_id = admin.label_class_stream(realm_id)
    client.dir.stream_keys.import_secret(stream_id.hex(), admin.reader_key(stream_id))
    return stream_id


async def _grant_admin(client: Client, issuer: SigningKey, streams: Iterable[bytes]) -> None:
    """Grant the administrator's keys permission for the settings streams, not for the producers' streams."""
    now, client_id = client.session.clock.now(), client.dir.writers.current().client_id
    wanted = tuple(streams)
    held = [client.dir.caps.for_writer(client_id, stream, now, client.hub_id) for stream in wanted]
    if client.session.status.admission == "open" or all(held):
        return
    for one in client.dir.card.client_ids:
        token = cap_token.mint(issuer, one, wanted, ADMIN_TTL_SEC)
        await client.authorize(cap_token.present(issuer, token, client.hub_id, now + ADMIN_TTL_SEC))


async def _send_change(client: Client, event: Event) -> SentEvent:
    async with StateView.of(client, record.CHANGES, record.RECORDER_CHANGES, cached=False) as view:
        return await EventSender(view).send(event)


async def _classify(client: Client, stream_id: bytes, profile: record.RecorderProfile) -> list[Event]:
    """Classify the label of each stream for long-term retention. With epochs, only the current label."""
    events: list[Event] = []
    async with StateView.of(client, stream_id, LABEL_CLASSES, cached=False) as view:
        async with view.reading() as reading:
            known = {part: records[0].event for part, records in dict(reading.states).items()}
        for stream in profile.streams:
            wanted = LabelClass(client.label(stream), LABEL_CLASS, None, profile.retention_sec)
            if known.get(wanted.label) != wanted:
                await EventSender(view).send(wanted)
                events.append(wanted)
    return events


@dataclass(frozen=True, slots=True)
class Enrolment:
    """A producer to enrol."""

    name: str
    card: Card
    origins: tuple[str, ...]
    streams: tuple[str, ...]
    ttl: int
    rate: Rate | None = None


async def enrol(client: Client, enrolment: Enrolment, issuer: SigningKey) -> ProducerKit:
    """Record a producer and make its kit. Raises `Refused` for an identity that administers the recorder."""
    enrolment.card.verify()
    states = await read_states(client)
    profile = required_profile(states)
    own = {*client.dir.card.client_ids, client.dir.writers.current().client_id}
    if enrolment.card.id_sign in (profile.admin_pk, client.dir.card.id_sign) or own & set(enrolment.card.client_ids):
        raise ProducerRoleConflict("this identity administers the recorder; an administrator cannot be a producer")
    streams = tuple(sorted({*enrolment.streams, OWN_STREAM}))
    _check_streams(profile, streams)
    producer = record.Producer(
        enrolment.name, tuple(sorted(enrolment.card.client_ids)), tuple(sorted(set(enrolment.origins))), streams
    )
    tokens = capabilities.tokens_of(
        capabilities.issue(
            issuer, enrolment.card, [naming.stream_id(stream) for stream in streams], enrolment.ttl, enrolment.rate
        )
    )
    end = capabilities.default_end(client.session.clock.now(), enrolment.ttl)
    presented = tuple(cap_token.present(issuer, token, client.hub_id, end) for token in tokens)
    if producer not in [one.producer for one in states.values()]:
        await _send_change(client, producer)
    keys = {key.name: key for key, _ in client.dir.stream_keys.all()}
    changes = client.dir.stream_keys.export(record.CHANGES)
    public = tuple(keys[stream] for stream in streams)
    return ProducerKit(client.hub_id, profile.admin_pk, changes, public, tokens, presented)


async def map_type(client: Client, event_type: str, stream: str) -> SentEvent:
    """Map an event type to a stream. Raises `EventRefused` if it is mapped already."""
    _check_streams(required_profile(await read_states(client)), (stream,))
    return await _send_change(client, record.MapType(event_type, stream))


async def move(client: Client, from_stream: str, to_stream: str, types: Iterable[str], reason: str | None) -> SentEvent:
    """Move event types to another stream: all of them is a rename, some a split. The move is logged."""
    states = await read_states(client)
    mapped, wanted = record.types_of(states, from_stream), tuple(sorted(set(types)))
    _check_streams(required_profile(states), (to_stream,))
    if not mapped:
        raise RecorderRefused(f"no event type is mapped to {from_stream}, so there is nothing to move")
    kind = "rename" if not wanted or wanted == mapped else "split"
    return await _send_change(client, record.Migration(kind, from_stream, to_stream, wanted or mapped, reason))


def _check_streams(profile: record.RecorderProfile, streams: Iterable[str]) -> None:
    for stream in streams:
        if stream not in profile.streams:
            raise RecorderRefused(f"{stream} is not a stream of this recorder; add it with veen recorder init --stream")
