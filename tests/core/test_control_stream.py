"""The events of the control stream: one table states schema, codec and effects of each type."""

import pytest

from tests.core.wire_strategies import fullest
from veen.core import Limits, Malformed, Msg, Place, SigningKey, cap_token, ciphertext, control_stream, msg, naming
from veen.core.admin import OperatorRevocation
from veen.core.checkpoint import RequestedCheckpoint
from veen.core.ciphertext import PayloadHdr
from veen.core.control_stream import EVENT_TYPES, Effects, EpochEnd, Event, RegisteredStream
from veen.core.handover import HandOver
from veen.core.profile import LoweredLimits
from veen.core.recovery import RecoveryStatement
from veen.core.retention import AttachmentPrune, Hold, Prune, RetentionPolicy

HUB = bytes(range(32))
HUB_KEY, ISSUER = SigningKey(bytes([1]) * 32), SigningKey(bytes([2]) * 32)
STREAM = naming.stream_id("news")
TOKEN = cap_token.mint(ISSUER, bytes([3]) * 32, [STREAM], 100)
PRESENTED = cap_token.present(ISSUER, TOKEN, HUB, 1000)
REVOKED = OperatorRevocation("auth-ref", TOKEN.auth_ref(), "lost", 7, 60)
HANDED_OVER = fullest(HandOver)
RECOVERED = fullest(RecoveryStatement)
LOWERED = LoweredLimits(Limits(), Limits(max_body_bytes=1))
REQUESTED = fullest(RequestedCheckpoint)
ENDED = fullest(EpochEnd)
POLICY, HELD, PRUNED = fullest(RetentionPolicy), fullest(Hold), fullest(Prune)
PRUNED_FILES = fullest(AttachmentPrune)
PLACE = Place(bytes([4]) * 32, bytes([5]) * 32, HUB_KEY.public_key, 1, 0)

EXAMPLES: dict[str, tuple[Event, Effects]] = {
    "veen.control.cap.v1": (TOKEN, Effects((STREAM,), TOKEN)),
    "veen.control.presentation.v1": (PRESENTED, Effects((STREAM,), PRESENTED)),
    "veen.control.handover.v1": (HANDED_OVER, Effects()),
    "veen.control.recovery.v1": (RECOVERED, Effects()),
    "veen.control.revocation.v1": (REVOKED, Effects(revocation=REVOKED)),
    "veen.control.limits.v1": (LOWERED, Effects(limits=LOWERED)),
    "veen.control.checkpoint.v1": (REQUESTED, Effects()),
    "veen.control.prune.v1": (PRUNED, Effects()),
    "veen.control.attachment-prune.v1": (PRUNED_FILES, Effects()),
    "veen.control.retention.v1": (POLICY, Effects(retention=POLICY)),
    "veen.control.hold.v1": (HELD, Effects(retention=HELD)),
    "veen.control.epoch-end.v1": (ENDED, Effects(epoch_end=ENDED)),
    "veen.control.stream.v1": (RegisteredStream(STREAM), Effects((STREAM,))),
}


def sealed(schema: bytes, body: bytes) -> Msg:
    reader = control_stream.reader_key(HUB).public_key
    box = ciphertext.seal(reader, PLACE, PayloadHdr(schema), body, 256)
    return msg.sign(
        HUB_KEY,
        profile_id=PLACE.profile_id,
        label=PLACE.label,
        client_seq=PLACE.client_seq,
        prev_ack=PLACE.prev_ack,
        auth_ref=None,
        ciphertext=box,
    )


def test_every_type_of_event_has_an_example_here_and_a_schema_of_its_own() -> None:
    assert EXAMPLES.keys() == {row.name for row in EVENT_TYPES}
    assert len({row.schema for row in EVENT_TYPES}) == len({row.cls for row in EVENT_TYPES}) == len(EVENT_TYPES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_event_is_logged_under_its_schema_and_decodes_to_itself(name: str) -> None:
    event, effects = EXAMPLES[name]
    logged = control_stream.message(HUB_KEY, HUB, PLACE, event, 256)
    opened = ciphertext.open_sealed(control_stream.reader_key(HUB), PLACE, logged.ciphertext, Limits())
    assert (opened.header.schema, opened.body) == (naming.schema_id(name), event.encode())
    assert control_stream.event_of(HUB, logged, Limits()) == event
    assert control_stream.effects(event, 7) == effects


def test_an_event_of_a_newer_version_is_rejected_with_its_schema() -> None:
    schema = naming.schema_id("veen.control.unheard-of.v9")
    with pytest.raises(Malformed, match=f"unknown schema {schema.hex()[:16]}"):
        control_stream.event_of(HUB, sealed(schema, bytes(32)), Limits())


def test_a_registered_stream_of_a_wrong_length_is_malformed() -> None:
    with pytest.raises(Malformed, match="31 bytes, not 32"):
        control_stream.event_of(HUB, sealed(control_stream.STREAM.schema, bytes(31)), Limits())
