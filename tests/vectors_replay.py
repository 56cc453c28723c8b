"""The admission rules a second time, over plain values, written from the specification alone."""

from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests import vectors_oracle as oracle
from tests.vectors_files import unhex


def holds(public_key: bytes, message: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


@dataclass
class Replay:
    """State in dicts. Structure is not checked: undecodable messages are not covered by these rules."""

    doc: dict[str, Any]
    leaves: dict[bytes, list[bytes]] = field(default_factory=dict)
    accepted: dict[tuple[bytes, bytes], list[int]] = field(default_factory=dict)  # (auth_ref, label): hub_ts
    issued_at: dict[bytes, int] = field(default_factory=dict)
    last: dict[tuple[bytes, bytes], tuple[int, int]] = field(default_factory=dict)
    tokens: dict[bytes, dict[int, Any]] = field(default_factory=dict)
    seen: set[bytes] = field(default_factory=set)

    def authorize(self, data: bytes, hub_ts: int = 0) -> str | None:
        token = oracle.uncbor(data)
        grant = oracle.cbor({key: token[key] for key in (1, 2, 3, 4)})
        previous = bytes(64)
        for link in token[5]:
            if not holds(token[2], oracle.ht("veen/cap-link", grant, previous), link):
                return "CAP_INVALID"
            previous = link
        limits, rate = self.doc["hub"]["limits"], token[4].get(3)
        if rate and (rate[1] > limits["max_cap_rate_per_sec"] or rate[2] > limits["max_cap_rate_burst"]):
            return "CAP_INVALID"
        self.tokens[oracle.ht("veen/cap", data)] = token
        self.issued_at.setdefault(oracle.ht("veen/cap", data), hub_ts)
        return None

    def submit(self, data: bytes, hub_ts: int) -> str | None:
        """The detail_enum of the rejection, or None if the message is now in the log."""
        msg = oracle.uncbor(data)
        refusal = self._content(msg) or self._capability(msg, hub_ts) or self._order(msg, data, hub_ts)
        if refusal is None:
            _, _, label, client_id, client_seq, prev_ack, auth_ref, *_ = msg
            self.leaves.setdefault(label, []).append(oracle.leaf_hash(msg))
            self.last[label, client_id] = (client_seq, prev_ack)
            self.seen.add(data)
            if auth_ref is not None:
                self.accepted.setdefault((auth_ref, label), []).append(hub_ts)
        return refusal

    def _content(self, msg: list[Any]) -> str | None:
        if msg[1].hex() != self.doc["profile"]["profile_id"]:
            return "PROFILE"
        if oracle.h(msg[8]) != msg[7]:
            return "CT_HASH"
        return None if holds(msg[3], oracle.signed(msg, oracle.MSG), msg[9]) else "SIG_INVALID"

    def _log(self, label: bytes) -> dict[str, Any]:
        return next(log for log in self.doc["logs"] if unhex(log["label"]) == label)

    def _capability(self, msg: list[Any], hub_ts: int) -> str | None:
        label, auth_ref = msg[2], msg[6]
        if auth_ref is None and not self.doc["hub"]["needs_capability"]:
            return None
        token = self.tokens.get(auth_ref)
        if token is None:
            return "CAP_MISSING"
        streams, ttl, rate = token[4][1], token[4][2], token[4].get(3)
        if token[3] != msg[3] or unhex(self._log(label)["stream_id"]) not in streams:
            return "AUTH_REF"
        if hub_ts > self.issued_at[auth_ref] + ttl:
            return "CAP_TTL"
        if rate and not self._left(self.accepted.get((auth_ref, label), []), rate[1], rate[2], hub_ts):
            return "CAP_RATE"
        return None

    @staticmethod
    def _left(taken: list[int], per_sec: int, burst: int, hub_ts: int) -> int:
        """The tokens in the bucket, second by second from its first message on."""
        left = burst
        for second in range(taken[0] if taken else hub_ts, hub_ts + 1):
            left = min(burst, left + per_sec) - taken.count(second)
        return left

    def _order(self, msg: list[Any], data: bytes, hub_ts: int) -> str | None:
        label, client_id, client_seq, prev_ack = msg[2:6]
        last_seq, last_ack = self.last.get((label, client_id), (0, 0))
        if data in self.seen:
            return "DUPLICATE"
        if prev_ack > len(self.leaves.get(label, [])) or prev_ack < last_ack:
            return "PREV_ACK"
        if 1 <= client_seq <= last_seq:
            return "DUPLICATE"
        if client_seq != last_seq + 1:
            return "CLIENT_SEQ"
        epoch_sec, skew = self.doc["profile"]["epoch_sec"], self.doc["hub"]["limits"]["max_epoch_skew_sec"]
        if epoch_sec and abs(self._log(label)["epoch"] - hub_ts // epoch_sec) > skew // epoch_sec:
            return "EPOCH"
        return None
