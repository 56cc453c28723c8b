"""Admission: may this message be the next entry of its label? A pure function, in the order of spec §8.2.

The same checks run when a message arrives and when a log is replayed, with the same result (I13): they depend only on
the message, the cursors, the registry and `hub_ts`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv6Address, ip_address
from typing import Protocol

from plumbing.http.peer_address import Network
from veen.core import (
    Bucket,
    CapToken,
    Fault,
    Limits,
    Malformed,
    Mmr,
    Msg,
    Profile,
    Rate,
    Refused,
    Unverified,
    admin,
    ciphertext,
    naming,
)
from veen.core.admin import Authority, AuthorityPolicy, RevocationKind
from veen.core.admission import BY_DETAIL, refused_structure
from veen.core.cap_token import Capability, token_of
from veen.core.cbor import DeferredFaults
from veen.core.hashing import U64_MAX, h
from veen.core.limits import LEAST_MSG_BYTES, MAX_PAGE_ITEMS
from veen.core.profile import LimitRegistry
from veen.core.proof_of_work import HEADER, PowCookie, challenge_of


class Admission(StrEnum):
    """Which clients may write."""

    OPEN = "open"
    CAPABILITY = "capability"


class LimitsInForce:
    """The limit registry of a running hub. Logged events replace it, and undo restores it."""

    __slots__ = ("hub_ts", "registry")

    def __init__(self, registry: LimitRegistry) -> None:
        self.registry = registry
        self.hub_ts: Callable[[], int] = lambda: U64_MAX  # the hub's time; set when the hub has one


@dataclass(frozen=True, slots=True)
class Rules:
    """The configuration that admission depends on. Fixed while the hub runs, except for lowered limits."""

    admission: Admission
    limits_in_force: LimitsInForce
    profile: Profile
    profile_id: bytes
    hub_id: bytes
    routing_key: bytes
    control_stream: bytes
    control_pk: bytes
    realm_id: bytes | None  # None if the hub belongs to no realm
    admin_streams: frozenset[bytes]  # the admin streams that the hub enforces
    bare_tokens: bool = True  # authorize tokens without a presentation

    @property
    def limits(self) -> Limits:
        """The limits for a message that arrives now. Used on the loop's thread."""
        registry = self.limits_in_force.registry
        return registry.at(self.limits_in_force.hub_ts()) if registry.earlier else registry.limits

    def limits_at(self, hub_ts: int) -> Limits:
        """The limits that decide on a message of that time. Depends on the log alone (I13)."""
        return self.limits_in_force.registry.at(hub_ts)

    @classmethod
    def of(
        cls,
        hub_id: bytes,
        profile: Profile,
        limits: Limits | LimitRegistry,
        admission: Admission,
        control_pk: bytes,
        routing_key: bytes | None = None,
        realm_id: bytes | None = None,
        *,
        bare_tokens: bool = True,
    ) -> "Rules":
        """`routing_key` and `realm_id` are in the identity record. A fork does not derive the former from `hub_id`."""
        return cls(
            admission,
            LimitsInForce(LimitRegistry(limits) if isinstance(limits, Limits) else limits),
            profile,
            profile.profile_id(),
            hub_id,
            routing_key or naming.routing_key(hub_id),
            naming.control_stream(hub_id),
            control_pk,
            realm_id,
            frozenset(admin.binding_streams(realm_id)),
            bare_tokens,
        )


@dataclass(frozen=True, slots=True)
class Cap:
    """A capability the hub has logged."""

    token: CapToken
    issued_at: int
    expires_at: int  # the last second in which it is valid
    limits: Limits
    rate: Rate | None  # under these limits; None if it exceeds them: it grants nothing
    names: tuple[tuple[RevocationKind, bytes], ...]  # the names it can be revoked by

    @classmethod
    def of(cls, logged: Capability, issued_at: int, limits: Limits) -> "Cap":
        """A logged capability, with its rate under the limits that apply now."""
        token = token_of(logged)
        return cls(token, issued_at, logged.expires_at(issued_at), limits, _rate(token, limits), revocable(token))

    def rate_under(self, limits: Limits) -> Rate | None:
        return self.rate if limits is self.limits else _rate(self.token, limits)


def _rate(token: CapToken, limits: Limits) -> Rate | None:
    try:
        return token.rate_under(limits)
    except Refused:
        return None


def revocable(token: CapToken) -> tuple[tuple[RevocationKind, bytes], ...]:
    """The names that a capability can be revoked by."""
    return (RevocationKind.AUTH_REF, token.auth_ref()), (RevocationKind.CAP_TOKEN, h(token.encode()))


class Revoker(StrEnum):
    """The party that revoked a client key or a capability."""

    OPERATOR = "operator"
    REALM = "realm"


class Revocations(Protocol):
    """The revocations of the realm and of the hub's operator."""

    def revoker(self, kind: RevocationKind, target: bytes, hub_ts: int) -> Revoker | None:
        """The party that revoked the target, if a logged revocation applies at that time."""


class AdmissionView(Protocol):
    """The state that admission may read."""

    @property
    def realm(self) -> Revocations: ...

    def tree(self, label: bytes) -> Mmr: ...

    def cursor(self, label: bytes, client_id: bytes) -> tuple[int, int] | None:
        """`(client_seq, prev_ack)` of the client's last accepted message."""

    def cap(self, auth_ref: bytes) -> Cap | None: ...

    def bucket(self, auth_ref: bytes, label: bytes) -> Bucket | None: ...

    def accepted_at(self, message: Msg) -> int | None:
        """The stream_seq of this message, if it is already in the log byte for byte."""

    def first_ts(self, label: bytes, client_id: bytes) -> int | None:
        """The `hub_ts` of the client's first message under the label."""

    def authority(self, label: bytes, stream: bytes | None, hub_ts: int) -> Authority | None:
        """The record that names the hub of a label at that time. `stream` is its stream, if known."""


def parse(encoded: bytes, rules: Rules) -> Msg:
    """Prefilter and structure: all checks that need only the bytes. Raises `Refused`."""
    limits = rules.limits
    if len(encoded) > limits.max_msg_bytes:
        raise _too_long(encoded, limits)
    try:
        message = Msg.decode(encoded)
        ciphertext.check_sizes(message.ciphertext, limits)
    except Malformed as error:
        raise refused_structure(_size_error_first(encoded, error, limits)) from None
    if message.profile_id != rules.profile_id:
        raise BY_DETAIL["PROFILE"].refused(
            "the message is for another profile than this hub's", expected=rules.profile_id.hex()
        )
    if h(message.ciphertext) != message.ct_hash:
        raise BY_DETAIL["CT_HASH"].refused("ct_hash is not the hash of the ciphertext")
    return message


def check_sizes(message: Msg, encoded: bytes, limits: Limits) -> None:
    """Check the sizes of a parsed message again, after limits were lowered. Raises `Refused`."""
    if len(encoded) > limits.max_msg_bytes:
        raise _too_long(encoded, limits)
    try:
        ciphertext.check_sizes(message.ciphertext, limits)
    except Malformed as error:
        raise refused_structure(error) from None


def _too_long(encoded: bytes, limits: Limits) -> Refused:
    reason = f"{len(encoded)} bytes, above {limits.max_msg_bytes}"
    return BY_DETAIL["SIZE_PREFILTER"].refused(reason, max_allowed=limits.max_msg_bytes)


def _size_error_first(encoded: bytes, found: Malformed, limits: Limits) -> Malformed:
    """Sizes are checked before the version, also those inside the ciphertext."""
    if found.fault is Fault.VERSION:
        message, _ = Msg.read(encoded, 0, DeferredFaults())
        try:
            ciphertext.check_sizes(message.ciphertext, limits)
        except Malformed as size:
            return size
    return found


def authorize(
    message: Msg, stream: bytes | None, view: AdmissionView, rules: Rules, limits: Limits, hub_ts: int
) -> Bucket | None:
    """Capability checks for a message with a valid signature. Returns the rate bucket after it; raises `Refused`.

    `stream` is the registered stream of the label, in an epoch that is valid at `hub_ts`; None if there is none.
    """
    if message.client_id == rules.control_pk:
        return None  # the hub's own control events need no capability
    if stream == rules.control_stream:
        raise BY_DETAIL["AUTH_REF"].refused("only the hub writes to its control stream")
    if message.auth_ref is None:
        if stream in rules.admin_streams:
            raise BY_DETAIL["CAP_MISSING"].refused(
                "writing to this admin stream needs a capability, even if admission is open"
            )
        if rules.admission is not Admission.OPEN:
            raise BY_DETAIL["CAP_MISSING"].refused("this hub requires a capability, but the message names none")
        check_operator(message.client_id, view.realm, hub_ts)
        check_client_and_authority(message, stream, view, rules, limits, hub_ts)
        return None
    cap = view.cap(message.auth_ref)
    if cap is None:
        raise BY_DETAIL["CAP_MISSING"].refused("the capability is not authorised at this hub")
    rate = cap.rate_under(limits) or cap.token.rate_under(limits)
    check_revoked(cap.names, view.realm, hub_ts)
    check_operator(message.client_id, view.realm, hub_ts)
    if cap.token.subject_pk != message.client_id:
        raise BY_DETAIL["AUTH_REF"].refused("the capability is for another key")
    # With epochs, an unknown label may be a matter of time; that check comes last.
    if stream not in cap.token.allow.stream_ids and (stream is not None or not rules.profile.epoch_sec):
        raise BY_DETAIL["AUTH_REF"].refused("the capability is for other streams")
    check_client_and_authority(message, stream, view, rules, limits, hub_ts)
    check_expiry(cap.expires_at, hub_ts)
    before = view.bucket(message.auth_ref, message.label) or Bucket.full(rate, hub_ts)
    after = before.take(rate, hub_ts)
    if after is None:
        wait = before.refilled(rate, hub_ts).retry_after(rate)
        raise BY_DETAIL["CAP_RATE"].refused("the capability's rate is used up", retry_after=wait)
    return after


def check_expiry(expires_at: int, hub_ts: int) -> None:
    """Raise if the last second of a capability has passed."""
    if hub_ts > expires_at:
        raise BY_DETAIL["CAP_TTL"].refused(f"the capability expired at {expires_at}", expires_at=expires_at)


def check_revoked(names: Iterable[tuple[RevocationKind, bytes]], realm: Revocations, hub_ts: int) -> None:
    """Raise if a capability is revoked under any of its names. 001, spec-2 §4.3 and KEX0.3."""
    for kind, target in names:
        if realm.revoker(kind, target, hub_ts):
            raise BY_DETAIL["CAP_INVALID"].refused("the capability is revoked", revoked=str(kind))


def check_operator(client_id: bytes, realm: Revocations, hub_ts: int) -> None:
    """Raise if the hub's operator revoked a client key. KEX0.3."""
    if realm.revoker(RevocationKind.CLIENT_ID, client_id, hub_ts) is Revoker.OPERATOR:
        raise BY_DETAIL["CAP_INVALID"].refused(
            "the operator of this hub revoked the client_id", revoked=str(RevocationKind.CLIENT_ID)
        )


def check_client(client_id: bytes, realm: Revocations, hub_ts: int) -> None:
    """Raise if the realm revoked a client key."""
    if realm.revoker(RevocationKind.CLIENT_ID, client_id, hub_ts):
        raise BY_DETAIL["AUTH_REF"].refused("the client_id is revoked", revoked=str(RevocationKind.CLIENT_ID))


def check_client_and_authority(
    message: Msg, stream: bytes | None, view: AdmissionView, rules: Rules, limits: Limits, hub_ts: int
) -> None:
    """Raise if the client key is no longer valid, or another hub is primary for the label. 001, spec-2 §3.3, §4.1."""
    if rules.realm_id is not None:
        check_client(message.client_id, view.realm, hub_ts)
        # Admin streams have no primary: a record could otherwise lock out its own correction for ever.
        found = None if stream in rules.admin_streams else view.authority(message.label, stream, hub_ts)
        if found and found.policy == AuthorityPolicy.SINGLE_PRIMARY and found.primary_hub != rules.hub_id:
            raise BY_DETAIL["AUTH_REF"].refused("not primary for label", primary_hub=found.primary_hub.hex())
    most = limits.max_msgs_per_client_id_per_label
    if most is not None and message.client_seq > most:
        raise BY_DETAIL["AUTH_REF"].refused(
            f"a client_id may write at most {most} messages to a label", max_allowed=most
        )
    if limits.max_client_id_lifetime_sec is not None:
        _check_age(message, view, limits.max_client_id_lifetime_sec, hub_ts)


def _check_age(message: Msg, view: AdmissionView, most_sec: int, hub_ts: int) -> None:
    """Reject a client key that is too old. A repeat of an accepted message passes: `sequence` reports the duplicate."""
    first = view.first_ts(message.label, message.client_id)
    if first is None or hub_ts - first <= most_sec:
        return
    client_seq, _ = view.cursor(message.label, message.client_id) or (0, 0)
    if message.client_seq > client_seq:
        raise BY_DETAIL["AUTH_REF"].refused(
            f"a client_id may be used for {most_sec} s on a label; this one was first used at {first}",
            max_allowed=most_sec,
        )


def sequence(message: Msg, stream: bytes | None, view: AdmissionView, rules: Rules, hub_ts: int) -> None:
    """Order checks against the cursors. Raises `Refused`."""
    cursor = view.cursor(message.label, message.client_id)
    client_seq, prev_ack = cursor or (0, 0)
    last = view.tree(message.label).size
    if message.client_seq != client_seq + 1 or not prev_ack <= message.prev_ack <= last:
        raise _out_of_order(message, view, client_seq, prev_ack, last)
    if rules.profile.epoch_sec and stream is None:
        epoch = rules.profile.epoch(hub_ts)
        window = rules.profile.epochs_around(hub_ts, rules.limits_at(hub_ts).max_epoch_skew_sec)
        first, last = window.start, window.stop - 1
        where = f"epochs {first} to {last}" if last > first else f"epoch {last}"
        raise BY_DETAIL["EPOCH"].refused(
            f"no registered stream has this label in {where}",
            epoch=epoch,
            hub_ts=hub_ts,
            first_epoch=first,
            last_epoch=last,
        )


def _out_of_order(message: Msg, view: AdmissionView, client_seq: int, prev_ack: int, last: int) -> Refused:
    """The first order check that fails. An entry that is in the log byte for byte is always a duplicate."""
    at = view.accepted_at(message) if message.client_seq <= client_seq else None
    if at is None and not prev_ack <= message.prev_ack <= last:
        return BY_DETAIL["PREV_ACK"].refused(
            f"prev_ack {message.prev_ack} is not within {prev_ack}..{last}", stream_seq=last
        )
    if message.client_seq <= client_seq and message.client_seq:
        detail = {} if at is None else {"stream_seq": at}
        return BY_DETAIL["DUPLICATE"].refused(
            f"client_seq {message.client_seq} was already accepted", expected=client_seq + 1, **detail
        )
    return BY_DETAIL["CLIENT_SEQ"].refused(
        f"client_seq is {message.client_seq}, expected {client_seq + 1}", expected=client_seq + 1
    )


_HEADER = HEADER.encode()


class Prefilter:
    """Stage 0: checks the source address and the proof of work before a request is read. Spec §8.1; 001, spec-2 §5.1.

    They depend only on the request and on settings, so the same request always gets the same result. If proof of
    work is required, the rejection contains the challenge, and the client can retry with it. Reusing the same proof is
    possible, because nothing is stored; it only gains another check of the same signature.
    """

    def __init__(
        self, hub_id: bytes, difficulty: int, allowed: tuple[Network, ...] = (), denied: tuple[Network, ...] = ()
    ) -> None:
        self._hub_id = hub_id
        self.follow(difficulty, allowed, denied)

    def follow(self, difficulty: int, allowed: tuple[Network, ...], denied: tuple[Network, ...]) -> None:
        """Use other settings from now on."""
        self.difficulty = difficulty
        self._allowed = allowed
        self._denied = denied

    @property
    def is_active(self) -> bool:
        """Whether it can reject anything."""
        return bool(self.difficulty or self._allowed or self._denied)

    def check_peer(self, peer: str) -> None:
        """Raise unless the address is in an allowed network, if there are any, and in no denied one."""
        if not (self._allowed or self._denied):
            return
        try:
            address = ip_address(peer.partition("%")[0])
        except ValueError:
            raise BY_DETAIL["PREFILTER_REJECT"].refused(
                "the source address is unknown, but this hub filters by address"
            ) from None
        if isinstance(address, IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        within = not self._allowed or any(address in network for network in self._allowed)
        if not within or any(address in network for network in self._denied):
            raise BY_DETAIL["PREFILTER_REJECT"].refused("this hub does not accept messages from your address")

    def check(self, peer: str, headers: Mapping[bytes, bytes], body: bytes, *, batch: bool = False) -> None:
        """Raise unless address and proof of work are acceptable."""
        self.check_peer(peer)
        if not self.difficulty:
            return
        difficulty = self.difficulty + (_batch_bits(body) if batch else 0)
        challenge = challenge_of(self._hub_id, body)
        shown = headers.get(_HEADER)
        try:
            if shown is None:
                raise Unverified("proof of work", "the header is missing")
            PowCookie.from_header(shown.decode("latin-1")).verify(challenge, difficulty)
        except (Malformed, Unverified) as error:
            raise BY_DETAIL["PREFILTER_REJECT"].refused(
                f"{HEADER}: {error.reason}",
                challenge=challenge.hex(),
                difficulty=difficulty,
                hub_id=self._hub_id.hex(),
            ) from None


def _batch_bits(body: bytes) -> int:
    """Extra difficulty of a batch: it costs about as much work as its messages would one by one."""
    messages = min(max(len(body) // LEAST_MSG_BYTES, 1), MAX_PAGE_ITEMS)
    return messages.bit_length() - 1
