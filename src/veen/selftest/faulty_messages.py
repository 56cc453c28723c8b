"""Messages with chosen faults of the admission table, each wrong in exactly the ways it is asked to be. Spec §8.2.

Three rows of the table are not here. `att_root` is sealed and a hub cannot see it (ATT_ROOT), a stateless policy is a
hub's own (PREFILTER_REJECT), and a capability's chain is judged where it is shown, at authorize (CAP_INVALID).
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

_ELSEWHERE = frozenset(("PREFILTER_REJECT", "ATT_ROOT", "CAP_INVALID"))
FAULTS = tuple(row.detail_enum for row in ADMISSION if row.detail_enum not in _ELSEWHERE)
_NEED_ISSUER = frozenset(("AUTH_REF", "CAP_TTL", "CAP_RATE"))
_FAR_AHEAD = 1 << 40
_FAR_EPOCHS = 1000
_STEPS = 4

# No message can have both: a capability is known or it is not, and client_seq was used or not. A label of a far epoch
# has no entries and no bucket.
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
# Where the fields stand in a MSG.
_VER, _PROFILE_ID, _CLIENT_SEQ, _PREV_ACK, _AUTH_REF, _CT_HASH, _CIPHERTEXT = 0, 1, 4, 5, 6, 7, 8


def why_not(trial: CheckContext, fault: str) -> str | None:
    """Why this fault cannot be provoked at this hub with what was given; None where it can."""
    if fault == "EPOCH" and not trial.profile.epoch_sec:
        return "the hub has no epochs"
    if fault in _NEED_ISSUER and not trial.has_issuer:
        return "no issuer key was given"
    if BY_DETAIL[fault].stage == "commit" and not trial.may_write:
        return "nobody gets that far without a capability, and no issuer key was given"
    return None


def possible(trial: CheckContext) -> tuple[str, ...]:
    """The faults that can be provoked here, in the order of the table."""
    return tuple(fault for fault in FAULTS if why_not(trial, fault) is None)


def pairs(trial: CheckContext) -> list[tuple[str, str]]:
    """Every two faults that one message can have here, the earlier row first."""
    return [pair for pair in combinations(possible(trial), 2) if frozenset(pair) not in _EXCLUSIVE]


@dataclass(frozen=True, slots=True)
class FaultyMessage:
    """The fields of a MSG before its signature as plain values, and what is done to the bytes at the end."""

    fields: tuple[int | bytes | None, ...]
    key: SigningKey
    faults: frozenset[str]

    def encode(self) -> bytes:
        """Signed last, so that each fault stands alone."""
        encoded = self._signed()
        # The head of the array in two bytes where one will do.
        return b"\x98\x0a" + encoded[1:] if "CBOR_INVALID" in self.faults else encoded

    def json(self) -> bytes:
        """The submit request in JSON that stands for it."""
        found = cbor.decode(self._signed())
        assert isinstance(found, tuple)
        shown: list[strict_json.Json] = [item.hex() if isinstance(item, bytes) else item for item in found]
        if "CBOR_INVALID" in self.faults:
            shown[_PROFILE_ID] = f"{shown[_PROFILE_ID]}0"  # half a byte
        return strict_json.encode({"ver": 1, "msg": shown})

    def _signed(self) -> bytes:
        return _encoded(self.fields, None if "SIG_INVALID" in self.faults else self.key)


def anyone(trial: CheckContext) -> Writer:
    """Someone who may write or, where nobody may, someone whose message is refused only after it was looked at."""
    return trial.writer() if trial.may_write else trial.stranger()


def of_size(writer: Writer, size: int) -> bytes:
    """The writer's next message, padded until it has exactly this many bytes."""
    message = writer.message()
    encoded, sealed = message.encode(), message.ciphertext
    if len(encoded) > size:
        raise Skipped(f"a message has {len(encoded)} bytes and more, not {size}")
    for _ in range(_STEPS):  # a longer string has a longer head, so it takes more than one
        missing = size - len(encoded)
        if not missing:
            return encoded
        sealed = sealed + bytes(missing) if missing > 0 else sealed[:missing]
        encoded = _plain(message, sealed, writer.key)
    raise Skipped(f"no message has {size} bytes")  # where the head grows, some sizes are left out


def draft(trial: CheckContext, *wanted: str) -> FaultyMessage:
    """A message that is wrong in these ways only. What it takes to be so is submitted first."""
    faults = frozenset(wanted)
    writer = _author(trial, faults)
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
        sealed += bytes(trial.facts.max_msg_bytes)
    fields[_CIPHERTEXT] = sealed
    fields[_CT_HASH] = bytes(HASH_BYTES) if "CT_HASH" in faults else h(sealed)
    if "VERSION" in faults:
        fields[_VER] = 2
    if "PROFILE" in faults:
        fields[_PROFILE_ID] = bytes(HASH_BYTES)
    return FaultyMessage(tuple(fields), writer.key, faults)


def _plain(message: Msg, sealed: bytes, key: SigningKey) -> bytes:
    """The message around another ciphertext, however long that is."""
    fields = _fields(message)
    fields[_CT_HASH], fields[_CIPHERTEXT] = h(sealed), sealed
    return _encoded(tuple(fields), key)


def _fields(message: Msg) -> list[int | bytes | None]:
    """All but the signature."""
    return [1, *(getattr(message, kind.name) for kind in message.LAYOUT.kinds if not kind.fixed)][:-1]


def _encoded(fields: tuple[int | bytes | None, ...], key: SigningKey | None) -> bytes:
    """The MSG of these fields, signed or with a signature that does not hold."""
    unsigned = cbor.encode([*fields, bytes(SIGNATURE_BYTES)])
    if key is None:
        return unsigned
    return cbor.encode([*fields, key.sign(msg.signing_digest(unsigned))])


def _author(trial: CheckContext, faults: frozenset[str]) -> Writer:
    """Whoever would send it: with the label, the capability and the past that the faults ask for."""
    owner, other = _lapsed(trial, faults) if "CAP_TTL" in faults else _current(trial, faults)
    author = other if "AUTH_REF" in faults else owner
    if "DUPLICATE" in faults and not author.client_seq:
        author.send()
    if "AUTH_REF" in faults:
        author.auth_ref = owner.auth_ref or trial.grant(owner).auth_ref()
    if "CAP_MISSING" in faults:
        author.auth_ref = token_bytes(HASH_BYTES)
    if "EPOCH" in faults:
        far = trial.status().epoch + trial.facts.window() + _FAR_EPOCHS
        author = replace(author, label=trial.facts.label(owner.stream_id, far), client_seq=0, prev_ack=0)
    return author


def _lapsed(trial: CheckContext, faults: frozenset[str]) -> tuple[Writer, Writer]:
    found = trial.expired.spent if "CAP_RATE" in faults else trial.expired.idle
    return replace(found.owner), replace(found.other)


def _current(trial: CheckContext, faults: frozenset[str]) -> tuple[Writer, Writer]:
    owner = anyone(trial)
    if "CAP_RATE" in faults:
        owner.auth_ref = trial.grant(owner, rate=Rate(0, 1)).auth_ref()
        owner.send()
    other = owner
    if "AUTH_REF" in faults:
        other = replace(trial.writer(owner.stream_id), label=owner.label)
    return owner, other


def signed_wrong(rng: Random, good: Msg, key: SigningKey, max_hdr_bytes: int) -> bytes:
    """A message with one field that cannot be right, signed by its own key as if it were."""
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
