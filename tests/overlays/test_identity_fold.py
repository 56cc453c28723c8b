"""Identity's fold keeps the laws, and answers as the rules of id-spec do when they are followed to the letter."""

from itertools import permutations, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.overlays.identities import (
    AUTH_REFS,
    CTXS,
    DEVICE_IDS,
    DEVICE_KEYS,
    GROUPS,
    HANDLES,
    NOWS,
    ORGS,
    PRINCIPALS,
    REALMS,
    Pseudocode,
    random_event,
    random_history,
)
from tests.overlays.logs import logs
from veen.overlays import FaultKind, FoldEntry, check_laws, fold, identity_views
from veen.overlays.identity import IDENTITY
from veen.overlays.identity_events import (
    CtxProfile,
    ExternalLink,
    HandleMap,
    IdentityGroup,
    IdentityRevocation,
    OrgProfile,
)
from veen.overlays.identity_views import States

HISTORIES, ALL_HISTORIES = 2_000, 10_000
events = st.integers(0, 1 << 32).map(lambda seed: random_event(Random(seed)))


@given(logs(events, most=12))
def test_identity_keeps_the_laws_wherever_a_log_is_cut(entries: list[FoldEntry]) -> None:
    check_laws(IDENTITY, entries)


def agree(states: States, rules: Pseudocode, seed: int) -> int:
    """Every question about everything there is; the number of answers that are not empty."""
    asked: list[tuple[object, object]] = []
    for principal_pk in PRINCIPALS:
        founded = identity_views.principal(states, principal_pk)
        asked.append((founded and (founded.created_at, founded.info), rules.principal(principal_pk)))
        for key, device_id in zip(DEVICE_KEYS, DEVICE_IDS, strict=True):
            asked.append(
                (identity_views.device(states, principal_pk, device_id), rules.device(principal_pk, device_id))
            )
            for now in NOWS:
                active = identity_views.inactive_reason(states, principal_pk, key, now) is None
                asked.append((active, rules.active(principal_pk, device_id, now)))
    for ctx_id, realm_id in product(CTXS, REALMS):
        profiles = rules.of(CtxProfile, ctx_id=ctx_id, realm_id=realm_id)
        asked.append((identity_views.ctx_profile(states, ctx_id, realm_id), rules.winner(profiles, "updated_at")))
        revoked = identity_views.ctx_revocation(states, ctx_id, realm_id) is not None
        asked.append((revoked, rules.revoked(ctx_id=ctx_id, realm_id=realm_id)))
    for org_id in ORGS:
        profiles = rules.of(OrgProfile, org_id=org_id)
        asked.append((identity_views.org_profile(states, org_id), rules.winner(profiles, "updated_at")))
        asked.append(
            (identity_views.org_revocation(states, org_id, REALMS[0]) is not None, rules.org_revoked(org_id, REALMS[0]))
        )
        for group_id in GROUPS:
            found = next((one for one in identity_views.groups(states, org_id) if one.group_id == group_id), None)
            named = rules.winner(rules.of(IdentityGroup, org_id=org_id, group_id=group_id), "updated_at")
            asked.append((found and found.name, named and named.name))
            members = rules.members(org_id, group_id)
            asked.append((set(found.members) if found else set(), members))
            for ctx_id in CTXS:
                asked.append((group_id in identity_views.groups_of(states, org_id, ctx_id), ctx_id in members))
        for ctx_id, realm_id in product(CTXS, REALMS):
            asked.append(
                (identity_views.roles(states, org_id, ctx_id, realm_id), rules.roles(org_id, ctx_id, realm_id))
            )
    for realm_id in REALMS:
        for name in HANDLES:
            maps = rules.of(HandleMap, realm_id=realm_id, handle=name)
            asked.append((identity_views.handle(states, realm_id, name), rules.winner(maps, "ts")))
        for provider, sub in product(("google", "saml:corp"), "12"):
            found_links = rules.of(ExternalLink, realm_id=realm_id, provider=provider, external_sub=sub)
            asked.append((identity_views.link(states, realm_id, provider, sub), rules.winner(found_links, "ts")))
    for auth_ref in AUTH_REFS:
        revoked = identity_views.auth_ref_revocation(states, auth_ref) is not None
        asked.append((revoked, bool(rules.of(IdentityRevocation, revoked_auth_ref=auth_ref))))
    for number, (ours, theirs) in enumerate(asked):
        assert ours == theirs, f"seed {seed}, question {number}"
    return sum(bool(ours) for ours, _ in asked)


def check_views(seeds: range) -> None:
    answers, kinds = 0, set()
    for seed in seeds:
        history = random_history(Random(seed))
        folded = fold(IDENTITY, history)
        kinds |= {fault.kind for fault in folded.faults}
        answers += agree(folded.states, Pseudocode(history), seed)
    assert answers > 10 * len(seeds)
    assert kinds == {FaultKind.COPY, FaultKind.MALFORMED}


def test_every_view_answers_as_the_specification_does_on_generated_histories() -> None:
    check_views(range(HISTORIES))


@pytest.mark.slow
def test_every_view_answers_as_the_specification_does_on_many_histories() -> None:
    check_views(range(HISTORIES, ALL_HISTORIES))


def test_the_states_of_several_streams_join_in_any_order() -> None:
    for seed in range(200):
        pieces = [fold(IDENTITY, random_history(Random(3 * seed + one), 8)).states for one in range(3)]
        joined = [identity_views.merge_states(*order) for order in permutations(pieces)]
        assert all(one == joined[0] for one in joined), f"seed {seed}"
        assert identity_views.merge_states(joined[0], pieces[0]) == joined[0], f"seed {seed}"
