"""The rows of the admission table, one by one: code, stage, detail_enum and status. Spec §8.2, §10.6."""

from dataclasses import replace
from itertools import combinations_with_replacement

from veen.core import Rate, cap_token, cbor
from veen.core.admission import BY_DETAIL, AdmissionStage
from veen.core.envelopes import SubmitResponse
from veen.core.hashing import U64_MAX
from veen.core.limits import MAX_BODY_BYTES, MAX_MSG_BYTES
from veen.core.msg import Msg
from veen.selftest import faulty_messages
from veen.selftest.check import Check, claim
from veen.selftest.check_context import CheckContext
from veen.selftest.probe import SUBMIT_HEAD
from veen.selftest.verdict import Failed, Skipped


def _expect_first(context: CheckContext, faults: tuple[str, ...]) -> None:
    try:
        context.probe.submit(faulty_messages.draft(context, *faults).encode()).expect_row(faults[0])
    except Failed as failed:
        raise Failed(f"{' and '.join(faults)} at once: {failed}") from None


def _stages(first: AdmissionStage, second: AdmissionStage) -> Check:
    where = f"two faults at {first}" if first is second else f"a fault at {first} and one at {second}"

    @claim(f"order.{first}-{second}", f"with {where}, the first in the table is reported", "§8.1–8.2")
    def ordered(context: CheckContext) -> str:
        tried = [
            (one, other)
            for one, other in faulty_messages.pairs(context)
            if (BY_DETAIL[one].stage, BY_DETAIL[other].stage) == (first, second)
        ]
        if not tried:
            raise Skipped("no such pair can be provoked at this hub with the given options")
        if context.may_write:
            # Without an accepted message a rejection would prove nothing.
            context.probe.submit(faulty_messages.draft(context).encode()).read(SubmitResponse)
        for pair in tried:
            _expect_first(context, pair)
        return f"{len(tried)} pairs"

    return ordered


@claim("order.all", "with every fault at once, they are reported in the order of the table", "§8.1–8.2")
def every_fault(context: CheckContext) -> str:
    left = tuple(
        fault for fault in faulty_messages.possible(context) if fault not in ("CAP_MISSING", "CLIENT_SEQ", "EPOCH")
    )
    for start in range(len(left)):
        _expect_first(context, left[start:])
    return f"{len(left)} faults"


# Only one prefilter row can be provoked, so there is no pair within that stage.
FAULT_ORDER_CHECKS = (
    *(
        _stages(one, other)
        for one, other in combinations_with_replacement(AdmissionStage, 2)
        if other is not AdmissionStage.PREFILTER
    ),
    every_fault,
)


# The difference that spec §14 leaves between the largest message and the largest body.
_OTHER_FIELDS = MAX_MSG_BYTES - MAX_BODY_BYTES
# Order of the Ed25519 group. A verifier that does not check S < order accepts S plus this as well.
_GROUP_ORDER = (1 << 252) + 0x14DEF9DEA2F79CD65812631A5CF5D3ED


def _row(name: str) -> Check:
    row = BY_DETAIL[name]

    @claim(f"refuse.{name}", f"{row.failure}: {row.code} at {row.stage}", "§8.2")
    def refused(context: CheckContext) -> None:
        reason = faulty_messages.skip_reason(context, name)
        if reason:
            raise Skipped(reason)
        context.probe.submit(faulty_messages.draft(context, name).encode()).expect_row(name)

    return refused


ROWS = tuple(_row(name) for name in faulty_messages.FAULTS)


@claim("refuse.CAP_INVALID", "a capability above the hub's limits is rejected: E.CAP at auth", "§8.2, §3.5")
def cap_invalid(context: CheckContext) -> None:
    writer, most = context.stranger(), context.facts.limits["max_cap_rate_per_sec"]
    if most == U64_MAX:
        raise Skipped("this hub has no limit on the rate")
    token = cap_token.mint(context.issuer, writer.key.public_key, [writer.stream_id], 60, Rate(most + 1, 1))
    context.probe.post("/tooling/authorize", token).expect_row("CAP_INVALID")


def _expect_all(context: CheckContext, row: str, bodies: dict[str, bytes]) -> str:
    """Expect every submit request to be rejected by that row; name the first that is not."""
    for name, body in bodies.items():
        try:
            context.probe.post("/v1/submit", body).expect_row(row)
        except Failed as failed:
            raise Failed(f"{name}: {failed}") from None
    return f"{len(bodies)} forms"


def _wrapped(messages: dict[str, bytes]) -> dict[str, bytes]:
    return {name: SUBMIT_HEAD + message for name, message in messages.items()}


def _encoded_with(message: Msg, **fields: bytes) -> bytes:
    """The MSG with some fields replaced by raw encoded items, which a correct encoder never produces."""
    kinds = Msg.LAYOUT.kinds
    values = [1, *(getattr(message, kind.name) for kind in kinds if not kind.fixed)]
    items = [fields.get(kind.name, cbor.encode(value)) for kind, value in zip(kinds, values, strict=True)]
    return b"\x8a" + b"".join(items)


@claim("refuse.forms", "a message in a non-canonical encoding is E.FORMAT", "§3.1, §7 I10")
def forms(context: CheckContext) -> str:
    message = faulty_messages.any_writer(context).message()
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


@claim("refuse.envelopes", "a submit request in a non-canonical encoding is E.FORMAT", "§10.4.1, §8.2")
def envelopes(context: CheckContext) -> str:
    message = faulty_messages.any_writer(context).message().encode()
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


@claim("refuse.sizes", "a field one byte too short or too long is E.SIZE", "§4.1, §8.2")
def sizes(context: CheckContext) -> str:
    message = faulty_messages.any_writer(context).message()
    cases = {}
    for name in ("profile_id", "label", "client_id", "auth_ref", "ct_hash", "sig"):
        right = 64 if name == "sig" else 32
        for wrong in (0, right - 1, right + 1):
            cases[f"{name} of {wrong} bytes"] = _encoded_with(message, **{name: cbor.encode(bytes(wrong))})
    return _expect_all(context, "FIELD_SIZE", _wrapped(cases))


@claim("refuse.largest", "a message of max_msg_bytes is accepted, and no larger one", "§14, §14.2")
def largest(context: CheckContext) -> str:
    writer, most = context.writer(), context.facts.max_msg_bytes
    context.probe.submit(faulty_messages.of_size(writer, most + 1)).expect_row("SIZE_PREFILTER")
    reply = context.probe.submit(faulty_messages.of_size(writer, most))
    if reply.status == 200:
        return f"{most} bytes"
    # A hub may limit the ciphertext to the space that remains when all other fields have their maximum size.
    reply.expect_row("FIELD_SIZE")
    context.probe.submit(faulty_messages.of_size(writer, most - _OTHER_FIELDS)).read(SubmitResponse)
    return f"{most} bytes for the message, less for its ciphertext"


@claim("refuse.altered", "the signature covers every field", "§4.1, §8.2")
def altered(context: CheckContext) -> str:
    writer = faulty_messages.any_writer(context)
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


@claim("refuse.malleable", "a second encoding of a signature, or a key of small order, does not verify", "§3.2, §7 I13")
def malleable(context: CheckContext) -> None:
    writer = faulty_messages.any_writer(context)
    message = writer.message()
    shifted = int.from_bytes(message.sig[32:], "little") + _GROUP_ORDER
    context.probe.submit(replace(message, sig=message.sig[:32] + shifted.to_bytes(32, "little"))).expect_row(
        "SIG_INVALID"
    )
    # With the neutral element as key, R = [S]B holds for any message.
    neutral = (1).to_bytes(32, "little")
    context.probe.submit(replace(message, client_id=neutral, sig=neutral + bytes(32))).expect_row("SIG_INVALID")


REFUSAL_CHECKS = (*ROWS, cap_invalid, forms, envelopes, sizes, largest, altered, malleable)
