"""Identity across hubs: mirroring keeps the bytes, and the union of logs is the same for everybody. id-spec §12.1."""

from dataclasses import replace
from hashlib import sha256
from itertools import permutations
from random import Random

import pytest

from tests.overlays.identities import CTXS, GROUPS, ORGS, Pseudocode, random_event, random_history
from tests.overlays.logs import START, log
from tests.overlays.test_identity_fold import agree
from veen.core import PayloadHdr
from veen.overlays import FoldEntry, fold, identity_views
from veen.overlays.identity import IDENTITY, mirrored, union
from veen.overlays.identity_events import IdentityGroup

MINE, ORG, STAFF = CTXS[0], ORGS[0], GROUPS[0]
ADD = IdentityGroup(ORG, None, STAFF, "Staff", (MINE,), None, 1)
REMOVE = IdentityGroup(ORG, None, STAFF, "Staff", None, (MINE,), 1)


def at_hub(name: str, *entries: FoldEntry) -> list[FoldEntry]:
    """The same payloads as the log of a hub of this name."""
    label = sha256(name.encode()).digest()
    return [
        replace(entry, label=label, stream_seq=number, msg_id=sha256(label + bytes([number])).digest())
        for number, entry in enumerate(entries, 1)
    ]


def copied(entry: FoldEntry, *, hub_ts: int) -> FoldEntry:
    header, body = mirrored(entry)
    return replace(entry, header=header, body=body, hub_ts=hub_ts, auth_ref=None)


def test_a_mirrored_event_keeps_schema_and_body_and_names_the_original() -> None:
    (entry,) = log(ADD)
    entry = replace(entry, header=PayloadHdr(ADD.SCHEMA, cap_ref=bytes(32), expires_at=9), auth_ref=bytes(32))
    header, body = mirrored(entry)
    assert (header.schema, body, header.parent_id, header.expires_at) == (ADD.SCHEMA, entry.body, entry.msg_id, 9)
    assert header.cap_ref is None
    again, _ = mirrored(replace(entry, header=header, msg_id=bytes(32)))
    assert again.parent_id == entry.msg_id
    with pytest.raises(ValueError, match="sealed entry"):
        mirrored(replace(entry, header=None, body=None))


def test_events_of_two_hubs_that_mirror_each_other_count_once() -> None:
    a = at_hub("a", *log(ADD))
    b = at_hub("b", copied(a[0], hub_ts=START + 5), *log(REMOVE, hub_ts=START + 6))
    whole = union(a, b)
    assert [entry.msg_id for entry in whole] == [a[0].msg_id, b[1].msg_id]
    assert fold(IDENTITY, whole).faults == []
    assert STAFF not in identity_views.groups_of(fold(IDENTITY, whole).states, ORG, MINE)
    late = at_hub("c", copied(a[0], hub_ts=START + 100))
    assert union(a, b, late) == whole


def test_the_place_of_the_original_counts_even_if_the_clock_of_a_copy_is_behind() -> None:
    a = at_hub("a", *log(REMOVE, ADD))
    b = at_hub("b", copied(a[1], hub_ts=1))
    assert STAFF in identity_views.groups_of(fold(IDENTITY, union(a, b)).states, ORG, MINE)


def test_without_the_original_the_first_copy_counts() -> None:
    (gone,) = log(ADD)
    whole = union(at_hub("b", copied(gone, hub_ts=9)), at_hub("c", copied(gone, hub_ts=5)))
    assert [entry.hub_ts for entry in whole] == [5]


def test_a_forged_copy_counts_as_its_own_event_and_hides_nothing() -> None:
    a = at_hub("a", *log(ADD))
    false = replace(copied(a[0], hub_ts=1), body=REMOVE.encode())
    whole = union(a, at_hub("b", false))
    assert len(whole) == 2
    assert STAFF in identity_views.groups_of(fold(IDENTITY, whole).states, ORG, MINE)


def test_no_log_is_reordered_by_a_clock_that_went_back() -> None:
    first, second = log(ADD, REMOVE)
    a = at_hub("a", replace(first, hub_ts=100), replace(second, hub_ts=50))
    b = at_hub("b", replace(log(random_event(Random(1)))[0], hub_ts=70))
    order = [entry.hub_ts for entry in union(a, b)]
    assert order.index(100) < order.index(50)


def test_a_union_does_not_depend_on_the_order_of_hubs_and_folds_by_the_rules() -> None:
    for seed in range(150):
        random = Random(seed)
        a = at_hub("a", *random_history(random, 6))
        b = at_hub(
            "b", *(copied(entry, hub_ts=START + 9 * at) for at, entry in enumerate(a)), *random_history(random, 6)
        )
        c = at_hub("c", *random_history(random, 6))
        whole = union(a, b, c)
        assert all(union(*listed) == whole for listed in permutations([a, b, c])), f"seed {seed}"
        assert [entry.stream_seq for entry in whole] == list(range(1, len(whole) + 1))
        agree(fold(IDENTITY, whole).states, Pseudocode(whole), seed)


def test_a_hub_that_mirrors_all_of_another_adds_nothing() -> None:
    for seed in range(50):
        a = at_hub("a", *random_history(Random(seed), 8))
        b = at_hub("b", *(copied(entry, hub_ts=entry.hub_ts + 1000) for entry in a))
        assert fold(IDENTITY, union(a, b)).states == fold(IDENTITY, union(a)).states, f"seed {seed}"
