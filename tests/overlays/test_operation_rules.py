"""The validators: a history that keeps the rules holds all of them, and each rule broken is the one reported."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.overlays.logs import CLIENTS, msg_id
from tests.overlays.operation_logs import (
    KEYS,
    NULL,
    RIGHT,
    WRONG,
    A,
    B,
    C,
    D,
    OperationHistory,
    delegate,
    grant,
    mirrored,
    pay,
    query,
)
from veen.overlays import fold, registry
from veen.overlays.operations import VALIDATORS, check, check_log, violations
from veen.overlays.operations.operation_events import (
    Delegated,
    QueryAudit,
    RecoveryApproval,
    RecoveryExecution,
    RecoveryRequest,
    Revoke,
    operation_id,
)
from veen.overlays.operations.operation_index import OPERATIONS, operations
from veen.overlays.operations.rules import AccessFact, ExternalFacts, Rule, RuleFinding, RuleVerdict

OVERLAYS = registry()
histories = st.lists(st.sampled_from(RIGHT), max_size=10)


def deeds_of(steps: list) -> OperationHistory:  # type: ignore[type-arg]
    deeds = OperationHistory()
    for step in steps:
        step(deeds)
    return deeds


def judge(deeds: OperationHistory) -> tuple[RuleFinding, ...]:
    return check_log(deeds.log, OVERLAYS, deeds.world())


@given(histories)
def test_a_history_that_keeps_the_rules_holds_all_of_them(steps: list) -> None:  # type: ignore[type-arg]
    findings = judge(deeds_of(steps))
    assert {one.verdict for one in findings} <= {RuleVerdict.HOLDS}


def test_every_rule_is_checked_in_some_history() -> None:
    findings = judge(deeds_of([*RIGHT, *RIGHT]))
    assert {one.rule for one in findings} == set(Rule) == set(WRONG)
    assert {rule.split(".")[0] for rule in Rule} == set(VALIDATORS)


@pytest.mark.parametrize("rule", list(Rule))
@settings(max_examples=20)
@given(before=histories, after=histories)
def test_a_rule_that_is_broken_is_the_only_one_reported(rule: Rule, before: list, after: list) -> None:  # type: ignore[type-arg]
    deeds = deeds_of(before)
    first = len(deeds.log)
    WRONG[rule](deeds)
    last = len(deeds.log)
    if rule not in (Rule.PUBLICATION_P2, Rule.AGREEMENT_M1):  # a later word would set these right
        for step in after:
            step(deeds)
    findings = judge(deeds)
    broken = violations(findings)
    assert [one.rule for one in broken] == [rule]
    assert {one.verdict for one in findings} <= {RuleVerdict.HOLDS, RuleVerdict.VIOLATED}
    if broken[0].places:
        assert first < broken[0].places[-1].stream_seq <= last
        assert broken[0].operation_id is not None
    assert broken[0].reason != rule.meaning


def _root(deeds: OperationHistory) -> None:
    pay(deeds)
    deeds.add(replace(deeds.snapshot(), mmr_root=D))


def _of_itself(deeds: OperationHistory) -> None:
    pay(deeds)
    deeds.add(replace(deeds.snapshot(), upto_stream_seq=len(deeds.log) + 1))


def _later_approval(deeds: OperationHistory) -> None:
    deeds.add(RecoveryExecution(A, B, None, (operation_id(msg_id(len(deeds.log) + 2)),)))
    deeds.add(RecoveryApproval(A, B, C, None, "approve"))


def _no_approval(deeds: OperationHistory) -> None:
    request = deeds.add(RecoveryRequest(A, B))
    deeds.add(RecoveryExecution(A, B, None, (request,)))


def _approval_for(target: bytes, new: bytes) -> Callable[[OperationHistory], None]:
    def broken(deeds: OperationHistory) -> None:
        deeds.add(RecoveryExecution(A, B, None, (deeds.add(RecoveryApproval(target, new, C, None, "approve")),)))

    return broken


def _read_twice(deeds: OperationHistory) -> None:
    query(deeds)
    deeds.accesses.append(deeds.accesses[-1])


def _forged(deeds: OperationHistory) -> None:
    delegate(deeds)
    refs = list(deeds.capabilities)
    held = deeds.capabilities[refs[-1]]
    wrong = replace(held.token, sig_chain=deeds.capabilities[refs[-2]].token.sig_chain)
    deeds.capabilities[wrong.auth_ref()] = replace(held, token=wrong)
    principal, agent = KEYS[1].public_key, KEYS[2].public_key
    deeds.add(Delegated(principal, agent, (refs[-2], wrong.auth_ref()), D, NULL))


def _without_parent(deeds: OperationHistory) -> None:
    deeds.add(mirrored(deeds), parent_id=A)


def _revoked_grant(deeds: OperationHistory) -> None:
    grant(deeds)
    deeds.add(Revoke(CLIENTS[1]))
    deeds.add(QueryAudit(A, "x", "x"), client=1, auth_ref=None)


OTHER_WAYS: list[tuple[Rule, Callable[[OperationHistory], None]]] = [
    (Rule.SNAPSHOT_S2, _root),
    (Rule.SNAPSHOT_S2, _of_itself),
    (Rule.RECOVERY_R1, _later_approval),
    (Rule.RECOVERY_R1, _no_approval),
    (Rule.RECOVERY_R2, _approval_for(D, B)),
    (Rule.RECOVERY_R2, _approval_for(A, D)),
    (Rule.QUERY_Q1, _read_twice),
    (Rule.DELEGATED_D2, _forged),
    (Rule.MIRROR_F1, _without_parent),
    (Rule.ACCESS_A2, _revoked_grant),
]


@pytest.mark.parametrize(("rule", "broken"), OTHER_WAYS, ids=lambda one: str(getattr(one, "__name__", one)))
def test_another_way_to_break_a_rule_is_reported_as_that_rule_alone(
    rule: Rule, broken: Callable[[OperationHistory], None]
) -> None:
    deeds = deeds_of([*RIGHT])
    broken(deeds)
    assert [one.rule for one in violations(judge(deeds))] == [rule]


@pytest.mark.parametrize("known", [(None, D), (D, None)])
def test_audit_messages_are_matched_so_that_no_access_is_missed(known: tuple[bytes | None, ...]) -> None:
    deeds = OperationHistory()
    for digest in (None, C):
        deeds.add(QueryAudit(A, "patient:7", "patient", None, None, digest))
    deeds.accesses += [AccessFact(A, "patient:7", "patient", digest) for digest in known]
    assert violations(judge(deeds)) == ()
    deeds.accesses.append(AccessFact(A, "patient:7", "patient", None))
    assert [one.rule for one in violations(judge(deeds))] == [Rule.QUERY_Q1]


@given(histories)
def test_a_rule_with_an_unknown_fact_is_open_and_never_violated(steps: list) -> None:  # type: ignore[type-arg]
    deeds = deeds_of(steps)
    findings = check(operations(deeds.log), ExternalFacts())
    assert violations(findings) == ()
    needs_more = {
        Rule.PAID_P2, Rule.ACCESS_A1, Rule.ACCESS_A2, Rule.DELEGATED_D2, Rule.DELEGATED_D3, Rule.PUBLICATION_P2,
        Rule.SNAPSHOT_S2, Rule.QUERY_Q1, Rule.MIRROR_F1,
    }  # fmt: skip
    assert {one.rule for one in findings if one.verdict is RuleVerdict.OPEN} == needs_more & {
        one.rule for one in findings
    }


@given(histories, st.sampled_from(list(Rule)))
def test_the_index_gives_the_same_findings_as_its_log(steps: list, rule: Rule) -> None:  # type: ignore[type-arg]
    deeds = deeds_of(steps)
    WRONG[rule](deeds)
    states = fold(OPERATIONS, deeds.log).states
    assert check(operations(states.values()), deeds.world()) == check(operations(deeds.log), deeds.world())


def test_an_operation_has_one_finding_for_each_rule_of_its_profile() -> None:
    findings = judge(deeds_of([*RIGHT, *RIGHT]))
    named = [(one.rule, one.operation_id) for one in findings if one.operation_id is not None]
    assert len(named) == len(set(named))
