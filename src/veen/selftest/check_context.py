"""The context of a check: the hub, writers, a seeded random generator, and data shared between checks."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from secrets import token_bytes
from typing import NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

from plumbing.http.peer_address import is_loopback
from veen.core import (
    CapPresentation,
    CapToken,
    Checkpoint,
    DhKey,
    HubIdentity,
    IdentitySignature,
    Malformed,
    MmrProof,
    Msg,
    PayloadHdr,
    Place,
    Profile,
    Rate,
    Receipt,
    SigningKey,
    Unverified,
    cap_token,
    ciphertext,
    limits,
    msg,
    naming,
)
from veen.core.cbor import Wire
from veen.core.envelopes import (
    AuthorizeResponse,
    CheckpointRequest,
    CheckpointResponse,
    ConsistencyRequest,
    ProofAtRequest,
    ProofAtResponse,
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
    StreamItem,
    StreamRegistration,
    StreamRequest,
    StreamResponse,
    SubmitResponse,
)
from veen.core.hashing import U64_MAX, h, ht
from veen.core.limits import MAX_PAGE_ITEMS
from veen.core.signing import SIGNATURE_BYTES
from veen.core.strict_json import Json
from veen.core.wire_json import Fields
from veen.selftest.check import Failed, Skipped, expect
from veen.selftest.probe import Probe

OPEN, CAPABILITY = "open", "capability"
# The limit registry of spec §14.1, with the maximum that spec §14 allows.
REGISTRY: dict[str, int] = {
    "max_msg_bytes": limits.MAX_MSG_BYTES,
    "max_hdr_bytes": limits.MAX_HDR_BYTES,
    "max_body_bytes": limits.MAX_BODY_BYTES,
    "max_attachments_per_msg": limits.MAX_ATTACHMENTS,
    "max_attachment_bytes": U64_MAX,
    "max_chunk_bytes": U64_MAX,
    "max_checkpoint_interval": U64_MAX,
    "max_cap_rate_per_sec": U64_MAX,
    "max_cap_rate_burst": U64_MAX,
    "max_epoch_skew_sec": U64_MAX,
}


@dataclass(frozen=True, slots=True)
class HubFacts:
    """The hub status, as far as the checks depend on it. Spec §12: epoch discovery; §8.4, §14.1."""

    hub_id: bytes
    hub_pk: bytes
    key_id: bytes
    profile: Profile
    profile_id: bytes  # as claimed; a check compares it with the profile
    routing_key: bytes
    limits: dict[str, int]
    admission: str
    knows_presentations: bool  # older hubs do not
    epoch: int
    hub_ts: int
    identity: HubIdentity | None  # only some hubs include it
    signature: IdentitySignature | None
    identity_holds: bool  # whether it verifies; a separate check reports if it does not

    @classmethod
    def read(cls, found: dict[str, Json]) -> "HubFacts":
        """Raises `Malformed` if a field is missing that the checks need."""
        status = Fields("status", found)
        shows_identity = "identity" in found and "identity_sig" in found
        identity = status.wire("identity", HubIdentity) if shows_identity else None
        signature = status.wire("identity_sig", IdentitySignature) if shows_identity else None
        hub_id = status.hash("hub_id")
        return cls(
            hub_id=hub_id,
            hub_pk=status.hash("hub_pk"),
            key_id=status.hash("key_id"),
            profile=status.wire("profile", Profile),
            profile_id=status.hash("profile_id"),
            routing_key=identity.routing_key if identity else naming.routing_key(hub_id),
            limits=_limits(status),
            admission=_admission(status),
            knows_presentations="bare_tokens" in found,
            epoch=status.number("epoch"),
            hub_ts=status.number("hub_ts"),
            identity=identity,
            signature=signature,
            identity_holds=bool(identity and signature and _verifies(identity, signature, hub_id)),
        )

    def verify_receipt(self, receipt: Receipt) -> None:
        """Raise `Unverified` unless a hub key that was active then signed it."""
        if self.identity and self.identity_holds:
            self.identity.verify_receipt(receipt)
        else:
            receipt.verify_signature(self.hub_pk)

    def verify_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Raise `Unverified` unless a hub key that was active in its epoch signed it."""
        if self.identity and self.identity_holds:
            self.identity.verify_checkpoint(checkpoint, self.profile)
        else:
            checkpoint.verify_signature(self.hub_pk)

    def verify_identity(self, pin: bytes) -> None:
        """Raise `Unverified` unless the hub has this `hub_id` or `H(hub_pk)`."""
        if self.identity and self.signature:
            self.identity.verify(self.signature, pin)
        elif pin not in (self.hub_id, h(self.hub_pk)):
            raise Unverified("hub", "is not the pinned hub")

    def has_signed_identity(self, pin: bytes) -> bool:
        """Whether the hub shows a signed identity that has this `hub_id` or `H(hub_pk)`."""
        return bool(self.identity and self.signature and _verifies(self.identity, self.signature, pin))

    def label(self, stream_id: bytes, epoch: int) -> bytes:
        if not 0 <= epoch <= U64_MAX:
            raise Malformed("status", f"epoch {epoch} does not fit into a label")
        return naming.label(self.routing_key, stream_id, epoch)

    @property
    def max_msg_bytes(self) -> int:
        """Bounded by the protocol maximum, whatever the hub claims."""
        return min(self.limits["max_msg_bytes"], limits.MAX_MSG_BYTES)

    def window(self) -> int:
        """The number of epochs before and after its own that the hub accepts. Spec §12."""
        return self.limits["max_epoch_skew_sec"] // self.profile.epoch_sec if self.profile.epoch_sec else 0


def _verifies(identity: HubIdentity, signature: IdentitySignature, pin: bytes) -> bool:
    try:
        identity.verify(signature, pin)
    except Unverified:
        return False
    return True


def _limits(status: Fields) -> dict[str, int]:
    limits_object = status.field("limits")
    if not isinstance(limits_object, dict):
        raise Malformed("status", "limits is not an object")
    registry = Fields("status", limits_object)
    return {name: registry.number(name) for name in REGISTRY}


def _admission(status: Fields) -> str:
    mode = status.field("admission")
    if mode not in (OPEN, CAPABILITY):
        raise Malformed("status", f"admission is neither {OPEN} nor {CAPABILITY}")
    return str(mode)


SCHEMA = naming.schema_id("veen.selftest.v1")
# Every read: its request for a label and a place, and its response.
READS: Mapping[str, tuple[Callable[[bytes, int], Wire], type[Wire]]] = {
    "/v1/stream": (StreamRequest, StreamResponse),
    "/v1/receipt": (ReceiptRequest, ReceiptResponse),
    "/v1/proof": (ProofRequest, ProofResponse),
    "/v1/checkpoint": (CheckpointRequest, CheckpointResponse),
}


class AcceptedMessage(NamedTuple):
    """A message and its receipt."""

    msg: Msg
    receipt: Receipt


def _random_reader() -> bytes:
    """A reader key whose secret is discarded: the hub's behaviour must not depend on the content."""
    return DhKey.generate().public_key


@dataclass(slots=True)
class Writer:
    """One client key under one label, with correct counters. Checks can override them to send wrong messages."""

    probe: Probe
    facts: HubFacts
    stream_id: bytes
    label: bytes
    key: SigningKey
    auth_ref: bytes | None = None
    client_seq: int = 0
    prev_ack: int = 0
    reader_pk: bytes = field(default_factory=_random_reader)

    def message(
        self,
        body: bytes = b"selftest",
        *,
        client_seq: int | None = None,
        prev_ack: int | None = None,
        header: PayloadHdr | None = None,
    ) -> Msg:
        """The next message, optionally with other counters or with this header."""
        place = Place(
            self.facts.profile.profile_id(),
            self.label,
            self.key.public_key,
            self.client_seq + 1 if client_seq is None else client_seq,
            self.prev_ack if prev_ack is None else prev_ack,
            self.auth_ref,
        )
        header = header or PayloadHdr(SCHEMA)
        sealed = ciphertext.seal(self.reader_pk, place, header, body, self.facts.profile.pad_block)
        return msg.sign(
            self.key,
            profile_id=place.profile_id,
            label=place.label,
            client_seq=place.client_seq,
            prev_ack=place.prev_ack,
            auth_ref=place.auth_ref,
            ciphertext=sealed,
        )

    def send(self, body: bytes = b"selftest") -> AcceptedMessage:
        """Submit the next message; the hub must accept it."""
        return self.accept(self.message(body))

    def accept(self, message: Msg) -> AcceptedMessage:
        """Submit this message; the hub must accept it."""
        receipt = self.probe.submit(message).read(SubmitResponse).receipt
        self.client_seq, self.prev_ack = message.client_seq, receipt.stream_seq
        return AcceptedMessage(message, receipt)


T = TypeVar("T")

_CANNOT_WRITE = "writing needs a capability, or a registered stream; no issuer key and no operator token was given"
_TOKEN_WITHHELD = (
    "writing needs a registered stream; the operator token is sent only over TLS or to this machine, "
    "to a hub that --pin names"
)
_GRANT_SEC = 86_400
_SHORT_GRANT_SEC = 2
_FILLED_ENTRIES = 11  # 0b1011: a tree with three peaks
_MAX_WAIT_SEC = 30
_MAX_ENTRIES = 100_000  # more than any check writes


class ExpiredWriters(NamedTuple):
    """A writer with an expired capability and another writer under the same label; each has one accepted message."""

    owner: Writer
    other: Writer
    last_ts: int


class ExpiredCapabilities(NamedTuple):
    """One owner with rate left, and one whose only message used up the rate."""

    idle: ExpiredWriters
    spent: ExpiredWriters


class CheckContext:
    """One run against one hub. Names and keys are new in every run; only random choices follow the seed."""

    def __init__(
        self,
        probe: Probe,
        facts: HubFacts,
        *,
        issuer: SigningKey | None,
        operator: str | None,
        pin: bytes | None,
        seed: int,
        count: int,
    ) -> None:
        self.probe = probe
        self.facts = facts
        self.pin = pin
        self.count = count
        self._issuer = issuer
        self._operator = operator if self._may_get_token else None
        self.cannot_write = _CANNOT_WRITE if operator is None or self._operator else _TOKEN_WITHHELD
        self._seed = seed
        self._made: dict[object, object] = {}
        self.rng = Random(seed)

    def begin(self, check_id: str) -> None:
        """Seed the generator for a check, so its choices do not depend on the checks before it."""
        self.rng = Random(f"{self._seed}/{check_id}")

    # Time.

    def status(self) -> HubFacts:
        """The hub's current status."""
        return HubFacts.read(self.probe.get("/tooling/status").json())

    def wait_until(self, hub_ts: int) -> None:
        """Wait until the hub's own time reaches `hub_ts`."""
        for _ in range(_MAX_WAIT_SEC):
            behind = hub_ts - self.status().hub_ts
            if behind <= 0:
                return
            if behind > _MAX_WAIT_SEC:
                break
            time.sleep(1)
        raise Failed(f"the hub's status does not reach hub_ts {hub_ts} although enough time has passed")

    @property
    def profile(self) -> Profile:
        return self.facts.profile

    # Writers.

    @property
    def issuer(self) -> SigningKey:
        if self._issuer is None:
            raise Skipped("no issuer key was given")
        return self._issuer

    @property
    def may_write(self) -> bool:
        """Whether this run can get a message accepted."""
        return self._issuer is not None or self._may_register or not (self._needs_capability or self.profile.epoch_sec)

    @property
    def has_issuer(self) -> bool:
        return self._issuer is not None

    @property
    def _needs_capability(self) -> bool:
        return self.facts.admission != OPEN

    @property
    def _may_register(self) -> bool:
        """With epochs a hub must know a stream, and it learns streams from capabilities or from its operator."""
        return self._operator is not None and not self._needs_capability

    @property
    def _may_get_token(self) -> bool:
        """Whether the hub may see the operator's token. Any server can claim to be an open hub with epochs."""
        where = urlsplit(self.probe.url)
        is_private = where.scheme == "https" or is_loopback(where.hostname or "")
        return is_private and self.pin is not None and self.facts.has_signed_identity(self.pin)

    def need_epochs(self) -> None:
        if not self.profile.epoch_sec:
            raise Skipped("the hub has no epochs")

    def stranger(self, stream_id: bytes | None = None) -> Writer:
        """A writer with a new key and no capability."""
        stream_id = stream_id or token_bytes(32)
        label = self.facts.label(stream_id, self.status().epoch)
        return Writer(self.probe, self.facts, stream_id, label, SigningKey.generate())

    def writer(self, stream_id: bytes | None = None) -> Writer:
        """A writer with a new key and permission for a stream, by default a new one."""
        if not self.may_write:
            raise Skipped(self.cannot_write)
        found = self.stranger(stream_id)
        if self._needs_capability or (self.profile.epoch_sec and not self._may_register):
            found.auth_ref = self.grant(found).auth_ref()
        elif self.profile.epoch_sec:
            registration = StreamRegistration(found.stream_id)
            self.probe.post("/tooling/streams", registration, f"Bearer {self._operator}").read(SubmitResponse)
        return found

    def writer_beside(self, first: Writer) -> Writer:
        """Another writer with the same label, even if an epoch has ended meanwhile."""
        other = self.writer(first.stream_id)
        other.label = first.label
        return other

    def grant(self, to: Writer, *streams: bytes, ttl: int = _GRANT_SEC, rate: Rate | None = None) -> CapToken:
        """Issue and authorize a capability for the writer's key; by default for its own stream."""
        token = cap_token.mint(self.issuer, to.key.public_key, streams or [to.stream_id], ttl, rate)
        self.authorize(token)
        return token

    def authorize(self, token: CapToken) -> AuthorizeResponse:
        """Present a capability that the hub must accept."""
        return self.probe.post("/tooling/authorize", self.presented(token)).offered(AuthorizeResponse)

    def presented(self, token: CapToken, hub_id: bytes | None = None, not_after: int = U64_MAX) -> Wire:
        """The body that authorizes a token, also one that the hub must reject. Older hubs know only bare tokens."""
        if not self.facts.knows_presentations:
            return token
        unsigned = CapPresentation(hub_id or self.facts.hub_id, not_after, token, bytes(SIGNATURE_BYTES))
        return replace(unsigned, sig=self.issuer.sign(ht("veen/cap-presentation", unsigned.unsigned())))

    # Shared data.

    def once(self, make: Callable[["CheckContext"], T]) -> T:
        """The result of `make`, shared by all checks. Its random choices do not depend on which check calls first."""
        if make not in self._made:
            before, self.rng = self.rng, Random(f"{self._seed}/{make.__name__}")
            try:
                self._made[make] = make(self)
            finally:
                self.rng = before
        return cast(T, self._made[make])

    @cached_property
    def filled(self) -> tuple[AcceptedMessage, ...]:
        """A label with entries by one writer, for checks that only read."""
        writer = self.writer()
        return tuple(writer.send(b"%d" % number) for number in range(_FILLED_ENTRIES))

    @cached_property
    def expired(self) -> ExpiredCapabilities:
        """Expired capabilities. With short epochs their labels may have expired too."""
        idle, spent = self._short_grant(None), self._short_grant(Rate(0, 1))
        self.wait_until(max(idle.last_ts, spent.last_ts) + _SHORT_GRANT_SEC + 1)
        return ExpiredCapabilities(idle, spent)

    def _short_grant(self, rate: Rate | None) -> ExpiredWriters:
        owner = self.stranger()
        owner.auth_ref = self.grant(owner, ttl=_SHORT_GRANT_SEC, rate=rate).auth_ref()
        last_ts = owner.send().receipt.hub_ts
        other = self.writer_beside(owner)
        other.send()
        return ExpiredWriters(owner, other, last_ts)

    # Reading.

    def receipt(self, label: bytes, stream_seq: int) -> Receipt:
        return self.probe.post("/v1/receipt", ReceiptRequest(label, stream_seq)).read(ReceiptResponse).receipt

    def proof(self, label: bytes, stream_seq: int) -> MmrProof:
        """The inclusion proof of an entry against its own receipt."""
        return self.probe.post("/v1/proof", ProofRequest(label, stream_seq)).read(ProofResponse).mmr_proof

    def proof_at(self, label: bytes, stream_seq: int, size: int) -> MmrProof:
        """The inclusion proof of an entry in the tree of `size` entries."""
        asked = ProofAtRequest(label, stream_seq, size)
        return self.probe.post("/tooling/proof", asked).offered(ProofAtResponse).mmr_proof

    def consistency(self, label: bytes, old_size: int, new_size: int) -> MmrProof:
        asked = ConsistencyRequest(label, old_size, new_size)
        return self.probe.post("/tooling/consistency", asked).offered(ProofAtResponse).mmr_proof

    def checkpoint(self, label: bytes, upto_seq: int) -> Checkpoint:
        return self.probe.post("/v1/checkpoint", CheckpointRequest(label, upto_seq)).read(CheckpointResponse).checkpoint

    def page(self, request: StreamRequest) -> StreamResponse:
        return self.probe.post("/v1/stream", request).read(StreamResponse)

    def pages(self, label: bytes, max_items: int = MAX_PAGE_ITEMS, *, with_receipts: bool = False) -> list[StreamItem]:
        """Everything under a label, by following the cursor."""
        found: list[StreamItem] = []
        cursor: int | None = 1
        while cursor is not None:
            asked = StreamRequest(label, 0, cursor=cursor, max_items=max_items, with_receipts=with_receipts)
            page = self.page(asked)
            found += page.items
            after = page.next_cursor
            expect(after is None or after > cursor, f"next_cursor {after} is not after {cursor}")
            expect(after is None or bool(page.items), f"next_cursor {after} follows an empty page")
            expect(len(found) <= _MAX_ENTRIES, f"the label has no end: {len(found)} entries so far")
            cursor = after
        return found
