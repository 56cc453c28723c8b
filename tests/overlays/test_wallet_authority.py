"""Authority over wallet events and approvals of transfers. wallet-spec §8, §9."""

from dataclasses import replace
from random import Random

import pytest

from tests.overlays.logs import CLIENTS, LogLine, log, msg_id
from tests.overlays.wallets import DAY, MINE, OTHER, OWNER, REALM, THEIRS, random_history
from veen.core import Malformed, SigningKey, cap_token, cbor
from veen.overlays import Event, FaultKind, FoldEntry, check_laws, draft, fold, preview
from veen.overlays.event import EventFault
from veen.overlays.wallet import WALLETS, Wallets, violations
from veen.overlays.wallet_ledger import (
    PRIVILEGED,
    Adjust,
    CapabilityHolder,
    Close,
    Deposit,
    Freeze,
    Limit,
    Open,
    Transfer,
    Unfreeze,
    WalletAuthority,
    WalletCode,
    WalletGrant,
    Withdraw,
    approval_hash,
    approve,
    approved,
    approvers,
    digest,
    signatures,
    wallet_stream,
)

ORG, PERSON = SigningKey(b"\x01" * 32), SigningKey(b"\x02" * 32)
DEVICE, SERVICE, BRIDGE = CLIENTS
DEVICE_CAP = cap_token.mint(PERSON, DEVICE, [wallet_stream(MINE)], 3600)
SERVICE_CAP = cap_token.mint(ORG, SERVICE, [wallet_stream(MINE)], 86_400)
BRIDGE_CAP = cap_token.mint(ORG, BRIDGE, [wallet_stream(MINE)], 86_400)
AUTHORITY = WalletAuthority.of([DEVICE_CAP, SERVICE_CAP, BRIDGE_CAP], [ORG.public_key])
GUARDED = Wallets(only=MINE, authority=AUTHORITY)
TODAY = 5 * DAY
X1 = b"\x11" * 32
OPENED = Open(MINE, REALM, OWNER, "JPY", TODAY)


def by_device(event: Event, **given: object) -> LogLine:
    return replace(LogLine(event, client=0, auth_ref=DEVICE_CAP.auth_ref()), **given)  # type: ignore[arg-type]


def by_service(event: Event, **given: object) -> LogLine:
    return replace(LogLine(event, client=1, auth_ref=SERVICE_CAP.auth_ref()), **given)  # type: ignore[arg-type]


FUNDED = (by_device(OPENED), by_service(Deposit(MINE, 100, TODAY)))
EVENTS: list[Event] = [
    OPENED,
    Close(MINE, TODAY),
    Deposit(MINE, 5, TODAY),
    Withdraw(MINE, 5, TODAY),
    Transfer(MINE, THEIRS, 5, TODAY, X1),
    Adjust(MINE, 5, TODAY, "why"),
    Limit(MINE, 50, TODAY),
    Freeze(MINE, TODAY),
    Unfreeze(MINE, TODAY),
]


def test_a_capability_of_an_institution_is_for_its_services_and_all_others_for_devices() -> None:
    holders = {grant.subject_pk: grant.holder for grant in AUTHORITY.grants}
    assert holders == {
        DEVICE: CapabilityHolder.DEVICE,
        SERVICE: CapabilityHolder.SERVICE,
        BRIDGE: CapabilityHolder.SERVICE,
    }
    assert [grant.auth_ref for grant in AUTHORITY.grants] == sorted(grant.auth_ref for grant in AUTHORITY.grants)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_deposits_corrections_limits_and_freezes_are_for_services_only(event: Event) -> None:
    start = () if isinstance(event, Open) else FUNDED
    assert fold(GUARDED, log(*start, by_service(event))).faults == []
    reasons = [fault.reason for fault in fold(GUARDED, log(*start, by_device(event))).faults]
    assert reasons == ([WalletCode.UNAUTHORIZED_OPERATION] if isinstance(event, PRIVILEGED) else [])


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize(
    "spoilt",
    [{"auth_ref": None}, {"auth_ref": bytes(32)}, {"auth_ref": DEVICE_CAP.auth_ref()}, {"client": 0}],
    ids=["no capability", "an unknown one", "another's", "in another's hand"],
)
def test_an_event_without_its_writers_capability_changes_nothing(event: Event, spoilt: dict[str, object]) -> None:
    folded = fold(GUARDED, log(*FUNDED, by_service(event, **spoilt)))
    assert [fault.reason for fault in folded.faults] == [WalletCode.UNAUTHORIZED_OPERATION]
    assert folded.states == fold(GUARDED, log(*FUNDED)).states


def test_the_events_for_services_only_are_those_of_the_specification() -> None:
    listed = [Deposit, Adjust, Freeze, Unfreeze, Limit]
    assert sorted(PRIVILEGED, key=str) == sorted(listed, key=str)


def test_without_an_authority_every_admitted_event_counts() -> None:
    assert fold(Wallets(only=MINE), log(OPENED, Deposit(MINE, 100, TODAY))).faults == []


def test_an_unauthorized_client_cannot_use_up_a_transfer_id() -> None:
    stranger = LogLine(Transfer(MINE, THEIRS, 1, TODAY, X1), client=2)
    folded = fold(GUARDED, log(*FUNDED, stranger, by_device(Transfer(MINE, THEIRS, 30, TODAY, X1))))
    assert folded.state(MINE).balance == 70
    assert [fault.reason for fault in folded.faults] == [WalletCode.UNAUTHORIZED_OPERATION]


def test_a_bridge_with_a_service_capability_mirrors_every_event_once() -> None:
    bridged = [
        LogLine(one.event, msg_id(70 + at), client=2, auth_ref=BRIDGE_CAP.auth_ref()) for at, one in enumerate(FUNDED)
    ]
    folded = fold(GUARDED, log(*bridged, *bridged))
    assert folded.state(MINE).balance == 100
    assert [fault.kind for fault in folded.faults] == [FaultKind.COPY, FaultKind.COPY]


def test_preview_checks_the_authority() -> None:
    folded = fold(GUARDED, log(*FUNDED))
    entry = replace(draft(Deposit(MINE, 5, TODAY), client_id=DEVICE, hub_ts=TODAY), auth_ref=DEVICE_CAP.auth_ref())
    (outcome,) = preview(GUARDED, entry, folded)
    assert isinstance(outcome, EventFault)
    assert outcome.reason == WalletCode.UNAUTHORIZED_OPERATION


def under_capabilities(random: Random) -> list[FoldEntry]:
    """A history of anything, each entry under some capability or none."""
    refs = (DEVICE_CAP.auth_ref(), SERVICE_CAP.auth_ref(), None)
    held = (DEVICE, SERVICE, SERVICE)
    return [
        replace(entry, auth_ref=refs[which], client_id=held[which])
        for entry in random_history(random, 10)
        for which in random.choices(range(3), [4, 4, 1])
    ]


def test_wallets_under_an_authority_keep_the_laws() -> None:
    met = set()
    for seed in range(60):
        entries = under_capabilities(Random(seed))
        check_laws(GUARDED, entries)
        met |= {fault.reason for fault in fold(GUARDED, entries).faults}
    assert WalletCode.UNAUTHORIZED_OPERATION in met


def test_caches_of_different_authorities_are_different() -> None:
    told = [
        Wallets(authority=one).settings()
        for one in (
            None,
            WalletAuthority(()),
            AUTHORITY,
            WalletAuthority(AUTHORITY.grants[::-1]),
            WalletAuthority(AUTHORITY.grants[:1]),
        )
    ]
    assert told[2] == told[3]
    assert len(set(told)) == 4
    assert told[0] == WALLETS.settings() == b""


def test_a_duplicate_capability_raises_a_value_error() -> None:
    grant = WalletGrant(bytes(32), DEVICE, CapabilityHolder.DEVICE)
    with pytest.raises(ValueError, match="same auth_ref"):
        WalletAuthority((grant, replace(grant, holder=CapabilityHolder.SERVICE)))
    assert WalletAuthority.of([DEVICE_CAP, DEVICE_CAP], []).grants == WalletAuthority.of([DEVICE_CAP], []).grants


def test_an_unauthorized_event_is_not_a_balance_violation() -> None:
    folded = fold(GUARDED, log(*FUNDED, by_device(Adjust(MINE, -500, TODAY, "x"))))
    assert list(violations(folded.faults)) == []
    assert len(folded.faults) == 1


KEYS = [SigningKey(bytes([number]) * 32) for number in range(1, 5)]
AMONG = [key.public_key for key in KEYS[:3]]
TRANSFER = Transfer(MINE, THEIRS, 500, TODAY, X1)


def with_approvals(*found: bytes) -> Transfer:
    return replace(TRANSFER, metadata=cbor.encode({"approvals": found, "note": "rent"}))


def test_approvers_sign_the_core_of_a_transfer() -> None:
    assert digest(TRANSFER) == approval_hash(MINE, THEIRS, 500, TODAY, X1) == digest(with_approvals(b""))


def test_m_of_n_counts_each_listed_key_once() -> None:
    one, two, outsider = (approve(TRANSFER, KEYS[at]) for at in (0, 1, 3))
    assert approvers(with_approvals(one, two), AMONG) == frozenset(AMONG[:2])
    assert approved(with_approvals(one, two), AMONG, 2)
    assert not approved(with_approvals(one, one, outsider), AMONG, 2)
    assert not approved(TRANSFER, AMONG, 1)
    assert approved(TRANSFER, AMONG, 0)


@pytest.mark.parametrize(
    "other",
    [
        {"amount": 501},
        {"ts": TODAY + 1},
        {"to_wallet_id": MINE},
        {"wallet_id": THEIRS},
        {"transfer_id": OTHER},
    ],
)
def test_an_approval_is_of_one_transfer_only(other: dict[str, object]) -> None:
    signed = with_approvals(approve(TRANSFER, KEYS[0]))
    assert approved(signed, AMONG, 1)
    assert not approved(replace(signed, **other), AMONG, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("found", [7, {"a": 1}, "x", (1,), (b"", 7), None])
def test_approvals_that_are_not_byte_strings_are_malformed(found: cbor.Value) -> None:
    with pytest.raises(Malformed):
        signatures(replace(TRANSFER, metadata=cbor.encode({"approvals": found})))


@pytest.mark.parametrize("short", [b"", bytes(63), bytes(65), bytes(64)])
def test_an_invalid_signature_approves_nothing(short: bytes) -> None:
    assert approvers(with_approvals(short), AMONG) == frozenset()


def test_approvals_change_no_balance() -> None:
    said = (OPENED, Deposit(MINE, 1000, TODAY))
    plain = fold(WALLETS, log(*said, TRANSFER)).states
    assert fold(WALLETS, log(*said, with_approvals(approve(TRANSFER, KEYS[0])))).states == plain


def test_all_events_of_the_highest_conformance_level_are_folded() -> None:
    assert {Open, Close, Deposit, Withdraw, Transfer, Limit, Freeze, Unfreeze, Adjust} == set(WALLETS.EVENTS)
