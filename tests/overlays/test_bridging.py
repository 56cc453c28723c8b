"""The audit streams of a bridge keep the laws, and say of a bundle only what its log says."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.overlays.logs import log, logs
from vectors.overlays.bridging import DONE, EXPORT, FAILED, HUB, LEFT, A, B, intake, origin
from veen.core import Malformed
from veen.overlays import AnyOverlay, Event, check_laws, fold
from veen.overlays.bridge_logs import (
    EXPORTS,
    IMPORTS,
    ORIGINS,
    BundleExported,
    BundleImported,
    BundleIntake,
    EventOrigin,
    exported_ranges,
    origin_of,
)

bundles = st.sampled_from([A, B])
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        lambda one, seq: replace(LEFT, bundle_id=one, export_seq_from=seq, export_seq_to=seq + 2),
        bundles,
        st.integers(1, 5),
    ),
    st.builds(intake, bundles, st.just(1), st.just(3), st.just(1), st.integers(1, 3)),
    st.builds(intake, bundles, st.just(1), st.just(3), st.integers(2, 3), st.just(1)),
    st.builds(lambda one: replace(DONE, bundle_id=one), bundles),
    st.builds(lambda one: replace(DONE, bundle_id=one, event_count=2, excluded=(2,), policy="sealed"), bundles),
    st.builds(lambda one: replace(FAILED, bundle_id=one), bundles),
)


@pytest.mark.parametrize("overlay", [EXPORTS, IMPORTS, ORIGINS], ids=lambda one: one.CLASS)
@settings(max_examples=30)
@given(entries=logs(EVENTS, most=10))
def test_the_audit_of_a_bridge_keeps_the_laws(overlay: AnyOverlay, entries: list) -> None:  # type: ignore[type-arg]
    check_laws(overlay, entries)


def test_exported_events_are_listed_as_ranges() -> None:
    later = replace(LEFT, bundle_id=B, export_seq_from=4, export_seq_to=9, event_count=6)
    found = exported_ranges(fold(EXPORTS, log(later, LEFT)).states)
    assert found == {(HUB, EXPORT, 0): ((1, 9),)}


def test_a_bundle_can_be_imported_only_after_its_complete_intake() -> None:
    begun = fold(IMPORTS, log(intake(A, 1, 3, 1, 2))).states[A]
    assert (begun.announced, begun.imported) == (2, 0)
    early = fold(IMPORTS, log(intake(A, 1, 3, 1, 2), DONE))
    assert "intake of this bundle is incomplete" in early.faults[0].reason
    done = fold(IMPORTS, log(intake(A, 1, 3, 1, 2), intake(A, 1, 3, 3, 1), DONE))
    assert (done.faults, done.states[A].imported) == ([], 1)
    assert (done.states[A].export_seq_from, done.states[A].export_seq_to) == (1, 3)


def test_a_second_success_changes_nothing() -> None:
    found = fold(IMPORTS, log(intake(A, 1, 3, 1, 3), DONE, replace(DONE, operator="eve")))
    assert [fault.reason for fault in found.faults] == ["this bundle is already imported"]


def test_a_failure_without_an_intake_is_recorded() -> None:
    state = fold(IMPORTS, log(FAILED, FAILED)).states[B]
    assert (state.failures, state.error_code, state.source_hub_id) == (2, "proof", None)
    assert not state.announced


def test_an_event_is_traced_to_its_original_and_its_writer() -> None:
    states = fold(ORIGINS, log(intake(A, 1, 3, 1, 3))).states
    for seq in (1, 2, 3):
        found = origin_of(states, origin(seq).msg_id)
        assert found
        assert (found.bundle_id, found.origin.receipt.stream_seq) == (A, seq)
    assert origin_of(states, bytes(32)) is None
    assert origin_of(states, None) is None


@pytest.mark.parametrize(
    "event",
    [
        replace(LEFT, event_count=2),
        replace(LEFT, export_seq_from=4),
        replace(intake(A, 1, 3, 1, 2), position=2),
        replace(intake(A, 1, 3, 1, 2), event_count=4),
        replace(intake(A, 1, 3, 2, 2), position=3),
        replace(DONE, error_code="x"),
        replace(DONE, result="perhaps"),
        replace(DONE, excluded=(2, 2), policy="sealed"),
    ],
    ids=str,
)
def test_an_inconsistent_event_does_not_decode(event: BundleExported | BundleIntake | BundleImported) -> None:
    encoded = event.LAYOUT.write(event.LAYOUT.fields_of(event))
    with pytest.raises(Malformed):
        type(event).decode(encoded)


@pytest.mark.parametrize(
    "change", [{"client_id": bytes(32)}, {"client_seq": 9}, {"ct_hash": bytes(32)}, {"profile_id": bytes(32)}]
)
def test_an_origin_cannot_name_another_writer(change: dict[str, object]) -> None:
    changed = replace(origin(1), **change)  # type: ignore[arg-type]
    with pytest.raises(Malformed, match="does not match this client"):
        EventOrigin.decode(changed.LAYOUT.write(changed.LAYOUT.fields_of(changed)))
