"""A hub in memory that follows the admission table, with everything the scenarios need and no storage."""

from collections.abc import Callable
from dataclasses import dataclass, field

from veen.core import (
    Bucket,
    CapToken,
    Limits,
    Mmr,
    MmrProof,
    Msg,
    Profile,
    Receipt,
    SigningKey,
    mmr,
    naming,
    proof,
    receipt,
)
from veen.core import ciphertext as ct
from veen.core.admission import BY_DETAIL, refused_structure
from veen.core.errors import Malformed, Refused, Unverified


@dataclass(slots=True)
class Log:
    """One label: its leaves, every node of its tree, and the counters of each client."""

    stream_id: bytes
    epoch: int
    leaves: list[bytes] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    nodes: list[bytes] = field(default_factory=list)
    tree: Mmr = field(default_factory=Mmr)
    last: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # client_id: (client_seq, prev_ack)
    messages: set[bytes] = field(default_factory=set)

    def append(self, leaf: bytes) -> None:
        self.leaves.append(leaf)
        self.nodes += self.tree.append(leaf)

    def proof(self, stream_seq: int, size: int) -> MmrProof:
        return proof.prove(self.nodes.__getitem__, stream_seq, size)

    def peaks(self, size: int) -> list[bytes]:
        return mmr.peaks_at(self.nodes.__getitem__, size)


class ModelHub:
    """Admits, orders and signs. `closed` means that every message needs a capability."""

    def __init__(
        self, key: SigningKey, profile: Profile, *, closed: bool = False, routing: bytes | None = None
    ) -> None:
        self.key = key
        self.profile = profile
        self.limits = Limits()
        self.hub_id = naming.hub_id(key.public_key)
        self.routing_key = naming.routing_key(self.hub_id) if routing is None else routing
        self.closed = closed
        self.logs: dict[bytes, Log] = {}
        self._tokens: dict[bytes, CapToken] = {}
        self._issued_at: dict[bytes, int] = {}
        self._buckets: dict[tuple[bytes, bytes], Bucket] = {}

    def open_label(self, stream_id: bytes, epoch: int = 0) -> bytes:
        """Register a stream's label, so the hub knows its stream and epoch."""
        label = naming.label(self.routing_key, stream_id, epoch)
        self.logs.setdefault(label, Log(stream_id, epoch))
        return label

    def authorize(self, token: CapToken, hub_ts: int) -> bytes:
        """Register a capability; the first time is final. Returns its `auth_ref`, or raises the rejection."""
        try:
            token.verify()
        except Unverified as error:
            raise BY_DETAIL["CAP_INVALID"].refused(str(error)) from None
        token.rate_under(self.limits)
        self._tokens[token.auth_ref()] = token
        self._issued_at.setdefault(token.auth_ref(), hub_ts)
        return token.auth_ref()

    def submit(self, data: bytes, hub_ts: int) -> Receipt:
        """Spec §8.1: the first failing check is the answer."""
        msg = self._structural(data)
        bucket = self._auth(msg, hub_ts)
        self._order(msg, data, hub_ts)
        log = self.logs[msg.label]
        log.append(msg.leaf_hash())
        log.last[msg.client_id] = (msg.client_seq, msg.prev_ack)
        if msg.auth_ref is not None and bucket is not None:
            self._buckets[msg.auth_ref, msg.label] = bucket
        log.messages.add(data)
        made = receipt.sign(
            self.key,
            label=msg.label,
            stream_seq=log.tree.size,
            leaf_hash=msg.leaf_hash(),
            mmr_root=log.tree.root(),
            hub_ts=hub_ts,
        )
        log.receipts.append(made)
        return made

    def _structural(self, data: bytes) -> Msg:
        if len(data) > self.limits.max_msg_bytes:
            raise _refused("SIZE_PREFILTER")
        try:
            msg = Msg.decode(data)
            ct.check_sizes(msg.ciphertext, self.limits)
        except Malformed as error:
            raise refused_structure(error) from None
        if msg.profile_id != self.profile.profile_id():
            raise _refused("PROFILE")
        _unless_unverified("CT_HASH", msg.check_ct_hash)
        return msg

    def _auth(self, msg: Msg, hub_ts: int) -> Bucket | None:
        """The rate bucket after the message is accepted; None if there is no rate."""
        _unless_unverified("SIG_INVALID", msg.verify_signature)
        if msg.auth_ref is None:
            if self.closed:
                raise _refused("CAP_MISSING")
            return None
        token = self._tokens.get(msg.auth_ref)
        if token is None:
            raise _refused("CAP_MISSING")
        if token.subject_pk != msg.client_id or self.logs[msg.label].stream_id not in token.allow.stream_ids:
            raise _refused("AUTH_REF")
        if token.expired(self._issued_at[msg.auth_ref], hub_ts):
            raise _refused("CAP_TTL")
        rate = token.allow.rate
        if rate is None:
            return None
        bucket = self._buckets.get((msg.auth_ref, msg.label)) or Bucket.full(rate, hub_ts)
        taken = bucket.take(rate, hub_ts)
        if taken is None:
            retry_after = bucket.refilled(rate, hub_ts).retry_after(rate)
            raise BY_DETAIL["CAP_RATE"].refused("CAP_RATE", retry_after=retry_after)
        return taken

    def _order(self, msg: Msg, data: bytes, hub_ts: int) -> None:
        log = self.logs[msg.label]
        client_seq, prev_ack = log.last.get(msg.client_id, (0, 0))
        # A retry after the client moved on has an old prev_ack and is still a duplicate.
        if not prev_ack <= msg.prev_ack <= log.tree.size and data not in log.messages:
            raise _refused("PREV_ACK")
        if 1 <= msg.client_seq <= client_seq:
            raise _refused("DUPLICATE")
        if msg.client_seq != client_seq + 1:
            raise _refused("CLIENT_SEQ")
        if not self.profile.accepts_epoch(log.epoch, hub_ts, self.limits.max_epoch_skew_sec):
            raise _refused("EPOCH")


def _refused(detail_enum: str) -> Refused:
    return BY_DETAIL[detail_enum].refused(detail_enum)


def _unless_unverified(detail_enum: str, check: Callable[[], None]) -> None:
    try:
        check()
    except Unverified:
        raise _refused(detail_enum) from None
