"""What is received is kept within bounds: items have one form, parts one sender's share, and an inbox one hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.bridge.veil_gossip.gossip_inbox import (
    BUNDLES,
    EVIDENCE,
    Inbox,
    InboxFull,
    InboxLimits,
    PartStore,
    ProvedContradiction,
    StoredCheckpoint,
)
from veen.bridge.veil_gossip.gossip_items import (
    MAX_CONTENT_BYTES,
    MAX_PAYLOAD_BYTES,
    PART_BYTES,
    GossipItem,
    ItemKind,
    PartsManifest,
    digest_of,
    items_of,
    part_name,
)
from veen.client.durable import Busy
from veen.core import Malformed
from veen.core.hashing import h

HUB, ALICE, BOB, LABEL = h(b"hub"), h(b"alice"), h(b"bob"), h(b"label")


@pytest.fixture
def inbox(place: Path) -> Iterator[Inbox]:
    with Inbox(place / "inbox", HUB, InboxLimits(seen=4, heads=3, staged_bytes=400_000, bundle_bytes=1000)) as made:
        yield made


# Items.


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES])
def test_contents_come_out_as_they_went_in_whatever_their_size(place: Path, size: int) -> None:
    content = b"".join(bytes((n % 251,)) * 997 for n in range(size // 997 + 1))[:size]
    items = [*items_of(HUB, ItemKind.BUNDLE, content)]
    assert all(len(item.encode()) <= MAX_PAYLOAD_BYTES for item in items)
    assert [GossipItem.decode(item.encode()) for item in items] == items
    if size <= PART_BYTES:
        assert items == [GossipItem(HUB, ItemKind.BUNDLE, content)]
        return
    with Inbox(place / "inbox", HUB) as inbox, inbox.change():
        staging = PartStore(inbox)
        for item in reversed(items[1:]):  # the manifest last, and the parts the wrong way round
            assert staging.put_part(item.body, ALICE) == []
        (manifest,) = staging.put_manifest(items[0].body, BOB)
        assert staging.take(manifest) == content
        assert staging.bytes_held() == 0


def test_more_than_is_carried_is_not_cut_up() -> None:
    with pytest.raises(ValueError, match=str(MAX_CONTENT_BYTES)):
        next(items_of(HUB, ItemKind.BUNDLE, bytes(MAX_CONTENT_BYTES + 1)))


@given(st.binary(max_size=200), st.data())
def test_bytes_are_no_item_or_encode_to_themselves(noise: bytes, data: st.DataObject) -> None:
    true = GossipItem(HUB, ItemKind.PART, noise).encode()
    at = data.draw(st.integers(0, len(true) - 1))
    changed = true[:at] + bytes((data.draw(st.integers(0, 255)),)) + true[at + 1 :]
    for tried in (noise, changed, true[:at], true + noise):
        try:
            item = GossipItem.decode(tried)
        except Malformed:
            continue
        assert item.encode() == tried


@pytest.mark.parametrize(
    "wrong",
    [
        PartsManifest(ItemKind.BUNDLE, PART_BYTES + 1, HUB, (HUB,)),
        PartsManifest(ItemKind.BUNDLE, PART_BYTES + 1, HUB, (HUB,) * 3),
        PartsManifest(ItemKind.BUNDLE, PART_BYTES, HUB, (HUB,)),
        PartsManifest(ItemKind.MANIFEST, PART_BYTES + 1, HUB, (HUB,) * 2),
        PartsManifest(ItemKind.BUNDLE, MAX_CONTENT_BYTES + 1, HUB, (HUB,) * 2),
    ],
)
def test_a_manifest_that_cannot_be_is_none(wrong: PartsManifest) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        wrong.encode()


# Parts.


def _manifest(*parts: bytes, digest: bytes | None = None) -> bytes:
    content = b"".join(parts)
    names = tuple(map(part_name, parts))
    return PartsManifest(
        ItemKind.EVIDENCE, len(content), digest or digest_of(ItemKind.EVIDENCE, content), names
    ).encode()


def test_parts_that_two_contents_share_serve_both(inbox: Inbox) -> None:
    common, one, two = bytes(PART_BYTES), b"one", b"two"
    staging = PartStore(inbox)
    with inbox.change():
        for part in (one, common, two):
            assert staging.put_part(part, ALICE) == []
        (first,) = staging.put_manifest(_manifest(common, one), ALICE)
        staging.put_manifest(_manifest(common, two), ALICE)
        assert staging.take(first) == common + one
        (second,) = staging.put_part(b"", ALICE) or staging._whole([h(_manifest(common, two))])
        assert staging.take(second) == common + two


def test_parts_that_are_not_what_the_manifest_says_are_nothing(inbox: Inbox) -> None:
    staging = PartStore(inbox)
    with inbox.change():
        staging.put_part(bytes(PART_BYTES), ALICE)
        staging.put_part(b"x", ALICE)
        (manifest,) = staging.put_manifest(_manifest(bytes(PART_BYTES), b"x", digest=HUB), ALICE)
        assert staging.take(manifest) is None
        assert staging.bytes_held() == 0


def test_who_fills_the_room_loses_its_own(inbox: Inbox) -> None:
    staging, mine = PartStore(inbox), (bytes(PART_BYTES), b"mine")
    with inbox.change():
        staging.put_part(mine[0], BOB)
        staging.put_manifest(_manifest(*mine), BOB)
        for number in range(20):
            staging.put_part(bytes((number,)) * (PART_BYTES - number), ALICE)
            assert staging.bytes_held() <= inbox.room.staged_bytes
        assert inbox.counts()["let go"] > 10
        (manifest,) = staging.put_part(mine[1], BOB)
        assert staging.take(manifest) == b"".join(mine)


def test_many_small_parts_are_no_way_around_the_bound(inbox: Inbox) -> None:
    staging = PartStore(inbox)
    with inbox.change():
        for number in range(2000):
            staging.put_part(b"%d" % number, ALICE)
        (rows,) = inbox.rows.execute("SELECT COUNT(*) FROM parts").fetchone()
    assert rows < 400


# The inbox.


def test_what_is_seen_is_forgotten_the_oldest_first(inbox: Inbox) -> None:
    digests = [h(bytes((number,))) for number in range(6)]
    with inbox.change():
        for digest in digests:
            inbox.see(digest)
            inbox.see(digest)
    assert [inbox.has_seen(digest) for digest in digests] == [False, False, True, True, True, True]


def test_what_needs_a_decision_does_not_give_way(inbox: Inbox) -> None:
    def put(number: int, *, is_open: bool) -> None:
        inbox.put_head(LABEL, number, StoredCheckpoint(b"%d" % number, "x", ""), is_open=is_open)

    with inbox.change():
        put(1, is_open=True)
        put(2, is_open=False)
        put(3, is_open=False)
        put(4, is_open=True)  # 2 goes
        put(5, is_open=True)  # 3 goes
    assert [kept.shown for kept in inbox.open_heads()] == [b"1", b"4", b"5"]
    with pytest.raises(InboxFull), inbox.change():
        put(6, is_open=True)
    with inbox.change():
        put(4, is_open=False)  # decided
        put(6, is_open=True)
    assert [kept.shown for kept in inbox.open_heads()] == [b"1", b"5", b"6"]
    assert inbox.heads_at(LABEL, 4) == []
    assert inbox.heads_at(LABEL, 5) == [b"5"]


def test_files_that_nobody_takes_out_have_a_bound_of_their_own(inbox: Inbox) -> None:
    path = inbox.put_file(BUNDLES, "a.bundle", bytes(900))
    assert inbox.put_file(BUNDLES, "a.bundle", bytes(900)) == path
    with pytest.raises(InboxFull):
        inbox.put_file(BUNDLES, "b.bundle", bytes(101))
    inbox.put_file(EVIDENCE, "a.evidence", bytes(900))
    path.unlink()
    inbox.put_file(BUNDLES, "b.bundle", bytes(101))


def test_a_change_that_fails_changes_nothing(inbox: Inbox) -> None:
    def fail() -> None:
        with inbox.change():
            inbox.count("x")
            inbox.put_cursor(ALICE, 7)
            inbox.put_found(ProvedContradiction("f", "r"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (inbox.counts(), inbox.cursor(ALICE), inbox.found()) == ({}, 0, [])


def test_an_inbox_is_of_one_hub_and_of_one_receiver_at_a_time(place: Path) -> None:
    with Inbox(place / "inbox", HUB), pytest.raises(Busy):
        Inbox(place / "inbox", HUB)
    with pytest.raises(Malformed, match=HUB.hex()):
        Inbox(place / "inbox", ALICE)
    Inbox(place / "inbox", HUB).close()
