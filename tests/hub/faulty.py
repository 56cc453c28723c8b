"""Messages with chosen faults of the admission table, and no others."""

import itertools
from dataclasses import dataclass
from secrets import token_bytes

from tests.hub.client import ISSUER, Clock, Hub, Reply, Writer, envelope
from veen.core import Profile, Rate, SigningKey, cap_token, cbor, msg, naming, strict_json
from veen.core.envelopes import AuthorizeResponse
from veen.core.hashing import h
from veen.core.profile import Limits

EPOCH_SEC = 60
PROFILE = Profile(epoch_sec=EPOCH_SEC)
LIMITS = Limits(max_msg_bytes=2048, max_epoch_skew_sec=EPOCH_SEC)

# Faults that a submitted message can be rejected for here. The other rows of the table are in `ELSEWHERE`.
FAULTS = (
    "SIZE_PREFILTER",
    "CBOR_INVALID",
    "FIELD_SIZE",
    "VERSION",
    "PROFILE",
    "CT_HASH",
    "SIG_INVALID",
    "CAP_MISSING",
    "AUTH_REF",
    "CAP_TTL",
    "CAP_RATE",
    "PREV_ACK",
    "DUPLICATE",
    "CLIENT_SEQ",
    "EPOCH",
)
ELSEWHERE = ("PREFILTER_REJECT", "ATT_ROOT", "CAP_INVALID")

# No message can have both: a capability is either unknown or known, a client_seq either used or unused.
EXCLUSIVE = frozenset(
    frozenset(pair)
    for pair in (
        ("CAP_MISSING", "AUTH_REF"),
        ("CAP_MISSING", "CAP_TTL"),
        ("CAP_MISSING", "CAP_RATE"),
        ("DUPLICATE", "CLIENT_SEQ"),
    )
)
PAIRS = [pair for pair in itertools.combinations(FAULTS, 2) if frozenset(pair) not in EXCLUSIVE]

_HDR_LEN_AT = 32


@dataclass
class Draft:
    """The ten fields of a MSG as plain values, and changes to the encoded bytes."""

    fields: list[int | bytes | None]
    key: SigningKey
    faults: frozenset[str]

    def encode(self) -> bytes:
        """Sign last, so that each fault is the only one."""
        encoded = cbor.encode([*self._signed_fields(), bytes(64)])
        sig = bytes(64) if "SIG_INVALID" in self.faults else self.key.sign(msg.signing_digest(encoded))
        encoded = cbor.encode([*self._signed_fields(), sig])
        return b"\x98\x0a" + encoded[1:] if "CBOR_INVALID" in self.faults else encoded

    def json(self) -> bytes:
        found = cbor.decode(self.encode() if "CBOR_INVALID" not in self.faults else b"\x8a" + self.encode()[2:])
        assert isinstance(found, tuple)
        shown = [item.hex() if isinstance(item, bytes) else item for item in found]
        if "CBOR_INVALID" in self.faults:
            shown[2] = str(shown[2]).upper() + "A"
        return strict_json.encode({"ver": 1, "msg": shown})

    def _signed_fields(self) -> list[int | bytes | None]:
        fields = list(self.fields)
        sealed = fields[8]
        assert isinstance(sealed, bytes)
        if "FIELD_SIZE" in self.faults:
            sealed = sealed[:_HDR_LEN_AT] + b"\xff" * 4 + sealed[_HDR_LEN_AT + 4 :]
        if "SIZE_PREFILTER" in self.faults:
            sealed += bytes(LIMITS.max_msg_bytes)
        fields[8] = sealed
        fields[7] = bytes(32) if "CT_HASH" in self.faults else h(sealed)
        if "VERSION" in self.faults:
            fields[0] = 2
        if "PROFILE" in self.faults:
            fields[1] = bytes(32)
        return fields


_streams = (f"faulty-{number}" for number in itertools.count())


def draft(hub: Hub, clock: Clock, *wanted: str) -> Draft:
    """A message with exactly these faults. Preparations are submitted first."""
    faults = frozenset(wanted)
    writer = hub.granted(stream := next(_streams), ttl=100_000)
    writer.send()
    if faults & {"AUTH_REF", "CAP_TTL", "CAP_RATE"}:
        writer.auth_ref = _special_cap(hub, writer, stream, faults)
    elif "CAP_MISSING" in faults:
        writer.auth_ref = token_bytes(32)
    given: dict[str, int] = {}
    if "PREV_ACK" in faults:
        given["prev_ack"] = 1_000_000
    if "DUPLICATE" in faults:
        given["client_seq"] = 1
    if "CLIENT_SEQ" in faults:
        given["client_seq"] = 77
    found = writer.message(b"draft", **given)
    if "EPOCH" in faults:
        clock.now += 3 * EPOCH_SEC
    elif "CAP_TTL" in faults:
        clock.now += 2
    fields = [1, *(getattr(found, kind.name) for kind in found.LAYOUT.kinds if not kind.fixed)]
    return Draft(fields[:-1], writer.key, faults)


def _special_cap(hub: Hub, writer: Writer, stream: str, faults: frozenset[str]) -> bytes:
    """Authorise a capability for another key, for one second, or with a rate that is used up."""
    subject = SigningKey.generate() if "AUTH_REF" in faults else writer.key
    ttl = 1 if "CAP_TTL" in faults else 100_000
    rate = Rate(0, 1) if "CAP_RATE" in faults else None
    token = cap_token.mint(ISSUER, subject.public_key, [naming.stream_id(stream)], ttl, rate)
    hub.authorize(token).read(AuthorizeResponse)
    if rate:
        spender = writer if subject is writer.key else Writer(hub, writer.label, subject)
        before, spender.auth_ref = spender.auth_ref, token.auth_ref()
        spender.send(b"the only one")
        spender.auth_ref = before
    return token.auth_ref()


def submit(hub: Hub, found: Draft) -> Reply:
    return hub.post("/v1/submit", envelope(found.encode()))
