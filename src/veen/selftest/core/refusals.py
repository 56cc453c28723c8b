"""The rows of the admission table: messages with chosen faults, and the code, stage, detail_enum and status of each.

Three rows are missing: a hub cannot see `att_root`, which is sealed (ATT_ROOT); a stateless policy is specific to a hub
(PREFILTER_REJECT); and a capability's chain is checked at authorize (CAP_INVALID). Spec §8.2, §10.6.
"""

from dataclasses import dataclass, replace
from itertools import combinations, combinations_with_replacement
from random import Random
from secrets import token_bytes

from veen.core import Msg, Rate, SigningKey, cap_token, cbor, msg, strict_json
from veen.core.admission import ADMISSION, BY_DETAIL, AdmissionStage
from veen.core.envelopes import SubmitResponse
from veen.core.hashing import HASH_BYTES, U32_MAX, U64_MAX, h, u32be
from veen.core.hpke import ENC_BYTES
from veen.core.limits import MAX_BODY_BYTES, MAX_MSG_BYTES
from veen.core.signing import SIGNATURE_BYTES
from veen.selftest.check import Skipped, Suite, case
from veen.selftest.check_context import CheckContext, Writer
from veen.selftest.probe import SUBMIT_HEAD

CHECKS = Suite[CheckContext]()
# The difference that spec §14 leaves between the largest message and the largest body.
_OTHER_FIELDS = MAX_MSG_BYTES - MAX_BODY_BYTES
# Order of the Ed25519 group. A verifier that does not check S < order accepts S plus this as well.
_GROUP_ORDER = (1 << 252) + 0x14DEF9DEA2F79CD65812631A5CF5D3ED
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
        return f"this stage is not reached: {context.cannot_write}"
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
        other = context.writer_beside(owner)
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


def _row(name: str) -> None:
    row = BY_DETAIL[name]

    @CHECKS.claim(f"refuse.{name}", f"{row.failure}: {row.code} at {row.stage}", "§8.2")
    def refused(context: CheckContext) -> None:
        reason = skip_reason(context, name)
        if reason:
            raise Skipped(reason)
        context.probe.submit(draft(context, name).encode()).expect_row(name)


for _fault in FAULTS:
    _row(_fault)


@CHECKS.claim("refuse.CAP_INVALID", "a capability above the hub's limits is rejected: E.CAP at auth", "§8.2, §3.5")
def cap_invalid(context: CheckContext) -> None:
    writer, most = context.stranger(), context.facts.limits["max_cap_rate_per_sec"]
    if most == U64_MAX:
        raise Skipped("this hub has no limit on the rate")
    token = cap_token.mint(context.issuer, writer.key.public_key, [writer.stream_id], 60, Rate(most + 1, 1))
    context.probe.post("/tooling/authorize", context.presented(token)).expect_row("CAP_INVALID")


def _expect_all(context: CheckContext, row: str, bodies: dict[str, bytes]) -> str:
    """Expect every submit request to be rejected by that row; name the first that is not."""
    for name, body in bodies.items():
        with case(name):
            context.probe.post("/v1/submit", body).expect_row(row)
    return f"{len(bodies)} forms"


def _wrapped(messages: dict[str, bytes]) -> dict[str, bytes]:
    return {name: SUBMIT_HEAD + message for name, message in messages.items()}


def _encoded_with(message: Msg, **fields: bytes) -> bytes:
    """The MSG with some fields replaced by raw encoded items, which a correct encoder never produces."""
    kinds = Msg.LAYOUT.kinds
    values = [1, *(getattr(message, kind.name) for kind in kinds if not kind.fixed)]
    items = [fields.get(kind.name, cbor.encode(value)) for kind, value in zip(kinds, values, strict=True)]
    return b"\x8a" + b"".join(items)


@CHECKS.claim("refuse.forms", "a message in a non-canonical encoding is E.FORMAT", "§3.1, §7 I10")
def forms(context: CheckContext) -> str:
    message = any_writer(context).message()
    encoded = message.encode()
    sealed = message.ciphertext
    cases = {
        "a long head": _encoded_with(message, client_seq=b"\x18" + bytes([message.client_seq])),
        "an array without end": b"\x9f" + encoded[1:] + b"\xff",
        "a string in parts": _encoded_with(message, ciphertext=b"\x5f" + cbor.encode(sealed) + b"\xff"),
        "a tag": _encoded_with(message, client_seq=b"\xc2" + cbor.encode(message.client_seq)),
        "a float": _encoded_with(message, prev_ack=b"\xf9\x00\x00"),
        "a negative number": _encoded_with(message, prev_ack=b"\x20"),
        "null for a number": _encoded_with(message, prev_ack=b"\xf6"),
        "undefined for auth_ref": _encoded_with(message, auth_ref=b"\xf7"),
        "text for bytes": _encoded_with(message, label=b"\x78\x20" + b"a" * 32),
        "a field more": b"\x8b" + encoded[1:] + b"\x00",
        "a field less": b"\x89" + encoded[1:-66],
        "a map": b"\xaa" + encoded[1:],
        "bytes after its end": encoded + b"\x00",
        "cut short": encoded[:-1],
        "nothing": b"",
    }
    return _expect_all(context, "CBOR_INVALID", _wrapped(cases))


@CHECKS.claim("refuse.envelopes", "a submit request in a non-canonical encoding is E.FORMAT", "§10.4.1, §8.2")
def envelopes(context: CheckContext) -> str:
    message = any_writer(context).message().encode()
    cases = {
        "empty": b"",
        "an array": b"\x82\x01" + message,
        "another version": b"\xa2\x01\x02\x02" + message,
        "an unknown key": b"\xa3\x01\x01\x02" + message + b"\x03\x00",
        "no message": b"\xa1\x01\x01",
        "keys out of order": b"\xa2\x02" + message + b"\x01\x01",
        "a key twice": b"\xa3\x01\x01\x01\x01\x02" + message,
        "a long head": b"\xb8\x02\x01\x01\x02" + message,
        "null for a message": b"\xa2\x01\x01\x02\xf6",
        "bytes after its end": SUBMIT_HEAD + message + b"\x00",
        "text": b"\x65hello",
    }
    return _expect_all(context, "CBOR_INVALID", cases)


@CHECKS.claim("refuse.sizes", "a field one byte too short or too long is E.SIZE", "§4.1, §8.2")
def sizes(context: CheckContext) -> str:
    message = any_writer(context).message()
    cases = {}
    for name in ("profile_id", "label", "client_id", "auth_ref", "ct_hash", "sig"):
        right = 64 if name == "sig" else 32
        for wrong in (0, right - 1, right + 1):
            cases[f"{name} of {wrong} bytes"] = _encoded_with(message, **{name: cbor.encode(bytes(wrong))})
    return _expect_all(context, "FIELD_SIZE", _wrapped(cases))


@CHECKS.claim("refuse.largest", "a message of max_msg_bytes is accepted, and no larger one", "§14, §14.2")
def largest(context: CheckContext) -> str:
    writer, most = context.writer(), context.facts.max_msg_bytes
    context.probe.submit(of_size(writer, most + 1)).expect_row("SIZE_PREFILTER")
    reply = context.probe.submit(of_size(writer, most))
    if reply.status == 200:
        return f"{most} bytes"
    # A hub may limit the ciphertext to the space that remains when all other fields have their maximum size.
    reply.expect_row("FIELD_SIZE")
    context.probe.submit(of_size(writer, most - _OTHER_FIELDS)).read(SubmitResponse)
    return f"{most} bytes for the message, less for its ciphertext"


@CHECKS.claim("refuse.altered", "the signature covers every field", "§4.1, §8.2")
def altered(context: CheckContext) -> str:
    writer = any_writer(context)
    message = writer.message()
    other = writer.message(b"another")
    changes = {
        "label": replace(message, label=bytes(32)),
        "client_id": replace(message, client_id=context.stranger().key.public_key),
        "client_seq": replace(message, client_seq=message.client_seq + 1),
        "prev_ack": replace(message, prev_ack=message.prev_ack + 1),
        "auth_ref": replace(message, auth_ref=None if message.auth_ref else bytes(32)),
        "ciphertext": replace(message, ciphertext=other.ciphertext, ct_hash=other.ct_hash),
        "sig": replace(message, sig=other.sig),
    }
    return _expect_all(context, "SIG_INVALID", _wrapped({name: changed.encode() for name, changed in changes.items()}))


@CHECKS.claim(
    "refuse.malleable", "a second encoding of a signature, or a key of small order, does not verify", "§3.2, §7 I13"
)
def malleable(context: CheckContext) -> None:
    writer = any_writer(context)
    message = writer.message()
    shifted = int.from_bytes(message.sig[32:], "little") + _GROUP_ORDER
    context.probe.submit(replace(message, sig=message.sig[:32] + shifted.to_bytes(32, "little"))).expect_row(
        "SIG_INVALID"
    )
    # With the neutral element as key, R = [S]B holds for any message.
    neutral = (1).to_bytes(32, "little")
    context.probe.submit(replace(message, client_id=neutral, sig=neutral + bytes(32))).expect_row("SIG_INVALID")


def _expect_first(context: CheckContext, faults: tuple[str, ...]) -> None:
    with case(f"{' and '.join(faults)} at once"):
        context.probe.submit(draft(context, *faults).encode()).expect_row(faults[0])


def _stages(first: AdmissionStage, second: AdmissionStage) -> None:
    where = f"two faults at {first}" if first is second else f"a fault at {first} and one at {second}"

    @CHECKS.claim(f"order.{first}-{second}", f"with {where}, the first in the table is reported", "§8.1–8.2")
    def ordered(context: CheckContext) -> str:
        tried = [
            (one, other)
            for one, other in pairs(context)
            if (BY_DETAIL[one].stage, BY_DETAIL[other].stage) == (first, second)
        ]
        if not tried:
            raise Skipped("no such pair can be provoked at this hub with the given options")
        if context.may_write:
            # Without an accepted message a rejection would prove nothing.
            context.probe.submit(draft(context).encode()).read(SubmitResponse)
        for pair in tried:
            _expect_first(context, pair)
        return f"{len(tried)} pairs"


# Only one prefilter row can be provoked, so there is no pair within that stage.
for _first, _second in combinations_with_replacement(AdmissionStage, 2):
    if _second is not AdmissionStage.PREFILTER:
        _stages(_first, _second)


@CHECKS.claim("order.all", "with every fault at once, they are reported in the order of the table", "§8.1–8.2")
def every_fault(context: CheckContext) -> str:
    left = tuple(fault for fault in possible(context) if fault not in ("CAP_MISSING", "CLIENT_SEQ", "EPOCH"))
    for start in range(len(left)):
        _expect_first(context, left[start:])
    return f"{len(left)} faults"
