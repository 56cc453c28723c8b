"""Manifests, tombstones, policies and holds: what a hub may delete, and how it proves that it did. D19, D26."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core import SigningKey, hub_identity
from veen.core.errors import Unverified
from veen.core.retention import (
    Hold,
    Level,
    Manifest,
    RetentionPolicy,
    RetentionRules,
    Segment,
    Tombstone,
    sign_manifest,
)

HUB_KEY, OTHER_KEY = SigningKey(bytes([1]) * 32), SigningKey(bytes([2]) * 32)
BORN, SIGNED = 1_000, 2_000
HUB = hub_identity.create(HUB_KEY, BORN)
OTHER_HUB = hub_identity.create(OTHER_KEY, BORN)
LABEL, OTHER_LABEL, STREAM = b"\x0a" * 32, b"\x0b" * 32, b"\x0c" * 32


def segment(start: int, end: int, level: Level) -> Segment:
    row = Segment(start, end, bytes([start]) * 32, bytes([end]) * 32, 4096, BORN + end, level)
    return replace(row, artifact_hash=b"\x0f" * 32, pruned_at=SIGNED, event_seq=7) if level else row


SEGMENTS = [
    segment(1, 7, Level.RECEIPTS),
    segment(8, 14, Level.PAYLOADS),
    segment(15, 21, Level.PAYLOADS),
    segment(22, 28, Level.WHOLE),
]
MANIFEST = sign_manifest(HUB_KEY, HUB.hub_id, LABEL, 0, SIGNED, SEGMENTS)


def test_a_manifest_and_each_of_its_tombstones_verify() -> None:
    Manifest.decode(MANIFEST.encode()).verify(HUB)
    for index, row in enumerate(SEGMENTS[:3]):
        stone = Tombstone.decode(MANIFEST.tombstone(index).encode())
        stone.verify(HUB)
        assert stone.segment == row


def test_an_entry_is_found_in_its_segment_only() -> None:
    assert [MANIFEST.find(seq) for seq in (0, 1, 7, 8, 21, 22, 28, 29)] == [None, 0, 0, 1, 2, 3, 3, None]


def test_a_segment_that_is_not_pruned_has_no_tombstone() -> None:
    with pytest.raises(ValueError, match="the segment was not pruned"):
        MANIFEST.tombstone(3).encode()


CHANGES = {
    "another label": {"label": OTHER_LABEL},
    "another epoch": {"epoch": 1},
    "another time": {"hub_ts": SIGNED + 1},
    "another signature": {"hub_sig": bytes(64)},
    "a time before the key": {"hub_ts": BORN - 1},
}


@pytest.mark.parametrize("change", [*CHANGES, "another count", "another root", "another segment", "another place"])
def test_a_changed_tombstone_does_not_verify(change: str) -> None:
    stone = MANIFEST.tombstone(1)
    more = {
        "another count": {"segments": 5},
        "another root": {"segments_root": bytes(32)},
        "another segment": {"segment": replace(stone.segment, end_seq=15)},
        "another place": {"place": 3},
    }
    with pytest.raises(Unverified):
        replace(stone, **(CHANGES | more)[change]).verify(HUB)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_manifest_does_not_verify(change: str) -> None:
    with pytest.raises(Unverified):
        replace(MANIFEST, **CHANGES[change]).verify(HUB)  # type: ignore[arg-type]


def test_a_manifest_with_another_row_does_not_verify() -> None:
    whole = segment(15, 21, Level.WHOLE)
    with pytest.raises(Unverified, match="no key of the hub"):
        replace(MANIFEST, segments=(*SEGMENTS[:2], whole, SEGMENTS[3])).verify(HUB)


def test_a_manifest_of_another_hub_does_not_verify() -> None:
    with pytest.raises(Unverified, match="it is of another hub"):
        MANIFEST.verify(OTHER_HUB)


@pytest.mark.parametrize("segments", [SEGMENTS[1:], [SEGMENTS[0], SEGMENTS[2]], [SEGMENTS[0], SEGMENTS[0]]])
def test_a_manifest_lists_every_chunk_from_the_first_entry_on(segments: list[Segment]) -> None:
    assert replace(MANIFEST, segments=tuple(segments)).flaw() == "the segments are not consecutive from entry 1 on"


def test_a_segment_ends_after_it_starts() -> None:
    assert replace(SEGMENTS[0], end_seq=0).flaw() == "it ends before it starts"


POLICIES = [
    RetentionPolicy(10, 100),
    RetentionPolicy(20, 100, stream_id=STREAM),
    RetentionPolicy(30, None, label=LABEL),
]


def rules(*events: RetentionPolicy | Hold) -> RetentionRules:
    made = RetentionRules()
    for event in events:
        made = made.after(event)
    return made


def test_the_most_specific_policy_decides() -> None:
    default, of_stream, of_label = POLICIES
    made = rules(*POLICIES)
    assert made.policy_of(LABEL, STREAM) == of_label
    assert made.policy_of(OTHER_LABEL, STREAM) == of_stream
    assert made.policy_of(OTHER_LABEL, None) == default
    assert rules().policy_of(LABEL, STREAM) is None


def test_a_policy_replaces_the_one_of_its_scope_and_an_empty_one_removes_it() -> None:
    longer = RetentionPolicy(40, None, label=LABEL)
    assert rules(*POLICIES, longer).policy_of(LABEL, None) == longer
    assert rules(*POLICIES, RetentionPolicy(label=LABEL)).policy_of(LABEL, None) == POLICIES[0]


@pytest.mark.parametrize(
    "hold", [Hold(1, "a case"), Hold(1, "a case", label=LABEL), Hold(1, "a case", stream_id=STREAM)]
)
def test_a_hold_lasts_until_it_is_released(hold: Hold) -> None:
    assert rules(hold).hold_of(LABEL, STREAM) == hold
    assert rules(hold, replace(hold, held=0)).hold_of(LABEL, STREAM) is None
    assert rules(hold, Hold(0, "another case", label=OTHER_LABEL)).hold_of(LABEL, STREAM) == hold


def test_a_hold_of_something_else_does_not_apply() -> None:
    made = rules(Hold(1, "a case", label=OTHER_LABEL), Hold(1, "a case", stream_id=STREAM))
    assert made.hold_of(LABEL, None) is None


@given(st.permutations([*POLICIES, Hold(1, "a"), Hold(1, "b", label=LABEL), Hold(1, "c", stream_id=STREAM)]))
def test_rules_do_not_depend_on_the_order_of_events_with_different_scopes(
    events: list[RetentionPolicy | Hold],
) -> None:
    made = rules(*events)
    assert made == rules(*POLICIES, Hold(1, "a"), Hold(1, "b", label=LABEL), Hold(1, "c", stream_id=STREAM))
    assert RetentionRules.decode(made.encode()) == made
