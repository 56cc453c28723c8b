"""Messages with chosen faults of the admission table, and no other faults. Spec §8.2.

Three rows are missing: a hub cannot see `att_root`, which is sealed (ATT_ROOT); a stateless policy is specific to a hub
(PREFILTER_REJECT); and a capability's chain is checked at authorize (CAP_INVALID).
"""

from dataclasses import dataclass, replace
from itertools import combinations
from random import Random
from secrets import token_bytes

from veen.core import Msg, Rate, SigningKey, cbor, msg, strict_json
from veen.core.admission import ADMISSION, BY_DETAIL
from veen.core.hashing import HASH_BYTES, U32_MAX, U64_MAX, h, u32be
from veen.core.hpke import ENC_BYTES
from veen.core.signing import SIGNATURE_BYTES
from veen.selftest.check_context import CheckContext
from veen.selftest.verdict import Skipped
from veen.selftest.writer import Writer

_NOT_COVERED = frozenset(("PREFILTER_REJECT", "ATT_ROOT", "CAP_INVALID"))
FAULTS = tuple(row.detail_enum for row in ADMISSION if row.detail_enum not in _NOT_COVERED)
_NEED_ISSUER = frozenset(("AUTH_REF", "CAP_TTL", "CAP_RATE"))
_FAR_AHEAD = 1 << 40
_FAR_EPOCHS = 1000
_MAX_STEPS = 4

# Pairs that no message can have: a capability is known or unknown, a client_seq is used or unused. A label of a far
# epoch has no entries and no rate bucket.
_EXCLUSIVE = frozenset(
    frozenset(pair)
    for pair in (
        ("CAP_MISSING", "AUTH_REF"),
        ("CAP_MISSING", "CAP_TTL"),
        ("CAP_MISSING", "CAP_RATE"),
        ("DUPLICATE", "CLIENT_SEQ"),
        ("DUPLICATE", "EPOCH"),
        ("CAP_RATE", "EPOCH"),
    )
)
# Positions of the fields in a MSG.
_VER, _PROFILE_ID, _CLIENT_SEQ, _PREV_ACK, _AUTH_REF, _CT_HASH, _CIPHERTEXT = 0, 1, 4, 5, 6, 7, 8


def skip_reason(context: CheckContext, fault: str) -> str | None:
    """Why this fault cannot be provoked at this hub with the given options; None if it can."""
    if fault == "EPOCH" and not context.profile.epoch_sec:
        return "the hub has no epochs"
    if fault in _NEED_ISSUER and not context.has_issuer:
        return "no issuer key was given"
    if BY_DETAIL[fault].stage == "commit" and not context.may_write:
        return "this stage is only reached with a capability, and no issuer key was given"
    return None


def possible(context: CheckContext) -> tuple[str, ...]:
    """The faults that can be provoked, in the order of the table."""
    return tuple(fault for fault in FAULTS if skip_reason(context, fault) is None)


def pairs(context: CheckContext) -> list[tuple[str, str]]:
    """Every two faults that one message can have, the earlier row first."""
    return [pair for pair in combinations(possible(context), 2) if frozenset(pair) not in _EXCLUSIVE]


@dataclass(frozen=True, slots=True)
class FaultyMessage:
    """The fields of a MSG before signing, and the faults applied while encoding."""

    fields: tuple[int | bytes | None, ...]
    key: SigningKey
    faults: frozenset[str]

    def encode(self) -> bytes:
        """Sign last, so each fault is independent."""
        encoded = self._signed()
        # A two-byte array head where one byte suffices.
        return b"\x98\x0a" + encoded[1:] if "CBOR_INVALID" in self.faults else encoded

    def json(self) -> bytes:
        """The equivalent submit request in JSON."""
        found = cbor.decode(self._signed())
        assert isinstance(found, tuple)
        shown: list[strict_json.Json] = [item.hex() if isinstance(item, bytes) else item for item in found]
        if "CBOR_INVALID" in self.faults:
            shown[_PROFILE_ID] = f"{shown[_PROFILE_ID]}0"  # half a byte
        return strict_json.encode({"ver": 1, "msg": shown})

    def _signed(self) -> bytes:
        return _encoded(self.fields, None if "SIG_INVALID" in self.faults else self.key)


def any_writer(context: CheckContext) -> Writer:
    """A writer with permission or, if there is none, one whose message is rejected only after all earlier checks."""
    return context.writer() if context.may_write else context.stranger()


def of_size(writer: Writer, size: int) -> bytes:
    """The writer's next message, padded to exactly this many bytes."""
    message = writer.message()
    encoded, sealed = message.encode(), message.ciphertext
    if len(encoded) > size:
        raise Skipped(f"a message has at least {len(encoded)} bytes, not {size}")
    for _ in range(_MAX_STEPS):  # a longer string may need a longer head, so one step may not be enough
        missing = size - len(encoded)
        if not missing:
            return encoded
        sealed = sealed + bytes(missing) if missing > 0 else sealed[:missing]
        encoded = _with_ciphertext(message, sealed, writer.key)
    raise Skipped(f"no message has {size} bytes")  # sizes at which the head grows cannot be reached


def draft(context: CheckContext, *wanted: str) -> FaultyMessage:
    """A message with exactly these faults. Messages that it depends on are submitted first."""
    faults = frozenset(wanted)
    writer = _author(context, faults)
    message = writer.message(
        b"draft",
        client_seq=1 if "DUPLICATE" in faults else 77 if "CLIENT_SEQ" in faults else None,
        prev_ack=_FAR_AHEAD if "PREV_ACK" in faults else None,
    )
    fields = _fields(message)
    sealed = message.ciphertext
    if "FIELD_SIZE" in faults:
        sealed = sealed[:ENC_BYTES] + b"\xff" * 4 + sealed[ENC_BYTES + 4 :]  # hdr_len, beyond any limit
    if "SIZE_PREFILTER" in faults:
        sealed += bytes(context.facts.max_msg_bytes)
    fields[_CIPHERTEXT] = sealed
    fields[_CT_HASH] = bytes(HASH_BYTES) if "CT_HASH" in faults else h(sealed)
    if "VERSION" in faults:
        fields[_VER] = 2
    if "PROFILE" in faults:
        fields[_PROFILE_ID] = bytes(HASH_BYTES)
    return FaultyMessage(tuple(fields), writer.key, faults)


def _with_ciphertext(message: Msg, sealed: bytes, key: SigningKey) -> bytes:
    """The message with another ciphertext of any length."""
    fields = _fields(message)
    fields[_CT_HASH], fields[_CIPHERTEXT] = h(sealed), sealed
    return _encoded(tuple(fields), key)


def _fields(message: Msg) -> list[int | bytes | None]:
    """All fields except the signature."""
    return [1, *(getattr(message, kind.name) for kind in message.LAYOUT.kinds if not kind.fixed)][:-1]


def _encoded(fields: tuple[int | bytes | None, ...], key: SigningKey | None) -> bytes:
    """The MSG with these fields, signed or with an invalid signature."""
    unsigned = cbor.encode([*fields, bytes(SIGNATURE_BYTES)])
    if key is None:
        return unsigned
    return cbor.encode([*fields, key.sign(msg.signing_digest(unsigned))])


def _author(context: CheckContext, faults: frozenset[str]) -> Writer:
    """The writer for these faults, with the label, capability and earlier messages that they need."""
    owner, other = _expired_writers(context, faults) if "CAP_TTL" in faults else _current_writers(context, faults)
    author = other if "AUTH_REF" in faults else owner
    if "DUPLICATE" in faults and not author.client_seq:
        author.send()
    if "AUTH_REF" in faults:
        author.auth_ref = owner.auth_ref or context.grant(owner).auth_ref()
    if "CAP_MISSING" in faults:
        author.auth_ref = token_bytes(HASH_BYTES)
    if "EPOCH" in faults:
        far = context.status().epoch + context.facts.window() + _FAR_EPOCHS
        author = replace(author, label=context.facts.label(owner.stream_id, far), client_seq=0, prev_ack=0)
    return author


def _expired_writers(context: CheckContext, faults: frozenset[str]) -> tuple[Writer, Writer]:
    found = context.expired.spent if "CAP_RATE" in faults else context.expired.idle
    return replace(found.owner), replace(found.other)


def _current_writers(context: CheckContext, faults: frozenset[str]) -> tuple[Writer, Writer]:
    owner = any_writer(context)
    if "CAP_RATE" in faults:
        owner.auth_ref = context.grant(owner, rate=Rate(0, 1)).auth_ref()
        owner.send()
    other = owner
    if "AUTH_REF" in faults:
        other = replace(context.writer(owner.stream_id), label=owner.label)
    return owner, other


def signed_wrong(rng: Random, good: Msg, key: SigningKey, max_hdr_bytes: int) -> bytes:
    """A message with one invalid field, correctly signed by its own key."""
    fields = _fields(good)
    sealed = good.ciphertext
    match rng.randrange(7):
        case 0:
            fields[_VER] = rng.choice((0, rng.randint(2, U64_MAX)))
        case 1:
            fields[_PROFILE_ID] = rng.randbytes(HASH_BYTES)
        case 2:
            fields[_CT_HASH] = rng.randbytes(HASH_BYTES)
        case 3:
            fields[_CLIENT_SEQ] = good.client_seq + rng.choice((-1, 1, rng.randint(2, 1 << 60)))
        case 4:
            fields[_PREV_ACK] = good.prev_ack + rng.randint(1, 1 << 60)
        case 5:
            fields[_AUTH_REF] = rng.randbytes(HASH_BYTES)
        case 6:
            too_long = rng.choice((max_hdr_bytes + 1, len(sealed), U32_MAX))
            sealed = sealed[:ENC_BYTES] + u32be(min(too_long, U32_MAX)) + sealed[ENC_BYTES + 4 :]
            fields[_CT_HASH], fields[_CIPHERTEXT] = h(sealed), sealed
    return _encoded(tuple(fields), key)
