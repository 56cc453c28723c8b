"""The nine operation profiles, claim by claim. 001, spec-3."""

from dataclasses import replace
from hashlib import sha256

import cbor2
import pytest

from tests.overlays.logs import CLIENTS, LABEL, START, LogLine, log, msg_id
from tests.overlays.operation_logs import KEYS, ROOT, STREAM, A, B, C, D, OperationHistory, paid
from veen.core import Malformed, PayloadHdr, cbor, mmr
from veen.core.cap_token import mint, resign
from veen.core.hashing import ht
from veen.overlays import FaultKind, Fold, check_laws, first_places, fold, registry, run, state_hash, summarise
from veen.overlays.kv import KV, Write
from veen.overlays.operations import check, violations
from veen.overlays.operations.access import Access, admits, token_of
from veen.overlays.operations.agreement import AGREEMENTS, Agreements, Quorum
from veen.overlays.operations.delegation import DELEGATIONS, applied, direct
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
from veen.overlays.operations.operation_index import BY_NAME, OPERATION_EVENTS, OPERATIONS, operations, trace
from veen.overlays.operations.payment import PAYMENTS, Payments, balance
from veen.overlays.operations.publication import (
    PUBLICATIONS,
    PublishedData,
    Release,
    content_root,
    height,
    publication_part,
    version_part,
)
from veen.overlays.operations.query_audit import QUERY_AUDITS, reads_part, result_digest
from veen.overlays.operations.recovery import RECOVERIES, Recoveries, current
from veen.overlays.operations.rules import (
    CapabilityFact,
    ExternalFacts,
    Guardians,
    LogPlace,
    Rule,
    RuleVerdict,
)
from veen.overlays.operations.state_statement import SNAPSHOTS, LogStates, snapshot_part

NO_KEYS: frozenset[bytes] = frozenset()


def op(number: int) -> bytes:
    return operation_id(msg_id(number))


def reasons(folded: Fold) -> list[tuple[int, str]]:  # type: ignore[type-arg]
    return [(fault.stream_seq, fault.reason) for fault in folded.faults]


# 1: ids and schemas


@pytest.mark.parametrize("event", OPERATION_EVENTS)
def test_a_schema_is_the_hash_of_its_name_under_the_prefix(event: type[Operation]) -> None:
    assert sha256(b"veen/schema:" + event.NAME.encode("ascii")).digest() == event.SCHEMA


def test_there_are_thirteen_bodies_in_nine_profiles() -> None:
    assert [*BY_NAME] == [
        "paid.operation", "access.grant", "access.revoke", "delegated.execution", "agreement.definition",
        "agreement.confirmation", "data.publication", "state.checkpoint", "recovery.request", "recovery.approval",
        "recovery.execution", "query.audit", "federation.mirror",
    ]  # fmt: skip


def test_an_operation_id_is_the_tagged_hash_of_the_message_id() -> None:
    assert op(1) == sha256(b"veen/operation-id\0" + msg_id(1)).digest()
    assert [one.operation_id for one in operations(log(paid()))] == [op(1)]


def test_a_mirrored_copy_is_the_operation_it_copies_and_counts_once() -> None:
    folded = fold(OPERATIONS, log(paid(), LogLine(paid(), msg_id(1), client=1)))
    assert [*folded.states] == [op(1)]
    assert [fault.kind for fault in folded.faults] == [FaultKind.COPY]


def test_a_header_with_another_capability_is_not_an_operation() -> None:
    folded = fold(OPERATIONS, log(LogLine(paid(), cap_ref=A, auth_ref=B), LogLine(paid(), cap_ref=A, auth_ref=A)))
    assert [fault.kind for fault in folded.faults] == [FaultKind.MALFORMED]
    assert [*folded.states] == [op(2)]


def test_a_trace_shows_causes_before_and_effects_after() -> None:
    request = RecoveryRequest(A, B)
    approvals = [RecoveryApproval(A, B, one, None, "approve", None, op(1)) for one in (C, D)]
    done = RecoveryExecution(A, B, None, (op(2), op(3)))
    known = operations(log(request, *approvals, done, paid(parent_operation_id=op(4)), paid()))
    links = [(one.distance, one.operation_id) for one in trace(known, op(4))]
    assert links[-2:] == [(0, op(4)), (1, op(5))]
    assert {*links[:-2]} == {(-2, op(1)), (-1, op(2)), (-1, op(3))}
    assert [one.distance for one in trace(known, op(6))] == [0]


def test_a_trace_lists_missing_parents_and_ends_on_cycles() -> None:
    absent = trace(operations(log(paid(parent_operation_id=D))), op(1))
    assert [(one.operation_id, one.found is None) for one in absent] == [(D, True), (op(1), False)]
    round_and_round = operations(log(paid(parent_operation_id=op(2)), paid(parent_operation_id=op(1))))
    assert len(trace(round_and_round, op(1))) == 2


# 2: paid operations


def test_payments_move_money_in_stream_order() -> None:
    states = fold(PAYMENTS, log(paid(5), paid(2, B, A), paid(1, currency_code="USD"))).states
    assert (balance(states, A, "JPY"), balance(states, B, "JPY")) == (-3, 3)
    assert (balance(states, A, "USD"), balance(states, C, "JPY")) == (-1, 0)


def test_without_a_currency_the_default_unit_of_the_deployment_counts() -> None:
    plain = paid(5, currency_code=None)
    assert balance(fold(PAYMENTS, log(plain)).states, B) == 5
    assert balance(fold(Payments("JPY"), log(plain, paid(2))).states, B, "JPY") == 7


def test_without_negative_balances_a_payment_applies_to_both_accounts_or_neither() -> None:
    strict = Payments("JPY", debtors=[D])
    folded = fold(strict, log(paid(10, D, A), paid(11, A, B), paid(10, A, B), paid(1, A, B), paid(0, C, B)))
    assert [balance(folded.states, one, "JPY") for one in (A, B, C, D)] == [0, 10, 0, -10]
    assert [seq for seq, _ in reasons(folded)] == [2, 4]


def test_payments_without_refusals_run_as_a_summary() -> None:
    strict, entries = Payments("", [D]), log(paid(5, D, A), paid(5, A, B), paid(4, B, A), paid(3, A, C))
    check_laws(strict, entries)
    for place in range(len(entries)):
        rest = summarise(strict, entries[place:], first_places(strict, entries))
        assert run(strict, fold(strict, entries[:place]).states, rest) == (fold(strict, entries).states, ())
    overdrawn = log(paid(5, D, A), paid(6, A, B), paid(2, B, A))
    assert run(strict, {}, summarise(strict, overdrawn, first_places(strict, overdrawn)))[1] == (b"JPY",)


def test_an_operation_ordered_after_its_expiry_moves_nothing() -> None:
    (entry,) = log(paid())
    for expires_at, taken in ((entry.hub_ts - 1, False), (entry.hub_ts, True)):
        folded = fold(PAYMENTS, [replace(entry, header=PayloadHdr(entry.header.schema, expires_at=expires_at))])  # type: ignore[union-attr]
        assert bool(folded.states) is taken


def test_a_mirrored_payment_is_paid_once() -> None:
    folded = fold(PAYMENTS, log(paid(5), LogLine(paid(5), msg_id(1), client=2)))
    assert balance(folded.states, B, "JPY") == 5


# 3: access


def granted(*events: Operation | LogLine, **settings: object) -> Fold:  # type: ignore[type-arg]
    return fold(Access(**settings), log(*events))  # type: ignore[arg-type]


def test_a_grant_admits_to_its_streams_until_just_before_it_ends() -> None:
    state = granted(AccessGrant(A, None, (STREAM,), START + 50)).state(A)
    assert admits(state, STREAM, START + 49, None, NO_KEYS)
    assert not admits(state, STREAM, START + 50, None, NO_KEYS)
    assert not admits(state, D, START, None, NO_KEYS)
    assert not admits(granted().state(A), STREAM, START, None, NO_KEYS)


@pytest.mark.parametrize("target", [None, op(1)])
def test_a_revocation_deletes_what_a_grant_gave(target: bytes | None) -> None:
    state = granted(AccessGrant(A, None, (STREAM,), START + 50), Revoke(A, target)).state(A)
    assert not admits(state, STREAM, START + 3, None, NO_KEYS)


def test_a_revocation_of_one_capability_leaves_the_others() -> None:
    state = granted(AccessGrant(A, None, (STREAM,), START + 50), Revoke(A, D)).state(A)
    assert not admits(state, STREAM, START, D, NO_KEYS)
    assert not admits(state, STREAM, START, D, frozenset({D}))
    assert admits(state, STREAM, START, C, NO_KEYS)


def test_a_revocation_of_everything_reaches_bootstrapped_capabilities_but_not_later_grants() -> None:
    bootstrapped = frozenset({ROOT})
    assert admits(granted().state(A), STREAM, START, ROOT, bootstrapped)
    revoked = granted(Revoke(A)).state(A)
    assert not admits(revoked, STREAM, START, ROOT, bootstrapped)
    again = granted(Revoke(A), AccessGrant(A, None, (STREAM,), START + 50)).state(A)
    assert admits(again, STREAM, START, ROOT, bootstrapped)


def test_a_domain_may_refuse_revocations_of_everything() -> None:
    folded = granted(AccessGrant(A, None, (STREAM,), START + 50), Revoke(A), revokes_all=False)
    assert admits(folded.state(A), STREAM, START, None, NO_KEYS)
    assert [seq for seq, _ in reasons(folded)] == [2]


@pytest.mark.parametrize("granter", [CLIENTS[1], ROOT])
def test_only_a_granter_changes_permissions_by_its_key_or_its_capability(granter: bytes) -> None:
    grant = AccessGrant(A, None, (STREAM,), START + 50)
    folded = granted(
        LogLine(grant, client=1, auth_ref=ROOT), LogLine(Revoke(A), client=2, auth_ref=D), granters=[granter]
    )
    assert len(folded.state(A).grants) == 1
    assert [(seq, reason.partition(":")[0]) for seq, reason in reasons(folded)] == [(2, "access.A1")]


def test_the_capability_of_a_grant_expires_with_the_grant() -> None:
    grant = AccessGrant(A, None, (D, STREAM), START + 50, 5, 9)
    token = token_of(grant, KEYS[0], START)
    token.verify()
    assert (token.issuer_pk, token.subject_pk) == (KEYS[0].public_key, A)
    assert token.allow.stream_ids == tuple(sorted((D, STREAM)))
    assert token.allow.rate is not None
    assert (token.allow.rate.per_sec, token.allow.rate.burst) == (5, 9)
    assert token.auth_ref() == ht("veen/cap", token.encode())
    assert token.expired(START, START + 50)
    assert not token.expired(START, START + 49)
    with pytest.raises(ValueError, match="expired"):
        token_of(grant, KEYS[0], START + 50)


def test_a_client_may_use_the_grant_of_an_identity_it_acts_for() -> None:
    entries = log(AccessGrant(A, None, (STREAM,), START + 50), LogLine(paid(), client=1))
    given = {"stream_id": STREAM, "bootstrapped": frozenset({ROOT})}
    for speakers, taken in (({A: frozenset({CLIENTS[1]})}, True), ({B: frozenset({CLIENTS[1]})}, False), (None, False)):
        found = check(operations(entries), ExternalFacts(**given, speakers=speakers))  # type: ignore[arg-type]
        verdicts = [one.verdict for one in found if one.rule is Rule.ACCESS_A2 and one.places[-1].stream_seq == 2]
        assert verdicts == [RuleVerdict.HOLDS if taken else RuleVerdict.VIOLATED]


@pytest.mark.parametrize(("rate", "burst", "both"), [(5, None, 5), (None, 7, 7), (None, None, None)])
def test_a_single_rate_limit_is_used_for_rate_and_burst(rate: int | None, burst: int | None, both: int | None) -> None:
    found = token_of(AccessGrant(A, None, (D,), START + 50, rate, burst), KEYS[0], START).allow.rate
    assert (found and (found.per_sec, found.burst)) == (both and (both, both))


@pytest.mark.parametrize(
    "event", [AccessGrant(A, None, (C, D), 0), Definition(A, 1, B, None, (C, D)), RecoveryExecution(A, B, None, (C, D))]
)
def test_a_list_with_a_duplicate_does_not_decode(event: Operation) -> None:
    body = event.encode().replace(D, C)
    with pytest.raises(Malformed, match="duplicate in"):
        type(event).decode(body)


# 4: delegated execution

PRINCIPAL, AGENT = KEYS[1].public_key, KEYS[2].public_key
FIRST, SECOND = mint(KEYS[0], PRINCIPAL, [STREAM, D], 3600), mint(KEYS[1], AGENT, [STREAM], 3600)
CHAIN = (FIRST.auth_ref(), SECOND.auth_ref())
KNOWN = {one.auth_ref(): CapabilityFact(one, START) for one in (FIRST, SECOND)}
EMBEDDED = Delegated(PRINCIPAL, AGENT, CHAIN, type(paid()).SCHEMA, paid(7).encode())


def test_an_execution_with_a_valid_chain_is_applied_as_the_principals_operation() -> None:
    (entry,) = log(EMBEDDED)
    made = direct(entry, KNOWN)
    assert made is not None
    assert (made.client_id, made.body, made.at) == (PRINCIPAL, paid(7).encode(), entry.at)
    assert balance(fold(PAYMENTS, applied([entry], KNOWN)).states, B, "JPY") == 7
    assert balance(fold(PAYMENTS, applied([entry], {})).states, B, "JPY") == 0


OTHER = mint(KEYS[0], AGENT, [STREAM], 3600)
WIDER = mint(KEYS[1], AGENT, [STREAM, C], 3600)
FORGED = replace(SECOND, sig_chain=FIRST.sig_chain)


@pytest.mark.parametrize(
    "chain",
    [
        (),
        (FIRST,),
        (SECOND, FIRST),
        (FIRST, OTHER),
        (FIRST, WIDER),
        (FIRST, FORGED),
        (SECOND,),
        (FIRST, replace(SECOND, allow=FIRST.allow)),
    ],
)
def test_a_chain_that_does_not_connect_principal_and_agent_applies_nothing(chain: tuple) -> None:  # type: ignore[type-arg]
    refs = tuple(one.auth_ref() for one in chain)
    (entry,) = log(replace(EMBEDDED, delegation_chain=refs))
    assert direct(entry, {one.auth_ref(): CapabilityFact(one, START) for one in chain}) is None


def test_an_expired_or_unknown_capability_applies_nothing() -> None:
    (entry,) = log(EMBEDDED)
    old = {**KNOWN, CHAIN[1]: CapabilityFact(SECOND, entry.hub_ts - 3601)}
    just = {**KNOWN, CHAIN[1]: CapabilityFact(SECOND, entry.hub_ts - 3600)}
    assert direct(entry, old) is None
    assert direct(entry, just) is not None
    assert direct(entry, {CHAIN[0]: KNOWN[CHAIN[0]]}) is None
    assert direct(entry, {**KNOWN, CHAIN[1]: CapabilityFact(resign(SECOND, KEYS[1]), START)}) is None


def test_a_capability_that_was_revoked_applies_nothing_from_then_on() -> None:
    (entry,) = log(EMBEDDED)
    for revoked_at, taken in ((entry.hub_ts, False), (entry.hub_ts + 1, True)):
        known = {**KNOWN, CHAIN[0]: CapabilityFact(FIRST, START, revoked_at)}
        assert (direct(entry, known) is not None) is taken


@pytest.mark.parametrize("client", [0, 1])
def test_a_logged_revocation_invalidates_a_chain_if_its_sender_may_revoke(client: int) -> None:
    entries = log(EMBEDDED, LogLine(Revoke(PRINCIPAL, CHAIN[0]), client=client), EMBEDDED)
    world = ExternalFacts(capabilities=KNOWN, granters=frozenset({CLIENTS[0]}))
    found = [one for one in check(operations(entries), world) if one.rule is Rule.DELEGATED_D2]
    assert [one.verdict for one in found] == [RuleVerdict.HOLDS, RuleVerdict.HOLDS if client else RuleVerdict.VIOLATED]
    anyone = check(operations(entries), ExternalFacts(capabilities=KNOWN))
    assert [one.rule for one in violations(anyone)] == [Rule.DELEGATED_D2]


def test_the_last_capability_may_be_of_the_client_instead_of_the_agent() -> None:
    last = mint(KEYS[1], CLIENTS[0], [STREAM], 3600)
    known = {**KNOWN, last.auth_ref(): CapabilityFact(last, START)}
    (entry,) = log(replace(EMBEDDED, delegation_chain=(CHAIN[0], last.auth_ref()), agent_identity=D))
    assert direct(entry, known) is not None


def test_an_empty_chain_is_a_fault() -> None:
    folded = fold(DELEGATIONS, log(EMBEDDED, replace(EMBEDDED, delegation_chain=())))
    assert folded.state(op(1)).event == EMBEDDED
    assert [(seq, reason.partition(":")[0]) for seq, reason in reasons(folded)] == [(2, "delegated.D1")]


def test_an_embedded_body_keeps_the_order_of_its_own_keys() -> None:
    assert Delegated.decode(EMBEDDED.encode()).operation_body == paid(7).encode()
    shown = cbor2.loads(EMBEDDED.encode())["operation_body"]
    assert [*shown] == [*cbor2.loads(paid(7).encode())]


@pytest.mark.parametrize(
    "spoilt", [b"\xa2\x61a\x00\x61a\x00", b"\xa1\x41a\x00", b"\xa1\x20\x00", b"\xf7", b"\x81" * 99, b""]
)
def test_an_embedded_body_is_one_strict_value(spoilt: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        replace(EMBEDDED, operation_body=spoilt).encode()


# 5: agreements

TERMS = Definition(A, 1, B, None, (C, D))


def agreed(*events: Operation | LogLine) -> Fold:  # type: ignore[type-arg]
    return fold(AGREEMENTS, log(*events))


def decide(party: bytes, decision: str = "accept", version: int = 1) -> Confirmation:
    return Confirmation(A, version, party, decision)


def test_a_version_is_active_once_all_parties_accept() -> None:
    assert agreed(TERMS, decide(C)).state(A).active() is None
    active = agreed(TERMS, decide(C), decide(D)).state(A).active()
    assert active is not None
    assert active.definition == TERMS


@pytest.mark.parametrize("word", ["reject", "withdraw", "ACCEPT", ""])
def test_a_later_decision_supersedes_an_earlier_one(word: str) -> None:
    folded = agreed(TERMS, decide(C), decide(D), decide(C, word))
    assert folded.state(A).active() is None
    assert folded.state(A).versions[0].decision(C) == word
    assert agreed(TERMS, decide(C, word), decide(D), decide(C)).state(A).active() is not None


def test_a_new_version_supersedes_once_it_is_accepted_itself() -> None:
    second = replace(TERMS, version=2)
    folded = agreed(TERMS, decide(C), decide(D), second, decide(C, version=2))
    state = folded.state(A)
    assert state.active().definition.version == 1
    assert state.active(quorum=Quorum.MAJORITY).definition.version == 1
    folded.add(log(decide(D, version=2), start=6)[0])
    assert folded.state(A).active().definition.version == 2


def test_a_majority_is_more_than_half() -> None:
    three = replace(TERMS, parties=(B, C, D))
    folded = agreed(three, decide(C), decide(D))
    assert folded.state(A).active(quorum=Quorum.MAJORITY) is not None
    assert folded.state(A).active() is None
    assert agreed(TERMS, decide(C)).state(A).active(quorum=Quorum.MAJORITY) is None


def test_an_agreement_without_parties_is_never_active() -> None:
    assert agreed(replace(TERMS, parties=())).state(A).active() is None


def test_a_version_applies_from_its_effective_time_until_just_before_it_expires() -> None:
    timed = replace(TERMS, effective_time=10, expiry_time=20)
    state = agreed(timed, decide(C), decide(D)).state(A)
    assert [state.active(time) is not None for time in (9, 10, 19, 20)] == [False, True, True, False]


@pytest.mark.parametrize(
    "second", [replace(TERMS, terms_hash=D), TERMS, replace(TERMS, version=0)], ids=["changed", "same", "lower"]
)
def test_a_version_is_defined_once_and_never_below_another(second: Definition) -> None:
    folded = agreed(TERMS, second)
    assert [one.definition for one in folded.state(A).versions] == [TERMS]
    assert [reason.partition(":")[0] for _, reason in reasons(folded)] == ["agreement.M2"]


@pytest.mark.parametrize("confirmed", [0, 1, 2])
def test_an_agreement_that_is_defined_more_often_than_confirmed_is_not_stable(confirmed: int) -> None:
    later = [replace(TERMS, version=number) for number in (2, 3)]
    entries = log(TERMS, *[decide(C)] * confirmed, *later)
    found = [one.verdict for one in check(operations(entries)) if one.rule is Rule.AGREEMENT_M2]
    assert found == [RuleVerdict.HOLDS, *([RuleVerdict.HOLDS] * confirmed + [RuleVerdict.VIOLATED] * 2)[:2]]


@pytest.mark.parametrize("wrong", [decide(B), decide(C, version=2), Confirmation(B, 1, C, "accept")])
def test_a_decision_of_a_non_party_or_on_an_undefined_version_is_refused(wrong: Confirmation) -> None:
    assert [seq for seq, _ in reasons(agreed(TERMS, wrong))] == [2]


def test_with_speakers_only_clients_of_a_party_may_confirm() -> None:
    overlay = Agreements({C: frozenset({CLIENTS[1]})})
    folded = fold(
        overlay, log(TERMS, LogLine(decide(C), client=1), LogLine(decide(D), client=1), LogLine(decide(C), client=0))
    )
    assert [seq for seq, _ in reasons(folded)] == [3, 4]


# 6: publications

RELEASE = Publication(A, B, content_root([C, D]), "model", "v1")


def published(folded: Fold[PublishedData, PublishedData], version: str) -> Release:
    found = folded.state(version_part(A, version)).release
    assert found is not None
    return found


def test_a_version_is_published_once() -> None:
    folded = fold(PUBLICATIONS, log(RELEASE, replace(RELEASE, content_root=D)))
    assert published(folded, "v1").event == RELEASE
    assert any(reason.startswith("publication.P1") for _, reason in reasons(folded))
    assert {seq for seq, _ in reasons(folded)} == {2}


def test_a_publication_has_its_latest_and_its_highest_version() -> None:
    named = [replace(RELEASE, version=one) for one in ("v1.9", "v1.10", "v1.2")]
    states = fold(PUBLICATIONS, log(*named, replace(named[1], content_root=C))).states
    found = states[publication_part(A)]
    assert [one and one.event.version for one in (found.latest, found.highest)] == ["v1.2", "v1.10"]


@pytest.mark.parametrize(
    ("lower", "higher"),
    [("v1.9", "v1.10"), ("9", "10"), ("", "1"), ("a", "b"), ("1.0", "1.0.1"), ("2025-11-13", "2025-12-01"), ("²", "1")],
)
def test_versions_compare_by_their_numbers(lower: str, higher: str) -> None:
    assert height(lower) < height(higher)


def test_a_version_may_be_a_number_of_any_length() -> None:
    assert height("9" * 10_000) < height("1" + "0" * 10_000)


def test_content_matches_what_was_published_by_the_recommended_tree() -> None:
    release = published(fold(PUBLICATIONS, log(RELEASE)), "v1")
    assert release.event.content_root == ht("veen/content-node", C + D)
    assert content_root([B, C, D]) == ht("veen/content-root", D + ht("veen/content-node", B + C))
    assert content_root([C, D]) == release.event.content_root
    for other in ([D, C], [C], [C, D, D], []):
        assert content_root(other) != release.event.content_root
    with pytest.raises(ValueError, match="32 bytes"):
        content_root([b"short"])


# 7: snapshots


def test_the_latest_of_two_checkpoints_for_one_place_counts() -> None:
    one, other = StateCheckpoint(A, 5, B, C, "kv"), StateCheckpoint(A, 5, B, D, "kv")
    states = fold(SNAPSHOTS, log(one, other, replace(one, upto_stream_seq=4))).states
    kept = states[snapshot_part(A, 5)]
    assert (kept.latest, kept.checkpoints) == (other, 2)


def test_a_log_knows_its_roots_and_the_state_hashes_of_every_class_at_every_place() -> None:
    entries = log(Write(b"k", 0, b"1"), Write(b"j", 0, b"2"), Write(b"k", 0, b"3"))
    states = LogStates(entries, registry())
    for upto in (3, 1, 2, 3):
        prefix, place = entries[:upto], LogPlace(LABEL, upto)
        assert states.root_at(place) == mmr.root(one.msg_id for one in prefix)
        folded = fold(KV, prefix).states
        assert states.state_at("kv", A, place) == state_hash(KV, folded)
        assert states.state_at("kv", b"k", place) == state_hash(KV, {b"k": folded[b"k"]})
    assert states.state_at("nobody's", A, LogPlace(LABEL, 1)) is None
    for place in (LogPlace(LABEL, 4), LogPlace(LABEL, 0), LogPlace(D, 1)):
        assert states.root_at(place) is None
        assert states.state_at("kv", A, place) is None


def test_a_log_with_a_gap_has_no_states_after_it() -> None:
    entries = log(Write(b"k", 0, b"1"), Write(b"j", 0, b"2"), Write(b"k", 0, b"3"))
    states = LogStates([entries[0], entries[2]], registry())
    assert states.root_at(LogPlace(LABEL, 1)) is not None
    assert states.root_at(LogPlace(LABEL, 2)) is states.root_at(LogPlace(LABEL, 3)) is None


# 8: recovery

ASKED = RecoveryRequest(A, B)


def approve(approver: bytes = C, decision: str = "approve", new: bytes = B) -> RecoveryApproval:
    return RecoveryApproval(A, new, approver, None, decision)


def execute(*numbers: int, new: bytes = B) -> RecoveryExecution:
    return RecoveryExecution(A, new, None, tuple(op(number) for number in numbers))


def test_an_execution_with_a_valid_approval_replaces_the_identity() -> None:
    folded = fold(RECOVERIES, log(ASKED, approve(), execute(2)))
    assert current(folded.states, A) == B
    assert folded.state(A).asked == ()
    assert folded.faults == []


def test_replacements_are_followed_and_cycles_end() -> None:
    there = [RecoveryRequest(B, C), RecoveryApproval(B, C, D, None, "approve"), RecoveryExecution(B, C, None, (op(5),))]
    back = [RecoveryRequest(C, A), RecoveryApproval(C, A, D, None, "approve"), RecoveryExecution(C, A, None, (op(8),))]
    folded = fold(RECOVERIES, log(ASKED, approve(), execute(2), *there))
    assert current(folded.states, A) == C
    assert current(fold(RECOVERIES, log(ASKED, approve(), execute(2), *there, *back)).states, A) == C


@pytest.mark.parametrize(
    ("rest", "code"),
    [
        ([approve(), execute(9)], "recovery.R1"),
        ([execute(3), approve()], "recovery.R1"),
        ([approve(), execute(1)], "recovery.R1"),
        ([approve(C, "reject"), execute(2)], "recovery.R2"),
        ([approve(C, "Approve"), execute(2)], "recovery.R2"),
        ([RecoveryRequest(A, D), approve(C, "approve", D), execute(3)], "recovery.R2"),
        ([approve(), execute()], "0 of 1 required approvals"),
        ([approve(), approve(C, "reject"), execute(2)], "0 of 1 required approvals"),
    ],
)
def test_an_execution_without_valid_approvals_is_rejected(rest: list[Operation], code: str) -> None:
    folded = fold(RECOVERIES, log(ASKED, *rest))
    assert current(folded.states, A) == A
    assert [reason.partition(":")[0] for _, reason in reasons(folded)] == [code]


def test_an_approval_answers_an_open_request() -> None:
    assert [seq for seq, _ in reasons(fold(RECOVERIES, log(approve(), ASKED, approve(new=D))))] == [1, 3]
    used = fold(RECOVERIES, log(ASKED, approve(), execute(2), approve(), execute(2)))
    assert [seq for seq, _ in reasons(used)] == [4, 5]


def test_a_threshold_counts_guardians_and_each_once() -> None:
    overlay = Recoveries({A: Guardians(frozenset({C, D}), 2)})
    one_twice = fold(overlay, log(ASKED, approve(C), approve(C), execute(2, 3)))
    assert reasons(one_twice) == [(4, "1 of 2 required approvals")]
    assert current(fold(overlay, log(ASKED, approve(C), approve(D), execute(2, 3))).states, A) == B
    stranger = fold(overlay, log(ASKED, approve(C), approve(B), execute(2, 3)))
    assert [seq for seq, _ in reasons(stranger)] == [3, 4]


def test_a_domain_may_restrict_executors_and_approving_clients() -> None:
    overlay = Recoveries(executors=[CLIENTS[1]], speakers={C: frozenset({CLIENTS[2]})})
    events: list[Operation | LogLine] = [
        ASKED,
        approve(),
        LogLine(approve(), client=2),
        execute(3),
        LogLine(execute(3), client=1),
    ]
    folded = fold(overlay, log(*events))
    assert [(seq, reason.partition(":")[0]) for seq, reason in reasons(folded)] == [
        (2, "the sender does not act for this approver"),
        (4, "recovery.R3"),
    ]
    assert current(folded.states, A) == B


def test_open_requests_are_live() -> None:
    folded = fold(RECOVERIES, log(ASKED, RecoveryRequest(B, C), approve(), execute(3)))
    assert [part for part, state in folded.states.items() if RECOVERIES.live(state)] == [B]


# 9: query audit


def test_reads_are_counted_by_requester_and_resource() -> None:
    read = QueryAudit(A, "patient:7", "personal", None, "treatment")
    states = fold(
        QUERY_AUDITS, log(read, replace(read, purpose_code="billing"), replace(read, requester_identity=B))
    ).states
    found = states[reads_part(A, "personal", "patient:7")]
    assert (found.count, found.first_ts, found.last_ts, found.last_purpose) == (2, START + 1, START + 2, "billing")
    assert states[reads_part(B, "personal", "patient:7")].count == 1


def test_a_result_digest_is_of_the_bytes_returned() -> None:
    assert result_digest(b"rows") == sha256(b"veen/query-result\0rows").digest()


# plain views


@pytest.mark.parametrize("event", OPERATION_EVENTS)
def test_the_plain_form_of_an_operation_has_its_kind_and_present_fields(event: type[Operation]) -> None:
    deeds = OperationHistory()
    samples: dict[type[Operation], Operation] = {
        type(one): one
        for one in (
            paid(), AccessGrant(A, None, (C,), 1), Revoke(A), EMBEDDED, TERMS, decide(C), RELEASE,
            StateCheckpoint(A, 5, B, C, "kv"), ASKED, approve(), execute(1), QueryAudit(A, "x", "y"),
            Mirror("hub", A, 1, B, C, D),
        )
    }  # fmt: skip
    deeds.add(samples[event])
    folded = fold(OPERATIONS, deeds.log)
    ((part, state),) = folded.states.items()
    shown = OPERATIONS.plain(part, state)
    assert (shown["kind"], shown["stream_seq"], shown["auth_ref"]) == (event.NAME.removesuffix(".v1"), 1, ROOT)
    body = shown["body"]
    assert isinstance(body, dict)
    assert [*body] == [*cbor2.loads(samples[event].encode())]


def test_fields_of_any_type_are_decoded_in_the_plain_form() -> None:
    (one,) = operations(log(paid(metadata=cbor.encode({"a": [1]}))))
    assert OPERATIONS.plain(one.operation_id, one.entry)["body"]["metadata"] == {"a": (1,)}  # type: ignore[index,call-overload]
