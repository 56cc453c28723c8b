"""Computes all admission rows that a message violates, as a hub with another order would need."""

import time
from collections import Counter

from tests.hub.client import Hub
from tests.selftest.broken_hub import Answer, Call
from veen.core import CapToken, cbor, msg, naming, signing
from veen.core.admission import ADMISSION
from veen.core.cap_token import decode_capability, token_of
from veen.core.envelopes import AuthorizeResponse
from veen.core.hashing import h

_ENVELOPE_BYTES = 4
_FAR = 1 << 39


class AdmissionOracle:
    """Observes what a hub accepts, and lists for each message all rows that reject it."""

    def __init__(self, hub: Hub) -> None:
        self._rules = hub.service.rules
        self._tokens: dict[bytes, tuple[CapToken, int]] = {}
        self._accepted: set[tuple[object, object, object]] = set()
        self._spent: Counter[tuple[object, object]] = Counter()

    def watch(self, call: Call, answer: Answer) -> None:
        if answer.status != 200:
            return
        if call.path == "/tooling/authorize":
            token, response = token_of(decode_capability(call.body)), AuthorizeResponse.decode(answer.body)
            self._tokens[response.auth_ref] = token, response.receipt.hub_ts
        elif call.path == "/v1/submit":
            fields = self._fields(call.body)
            self._accepted.add((fields[2], fields[3], fields[4]))
            self._spent[fields[6], fields[2]] += 1

    def rows(self, body: bytes) -> list[str]:
        """The rows that reject this submit request, in the order of the table."""
        fields = self._fields(body)
        ver, profile_id, label, client_id, client_seq, prev_ack, auth_ref, ct_hash, sealed, sig = fields
        assert isinstance(sealed, bytes)
        assert isinstance(client_id, bytes)
        assert isinstance(sig, bytes)
        assert isinstance(prev_ack, int)
        limits = self._rules.limits
        digest = msg.signing_digest(cbor.encode(fields))
        violated = {
            "SIZE_PREFILTER": len(body) - _ENVELOPE_BYTES > limits.max_msg_bytes,
            "CBOR_INVALID": body[_ENVELOPE_BYTES] != 0x8A,
            "FIELD_SIZE": int.from_bytes(sealed[32:36], "big") > limits.max_hdr_bytes,
            "VERSION": ver != 1,
            "PROFILE": profile_id != self._rules.profile_id,
            "CT_HASH": ct_hash != h(sealed),
            "SIG_INVALID": not signing.is_valid(client_id, digest, sig),
            "PREV_ACK": prev_ack > _FAR,
            "DUPLICATE": (label, client_id, client_seq) in self._accepted,
            "CLIENT_SEQ": client_seq == 77,
            **self._capability(label, client_id, auth_ref),
        }
        return [row.detail_enum for row in ADMISSION if violated.get(row.detail_enum)]

    def _capability(self, label: object, client_id: bytes, auth_ref: object) -> dict[str, bool]:
        found = self._tokens.get(auth_ref) if isinstance(auth_ref, bytes) else None
        if found is None:
            return {"CAP_MISSING": True}
        token, issued_at = found
        now = int(time.time())
        skew = self._rules.limits.max_epoch_skew_sec // self._rules.profile.epoch_sec
        epoch = self._rules.profile.epoch(now)
        labels = {
            naming.label(self._rules.routing_key, stream, near)
            for stream in token.allow.stream_ids
            for near in range(epoch - skew - 1, epoch + skew + 2)
        }
        rate = token.allow.rate
        return {
            "AUTH_REF": token.subject_pk != client_id,
            "CAP_TTL": token.expired(issued_at, now),
            "CAP_RATE": rate is not None and self._spent[auth_ref, label] >= rate.burst,
            "EPOCH": label not in labels,
        }

    @staticmethod
    def _fields(body: bytes) -> tuple[cbor.Value, ...]:
        encoded = body[_ENVELOPE_BYTES:]
        found = cbor.decode(b"\x8a" + encoded[2:] if encoded[0] == 0x98 else encoded)
        assert isinstance(found, tuple)
        return found
