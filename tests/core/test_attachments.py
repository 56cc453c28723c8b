"""Attachments match what the message commits to, in count, size, order and content. Spec §4.6."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core import (
    DhKey,
    Fault,
    Limits,
    Malformed,
    Opened,
    PayloadHdr,
    Place,
    Sealer,
    Unverified,
    attachment,
    ciphertext,
)
from veen.core.attachment import SealedAttachment
from veen.core.hashing import h, ht

LIMITS = Limits()
READER = DhKey(bytes(range(32)))
PLACE = Place(h(b"profile"), h(b"label"), h(b"client"), 7, 3)
PARTS = [b"", b"one", bytes(70_000)]


def sent(parts: list[bytes], place: Place = PLACE) -> tuple[Opened, list[SealedAttachment]]:
    """A message with attachments: opened by its reader, and the stored parts."""
    sealer = Sealer(READER.public_key, place)
    stored = [attachment.seal(sealer, part) for part in parts]
    root = attachment.root([part.coid for part in stored]) if stored else None
    data = sealer.seal(PayloadHdr(h(b"schema"), att_root=root), b"", 256)
    return ciphertext.open_sealed(READER, place, data, LIMITS), stored


def checked(
    message: Opened, parts: list[bytes], stored: list[SealedAttachment], declared: list[int] | None = None
) -> None:
    sizes = [len(part) for part in parts]
    coids = [part.coid for part in stored]
    attachment.check(message.header, sizes if declared is None else declared, coids, sizes, LIMITS)


@given(parts=st.lists(st.binary(max_size=300), max_size=9))
def test_attachments_come_back_as_they_were(parts: list[bytes]) -> None:
    message, stored = sent(parts)
    checked(message, parts, stored)
    for index, (part, kept) in enumerate(zip(parts, stored, strict=True)):
        assert attachment.open_sealed(message, index, kept.coid, kept.sealed) == part
        assert kept.coid == h(kept.sealed)


def test_the_same_part_twice_has_two_addresses() -> None:
    _, stored = sent([b"same", b"same"])
    assert stored[0].coid != stored[1].coid


def test_the_same_part_in_two_messages_has_two_addresses() -> None:
    (_, first), (_, second) = sent([b"same"]), sent([b"same"])
    assert first[0].coid != second[0].coid


def test_the_root_of_one_is_its_address_and_of_none_the_empty_root() -> None:
    _, stored = sent([b"one"])
    assert attachment.root([stored[0].coid]) == stored[0].coid
    assert attachment.root([]) == attachment.EMPTY_ROOT == ht("veen/att-root", b"")


def test_the_root_of_three_is_a_tree_in_its_own_domain() -> None:
    a, b, c = (h(bytes([number])) for number in range(3))
    assert attachment.root([a, b, c]) == ht("veen/att-root", c + ht("veen/att-node", a + b))


def test_a_header_may_say_explicitly_that_there_are_none() -> None:
    attachment.check(PayloadHdr(h(b"s"), att_root=attachment.EMPTY_ROOT), [], [], [], LIMITS)
    attachment.check(PayloadHdr(h(b"s")), [], [], [], LIMITS)
    with pytest.raises(Unverified, match="att_root"):
        attachment.check(PayloadHdr(h(b"s"), att_root=h(b"wrong")), [], [], [], LIMITS)


def test_a_missing_attachment_is_refused() -> None:
    message, stored = sent(PARTS)
    with pytest.raises(Unverified, match="2 supplied, but the message declares 3"):
        checked(message, PARTS[:2], stored[:2], declared=[len(part) for part in PARTS])


def test_a_surplus_attachment_is_refused() -> None:
    message, stored = sent(PARTS)
    with pytest.raises(Unverified, match="declares 2"):
        checked(message, PARTS, stored, declared=[len(part) for part in PARTS[:2]])


def test_a_declared_size_that_is_not_the_size_is_refused() -> None:
    message, stored = sent(PARTS)
    with pytest.raises(Unverified, match="attachment 1 has 3 bytes, but the message declares 4"):
        checked(message, PARTS, stored, declared=[0, 4, 70_000])


def test_attachments_in_another_order_are_refused() -> None:
    message, stored = sent([b"ab", b"cd"])
    with pytest.raises(Unverified, match="att_root"):
        checked(message, [b"cd", b"ab"], stored[::-1])


def test_another_messages_attachments_are_refused() -> None:
    (message, _), (_, foreign) = sent(PARTS), sent(PARTS)
    with pytest.raises(Unverified, match="att_root"):
        checked(message, PARTS, foreign)


def test_attachments_without_a_commitment_are_refused() -> None:
    _, stored = sent(PARTS)
    bare, _ = sent([])
    with pytest.raises(Unverified, match="has no att_root"):
        checked(bare, PARTS, stored)


def test_content_that_is_not_its_addresss_is_refused() -> None:
    message, stored = sent(PARTS)
    altered = stored[1].sealed[:-1] + bytes([stored[1].sealed[-1] ^ 1])
    with pytest.raises(Unverified, match="coid"):
        attachment.open_sealed(message, 1, stored[1].coid, altered)


def test_an_altered_attachment_under_its_own_new_address_does_not_decrypt() -> None:
    message, stored = sent(PARTS)
    altered = stored[1].sealed[:-1] + bytes([stored[1].sealed[-1] ^ 1])
    with pytest.raises(Unverified, match="decrypt"):
        attachment.open_sealed(message, 1, h(altered), altered)


def test_an_attachment_opens_only_at_its_own_index_and_place() -> None:
    message, stored = sent(PARTS)
    with pytest.raises(Unverified):
        attachment.open_sealed(message, 0, stored[1].coid, stored[1].sealed)
    elsewhere = replace(message, place=replace(PLACE, client_seq=8))
    with pytest.raises(Unverified):
        attachment.open_sealed(elsewhere, 1, stored[1].coid, stored[1].sealed)


def test_no_attachment_is_added_to_a_sealed_message() -> None:
    sealer = Sealer(READER.public_key, PLACE)
    sealer.seal(PayloadHdr(h(b"schema")), b"", 0)
    with pytest.raises(ValueError, match="already sealed"):
        attachment.seal(sealer, b"late")


def test_two_attachments_of_a_message_never_share_a_key_and_nonce() -> None:
    """With the same key and nonce, two ciphertexts would differ exactly where the plaintexts do."""
    sealer = Sealer(READER.public_key, PLACE)
    one, other = attachment.seal(sealer, b"attack at dawn"), attachment.seal(sealer, b"attack at dusk")
    assert bytes(a ^ b for a, b in zip(one.sealed, other.sealed, strict=True))[:10] != bytes(10)


@pytest.mark.parametrize("over", [0, 1])
def test_count_and_size_are_held_to_the_limits_before_a_root_is_computed(over: int) -> None:
    limits = Limits(max_attachments_per_msg=2, max_attachment_bytes=10)
    for sizes in ([1] * (2 + over), [10 + over]):
        if not over:
            attachment.check_sizes(sizes, limits)
            continue
        with pytest.raises(Malformed) as caught:
            attachment.check(PayloadHdr(h(b"s")), sizes, [], [], limits)
        assert caught.value.fault is Fault.SIZE


@given(indexes=st.lists(st.integers(0, 1023), unique=True, max_size=40))
def test_no_two_attachments_of_a_message_share_a_key_or_a_nonce(indexes: list[int]) -> None:
    sealer = Sealer(READER.public_key, PLACE)
    pairs = [attachment._key_and_nonce(sealer, index) for index in indexes]
    assert len({key for key, _ in pairs}) == len({nonce for _, nonce in pairs}) == len(indexes)
