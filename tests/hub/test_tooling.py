"""The tooling endpoints over real HTTP: answers, rejections, and verification of what they return."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hub.client import (
    PATIENCE_S,
    START,
    Clock,
    Hub,
    Reply,
    encoded_with,
    make_dir,
    running,
    until,
)
from tests.hub.disks import QuickDisk
from tests.hub.subscriber import Subscriber
from veen.core import Limits, Malformed, Profile, Receipt, Unavailable, Unverified, naming, proof, wire_json
from veen.core.envelopes import (
    ConsistencyRequest,
    ErrorEnvelope,
    ProofAtRequest,
    ProofAtResponse,
    StreamRequest,
    StreamResponse,
)
from veen.core.hashing import h
from veen.core.limits import MAX_PAGE_ITEMS, SERVER_VERSION
from veen.core.proof import Leaf
from veen.hub.admission_rules import Admission
from veen.hub.config import HubConfig
from veen.hub.service import HubService

INTERVAL = 4
LIMITS = Limits(max_checkpoint_interval=INTERVAL, max_attachment_bytes=1000)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with running(make_dir(tmp_path, limits=LIMITS), disk=QuickDisk()) as found:
        yield found


def code_of(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.error().code


# Status and probes.


def test_status_says_what_a_client_needs(hub: Hub) -> None:
    hub.writer("a").send_many(2)
    hub.writer("b").send()
    status, service = hub.status(), hub.service
    identity = service.hub_metadata.identity
    assert status["hub_id"] == identity.hub_id.hex()
    assert status["hub_pk"] == identity.newest.hub_pk.hex()
    assert status["key_id"] == naming.key_id(identity.newest.hub_pk).hex()
    assert status["profile"] == wire_json.to_json(service.rules.profile)
    assert status["profile_id"] == service.rules.profile.profile_id().hex()
    assert (status["epoch"], status["hub_ts"]) == (0, START)
    assert status["limits"] == wire_json.to_json(LIMITS)
    assert status["admission"] == "open"
    assert status["server_version"] == SERVER_VERSION
    assert (status["labels"], status["entries"]) == (2, 3)


def test_status_follows_the_epoch(tmp_path: Path) -> None:
    clock = Clock()
    with running(make_dir(tmp_path, Profile(epoch_sec=60)), clock) as hub:
        clock.now += 600
        assert hub.status()["epoch"] == (START + 600) // 60


def test_status_time_does_not_go_back_behind_a_receipt(tmp_path: Path) -> None:
    clock = Clock(START + 100)
    data_dir = make_dir(tmp_path)
    with running(data_dir, clock) as hub:
        hub.writer().send()
        clock.now = START + 50
        assert hub.status()["hub_ts"] == START + 100
    with running(data_dir, clock) as hub:
        assert hub.status()["hub_ts"] == START + 100


# Later proofs.


def test_any_entry_is_proved_in_any_later_tree(hub: Hub) -> None:
    writer = hub.writer()
    receipts = writer.send_many(9)
    for leaf in receipts:
        for head in receipts[leaf.stream_seq - 1 :]:
            request = ProofAtRequest(writer.label, leaf.stream_seq, head.stream_seq)
            found = hub.post("/tooling/proof", request).read(ProofAtResponse).mmr_proof
            proof.verify_inclusion(found, Leaf.of(leaf), head)
    assert hub.post_json("/tooling/proof", request).read(ProofAtResponse).mmr_proof == found


def test_any_tree_is_proved_a_prefix_of_any_later_one(hub: Hub) -> None:
    writer = hub.writer()
    receipts = writer.send_many(9)
    for old in receipts:
        for new in receipts[old.stream_seq - 1 :]:
            request = ConsistencyRequest(writer.label, old.stream_seq, new.stream_seq)
            found = hub.post("/tooling/consistency", request).read(ProofAtResponse).mmr_proof
            proof.verify_consistency(found, old, new)
            if old is not new:
                forged = replace(old, mmr_root=h(old.mmr_root))
                with pytest.raises(Unverified):
                    proof.verify_consistency(found, forged, new)
    assert hub.post_json("/tooling/consistency", request).read(ProofAtResponse).mmr_proof == found


def test_a_later_proof_has_its_two_keys_and_no_other(hub: Hub) -> None:
    label = hub.writer().send_many(2)[-1].label
    for path, request in (("proof", ProofAtRequest(label, 1, 2)), ("consistency", ConsistencyRequest(label, 1, 2))):
        found = hub.post(f"/tooling/{path}", request).read(ProofAtResponse)
        assert found.encode()[0] == 0xA2
        assert hub.post_json(f"/tooling/{path}", request).json().keys() == {"ver", "mmr_proof"}
        with pytest.raises(Malformed):
            ProofAtResponse.decode(b"\xa3" + found.encode()[1:] + b"\x03\x650.0.1")


def test_proofs_that_cannot_be_are_refused(hub: Hub) -> None:
    writer = hub.writer()
    writer.send_many(3)
    for path, cls in (("proof", ProofAtRequest), ("consistency", ConsistencyRequest)):
        assert code_of(hub.post(f"/tooling/{path}", cls(writer.label, 3, 2))) == (400, "E.BAD_REQUEST")
        assert code_of(hub.post(f"/tooling/{path}", cls(writer.label, 1, 4))) == (404, "E.NOT_FOUND")
        assert code_of(hub.post(f"/tooling/{path}", cls(bytes(32), 1, 1))) == (404, "E.NOT_FOUND")


# Batches.


def shown(found: list[Receipt | ErrorEnvelope]) -> list[int | str | None]:
    """Places and detail_enums."""
    return [item.stream_seq if isinstance(item, Receipt) else item.refused().detail_enum for item in found]


def batch(hub: Hub, *items: bytes) -> list[int | str | None]:
    return shown(hub.batch(*items))


def test_a_batch_is_answered_in_its_order(hub: Hub) -> None:
    writer, other = hub.writer("a"), hub.writer("b")
    items = [item for pair in zip(writer.next_messages(5), other.next_messages(5), strict=True) for item in pair]
    found = hub.batch(*items)
    assert shown(found) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    for item in found:
        assert isinstance(item, Receipt)
        item.verify_signature(hub.hub_pk)
    assert {item.label for item in found[::2] if isinstance(item, Receipt)} == {writer.label}


def test_an_empty_batch_has_an_empty_answer(hub: Hub) -> None:
    assert batch(hub) == []


def test_each_message_of_a_batch_is_judged_by_itself(hub: Hub) -> None:
    writer, other = hub.writer("a"), hub.writer("a")
    first, second, third = writer.next_messages(3)
    good = other.next_messages(1)[0]
    bad_sig = replace(other.message(), sig=bytes(64)).encode()
    assert batch(hub, first, bad_sig, good, third, second) == [1, "SIG_INVALID", 2, "CLIENT_SEQ", 3]


@pytest.mark.parametrize(
    ("name", "bad", "detail"),
    [
        ("another CBOR item", b"\x65hello", "CBOR_INVALID"),
        ("an empty array", b"\x80", "CBOR_INVALID"),
        ("a map", b"\xa1\x01\x02", "CBOR_INVALID"),
    ],
)
def test_what_is_no_message_does_not_disturb_the_others(hub: Hub, name: str, bad: bytes, detail: str) -> None:
    first, second = hub.writer().next_messages(2)
    assert batch(hub, first, bad, second) == [1, detail, 2]


@pytest.mark.parametrize("fault", ["FIELD_SIZE", "VERSION", "PROFILE", "CT_HASH"])
def test_a_structural_fault_does_not_disturb_the_others(hub: Hub, fault: str) -> None:
    first, second = hub.writer().next_messages(2)
    victim = hub.writer().message()
    bad = {
        "FIELD_SIZE": encoded_with(victim, label=b"\x58\x1f" + bytes(31)),
        "VERSION": b"\x8a\x02" + victim.encode()[2:],
        "PROFILE": replace(victim, profile_id=bytes(32)).encode(),
        "CT_HASH": replace(victim, ct_hash=bytes(32)).encode(),
    }[fault]
    assert batch(hub, first, bad, second) == [1, fault, 2]


def test_behind_what_is_no_cbor_nothing_can_be_found(hub: Hub) -> None:
    first, second = hub.writer().next_messages(2)
    assert batch(hub, first, b"\xff", second) == [1, "CBOR_INVALID"]
    assert batch(hub, second[:-1]) == ["CBOR_INVALID"]
    assert batch(hub, second) == [2]


def test_a_batch_has_a_largest_size(hub: Hub) -> None:
    writer = hub.writer()
    assert code_of(hub.post("/tooling/submit-batch", b"\x80" * (MAX_PAGE_ITEMS + 1))) == (413, "E.LIMIT")
    assert batch(hub, b"\x80" * MAX_PAGE_ITEMS) == ["CBOR_INVALID"] * MAX_PAGE_ITEMS
    assert writer.send().stream_seq == 1


def test_a_batch_goes_by_the_same_rules(tmp_path: Path) -> None:
    with running(make_dir(tmp_path), admission=Admission.CAPABILITY) as hub:
        granted = hub.granted()
        assert batch(hub, hub.writer().message().encode(), *granted.next_messages(2)) == ["CAP_MISSING", 1, 2]


# Subscriptions.


def test_a_subscriber_gets_the_backlog_and_then_what_comes(hub: Hub) -> None:
    writer = hub.writer()
    sent = writer.send_many(70)
    with Subscriber(hub, f"label={writer.label.hex()}&from=1") as subscriber:
        got = subscriber.items(70)
        assert [item.stream_seq for item in got] == list(range(1, 71))
        assert [item.receipt for item in got] == sent
        live = writer.send()
        item = subscriber.item()
        assert item.receipt == live
        page = hub.post("/v1/stream", StreamRequest(writer.label, 71)).read(StreamResponse)
        assert item.msg == page.items[0].msg


def test_a_subscriber_starts_where_it_wants(hub: Hub) -> None:
    writer = hub.writer()
    writer.send_many(3)
    with Subscriber(hub, f"label={writer.label.hex()}&from=3") as late:
        assert late.item().stream_seq == 3
    with Subscriber(hub, f"label={writer.label.hex()}&from=5") as later:
        writer.send_many(2)
        assert later.item().stream_seq == 5
    with Subscriber(hub, f"label={writer.label.hex()}") as whole:
        assert [item.stream_seq for item in whole.items(5)] == [1, 2, 3, 4, 5]


def test_a_subscriber_of_a_label_to_come_gets_its_first_entry(hub: Hub) -> None:
    writer = hub.writer("to come")
    with Subscriber(hub, f"label={writer.label.hex()}&from=1") as subscriber:
        hub.writer("something else").send()
        sent = writer.send()
        assert subscriber.item().receipt == sent


def test_several_subscribers_each_get_everything(hub: Hub) -> None:
    writer, other = hub.writer("a"), hub.writer("b")
    query = f"label={writer.label.hex()}&from=1"
    with Subscriber(hub, query) as one, Subscriber(hub, query) as two, Subscriber(hub, query) as three:
        for _ in range(10):
            writer.send()
            other.send()
        for subscriber in (one, two, three):
            assert [item.stream_seq for item in subscriber.items(10)] == list(range(1, 11))


def test_a_slow_subscriber_delays_no_one_and_misses_nothing(hub: Hub) -> None:
    writer = hub.writer()
    query = f"label={writer.label.hex()}&from=1"
    count, body = 60, bytes(100_000)
    with Subscriber(hub, query, receive_bytes=4096) as slow, Subscriber(hub, query) as quick:
        for _ in range(count):
            writer.send(body)
        assert [item.stream_seq for item in quick.items(count)] == list(range(1, count + 1))
        assert [item.stream_seq for item in slow.items(count)] == list(range(1, count + 1))
        writer.send()
        assert slow.item().stream_seq == count + 1


def test_a_subscriber_that_closes_is_removed(hub: Hub) -> None:
    writer = hub.writer()
    with Subscriber(hub, f"label={writer.label.hex()}&from=1") as subscriber:
        writer.send()
        subscriber.item()
        assert hub.service._subscriptions.count == 1
    until(lambda: bool(writer.send()) and not hub.service._subscriptions.count)


def test_a_subscriber_gets_a_close_code_when_the_hub_stops(tmp_path: Path) -> None:
    hub = Hub(make_dir(tmp_path), settings={"admission": Admission.OPEN}).start()
    label = hub.label("s").hex()
    with Subscriber(hub, f"label={label}&from=1") as subscriber, ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(hub.stop)
        assert subscriber.close_code() == 1001
        stopping.result(PATIENCE_S)


@pytest.mark.parametrize(
    "query", ["", "label=00", f"label={'0' * 64}&from=0", f"label={'0' * 64}&from=x", f"label={'A' * 64}", "from=1"]
)
def test_a_subscription_to_nothing_is_refused(hub: Hub, query: str) -> None:
    status, body = Subscriber(hub, query).refusal()
    assert (status, ErrorEnvelope.decode(body).code) == (400, "E.BAD_REQUEST")


# Permission.


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "2001:db8::1"])
def test_open_admission_on_other_addresses_needs_confirmation(tmp_path: Path, host: str) -> None:
    config = HubConfig(make_dir(tmp_path), host=host, port=0, admission=Admission.OPEN)
    with pytest.raises(Unavailable) as caught:
        HubService(config)
    assert "lets everyone" in str(caught.value)
    assert "--open-to-the-network" in str(caught.value)
    replace(config, open_to_the_network=True).check()
    replace(config, admission=Admission.CAPABILITY).check()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_open_admission_on_loopback_needs_no_confirmation(host: str) -> None:
    HubConfig(Path("anywhere"), host=host, admission=Admission.OPEN).check()


def test_the_defaults_are_the_careful_ones() -> None:
    config = HubConfig(Path("anywhere"))
    assert (config.host, config.admission, config.open_to_the_network) == ("127.0.0.1", Admission.CAPABILITY, False)
    assert (config.issuers, config.witnesses, config.operator_token) == (frozenset(), frozenset(), None)
