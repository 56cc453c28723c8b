"""The inbox has limits: items have one encoding, parts are bounded per sender, and an inbox belongs to one hub."""

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
from veen.client.local_files import Busy
from veen.core import Malformed
from veen.core.hashing import h

HUB, ALICE, BOB, LABEL = h(b"hub"), h(b"alice"), h(b"bob"), h(b"label")


@pytest.fixture
def inbox(place: Path) -> Iterator[Inbox]:
    with Inbox(place / "inbox", HUB, InboxLimits(seen=4, heads=3, staged_bytes=400_000, bundle_bytes=1000)) as made:
        yield made


# Items.


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES])
def test_content_of_any_size_is_reassembled_unchanged(place: Path, size: int) -> None:
    content = b"".join(bytes((n % 251,)) * 997 for n in range(size // 997 + 1))[:size]
    items = [*items_of(HUB, ItemKind.BUNDLE, content)]
    assert all(len(item.encode()) <= MAX_PAYLOAD_BYTES for item in items)
    assert [GossipItem.decode(item.encode()) for item in items] == items
    if size <= PART_BYTES:
        assert items == [GossipItem(HUB, ItemKind.BUNDLE, content)]
        return
    with Inbox(place / "inbox", HUB) as inbox, inbox.change():
        parts = PartStore(inbox)
        for item in reversed(items[1:]):  # parts in reverse order, then the manifest
            assert parts.put_part(item.body, ALICE) == []
        (manifest,) = parts.put_manifest(items[0].body, BOB)
        assert parts.take(manifest) == content
        assert parts.bytes_held() == 0


def test_oversized_content_is_not_cut() -> None:
    with pytest.raises(ValueError, match=str(MAX_CONTENT_BYTES)):
        next(items_of(HUB, ItemKind.BUNDLE, bytes(MAX_CONTENT_BYTES + 1)))


@given(st.binary(max_size=200), st.data())
def test_decoded_items_encode_to_the_same_bytes(noise: bytes, data: st.DataObject) -> None:
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
def test_an_inconsistent_manifest_is_rejected(wrong: PartsManifest) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        wrong.encode()


# Parts.


def _manifest(*parts: bytes, digest: bytes | None = None) -> bytes:
    content = b"".join(parts)
    names = tuple(map(part_name, parts))
    return PartsManifest(
        ItemKind.EVIDENCE, len(content), digest or digest_of(ItemKind.EVIDENCE, content), names
    ).encode()


def test_shared_parts_serve_both_contents(inbox: Inbox) -> None:
    common, one, two = bytes(PART_BYTES), b"one", b"two"
    parts = PartStore(inbox)
    with inbox.change():
        for part in (one, common, two):
            assert parts.put_part(part, ALICE) == []
        (first,) = parts.put_manifest(_manifest(common, one), ALICE)
        (second,) = parts.put_manifest(_manifest(common, two), ALICE)
        assert parts.take(first) == common + one
        assert parts.take(second) == common + two


def test_parts_that_do_not_match_the_manifest_are_discarded(inbox: Inbox) -> None:
    parts = PartStore(inbox)
    with inbox.change():
        parts.put_part(bytes(PART_BYTES), ALICE)
        parts.put_part(b"x", ALICE)
        (manifest,) = parts.put_manifest(_manifest(bytes(PART_BYTES), b"x", digest=HUB), ALICE)
        assert parts.take(manifest) is None
        assert parts.bytes_held() == 0


def test_the_sender_that_fills_the_inbox_loses_its_own_parts(inbox: Inbox) -> None:
    parts, mine = PartStore(inbox), (bytes(PART_BYTES), b"mine")
    with inbox.change():
        parts.put_part(mine[0], BOB)
        parts.put_manifest(_manifest(*mine), BOB)
        for number in range(20):
            parts.put_part(bytes((number,)) * (PART_BYTES - number), ALICE)
            assert parts.bytes_held() <= inbox.limits.staged_bytes
        assert inbox.counts()["let go"] > 10
        (manifest,) = parts.put_part(mine[1], BOB)
        assert parts.take(manifest) == b"".join(mine)


def test_many_small_parts_cannot_exceed_the_limit(inbox: Inbox) -> None:
    parts = PartStore(inbox)
    with inbox.change():
        for number in range(2000):
            parts.put_part(b"%d" % number, ALICE)
        (rows,) = inbox.rows.execute("SELECT COUNT(*) FROM parts").fetchone()
    assert rows < 400


# The inbox.


def test_seen_digests_are_forgotten_oldest_first(inbox: Inbox) -> None:
    digests = [h(bytes((number,))) for number in range(6)]
    with inbox.change():
        for digest in digests:
            inbox.see(digest)
            inbox.see(digest)
    assert [inbox.has_seen(digest) for digest in digests] == [False, False, True, True, True, True]


def test_undecided_checkpoints_are_not_displaced(inbox: Inbox) -> None:
    def put(number: int, *, is_open: bool) -> None:
        inbox.put_head(LABEL, number, StoredCheckpoint(b"%d" % number, "x", ""), is_open=is_open)

    with inbox.change():
        put(1, is_open=True)
        put(2, is_open=False)
        put(3, is_open=False)
        put(4, is_open=True)  # displaces 2
        put(5, is_open=True)  # displaces 3
    assert [kept.shown for kept in inbox.open_heads()] == [b"1", b"4", b"5"]
    with pytest.raises(InboxFull), inbox.change():
        put(6, is_open=True)
    with inbox.change():
        put(4, is_open=False)  # decided
        put(6, is_open=True)
    assert [kept.shown for kept in inbox.open_heads()] == [b"1", b"5", b"6"]
    assert inbox.heads_at(LABEL, 4) == []
    assert inbox.heads_at(LABEL, 5) == [b"5"]


def test_unread_files_have_their_own_limit(inbox: Inbox) -> None:
    path = inbox.put_file(BUNDLES, "a.bundle", bytes(900))
    assert inbox.put_file(BUNDLES, "a.bundle", bytes(900)) == path
    with pytest.raises(InboxFull):
        inbox.put_file(BUNDLES, "b.bundle", bytes(101))
    inbox.put_file(EVIDENCE, "a.evidence", bytes(900))
    path.unlink()
    inbox.put_file(BUNDLES, "b.bundle", bytes(101))


def test_a_failed_transaction_changes_nothing(inbox: Inbox) -> None:
    def fail() -> None:
        with inbox.change():
            inbox.count("x")
            inbox.put_cursor(ALICE, 7)
            inbox.put_found(ProvedContradiction("f", "r"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (inbox.counts(), inbox.cursor(ALICE), inbox.found()) == ({}, 0, [])


def test_an_inbox_belongs_to_one_hub_and_one_receiver_at_a_time(place: Path) -> None:
    with Inbox(place / "inbox", HUB), pytest.raises(Busy):
        Inbox(place / "inbox", HUB)
    with pytest.raises(Malformed, match=HUB.hex()):
        Inbox(place / "inbox", ALICE)
    Inbox(place / "inbox", HUB).close()
