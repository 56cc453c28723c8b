"""Defects found in another implementation of the specification; these tests fail there.

`BEHAVIOURS` lists each defect with the tests that rule it out here, many of them in other files.
"""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tests.veil.builders import ADDRESS, KEY, SIGNER, corrupted, pattern, published, restore
from veil import (
    NATIVE,
    Batcher,
    Channel,
    DeliveryKey,
    Epochs,
    ErasureMode,
    Feed,
    Flags,
    Group,
    GroupChannel,
    GroupSecret,
    Inbox,
    Mailbox,
    Malformed,
    NamespacePolicy,
    Recipient,
    Unverified,
    batch_payload,
    open_object,
    publish,
    publish_feed,
    receive,
    send_group,
    send_private,
)
from veil.assembly import batch_target, encode_shards, overhead
from veil.hashing import h
from veil.veil_limits import CACHE_TTL_SECONDS, EPOCH_SECONDS, KIB, TARGET_BATCH_BYTES

BEHAVIOURS: dict[str, dict[str, tuple[str, ...]]] = {
    "a relay without the key stops at the k-th shard": {
        "node/test_forwarding.py": (
            "test_a_relay_without_the_key_forwards_enough_shards_of_an_object",
            "test_two_nodes_communicate_through_a_relay_without_keys",
        ),
    },
    "shards that arrive after delivery are kept forever": {
        "test_defects.py": ("test_shards_that_come_after_delivery_leave_nothing_behind",),
        "node/test_defects.py": ("test_memory_is_flat_over_a_hundred_thousand_objects_of_k_to_n_shards",),
    },
    "one false shard blocks an object": {
        "test_defects.py": ("test_a_false_shard_with_a_known_root_blocks_nothing",),
        "node/test_poison.py": ("test_poison_at_every_index_does_not_block_an_object",),
    },
    "no shards are held back for escalation, and only the first parcel escalates": {
        "node/test_outbox.py": (
            "test_the_first_wave_holds_back_shards_from_every_peer_in_every_profile",
            "test_every_parcel_escalates_and_not_only_the_first",
            "test_a_feed_message_cannot_request_an_acknowledgement",
        ),
    },
    "replicas are never counted, and summaries are dropped": {
        "node/test_forwarding.py": ("test_duplicates_raise_the_count_of_replicas_once_for_each_peer",),
        "node/test_cache.py": (
            "test_inventories_and_summaries_raise_the_count_of_replicas_like_duplicates_do",
            "test_a_requested_shard_is_kept_longer",
        ),
        "node/test_summaries.py": ("test_a_summary_is_answered_with_exactly_the_missing_objects",),
    },
    "full batches cannot be published, and oversized messages are queued and then dropped": {
        "test_defects.py": ("test_a_full_batch_of_96_kib_can_be_published",),
        "node/test_outbox.py": ("test_the_largest_payload_is_sent_and_one_byte_more_is_rejected_by_publish",),
    },
    "only holders of the same secret can read": {
        "test_defects.py": ("test_other_identities_can_read_sent_objects",),
        "node/test_defects.py": ("test_another_identity_reads_what_a_node_publishes",),
    },
    "one frame is processed per tick": {
        "node/test_defects.py": ("test_every_frame_is_processed_on_arrival_and_not_one_per_tick",),
    },
    "an absent peer gets all shards, and dead peers stay listed": {
        "node/test_defects.py": (
            "test_a_silent_peer_gets_only_a_small_share_of_shards",
            "test_a_disconnected_peer_gets_nothing_and_is_not_listed",
        ),
    },
    "messages published offline are dropped, and `sent` means queued": {
        "node/test_outbox.py": (
            "test_a_message_published_offline_is_delivered_days_later",
            "test_sent_means_that_a_peer_has_it_and_not_that_it_was_written_to_a_socket",
        ),
    },
    "the returned root is never on the wire, and policy settings are ignored": {
        "test_defects.py": ("test_the_root_that_publishing_returns_is_the_root_on_the_wire",),
        "node/test_outbox.py": ("test_the_root_that_publishing_returns_is_the_root_that_is_delivered",),
        "node/test_trust.py": ("test_a_changed_tier_applies_to_a_connected_peer_at_once",),
        "test_api_hosts.py": ("test_a_tier_applies_whichever_node_dialled",),
    },
    "a root confirms a guess, lifetimes are ticks, and epochs, contacts and endorsements are not checked": {
        "test_defects.py": (
            "test_no_root_confirms_a_guess_of_the_payload",
            "test_a_lifetime_is_in_seconds_not_in_steps_of_a_loop",
            "test_an_implausible_epoch_is_detected",
        ),
        "test_channels.py": ("test_the_clear_fields_do_not_reveal_the_sender_of_a_letter_or_group_message",),
        "node/test_forwarding.py": ("test_shards_received_before_a_subscription_are_used_by_it",),
        "test_lanes_endpoints.py": (
            "test_a_contact_signed_by_another_is_refused",
            "test_a_contact_beyond_a_bound_is_rejected",
        ),
        "node/test_trust.py": ("test_an_endorsement_in_another_namespace_does_not_count",),
    },
    "programs use removed names, defaults differ from the documented ones, and frames to no peer count as sent": {
        "test_rot.py": (
            "test_every_module_imports_and_defines_its_public_names",
            "test_types_are_checked_of_every_program_measurement_and_test",
            "test_a_node_with_default_settings_listens_only_for_its_owner",
            "test_a_message_to_an_absent_peer_stays_queued_and_is_not_reported_as_sent",
        ),
    },
}
POLICY = NamespacePolicy()
EPOCH = 20_000
NOW = EPOCH * EPOCH_SECONDS + 40_000


def test_thirteen_behaviours_have_tests_and_the_tests_are_there() -> None:
    assert len(BEHAVIOURS) == 13
    for name, claims in [pair for where in BEHAVIOURS.values() for pair in where.items()]:
        tree = ast.parse((Path(__file__).parent / name).read_text("utf-8"))
        assert set(claims) <= {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}, name


def test_forwarding_needs_no_key() -> None:
    """Otherwise a relay without the key would stop at the k-th shard."""
    made = send_private(b"not for you", SIGNER, Recipient(DeliveryKey.generate().public_key), 2, EPOCH)
    for index, data in enumerate(made.shards):
        shard = NATIVE.decode_shard(data)
        assert (shard.of, shard.index) == (made.of, index)
        assert NATIVE.shard_id(data) == h(data)


def test_a_relay_without_the_key_can_restore_an_object_and_serve_all_shards() -> None:
    made = send_private(b"not for you", SIGNER, Recipient(DeliveryKey.generate().public_key), 2, EPOCH)
    found = restore(made.of, made.shards[1:])
    assert found is not None
    receive(found.of, found.encoded, POLICY)
    assert encode_shards(found.of, found.encoded) == made.shards


def test_shards_that_come_after_delivery_leave_nothing_behind() -> None:
    inbox = Inbox(NATIVE)
    for number in range(50):
        made = publish(b"%d" % number, ADDRESS, KEY)
        for times in range(1, 4):
            found = [inbox.add(NATIVE.decode_shard(shard), number) for shard in made.shards]
            assert sum(one is not None for one in found) == (times == 1)
            assert (len(inbox), inbox.held_bytes) == (0, 0)
    inbox.expire(50 + CACHE_TTL_SECONDS)
    assert inbox.done_count == 0


def test_a_false_shard_with_a_known_root_blocks_nothing() -> None:
    made = published()
    inbox = Inbox(NATIVE)
    good = [NATIVE.decode_shard(shard) for shard in made.shards]
    other_header = replace(good[0], of=replace(made.of, address=replace(made.of.address, epoch=1)))
    bad_bytes = NATIVE.decode_shard(corrupted(made.shards[1]))
    assert [inbox.add(shard, 0) for shard in (other_header, bad_bytes)] == [None, None]
    found = [inbox.add(shard, 0) for shard in good[2 : made.of.shape.k + 2]]
    assert found[-1] is not None
    assert found[-1].encoded == made.encoded


def test_a_full_batch_of_96_kib_can_be_published() -> None:
    for target in (TARGET_BATCH_BYTES, batch_target(ADDRESS, ErasureMode.HARDENED)):
        batcher = Batcher(overhead(ADDRESS, KEY, signed=True), target)
        while not batcher.full:
            batcher.add(b"\xff" * KIB)
        payload, flags = batch_payload(batcher.take())
        made = publish(payload, ADDRESS, KEY, flags=flags, signer=SIGNER)
        opened = open_object(receive(made.of, made.encoded, POLICY), KEY)
        assert len(opened.items) >= 94
        assert {len(shard) for shard in made.shards} == {made.of.shape.bucket_size}


def test_the_sent_size_depends_only_on_the_shape() -> None:
    lengths = {
        sum(map(len, publish(byte * 60_000, ADDRESS, KEY).shards)) for byte in (b"\x00", b"\x17", b"\x18", b"\xff")
    }
    assert lengths == {10 * 16 * KIB}


@pytest.mark.parametrize("kind", ["feed", "private", "group"])
def test_other_identities_can_read_sent_objects(kind: str) -> None:
    bob, group = DeliveryKey.generate(), Group((GroupSecret.create(),))
    channels: dict[str, Channel] = {
        "feed": Feed.of(SIGNER.public_key, 1),
        "private": Mailbox(bob, 2),
        "group": GroupChannel(group, 40),
    }
    channel = channels[kind]
    made = {
        "feed": lambda: publish_feed(b"hello", SIGNER, 1, EPOCH),
        "private": lambda: send_private(b"hello", SIGNER, Recipient(bob.public_key), 2, EPOCH),
        "group": lambda: send_group(b"hello", SIGNER, group, 40, EPOCH),
    }[kind]()
    opened = channel.open(receive(made.of, made.encoded, POLICY), channel.keys(NOW)[made.of.address.tag])
    assert (opened.payload, opened.sender_pubkey) == (b"hello", SIGNER.public_key)


def test_the_root_that_publishing_returns_is_the_root_on_the_wire() -> None:
    made = publish_feed(b"hello", SIGNER, 1, EPOCH)
    assert {NATIVE.decode_shard(shard).of.object_root for shard in made.shards} == {made.object_root}
    assert made.object_root == h(made.encoded)


def test_no_root_confirms_a_guess_of_the_payload() -> None:
    """Two objects with the same payload, key and address share only the address."""
    one, two = (publish(b"yes", ADDRESS, KEY) for _ in range(2))
    assert one.object_root != two.object_root
    for made in (one, two):
        for guess in (h(b"yes"), h(b"yes\x80")):
            assert guess not in made.encoded
            assert guess != made.object_root


def test_an_object_with_another_root_or_address_than_its_shards_is_refused() -> None:
    made = published()
    payloads = {shard.index: shard.payload for shard in map(NATIVE.decode_shard, made.shards[: made.of.shape.k])}
    with pytest.raises(Unverified):
        NATIVE.restore(replace(made.of, object_root=bytes(32)), payloads)
    with pytest.raises(Malformed):
        receive(replace(made.of, address=replace(ADDRESS, namespace=7)), made.encoded, POLICY)


def test_an_implausible_epoch_is_detected() -> None:
    assert Epochs().plausible(EPOCH, NOW)
    assert not Epochs().plausible(EPOCH + 2, NOW)
    assert not Epochs().plausible(EPOCH - 30, NOW)


def test_a_lifetime_is_in_seconds_not_in_steps_of_a_loop() -> None:
    inbox = Inbox(NATIVE)
    made = published()
    inbox.add(NATIVE.decode_shard(made.shards[0]), 0)
    for _ in range(20_000):
        inbox.expire(CACHE_TTL_SECONDS - 1)
    assert len(inbox) == 1
    assert CACHE_TTL_SECONDS == 90 * 60


def test_the_sent_length_does_not_reveal_the_padding() -> None:
    lengths = [[len(shard) for shard in publish(pattern(size), ADDRESS, KEY).shards] for size in range(0, 3_000, 211)]
    assert all(length == lengths[0] for length in lengths)
    assert Flags.SIGNED not in NATIVE.decode_object(published().encoded).flags
