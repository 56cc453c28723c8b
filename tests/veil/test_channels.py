"""Feeds, letters and groups: only the intended readers can read, and senders cannot be forged."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyhpke import AEADId, CipherSuite, KDFId, KEMId

from tests.veil.builders import KEY, NONCE, SIGNER, restore
from veil import (
    NATIVE,
    Address,
    Channel,
    DeliveryKey,
    Epochs,
    ErasureMode,
    Feed,
    Flags,
    Group,
    GroupChannel,
    GroupSecret,
    Mailbox,
    Malformed,
    NamespacePolicy,
    Opened,
    Published,
    Recipient,
    Refused,
    SharedKey,
    SigningKey,
    Unverified,
    publish,
    publish_feed,
    receive,
    send_group,
    send_private,
)
from veil.channels import feed_key
from veil.encryption import LETTER_BYTES, WRAPPED_BYTES, read_letter, write_letter
from veil.tags import feed_tag
from veil.veil_limits import EPOCH_SECONDS, MAX_GROUP_GENERATIONS, MAX_UINT32

POLICY = NamespacePolicy()
NOW = 20_000 * EPOCH_SECONDS + 40_000
EPOCH = 20_000
BOB = DeliveryKey(b"\x0b" * 32)


def read(channel: Channel, made: Published, now: float = NOW) -> Opened:
    """Receive as a node does: match the tag, restore without a key, open with the key of the tag."""
    keys = channel.keys(now)
    assert made.of.address.tag in keys, "the tag is not subscribed"
    found = restore(made.of, made.shards[-made.of.shape.k :])
    assert found is not None
    return channel.open(receive(found.of, found.encoded, POLICY), keys[made.of.address.tag])


def test_a_public_feed_is_read_by_anyone_who_has_the_tag() -> None:
    made = publish_feed(b"hello, all", SIGNER, 1, EPOCH)
    opened = read(Feed(feed_tag(SIGNER.public_key, 1), 1), made)
    assert (opened.payload, opened.sender_pubkey) == (b"hello, all", SIGNER.public_key)
    assert opened.flags == Flags.PUBLIC | Flags.SIGNED
    assert made.of.erasure_mode is ErasureMode.SYSTEMATIC


@pytest.mark.parametrize("signer", [None, SigningKey(b"\x66" * 32)], ids=["unsigned", "another"])
def test_only_the_publisher_can_write_to_a_feed(signer: SigningKey | None) -> None:
    feed = Feed.of(SIGNER.public_key, 40)
    made = publish(b"forged", Address(feed.tag, 40, EPOCH), feed_key(feed.tag), signer=signer)
    with pytest.raises(Unverified):
        read(feed, made)


def test_a_feed_object_is_valid_only_in_its_namespace() -> None:
    made = publish_feed(b"hello", SIGNER, 40, EPOCH)
    with pytest.raises(AssertionError):
        read(Feed.of(SIGNER.public_key, 41), made)


def test_a_recipient_reads_a_letter_and_learns_its_sender() -> None:
    made = send_private(b"hello, Bob", SIGNER, Recipient(BOB.public_key), 2, EPOCH, flags=Flags.ACK_REQUESTED)
    opened = read(Mailbox(BOB, 2), made)
    assert (opened.payload, opened.sender_pubkey) == (b"hello, Bob", SIGNER.public_key)
    assert made.of.erasure_mode is ErasureMode.HARDENED


def test_only_the_recipient_can_read_a_letter() -> None:
    made = send_private(b"hello, Bob", SIGNER, Recipient(BOB.public_key), 2, EPOCH)
    received = receive(made.of, made.encoded, POLICY)
    for key in (DeliveryKey.generate(), KEY, SharedKey(bytes(32)), feed_key(made.of.address.tag)):
        with pytest.raises(Unverified):
            Mailbox(BOB, 2).open(received, key)


def test_the_clear_fields_do_not_reveal_the_sender_of_a_letter_or_group_message() -> None:
    group = Group((GroupSecret.create(),))
    for made in (
        send_private(b"hello", SIGNER, Recipient(BOB.public_key), 2, EPOCH),
        send_group(b"hello", SIGNER, group, 2, EPOCH),
    ):
        assert SIGNER.public_key not in made.encoded
        obj = NATIVE.decode_object(made.encoded)
        assert (obj.sender_pubkey, obj.signature, obj.flags) == (None, None, Flags.NONE)


def test_a_recipient_cannot_readdress_a_letter() -> None:
    carol = DeliveryKey.generate()
    to_bob, to_carol = (Recipient(key.public_key).address(2, EPOCH) for key in (BOB, carol))
    letter = write_letter(to_bob, SIGNER, b"I owe you one")
    assert read_letter(to_bob, letter).sender_pubkey == SIGNER.public_key
    made = publish(letter, to_carol, Recipient(carol.public_key))
    with pytest.raises(Unverified):
        read(Mailbox(carol, 2), made)


@pytest.mark.parametrize("field", ["tag", "namespace", "epoch"])
def test_a_letter_is_valid_only_at_its_address(field: str) -> None:
    address = Address(b"\x09" * 32, 2, EPOCH)
    letter = write_letter(address, SIGNER, b"body")
    others = {
        "tag": replace(address, tag=bytes(32)),
        "namespace": replace(address, namespace=7),
        "epoch": replace(address, epoch=7),
    }
    other = others[field]
    with pytest.raises(Unverified):
        read_letter(other, letter)


@given(st.binary(max_size=200))
def test_a_letter_is_no_longer_than_it_says(body: bytes) -> None:
    address = Address(b"\x09" * 32, 2, EPOCH)
    letter = write_letter(address, SIGNER, body)
    assert len(letter) <= len(body) + LETTER_BYTES
    assert read_letter(address, letter).body == body


@pytest.mark.parametrize("payload", [b"", b"\x83", b"\x82\x40\x40", b"plain text"])
def test_an_invalid_letter_is_rejected(payload: bytes) -> None:
    with pytest.raises(Malformed):
        read_letter(Address(bytes(32), 2, EPOCH), payload)


@pytest.mark.parametrize(
    ("sent_into", "read_into"), [(-1, 3_598), (-3_599, 0), (0, -3_600), (3_599, -1), (40_000, 40_000)]
)
def test_letters_and_group_messages_arrive_across_an_epoch_boundary(sent_into: int, read_into: int) -> None:
    boundary = 20_000 * EPOCH_SECONDS
    epoch = Epochs().at(boundary + sent_into)
    group = Group((GroupSecret.create(),))
    letter = send_private(b"now", SIGNER, Recipient(BOB.public_key), 2, epoch)
    said = send_group(b"now", SIGNER, group, 2, epoch)
    assert read(Mailbox(BOB, 2), letter, boundary + read_into).payload == b"now"
    assert read(GroupChannel(group, 2), said, boundary + read_into).payload == b"now"


def test_a_tag_of_the_previous_epoch_is_not_requested_at_noon() -> None:
    made = send_private(b"late", SIGNER, Recipient(BOB.public_key), 2, EPOCH - 1)
    assert made.of.address.tag not in Mailbox(BOB, 2).keys(NOW)


def test_group_members_read_each_other_and_know_the_sender() -> None:
    group = Group((GroupSecret.create(),))
    opened = read(GroupChannel(group, 40), send_group(b"hello", SIGNER, group, 40, EPOCH))
    assert (opened.payload, opened.sender_pubkey) == (b"hello", SIGNER.public_key)


def test_a_member_without_the_new_secret_cannot_read() -> None:
    old = Group((GroupSecret.create(),))
    new = old.adopt(old.newest.rotate())
    made = send_group(b"without you", SIGNER, new, 40, EPOCH)
    assert made.of.address.tag not in GroupChannel(old, 40).keys(NOW)
    with pytest.raises(Unverified):
        GroupChannel(old, 40).open(receive(made.of, made.encoded, POLICY), old.newest.key())
    assert read(GroupChannel(new, 40), made).payload == b"without you"


def test_a_letter_carries_a_new_group_secret() -> None:
    old = Group((GroupSecret.create(),))
    share = old.newest.rotate()
    made = send_private(share.encode(), SIGNER, Recipient(BOB.public_key), 2, EPOCH)
    assert old.adopt(GroupSecret.decode(read(Mailbox(BOB, 2), made).payload)).newest == share


def test_objects_in_flight_during_a_rotation_stay_readable() -> None:
    group = Group((GroupSecret.create(),))
    made = send_group(b"before", SIGNER, group, 40, EPOCH)
    later = group
    for _ in range(MAX_GROUP_GENERATIONS - 1):
        later = later.adopt(later.newest.ratchet())
        assert read(GroupChannel(later, 40), made).payload == b"before"
    later = later.adopt(later.newest.ratchet())
    assert made.of.address.tag not in GroupChannel(later, 40).keys(NOW)


def test_all_members_ratchet_to_the_same_secret_and_cannot_go_back() -> None:
    first = GroupSecret(b"\x01" * 32, 0, b"\x02" * 32)
    second = first.ratchet()
    assert second == GroupSecret(b"\x01" * 32, 0, b"\x02" * 32).ratchet()
    assert second.generation == 1
    assert len({first.secret, second.secret, first.locator(), second.locator(), first.rotate().secret}) == 5


def test_group_tags_reveal_nothing_about_the_group() -> None:
    one, two = GroupSecret(b"\x01" * 32, 0, b"\x02" * 32), GroupSecret(b"\x01" * 32, 0, b"\x03" * 32)
    tags = [secret.address(40, epoch).tag for secret in (one, two, one.ratchet()) for epoch in (1, 2)]
    assert len(set(tags)) == 6


@pytest.mark.parametrize(
    "secret",
    [
        GroupSecret(b"\x09" * 32, 9, bytes(32)),
        GroupSecret(b"\x01" * 32, 5, b"\x03" * 32),
        GroupSecret(b"\x01" * 32, 4, b"\x02" * 32),
    ],
    ids=["another group", "another secret of the same generation", "older"],
)
def test_a_group_adopts_only_newer_generations(secret: GroupSecret) -> None:
    group = Group((GroupSecret(b"\x01" * 32, 5, b"\x02" * 32),))
    assert group.adopt(group.newest) is group
    with pytest.raises(Refused):
        group.adopt(secret)


@given(st.binary(min_size=32, max_size=32), st.integers(0, MAX_UINT32), st.binary(min_size=32, max_size=32))
def test_a_group_secret_is_read_as_it_was_written_and_not_shown(
    group_id: bytes, generation: int, secret: bytes
) -> None:
    share = GroupSecret(group_id, generation, secret)
    assert GroupSecret.decode(share.encode()) == share
    assert "secret=" not in repr(share)


@pytest.mark.parametrize(
    "bad", [(b"", 0, bytes(32)), (bytes(32), -1, bytes(32)), (bytes(32), 1 << 32, bytes(32)), (bytes(32), 0, b"")]
)
def test_a_group_secret_that_could_not_be_written_is_refused(bad: tuple[bytes, int, bytes]) -> None:
    with pytest.raises(Malformed):
        GroupSecret(*bad)


def test_private_delivery_is_the_hpke_of_another_library() -> None:
    recipient = Recipient(BOB.public_key)
    address = recipient.address(2, EPOCH)
    sealed = recipient.seal(address, NONCE, b"body")
    suite = CipherSuite.new(KEMId.DHKEM_X25519_HKDF_SHA256, KDFId.HKDF_SHA256, AEADId.CHACHA20_POLY1305)
    secret = suite.kem.deserialize_private_key(BOB.secret)
    context = suite.create_recipient_context(sealed[:32], secret, info=b"veil private v1" + address.aad())
    content_key = context.open(sealed[32:WRAPPED_BYTES])
    assert SharedKey(content_key).open(address, NONCE, sealed[WRAPPED_BYTES:]) == b"body"


def test_an_object_is_refused_where_its_shards_name_another_address() -> None:
    made = publish_feed(b"hello", SIGNER, 1, EPOCH)
    for other in (replace(made.of.address, epoch=1), replace(made.of.address, tag=bytes(32))):
        with pytest.raises(Malformed):
            receive(replace(made.of, address=other), made.encoded, POLICY)
