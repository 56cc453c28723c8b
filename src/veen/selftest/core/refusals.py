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


def _expect_first(trial: CheckContext, faults: tuple[str, ...]) -> None:
    try:
        trial.probe.submit(faulty_messages.draft(trial, *faults).encode()).expect_row(faults[0])
    except Failed as failed:
        raise Failed(f"{' and '.join(faults)} at once: {failed}") from None


def _stages(first: AdmissionStage, second: AdmissionStage) -> Check:
    where = f"two faults at {first}" if first is second else f"a fault at {first} and one at {second}"

    @claim(f"order.{first}-{second}", f"of {where}, the first in the table is the answer", "§8.1–8.2")
    def ordered(trial: CheckContext) -> str:
        tried = [
            (one, other)
            for one, other in faulty_messages.pairs(trial)
            if (BY_DETAIL[one].stage, BY_DETAIL[other].stage) == (first, second)
        ]
        if not tried:
            raise Skipped("no such pair can be provoked at this hub with what was given")
        if trial.may_write:
            trial.probe.submit(faulty_messages.draft(trial).encode()).read(
                SubmitResponse
            )  # or a refusal would prove nothing
        for pair in tried:
            _expect_first(trial, pair)
        return f"{len(tried)} pairs"

    return ordered


@claim("order.all", "with every fault at once, they come to light in the order of the table", "§8.1–8.2")
def every_fault(trial: CheckContext) -> str:
    left = tuple(
        fault for fault in faulty_messages.possible(trial) if fault not in ("CAP_MISSING", "CLIENT_SEQ", "EPOCH")
    )
    for start in range(len(left)):
        _expect_first(trial, left[start:])
    return f"{len(left)} faults"


# Prefilter has one row that can be provoked, so there is no pair within it.
FAULT_ORDER_CHECKS = (
    *(
        _stages(one, other)
        for one, other in combinations_with_replacement(AdmissionStage, 2)
        if other is not AdmissionStage.PREFILTER
    ),
    every_fault,
)


# What spec §14 leaves between the largest message and the largest body.
_OTHER_FIELDS = MAX_MSG_BYTES - MAX_BODY_BYTES
# The order of the group that Ed25519 signs in: S and S plus this are the same to a verifier that does not look.
_GROUP_ORDER = (1 << 252) + 0x14DEF9DEA2F79CD65812631A5CF5D3ED


def _row(name: str) -> Check:
    row = BY_DETAIL[name]

    @claim(f"refuse.{name}", f"{row.failure}: {row.code} at {row.stage}", "§8.2")
    def refused(trial: CheckContext) -> None:
        reason = faulty_messages.why_not(trial, name)
        if reason:
            raise Skipped(reason)
        trial.probe.submit(faulty_messages.draft(trial, name).encode()).expect_row(name)

    return refused


ROWS = tuple(_row(name) for name in faulty_messages.FAULTS)


@claim("refuse.CAP_INVALID", "a capability that asks for more than the hub's limits: E.CAP at auth", "§8.2, §3.5")
def cap_invalid(trial: CheckContext) -> None:
    writer, most = trial.stranger(), trial.facts.limits["max_cap_rate_per_sec"]
    if most == U64_MAX:
        raise Skipped("no rate is above this hub's limit")
    token = cap_token.mint(trial.issuer, writer.key.public_key, [writer.stream_id], 60, Rate(most + 1, 1))
    trial.probe.post("/tooling/authorize", token).expect_row("CAP_INVALID")


def _each(trial: CheckContext, row: str, bodies: dict[str, bytes]) -> str:
    """Each of these submit requests is refused by that row; the one that is not is named."""
    for name, body in bodies.items():
        try:
            trial.probe.post("/v1/submit", body).expect_row(row)
        except Failed as failed:
            raise Failed(f"{name}: {failed}") from None
    return f"{len(bodies)} forms"


def _wrapped(messages: dict[str, bytes]) -> dict[str, bytes]:
    return {name: SUBMIT_HEAD + message for name, message in messages.items()}


def _encoded_with(message: Msg, **fields: bytes) -> bytes:
    """The MSG with some fields replaced by these encoded items: what no honest encoder writes."""
    kinds = Msg.LAYOUT.kinds
    values = [1, *(getattr(message, kind.name) for kind in kinds if not kind.fixed)]
    items = [fields.get(kind.name, cbor.encode(value)) for kind, value in zip(kinds, values, strict=True)]
    return b"\x8a" + b"".join(items)


@claim("refuse.forms", "a message in any other encoding than the one is E.FORMAT", "§3.1, §7 I10")
def forms(trial: CheckContext) -> str:
    message = faulty_messages.anyone(trial).message()
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
    return _each(trial, "CBOR_INVALID", _wrapped(cases))


@claim("refuse.envelopes", "a submit request in any other encoding than the one is E.FORMAT", "§10.4.1, §8.2")
def envelopes(trial: CheckContext) -> str:
    message = faulty_messages.anyone(trial).message().encode()
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
    return _each(trial, "CBOR_INVALID", cases)


@claim("refuse.sizes", "a field one byte too short or too long is E.SIZE", "§4.1, §8.2")
def sizes(trial: CheckContext) -> str:
    message = faulty_messages.anyone(trial).message()
    cases = {}
    for name in ("profile_id", "label", "client_id", "auth_ref", "ct_hash", "sig"):
        right = 64 if name == "sig" else 32
        for wrong in (0, right - 1, right + 1):
            cases[f"{name} of {wrong} bytes"] = _encoded_with(message, **{name: cbor.encode(bytes(wrong))})
    return _each(trial, "FIELD_SIZE", _wrapped(cases))


@claim("refuse.largest", "a message may be as large as max_msg_bytes, and no larger", "§14, §14.2")
def largest(trial: CheckContext) -> str:
    writer, most = trial.writer(), trial.facts.max_msg_bytes
    trial.probe.submit(faulty_messages.of_size(writer, most + 1)).expect_row("SIZE_PREFILTER")
    reply = trial.probe.submit(faulty_messages.of_size(writer, most))
    if reply.status == 200:
        return f"{most} bytes"
    # A hub may hold the ciphertext to what is left when every other field is as large as it can be.
    reply.expect_row("FIELD_SIZE")
    trial.probe.submit(faulty_messages.of_size(writer, most - _OTHER_FIELDS)).read(SubmitResponse)
    return f"{most} bytes for the message, less for its ciphertext"


@claim("refuse.altered", "the signature covers every field", "§4.1, §8.2")
def altered(trial: CheckContext) -> str:
    writer = faulty_messages.anyone(trial)
    message = writer.message()
    other = writer.message(b"another")
    changes = {
        "label": replace(message, label=bytes(32)),
        "client_id": replace(message, client_id=trial.stranger().key.public_key),
        "client_seq": replace(message, client_seq=message.client_seq + 1),
        "prev_ack": replace(message, prev_ack=message.prev_ack + 1),
        "auth_ref": replace(message, auth_ref=None if message.auth_ref else bytes(32)),
        "ciphertext": replace(message, ciphertext=other.ciphertext, ct_hash=other.ct_hash),
        "sig": replace(message, sig=other.sig),
    }
    return _each(trial, "SIG_INVALID", _wrapped({name: changed.encode() for name, changed in changes.items()}))


@claim(
    "refuse.malleable", "a signature in a second spelling, or by a key of small order, does not hold", "§3.2, §7 I13"
)
def malleable(trial: CheckContext) -> None:
    writer = faulty_messages.anyone(trial)
    message = writer.message()
    shifted = int.from_bytes(message.sig[32:], "little") + _GROUP_ORDER
    trial.probe.submit(replace(message, sig=message.sig[:32] + shifted.to_bytes(32, "little"))).expect_row(
        "SIG_INVALID"
    )
    # Under the neutral element as a key, R = [S]B holds for any message.
    neutral = (1).to_bytes(32, "little")
    trial.probe.submit(replace(message, client_id=neutral, sig=neutral + bytes(32))).expect_row("SIG_INVALID")


REFUSAL_CHECKS = (*ROWS, cap_invalid, forms, envelopes, sizes, largest, altered, malleable)
