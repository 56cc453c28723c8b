"""AUTH1: classification of contradicting receipts."""

from dataclasses import replace
from itertools import product

import pytest

from veen.core import Receipt
from veen.core.admin import AuthorityPolicy
from veen.core.hashing import h
from veen.overlays.authority import (
    Cause,
    ConflictStatement,
    EquivocationFinding,
    FaultSeverity,
    LabelAuthority,
    classify,
)

A, B, C = sorted(h(b"hub %d" % number) for number in range(3))
LABEL, STREAM = h(b"label"), h(b"stream")
ONE = Receipt(LABEL, 7, h(b"leaf one"), h(b"root one"), 100, bytes(64))
TWO = replace(ONE, leaf_hash=h(b"leaf two"), mmr_root=h(b"root two"), hub_ts=101)


def single(hub: bytes) -> LabelAuthority:
    return LabelAuthority(STREAM, None, hub, AuthorityPolicy.SINGLE_PRIMARY)


MULTI = LabelAuthority(STREAM, None, A, AuthorityPolicy.MULTI_PRIMARY)
NONE = LabelAuthority(STREAM)

CASES = [
    ("the primary said both", (A, single(A)), (A, single(A)), EquivocationFinding(Cause.PRIMARY, (A,))),
    ("a replica wrote beside the primary", (A, single(A)), (B, single(A)), EquivocationFinding(Cause.INTRUDER, (B,))),
    ("somebody else said both", (B, single(A)), (B, single(A)), EquivocationFinding(Cause.INTRUDER, (B,))),
    ("two others wrote", (B, single(A)), (C, single(A)), EquivocationFinding(Cause.INTRUDER, (B, C))),
    ("two primaries, each in its time", (A, single(A)), (B, single(B)), EquivocationFinding(Cause.HANDOVER, (A, B))),
    ("a primary after none was said", (A, NONE), (B, single(B)), EquivocationFinding(Cause.HANDOVER, (A, B))),
    ("the primary, before and since", (A, NONE), (A, single(A)), EquivocationFinding(Cause.PRIMARY, (A,))),
    ("one of several primaries said both", (B, MULTI), (B, MULTI), EquivocationFinding(Cause.HUB, (B,))),
    ("nobody is primary and one said both", (B, NONE), (B, NONE), EquivocationFinding(Cause.HUB, (B,))),
    ("several may write and two did", (A, MULTI), (B, MULTI), EquivocationFinding(Cause.DIVERGENCE, (A, B))),
    ("nobody is primary and two wrote", (A, NONE), (B, NONE), EquivocationFinding(Cause.UNDECLARED, (A, B))),
    ("two wrote before it was allowed", (A, NONE), (B, MULTI), EquivocationFinding(Cause.UNDECLARED, (A, B))),
]


@pytest.mark.parametrize(("first", "second", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_contradiction_is_classified_by_signer_and_authority(
    first: tuple[bytes, LabelAuthority], second: tuple[bytes, LabelAuthority], expected: EquivocationFinding
) -> None:
    assert classify(ConflictStatement(ONE, *first), ConflictStatement(TWO, *second)) == expected
    assert classify(ConflictStatement(TWO, *second), ConflictStatement(ONE, *first)) == expected


def test_every_contradiction_under_a_single_primary_is_of_high_severity() -> None:
    for one, two, mine, theirs in product((A, B), (A, B), (single(A), single(B)), (single(A), single(B), NONE, MULTI)):
        found = classify(ConflictStatement(ONE, one, mine), ConflictStatement(TWO, two, theirs))
        assert found is not None
        assert found.severity is FaultSeverity.HIGH


def test_a_hub_that_signs_two_histories_is_of_high_severity_under_every_policy() -> None:
    for policy in (single(A), single(B), MULTI, NONE):
        found = classify(ConflictStatement(ONE, A, policy), ConflictStatement(TWO, A, policy))
        assert found is not None
        assert found.severity is FaultSeverity.HIGH
        assert found.suspects == (A,)


def test_two_hubs_that_may_both_write_give_a_notice() -> None:
    found = classify(ConflictStatement(ONE, A, MULTI), ConflictStatement(TWO, B, MULTI))
    assert found is not None
    assert found.severity is FaultSeverity.NOTICE


@pytest.mark.parametrize(
    "other",
    [
        ONE,
        replace(ONE, hub_ts=999),
        replace(ONE, hub_sig=b"\x01" * 64),
        replace(TWO, stream_seq=8),
        replace(TWO, label=h(b"another label")),
    ],
)
def test_receipts_that_do_not_contradict_each_other_are_no_finding(other: Receipt) -> None:
    assert classify(ConflictStatement(ONE, A, single(A)), ConflictStatement(other, B, single(A))) is None


@pytest.mark.parametrize("other", [replace(ONE, leaf_hash=h(b"x")), replace(ONE, mmr_root=h(b"x"))])
def test_a_different_leaf_or_root_is_a_contradiction(other: Receipt) -> None:
    assert classify(ConflictStatement(ONE, A, single(A)), ConflictStatement(other, A, single(A))) is not None
