"""AUTH1: what a contradiction comes to; and what may be claimed of all this."""

from dataclasses import replace
from itertools import product

import pytest

from veen.core import Receipt
from veen.core.hashing import h
from veen.overlays import admin
from veen.overlays.admin.authority import LabelAuthority, Policy
from veen.overlays.admin.claims import ADDS, Claim, Profile, claims, needs
from veen.overlays.admin.equivocation import Cause, Finding, Severity, Statement, classify

A, B, C = sorted(h(b"hub %d" % number) for number in range(3))
LABEL, STREAM = h(b"label"), h(b"stream")
ONE = Receipt(LABEL, 7, h(b"leaf one"), h(b"root one"), 100, bytes(64))
TWO = replace(ONE, leaf_hash=h(b"leaf two"), mmr_root=h(b"root two"), hub_ts=101)


def single(hub: bytes) -> LabelAuthority:
    return LabelAuthority(STREAM, None, hub, Policy.SINGLE_PRIMARY)


MULTI = LabelAuthority(STREAM, None, A, Policy.MULTI_PRIMARY)
NONE = LabelAuthority(STREAM)

CASES = [
    ("the primary said both", (A, single(A)), (A, single(A)), Finding(Cause.PRIMARY, (A,))),
    ("a replica wrote beside the primary", (A, single(A)), (B, single(A)), Finding(Cause.INTRUDER, (B,))),
    ("somebody else said both", (B, single(A)), (B, single(A)), Finding(Cause.INTRUDER, (B,))),
    ("two others wrote", (B, single(A)), (C, single(A)), Finding(Cause.INTRUDER, (B, C))),
    ("two primaries, each in its time", (A, single(A)), (B, single(B)), Finding(Cause.HANDOVER, (A, B))),
    ("a primary after none was said", (A, NONE), (B, single(B)), Finding(Cause.HANDOVER, (A, B))),
    ("the primary, before and since", (A, NONE), (A, single(A)), Finding(Cause.PRIMARY, (A,))),
    ("one of several primaries said both", (B, MULTI), (B, MULTI), Finding(Cause.HUB, (B,))),
    ("nobody is primary and one said both", (B, NONE), (B, NONE), Finding(Cause.HUB, (B,))),
    ("several may write and two did", (A, MULTI), (B, MULTI), Finding(Cause.DIVERGENCE, (A, B))),
    ("nobody is primary and two wrote", (A, NONE), (B, NONE), Finding(Cause.UNDECLARED, (A, B))),
    ("two wrote before it was allowed", (A, NONE), (B, MULTI), Finding(Cause.UNDECLARED, (A, B))),
]


@pytest.mark.parametrize(("first", "second", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_contradiction_is_classified_by_who_signed_and_who_was_to(
    first: tuple[bytes, LabelAuthority], second: tuple[bytes, LabelAuthority], expected: Finding
) -> None:
    assert classify(Statement(ONE, *first), Statement(TWO, *second)) == expected
    assert classify(Statement(TWO, *second), Statement(ONE, *first)) == expected


def test_whatever_happens_under_a_single_primary_is_of_high_severity() -> None:
    for one, two, mine, theirs in product((A, B), (A, B), (single(A), single(B)), (single(A), single(B), NONE, MULTI)):
        found = classify(Statement(ONE, one, mine), Statement(TWO, two, theirs))
        assert found is not None
        assert found.severity is Severity.HIGH


def test_a_hub_that_signs_two_histories_is_of_high_severity_under_every_policy() -> None:
    for policy in (single(A), single(B), MULTI, NONE):
        found = classify(Statement(ONE, A, policy), Statement(TWO, A, policy))
        assert found is not None
        assert found.severity is Severity.HIGH
        assert found.suspects == (A,)


def test_two_hubs_that_may_both_write_have_not_lied() -> None:
    found = classify(Statement(ONE, A, MULTI), Statement(TWO, B, MULTI))
    assert found is not None
    assert found.severity is Severity.NOTICE


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
    assert classify(Statement(ONE, A, single(A)), Statement(other, B, single(A))) is None


@pytest.mark.parametrize("other", [replace(ONE, leaf_hash=h(b"x")), replace(ONE, mmr_root=h(b"x"))])
def test_another_leaf_or_another_root_is_enough(other: Receipt) -> None:
    assert classify(Statement(ONE, A, single(A)), Statement(other, A, single(A))) is not None


def test_each_claim_has_all_that_the_one_before_it_has() -> None:
    assert needs(Claim.CORE) == {"Core", "OP0", "KEX0", "RESYNC0"}
    assert needs(Claim.FEDERATED) == needs(Claim.CORE) | {"FED1", "AUTH1"}
    assert needs(Claim.HARDENED) == needs(Claim.FEDERATED) | {"KEX1+", "SH1+"}
    assert needs(Claim.META) == set(Profile) == needs(Claim.HARDENED) | {"LCLASS0", "META0+"}


def test_a_claim_holds_only_with_every_profile_below_it() -> None:
    assert claims(Profile) == tuple(Claim)
    assert claims(()) == ()
    assert claims(set(Profile) - {Profile.OP0}) == ()
    assert claims(set(Profile) - {Profile.AUTH1}) == (Claim.CORE,)
    assert claims(set(Profile) - {Profile.SH1}) == (Claim.CORE, Claim.FEDERATED)
    assert claims(set(Profile) - {Profile.META0}) == (Claim.CORE, Claim.FEDERATED, Claim.HARDENED)
    assert set(ADDS) == set(Claim)


def test_the_public_names_are_there_and_are_these() -> None:
    assert [name for name in admin.__all__ if not hasattr(admin, name)] == []
    assert {overlay.CLASS for overlay in admin.ADMIN} == {
        "authorization", "fed.authority", "label.class", "meta.schema", "revocation",
    }  # fmt: skip
