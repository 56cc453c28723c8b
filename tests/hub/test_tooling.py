"""The tooling endpoints over real HTTP: what they answer, whom they refuse, and that verification holds."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.hub.client import (
    PATIENCE_S,
    START,
    TOKEN,
    WITNESS,
    Clock,
    Hub,
    Reply,
    Writer,
    encoded_with,
    make_dir,
    running,
    until,
)
from tests.hub.disks import NoLogDisk, QuickDisk
from tests.hub.subscriber import Subscriber
from veen.core import (
    Checkpoint,
    Limits,
    Profile,
    Rate,
    Receipt,
    SigningKey,
    Unavailable,
    Unverified,
    captoken,
    jsonform,
    naming,
    proof,
    receipt,
)
from veen.core.aead import TAG_BYTES
from veen.core.envelopes import (
    ErrorEnvelope,
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
    StreamRequest,
    StreamResponse,
)
from veen.core.hashing import h
from veen.core.limits import MAX_PAGE_ITEMS, SERVER_VERSION
from veen.core.proof import Leaf
from veen.core.tooling import CheckpointList, ConsistencyRequest, Equivocation, ProofAtRequest, WitnessRequest
from veen.hub.config import HubConfig
from veen.hub.rules import Admission
from veen.hub.service import HubService
from veen.storage import directory
from veen.storage.folders import Folders

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
    identity = service.papers.identity
    assert status["hub_id"] == identity.hub_id.hex()
    assert status["hub_pk"] == identity.newest.hub_pk.hex()
    assert status["key_id"] == naming.key_id(identity.newest.hub_pk).hex()
    assert status["profile"] == jsonform.to_json(service.rules.profile)
    assert status["profile_id"] == service.rules.profile.profile_id().hex()
    assert (status["epoch"], status["hub_ts"]) == (0, START)
    assert status["limits"] == asdict(LIMITS)
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


def test_a_live_hub_is_healthy_and_ready(hub: Hub) -> None:
    health = hub.get("/healthz").json()
    assert health["ok"] is True
    assert health["profile_id"] == hub.service.rules.profile_id.hex()
    assert hub.get("/readyz").json()["ready"] is True


def test_a_hub_whose_log_cannot_be_written_is_alive_and_not_ready(tmp_path: Path) -> None:
    disk = NoLogDisk()
    with running(make_dir(tmp_path), disk=disk) as hub:
        hub.writer().send()
        # The log catches up within half a second; asking again is all there is to wait for.
        until(lambda: hub.get("/readyz").status == 503)
        assert "No space left" in hub.get("/readyz").json(503)["reason"]
        assert hub.get("/healthz").status == 200
        assert "No space left" in hub.status()["trouble"]
        # What is durable is still answered for, and the journal takes more.
        hub.writer("other").send()
        disk.full = False
        until(lambda: hub.get("/readyz").status == 200)
        assert hub.status()["trouble"] == ""


METRICS = {
    "veen_submit_ok_total": "counter",
    "veen_submit_err_total": "counter",
    "veen_verify_latency_ms": "histogram",
    "veen_commit_latency_ms": "histogram",
    "veen_end_to_end_latency_ms": "histogram",
    "veen_queue_depth": "gauge",
    "veen_rate_limited_total": "counter",
    "veen_checkpoint_interval": "histogram",
    "veen_anchor_fail_total": "counter",
    "veen_fsync_latency_ms": "histogram",
    "veen_group_size": "histogram",
    "veen_proof_latency_ms": "histogram",
    "veen_journal_bytes": "gauge",
}


def metrics(hub: Hub) -> tuple[dict[str, str], dict[str, float]]:
    """The types and the samples of /metrics."""
    reply = hub.get("/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = reply.body.decode().splitlines()
    types = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE"))
    samples = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}
    return types, samples


def test_metrics_have_the_agreed_names_and_count_what_happened(hub: Hub) -> None:
    writer = hub.writer()
    writer.send_many(3)
    hub.submit(writer.message(client_seq=9))
    types, samples = metrics(hub)
    assert {name: types.get(name) for name in METRICS} == METRICS
    assert samples["veen_submit_ok_total"] == 3
    assert samples['veen_submit_err_total{code="E.SEQ",detail_enum="CLIENT_SEQ"}'] == 1
    assert samples["veen_verify_latency_ms_count"] == 4
    assert samples["veen_end_to_end_latency_ms_count"] == 3
    assert samples["veen_fsync_latency_ms_count"] == 3
    assert samples["veen_group_size_sum"] == 3
    assert samples["veen_queue_depth"] == 0
    assert samples["veen_journal_bytes"] > 0


def test_metrics_count_what_never_became_a_message(hub: Hub) -> None:
    hub.post("/v1/submit", b"")
    hub.post_json("/v1/submit", b"{")
    hub.post("/v1/submit", bytes(hub.service.rules.limits.max_msg_bytes + 5))
    hub.post("/v1/submit", bytes(3 << 20))
    samples = metrics(hub)[1]
    assert samples['veen_submit_err_total{code="E.FORMAT",detail_enum="CBOR_INVALID"}'] == 2
    assert samples['veen_submit_err_total{code="E.SIZE",detail_enum="SIZE_PREFILTER"}'] == 2


def test_metrics_time_proofs(hub: Hub) -> None:
    writer = hub.writer()
    writer.send()
    hub.post("/v1/proof", ProofRequest(writer.label, 1)).read(ProofResponse)
    assert metrics(hub)[1]["veen_proof_latency_ms_count"] == 1


def test_metrics_count_entries_between_checkpoints(tmp_path: Path) -> None:
    with running(make_dir(tmp_path, limits=LIMITS)) as hub:
        writer = hub.writer()
        writer.send_many(INTERVAL)
        until(lambda: bool(listed(hub, writer.label)))
        assert metrics(hub)[1]["veen_checkpoint_interval_count"] == 1


def test_metrics_count_rate_refusals(tmp_path: Path) -> None:
    with running(make_dir(tmp_path), admission=Admission.CAPABILITY) as hub:
        writer = hub.granted(rate=Rate(1, 1))
        writer.send()
        hub.submit(writer.message())
        assert metrics(hub)[1]["veen_rate_limited_total"] == 1


# Later proofs.


def test_any_entry_is_proved_in_any_later_tree(hub: Hub) -> None:
    writer = hub.writer()
    receipts = writer.send_many(9)
    for leaf in receipts:
        for head in receipts[leaf.stream_seq - 1 :]:
            request = ProofAtRequest(writer.label, leaf.stream_seq, head.stream_seq)
            found = hub.post("/tooling/proof", request).read(ProofResponse).mmr_proof
            proof.verify_inclusion(found, Leaf.of(leaf), head)
    assert hub.post_json("/tooling/proof", request).read(ProofResponse).mmr_proof == found


def test_any_tree_is_proved_a_prefix_of_any_later_one(hub: Hub) -> None:
    writer = hub.writer()
    receipts = writer.send_many(9)
    for old in receipts:
        for new in receipts[old.stream_seq - 1 :]:
            request = ConsistencyRequest(writer.label, old.stream_seq, new.stream_seq)
            found = hub.post("/tooling/consistency", request).read(ProofResponse).mmr_proof
            proof.verify_consistency(found, old, new)
            if old is not new:
                forged = replace(old, mmr_root=h(old.mmr_root))
                with pytest.raises(Unverified):
                    proof.verify_consistency(found, forged, new)
    assert hub.post_json("/tooling/consistency", request).read(ProofResponse).mmr_proof == found


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


def test_a_slow_subscriber_holds_nobody_up_and_misses_nothing(hub: Hub) -> None:
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


def test_a_subscriber_who_leaves_is_forgotten(hub: Hub) -> None:
    writer = hub.writer()
    with Subscriber(hub, f"label={writer.label.hex()}&from=1") as subscriber:
        writer.send()
        subscriber.item()
        assert hub.service._subscriptions.count == 1
    until(lambda: bool(writer.send()) and not hub.service._subscriptions.count)


def test_a_subscriber_is_told_when_the_hub_stops(tmp_path: Path) -> None:
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


# Attachments.


def test_an_attachment_is_kept_under_its_hash(hub: Hub) -> None:
    sealed = b"sealed bytes"
    path = f"/tooling/attachments/{h(sealed).hex()}"
    assert code_of(hub.get(path)) == (404, "E.NOT_FOUND")
    assert hub.ask("PUT", path, sealed).status == 201
    assert hub.ask("PUT", path, sealed).status == 200
    reply = hub.get(path)
    assert (reply.status, reply.body) == (200, sealed)


def test_an_attachment_under_another_name_is_refused(hub: Hub) -> None:
    path = f"/tooling/attachments/{h(b'this').hex()}"
    assert code_of(hub.ask("PUT", path, b"that")) == (400, "E.BAD_REQUEST")
    assert hub.get(path).status == 404


@pytest.mark.parametrize("name", ["", "00", "z" * 64, "A" * 64, "../" * 21 + "x", "0" * 63, "0" * 65])
def test_what_is_no_coid_is_refused(hub: Hub, name: str) -> None:
    assert code_of(hub.get(f"/tooling/attachments/{name}")) == (400, "E.BAD_REQUEST")
    assert code_of(hub.ask("PUT", f"/tooling/attachments/{name}", b"x")) == (400, "E.BAD_REQUEST")


def test_an_attachment_has_a_largest_size(hub: Hub) -> None:
    most = LIMITS.max_attachment_bytes + TAG_BYTES
    for size, status in ((most, 201), (most + 1, 413)):
        sealed = bytes(size)
        reply = hub.ask("PUT", f"/tooling/attachments/{h(sealed).hex()}", sealed)
        assert reply.status == status
    assert reply.error().code == "E.LIMIT"


def test_under_capabilities_attachments_need_the_operator(tmp_path: Path) -> None:
    sealed = b"sealed bytes"
    path = f"/tooling/attachments/{h(sealed).hex()}"
    with running(make_dir(tmp_path), admission=Admission.CAPABILITY) as hub:
        assert code_of(hub.ask("PUT", path, sealed)) == (401, "E.UNAUTHORIZED")
        assert code_of(hub.ask("PUT", path, sealed, authorization="Bearer x")) == (401, "E.UNAUTHORIZED")
        assert hub.ask("PUT", path, sealed, authorization=f"Bearer {TOKEN}").status == 201
        assert hub.get(path).body == sealed


# Checkpoints, witnesses, evidence.


def listed(hub: Hub, label: bytes) -> tuple[Checkpoint, ...]:
    as_json = hub.get(f"/tooling/checkpoints?label={label.hex()}", accept="application/json")
    plain = hub.get(f"/tooling/checkpoints?label={label.hex()}")
    found = plain.read(CheckpointList)
    assert as_json.is_json
    # Asked first, it may know fewer: the log catches up in between.
    before = as_json.read(CheckpointList).checkpoints
    assert found.checkpoints[: len(before)] == before
    assert found.label == label
    return found.checkpoints


@pytest.fixture
def checkpointed(tmp_path: Path) -> Iterator[tuple[Hub, Writer, list[Receipt]]]:
    """A hub whose log has caught up with two regular checkpoints."""
    data_dir = make_dir(tmp_path, limits=LIMITS)
    with running(data_dir) as hub:
        writer = hub.writer()
        receipts = writer.send_many(2 * INTERVAL + 1)
    with running(data_dir) as hub:
        writer.hub = hub
        yield hub, writer, receipts


def test_regular_checkpoints_are_listed_and_verify(checkpointed: tuple[Hub, Writer, list[Receipt]]) -> None:
    hub, writer, receipts = checkpointed
    found = listed(hub, writer.label)
    assert [checkpoint.upto_seq for checkpoint in found] == [INTERVAL, 2 * INTERVAL]
    for checkpoint in found:
        checkpoint.verify_signature(hub.hub_pk)
        assert checkpoint.mmr_root == receipts[checkpoint.upto_seq - 1].mmr_root
    assert listed(hub, bytes(32)) == ()
    assert code_of(hub.get("/tooling/checkpoints?label=x")) == (400, "E.BAD_REQUEST")
    assert code_of(hub.get("/tooling/checkpoints")) == (400, "E.BAD_REQUEST")


def test_a_witness_signature_is_kept_with_its_checkpoint(checkpointed: tuple[Hub, Writer, list[Receipt]]) -> None:
    hub, writer, _ = checkpointed
    first = listed(hub, writer.label)[0]
    sig = WITNESS.sign(first.signing_digest())
    request = WitnessRequest(writer.label, INTERVAL, WITNESS.public_key, sig)
    answer = hub.post("/tooling/witness", request).read(Checkpoint)
    answer.verify_witnesses((WITNESS.public_key,), 1)
    assert hub.post_json("/tooling/witness", request).read(Checkpoint) == answer
    assert listed(hub, writer.label)[0] == answer
    assert answer.witness_sigs == (sig,)


def test_witnesses_who_come_at_once_are_all_kept(tmp_path: Path) -> None:
    witnesses = [SigningKey.generate() for _ in range(12)]
    data_dir = make_dir(tmp_path, limits=LIMITS)
    with running(data_dir) as hub:
        writer = hub.writer()
        writer.send_many(INTERVAL)
    with running(data_dir, witnesses=frozenset(key.public_key for key in witnesses)) as hub:
        digest = listed(hub, writer.label)[0].signing_digest()

        def sign(key: SigningKey) -> int:
            request = WitnessRequest(writer.label, INTERVAL, key.public_key, key.sign(digest))
            return hub.post("/tooling/witness", request).status

        with ThreadPoolExecutor(len(witnesses)) as pool:
            assert set(pool.map(sign, witnesses)) == {200}
        kept = listed(hub, writer.label)[0]
        kept.verify_witnesses(tuple(key.public_key for key in witnesses), len(witnesses))


def test_a_witness_is_known_and_signs_what_is_there(checkpointed: tuple[Hub, Writer, list[Receipt]]) -> None:
    hub, writer, _ = checkpointed
    digest = listed(hub, writer.label)[0].signing_digest()
    stranger = SigningKey.generate()
    unknown = WitnessRequest(writer.label, INTERVAL, stranger.public_key, stranger.sign(digest))
    assert code_of(hub.post("/tooling/witness", unknown)) == (403, "E.FORBIDDEN")
    wrong = WitnessRequest(writer.label, INTERVAL, WITNESS.public_key, WITNESS.sign(b"something else"))
    assert code_of(hub.post("/tooling/witness", wrong)) == (403, "E.FORBIDDEN")
    nowhere = WitnessRequest(writer.label, INTERVAL + 1, WITNESS.public_key, WITNESS.sign(digest))
    assert code_of(hub.post("/tooling/witness", nowhere)) == (404, "E.NOT_FOUND")
    assert all(checkpoint.witness_sigs is None for checkpoint in listed(hub, writer.label))


def contradiction(hub: Hub, key: SigningKey, seq: int = 1) -> Equivocation:
    """Two receipts for one place, signed by a key."""
    label = hub.label("s")
    one, two = (
        receipt.sign(key, label=label, stream_seq=seq, leaf_hash=h(name), mmr_root=h(name), hub_ts=START)
        for name in (b"one", b"two")
    )
    return Equivocation(one, two)


def hub_key(hub: Hub) -> SigningKey:
    return directory.read_signing_key(Folders(hub.data_dir), hub.service.papers.identity.newest.key_id)


def test_proof_of_the_hubs_own_fault_is_kept_and_shown(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir) as hub:
        assert hub.status()["equivocations"] == 0
        found = contradiction(hub, hub_key(hub))
        assert hub.post("/tooling/equivocation", found).read(Equivocation) == found
        assert hub.post_json("/tooling/equivocation", found).read(Equivocation) == found
        assert hub.status()["equivocations"] == 1
        hub.post("/tooling/equivocation", contradiction(hub, hub_key(hub), seq=2))
        assert hub.status()["equivocations"] == 2
    with running(data_dir) as hub:
        assert hub.status()["equivocations"] == 2
    kept = {path.read_bytes() for path in Folders(data_dir).evidence.iterdir()}
    assert found.encode() in kept


def test_a_receipt_of_the_log_against_one_that_was_told_elsewhere_is_evidence(hub: Hub) -> None:
    writer = hub.writer()
    told = writer.send()
    logged = hub.post("/v1/receipt", ReceiptRequest(writer.label, 1)).read(ReceiptResponse).receipt
    assert logged == told
    other = contradiction(hub, hub_key(hub)).second
    assert hub.post("/tooling/equivocation", Equivocation(logged, other)).status == 200
    assert hub.status()["equivocations"] == 1


def test_what_another_hub_signed_is_no_evidence_here(hub: Hub) -> None:
    ours, theirs = contradiction(hub, hub_key(hub)), contradiction(hub, SigningKey.generate())
    for found in (theirs, Equivocation(ours.first, theirs.second), Equivocation(theirs.first, ours.second)):
        assert code_of(hub.post("/tooling/equivocation", found)) == (403, "E.FORBIDDEN")
    assert hub.status()["equivocations"] == 0


def test_receipts_that_agree_are_no_evidence(hub: Hub) -> None:
    told = hub.writer().send()
    body = b"\xa3\x01\x01\x02" + told.encode() + b"\x03" + told.encode()
    assert code_of(hub.post("/tooling/equivocation", body)) == (400, "E.BAD_REQUEST")
    assert hub.status()["equivocations"] == 0


# Who may be let in.


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "2001:db8::1"])
def test_open_to_the_network_must_be_said_twice(tmp_path: Path, host: str) -> None:
    config = HubConfig(make_dir(tmp_path), host=host, port=0, admission=Admission.OPEN)
    with pytest.raises(Unavailable) as caught:
        HubService(config)
    assert "lets anyone" in str(caught.value)
    assert "--open-to-the-network" in str(caught.value)
    replace(config, open_to_the_network=True).check()
    replace(config, admission=Admission.CAPABILITY).check()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_open_on_this_machine_needs_no_second_word(host: str) -> None:
    HubConfig(Path("anywhere"), host=host, admission=Admission.OPEN).check()


def test_the_defaults_are_the_careful_ones() -> None:
    config = HubConfig(Path("anywhere"))
    assert (config.host, config.admission, config.open_to_the_network) == ("127.0.0.1", Admission.CAPABILITY, False)
    assert (config.issuers, config.witnesses, config.operator_token) == (frozenset(), frozenset(), None)


def test_the_log_is_json_and_holds_no_secret(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with running(make_dir(tmp_path)) as hub:
        token = captoken.mint(SigningKey.generate(), bytes(32), [bytes(32)], 1)
        hub.authorize(token)
        hub.writer().send()
        hub.post("/tooling/streams", b"", authorization=f"Bearer {TOKEN}")
        secret = hub_key(hub).seed
    lines = capfd.readouterr().err.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["event"] for row in rows] == ["started", "stopped"]
    assert all(row["component"] == "hub" for row in rows)
    assert not any(TOKEN in line or secret.hex() in line for line in lines)


def test_each_submit_is_logged_where_the_operator_asks_for_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with running(make_dir(tmp_path), log_submits=True) as hub:
        writer = hub.writer()
        message = writer.message()
        told = hub.submit(message).receipt()
        hub.submit(message)
    lines = capfd.readouterr().err.splitlines()
    accepted, refused = [row for row in map(json.loads, lines) if row["event"] == "submit"]
    for row in (accepted, refused):
        assert row["label"] == message.label.hex()
        assert row["client_id_prefix"] == message.client_id.hex()[:8]
        assert row["leaf_hash_prefix"] == told.leaf_hash.hex()[:8]
        assert row["bytes_in"] == len(message.encode())
        assert row["verify_ms"] >= 0
        assert row["commit_ms"] >= 0
    assert (accepted["stream_seq"], accepted["bytes_out"]) == (1, len(told.encode()))
    assert (refused["code"], refused["detail_enum"]) == ("E.SEQ", "DUPLICATE")
    assert not any(message.ciphertext.hex()[:32] in line for line in lines)
