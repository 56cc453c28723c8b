"""Every operation profile is a fold that keeps the laws, over logs of operations that go together and that do not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.overlays.logs import CLIENTS, logs, msg_id
from tests.overlays.operation_logs import NULL, RIGHT, WRONG, A, B, C, OperationHistory, paid
from veen.overlays import AnyOverlay, EventFault, FoldEntry, check_laws, fold, preview
from veen.overlays.operations import OPERATION_OVERLAYS
from veen.overlays.operations.access import Access
from veen.overlays.operations.agreement import Agreements
from veen.overlays.operations.operation_events import (
    AccessGrant,
    Confirmation,
    Definition,
    Delegated,
    Mirror,
    Operation,
    Publication,
    QueryAudit,
    RecoveryApproval,
    RecoveryExecution,
    RecoveryRequest,
    Revoke,
    StateCheckpoint,
    operation_id,
)
from veen.overlays.operations.payment import Payments
from veen.overlays.operations.recovery import Recoveries
from veen.overlays.operations.rules import Guardians

ids = st.sampled_from([A, B, C])
small = st.integers(1, 4)
refs = st.lists(st.sampled_from([operation_id(msg_id(number)) for number in range(1, 7)]), max_size=2, unique=True)
decisions = st.sampled_from(["accept", "reject", "approve", "withdraw"])
EVENTS: dict[str, st.SearchStrategy[Operation]] = {
    "paid.operation": st.builds(
        paid, small, ids, ids, currency_code=st.sampled_from([None, "JPY", "USD"]), parent_operation_id=st.none()
    ),
    "access.grant": st.one_of(
        st.builds(AccessGrant, ids, st.none(), st.just((A,)), small),
        st.builds(Revoke, ids, st.sampled_from([None, None, B, operation_id(msg_id(1))])),
    ),
    "delegated.execution": st.builds(Delegated, ids, ids, st.sampled_from([(), (A,), (A, B)]), ids, st.just(NULL)),
    "agreement": st.one_of(
        st.builds(Definition, ids, small, ids, st.none(), st.sampled_from([(), (A,), (A, B)])),
        st.builds(Confirmation, ids, small, ids, decisions),
    ),
    "data.publication": st.builds(
        Publication, ids, ids, ids, st.just("model"), st.sampled_from(["1.9", "1.10", "a", ""])
    ),
    "state.checkpoint": st.builds(StateCheckpoint, ids, small, ids, ids, st.just("kv")),
    "recovery": st.one_of(
        st.builds(RecoveryRequest, ids, ids),
        st.builds(RecoveryApproval, ids, ids, ids, st.none(), decisions),
        st.builds(RecoveryExecution, ids, ids, st.none(), refs.map(tuple)),
    ),
    "query.audit": st.builds(QueryAudit, ids, st.sampled_from(["x", "y"]), st.just("class"), purpose_code=st.none()),
    "federation.mirror": st.builds(
        Mirror, st.just("hub"), st.just(A), st.integers(0, 6), st.sampled_from([msg_id(1), msg_id(2)]), ids, st.just(B)
    ),
}
EVENTS["operation.index"] = st.one_of(*EVENTS.values())
SPEAKERS = {A: frozenset({CLIENTS[1]})}
SET_OTHERWISE: list[AnyOverlay] = [
    Payments("JPY", ()),
    Payments("", (A,)),
    Access([CLIENTS[0]], revokes_all=False),
    Agreements(SPEAKERS),
    Recoveries({A: Guardians(frozenset({B, C}), 2)}, Guardians(None, 0), [CLIENTS[0], CLIENTS[1]], SPEAKERS),
]


@pytest.mark.parametrize("overlay", [*OPERATION_OVERLAYS, *SET_OTHERWISE], ids=lambda one: one.CLASS)
@settings(max_examples=30)
@given(data=st.data())
def test_a_profile_keeps_the_laws(overlay: AnyOverlay, data: st.DataObject) -> None:
    check_laws(overlay, data.draw(logs(EVENTS[overlay.CLASS], most=12)))


@pytest.mark.parametrize("overlay", OPERATION_OVERLAYS, ids=lambda one: one.CLASS)
@settings(max_examples=10)
@given(steps=st.lists(st.sampled_from([*RIGHT, *WRONG.values()]), max_size=6))
def test_a_profile_keeps_the_laws_over_whole_histories(overlay: AnyOverlay, steps: list) -> None:  # type: ignore[type-arg]
    deeds = OperationHistory()
    for step in steps:
        step(deeds)
    check_laws(overlay, deeds.log[:16])


@pytest.mark.parametrize("overlay", OPERATION_OVERLAYS, ids=lambda one: one.CLASS)
@given(data=st.data())
def test_preview_and_fold_refuse_the_same_events(overlay: AnyOverlay, data: st.DataObject) -> None:
    entries: list[FoldEntry] = data.draw(logs(EVENTS[overlay.CLASS], most=12))
    folded = fold(overlay, ())
    for entry in entries:
        foreseen = preview(overlay, entry, folded)
        assert [isinstance(one, EventFault) for one in foreseen] == [
            isinstance(one, EventFault) for one in folded.add(entry)
        ]


def test_settings_have_one_encoding_and_the_default_is_empty() -> None:
    spellings = [overlay.settings() for overlay in SET_OTHERWISE]
    assert len(set(spellings)) == len(spellings)
    assert {overlay.settings() for overlay in OPERATION_OVERLAYS} == {b""}
