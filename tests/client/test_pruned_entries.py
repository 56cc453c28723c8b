"""A hub that prunes, and clients that read it: pruned entries are proved, and an unproved gap is a contradiction."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plumbing.durable import Disk
from tests.client.pair import QUICK, STREAM, Pair, bodies, pair, read_all, send_all
from tests.client.test_sending import meet
from tests.hub.client import START, TOKEN, Clock, Hub, make_dir, running, until
from tests.hub.subscriber import Subscriber
from tests.hub.test_conditions import gauge
from veen.client.read_access import ReadSigner
from veen.client.sender import Undecided
from veen.client.transport import RetryPolicy
from veen.client.tree_follower import PrunedEntries
from veen.core import Limits, Profile, Receipt, Refused, Unavailable, Unverified, control_stream, naming, proof
from veen.core.cbor import Wire
from veen.core.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ClockAcceptance,
    ReceiptRequest,
    ReceiptResponse,
    StreamRequest,
    SubmitRequest,
)
from veen.core.limits import CLOSE_PRUNED
from veen.core.proof import Leaf
from veen.core.retention import (
    Hold,
    Prune,
    RetentionPolicy,
    RetentionReport,
    RetentionRequest,
    RetentionRules,
    Tombstone,
)
from veen.hub.hub_time import MAX_UNWATCHED_S
from veen.storage import fsck, retention_check, rotation
from veen.storage.fsck import FsckVerdict
from veen.storage.paths import Folders

SMALL = Limits(max_checkpoint_interval=4)
DAY = 86_400
ENTRIES = 10  # chunks of 4: two are closed


def at_a_hub(place: Path, work: Callable[[Hub, Pair], Coroutine[Any, Any, None]]) -> Path:
    """Run `work` with a hub that has small chunks. Returns its data directory."""
    data_dir = make_dir(place, limits=SMALL)
    with pair(place) as people, running(data_dir) as hub:
        asyncio.run(work(hub, meet(people, hub)))
    return data_dir


def operator(hub: Hub, path: str, request: Wire) -> bytes:
    reply = hub.post(path, request, authorization=f"Bearer {TOKEN}")
    assert reply.status == 200, reply.body
    return reply.body


def run(hub: Hub, request: RetentionRequest | None = None) -> RetentionReport:
    return RetentionReport.decode(operator(hub, "/tooling/retention/run", request or RetentionRequest(False)))


def keep(hub: Hub, policy: RetentionPolicy) -> None:
    operator(hub, "/tooling/retention/policy", policy)


def in_chunks(hub: Hub, last: int = ENTRIES) -> None:
    """Wait until the log and its index have the entries, so that closed chunks can be pruned."""
    closed(hub, hub.label(STREAM), last // 4 * 4)


def closed(hub: Hub, label: bytes, last: int) -> None:
    """Wait until the chunk with an entry is closed, and the index has it."""
    planned = RetentionRequest(True, label, last, reason="is it closed?")

    def is_closed() -> bool:
        reply = hub.post("/tooling/retention/run", planned, authorization=f"Bearer {TOKEN}")
        return reply.status == 200 and RetentionReport.decode(reply.body).range_count == 1

    until(is_closed)


async def filled(hub: Hub, people: Pair) -> list[Receipt]:
    assert isinstance(hub.clock, Clock)
    async with people.writer() as writer:
        sent = await send_all(writer, *(b"%d" % number for number in range(1, ENTRIES + 1)))
    in_chunks(hub)
    hub.clock.now += 10 * DAY
    return [one.receipt for one in sent]


@pytest.mark.parametrize("policy", [RetentionPolicy(DAY), RetentionPolicy(DAY, 2 * DAY)])
def test_a_client_skips_pruned_entries_only_with_the_hubs_signature_for_them(
    place: Path, policy: RetentionPolicy
) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        receipts = await filled(hub, people)
        async with people.reader() as known:  # this client has verified everything before
            assert len(await read_all(known)) == ENTRIES
        keep(hub, policy)
        planned = run(hub, RetentionRequest(True))
        assert [(one.start_seq, one.end_seq) for one in planned.ranges] == [(1, 8)]
        done = run(hub)
        assert done.freed_bytes == planned.ranges[0].bytes_before - planned.ranges[0].bytes_after > 0
        assert run(hub).range_count == 0
        label = hub.label(STREAM)
        error = hub.post("/v1/stream", StreamRequest(label, 2)).error().refused()
        assert (error.code, error.detail_enum) == ("E.NOT_FOUND", "pruned")
        tombstone = Tombstone.decode(bytes.fromhex(str(error.detail["tombstone"])))
        tombstone.verify(hub.service.hub_metadata.identity)
        for dir_of in (people.reader, people.writer):  # one knows the log, the other only its own receipts
            async with dir_of() as client:
                with pytest.raises(PrunedEntries, match="entries 1 to 4 were pruned"):
                    await read_all(client)
                found: list[Tombstone] = []
                entries = await read_all(client, on_pruned=found.append)
                assert bodies(entries) == [b"9", b"10"]
                assert [(one.segment.start_seq, one.segment.end_seq) for one in found] == [(1, 4), (5, 8)]
                assert bodies(await read_all(client, from_seq=9)) == [b"9", b"10"]
                assert bodies(await read_all(client, from_seq=6, on_pruned=found.append)) == [b"9", b"10"]
        async with people.writer() as writer:
            await send_all(writer, b"more")
        last = hub.post("/v1/checkpoint", CheckpointRequest(label, ENTRIES)).read(CheckpointResponse).checkpoint
        for receipt in receipts:
            seq = receipt.stream_seq
            made = hub.service.app.reads.proof_at(label, seq, ENTRIES).mmr_proof
            proof.verify_inclusion(made, Leaf.of(receipt), last)
            reply = hub.post("/v1/receipt", ReceiptRequest(label, seq))
            if policy.receipt_sec and seq <= 8:
                assert reply.error().refused().detail_enum == "pruned"
            else:
                assert reply.read(ReceiptResponse).receipt == receipt

    at_a_hub(place, work)


def test_every_prune_is_on_the_control_stream_before_anything_is_deleted(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        await filled(hub, people)
        keep(hub, RetentionPolicy(DAY))
        run(hub)
        control = hub.label(hub.service.rules.control_stream)
        limits = Limits()
        logged = [
            control_stream.event_of(hub.service.rules.hub_id, entry.open()[0], limits)
            for entry in hub.service.app.reads._lookup.entries(control, 1, 10)
        ]
        assert logged == [RetentionPolicy(DAY), Prune(hub.label(STREAM), 1, 8, 1)]
        found = hub.post("/v1/stream", StreamRequest(hub.label(STREAM), 1)).error().refused()
        segment = Tombstone.decode(bytes.fromhex(str(found.detail["tombstone"]))).segment
        assert segment.event_seq == 2

    at_a_hub(place, work)


def test_a_hold_beats_every_policy_and_survives_a_restart(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        await filled(hub, people)
        keep(hub, RetentionPolicy(DAY))
        label = hub.label(STREAM)
        operator(hub, "/tooling/retention/hold", Hold(1, "case 17", label))
        done = run(hub)
        assert (done.range_count, done.held_entries) == (0, 8)
        erase = RetentionRequest(False, label, 1, 4, "request 3")
        refused = hub.post("/tooling/retention/run", erase, authorization=f"Bearer {TOKEN}").error()
        assert (refused.code, "legal hold" in refused.message) == ("E.FORBIDDEN", True)
        rules = RetentionRules.decode(hub.get("/tooling/retention").body)
        assert rules == RetentionRules((RetentionPolicy(DAY),), (Hold(1, "case 17", label),))

    data_dir = at_a_hub(place, work)
    clock = Clock()
    clock.now += 10 * DAY
    with running(data_dir, clock) as again:
        label = again.label(STREAM)
        rules = RetentionRules.decode(again.get("/tooling/retention").body)
        assert rules == RetentionRules((RetentionPolicy(DAY),), (Hold(1, "case 17", label),))
        assert run(again).range_count == 0
        operator(again, "/tooling/retention/hold", Hold(0, "closed", label))
        assert run(again, RetentionRequest(False, label, 1, 4, "request 3")).range_count == 1
        assert run(again).range_count == 1


def test_only_the_operator_prunes_and_control_streams_are_never_pruned(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        await filled(hub, people)
        for path, request in (
            ("/tooling/retention/policy", RetentionPolicy(DAY)),
            ("/tooling/retention/hold", Hold(1, "x")),
            ("/tooling/retention/run", RetentionRequest(False)),
        ):
            assert hub.post(path, request).status == 401
        for number in range(1, 9):
            keep(hub, RetentionPolicy(number))
        in_chunks(hub)
        control = hub.label(hub.service.rules.control_stream)
        erase = RetentionRequest(False, control, 1, 4, "hide it")
        until(lambda: hub.post("/tooling/retention/run", erase, authorization=f"Bearer {TOKEN}").status == 403)
        assert {one.label for one in run(hub).ranges} == {hub.label(STREAM)}

    at_a_hub(place, work)


def test_a_policy_of_a_stream_counts_before_the_default(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        await filled(hub, people)
        keep(hub, RetentionPolicy(DAY))
        keep(hub, RetentionPolicy(100 * DAY, stream_id=naming.stream_id(STREAM)))
        assert run(hub).range_count == 0
        keep(hub, RetentionPolicy(stream_id=naming.stream_id(STREAM)))  # for ever removes the policy of the stream
        assert run(hub).range_count == 1

    at_a_hub(place, work)


def test_a_subscription_at_a_pruned_place_is_no_error_of_the_hub(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        await filled(hub, people)
        label = hub.label(STREAM)
        assert run(hub, RetentionRequest(False, label, 5, 8, "request 3")).range_count == 1
        for start, sent in ((1, 4), (5, 0), (8, 0)):
            with Subscriber(hub, f"label={label.hex()}&from={start}") as subscriber:
                assert [one.stream_seq for one in subscriber.items(sent)] == list(range(start, start + sent))
                assert subscriber.close_code() == CLOSE_PRUNED
        with Subscriber(hub, f"label={label.hex()}&from=9") as subscriber:
            assert subscriber.item().stream_seq == 9
        assert hub.get("/readyz").json()["bad_states"] == []
        assert gauge(hub, "storage") == (0, 0)

    at_a_hub(place, work)


class PruneBeforeSubscription(ReadSigner):
    """Calls a function before the first subscription of a client, and signs nothing."""

    def __init__(self, prune: Callable[[], None]) -> None:
        super().__init__(bytes(32), 0, ())
        self._prune: Callable[[], None] | None = prune

    def headers(self, method: str, target: str, body: bytes = b"") -> dict[str, str]:
        if target.startswith("/tooling/subscribe") and self._prune is not None:
            prune, self._prune = self._prune, None
            prune()
        return super().headers(method, target, body)


@pytest.mark.parametrize("skips", [True, False])
def test_a_subscriber_whose_next_entry_was_pruned_reads_the_tombstone(place: Path, skips: bool) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        def prune() -> None:
            hub.writer(STREAM).send_many(ENTRIES)
            in_chunks(hub, 2 * ENTRIES)
            run(hub, RetentionRequest(False, hub.label(STREAM), 9, 20, "request 3"))
            hub.writer(STREAM).send_many(1)

        await filled(hub, people)
        found: list[Tombstone] = []
        async with people.reader(retry_policy=replace(QUICK, attempts=1)) as reader:
            reader.session.link.reads = PruneBeforeSubscription(prune)
            options: dict[str, Any] = {"on_pruned": found.append} if skips else {}
            entries = reader.read(STREAM, follow=True, **options)
            seqs = [(await anext(entries)).stream_seq for _ in range(ENTRIES)]
            if skips:
                seqs.append((await anext(entries)).stream_seq)
                assert seqs == [*range(1, ENTRIES + 1), 21]
                assert [one.segment.start_seq for one in found] == [9, 13, 17]
            else:
                with pytest.raises(PrunedEntries, match="entries 9 to 12 were pruned"):
                    await anext(entries)
            await entries.aclose()
        assert hub.get("/readyz").json()["bad_states"] == []

    at_a_hub(place, work)


def test_a_place_within_pruned_entries_of_an_ended_epoch_needs_no_checkpoint_of_its_own(place: Path) -> None:
    """A retired key signs none, and only the ends of chunks have stored ones."""
    epochs, clock = Profile(epoch_sec=60), Clock()
    data_dir = make_dir(place, epochs, replace(SMALL, max_epoch_skew_sec=0))

    async def fill(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as other:
            await send_all(writer, b"1", b"2")
            await send_all(other, b"3", b"4", b"5", b"6")
        clock.now += 60
        closed(hub, hub.label(STREAM, epochs.epoch(START)), 6)

    async def read(hub: Hub, people: Pair) -> None:
        keep(hub, RetentionPolicy(DAY, DAY))
        assert run(hub).range_count == 1
        epoch = epochs.epoch(START)
        async with people.writer() as knows_two, people.reader() as knows_six:
            for client in (knows_two, knows_six):
                for first, ends in (1, [4, 6]), (2, [4, 6]), (4, [4, 6]), (5, [6]), (6, [6]):
                    with pytest.raises(PrunedEntries, match=f"to {ends[0]} were pruned"):
                        await read_all(client, epoch=epoch, from_seq=first)
                    found: list[Tombstone] = []
                    assert await read_all(client, epoch=epoch, from_seq=first, on_pruned=found.append) == []
                    assert [one.segment.end_seq for one in found] == ends
                with pytest.raises(Refused, match="no checkpoint of this prefix was stored"):
                    await client.checkpoint(STREAM, 2, epoch=epoch)
                assert (await client.checkpoint(STREAM, 4, epoch=epoch)).upto_seq == 4

    with pair(place) as people:
        with running(data_dir, clock) as hub:
            hub.register(naming.stream_id(STREAM))
            asyncio.run(fill(hub, meet(people, hub)))
        rotation.rotate_key(Disk(), Folders(data_dir), int(clock.now), 0)
        clock.now += DAY + 60
        with running(data_dir, clock) as hub:
            asyncio.run(read(hub, meet(people, hub)))


@pytest.mark.parametrize("spoil", ["deleted by hand", "manifest", "pruned chunk", "tree nodes"])
def test_a_range_that_was_deleted_by_hand_is_damage_for_fsck_and_for_a_client(place: Path, spoil: str) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        await filled(hub, people)
        async with people.reader() as reader:
            await read_all(reader)
        folders, label = Folders(hub.data_dir), hub.label(STREAM)
        keep(hub, RetentionPolicy(DAY))
        if spoil != "deleted by hand":
            run(hub)
        gone = {
            "deleted by hand": folders.closed_chunk(label, 1, 4),
            "manifest": folders.manifest(label),
            "pruned chunk": folders.pruned_chunk(label, 1, 4),
            "tree nodes": folders.node_file(label),
        }[spoil]
        kept = gone.read_bytes()
        gone.unlink()
        async with people.reader() as reader:
            reading: Coroutine[Any, Any, object] = read_all(reader, on_pruned=lambda _: None)
            if spoil == "tree nodes":
                reading.close()
                reading = reader.follower(STREAM).receipt(1)
            with pytest.raises(Unavailable, match="stored data of the hub is damaged"):
                await reading
        assert hub.get("/readyz").json()["bad_states"] == ["damage"]
        if spoil == "tree nodes":
            gone.write_bytes(kept)

    data_dir = at_a_hub(place, work)
    if spoil == "tree nodes":
        return
    assert fsck.check(data_dir).verdict is FsckVerdict.DAMAGED
    (checked,) = retention_check.check_manifests(data_dir)
    no_file = "No such file or directory" if spoil == "pruned chunk" else "no manifest says that they were pruned"
    assert checked.faults[0].startswith("entries 1 to 4")
    assert checked.faults[0].endswith(no_file)


@pytest.mark.parametrize("policy", [RetentionPolicy(DAY), RetentionPolicy(DAY, 2 * DAY)])
def test_a_message_that_was_pruned_before_its_client_got_the_receipt_does_not_stop_the_outbox(
    place: Path, policy: RetentionPolicy
) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        assert isinstance(hub.clock, Clock)
        label, stopped = hub.label(STREAM), hub.service.sequencer.stopped
        stopped.add(label)
        async with people.writer(retry_policy=RetryPolicy(attempts=1)) as writer:
            with pytest.raises(Undecided):
                await writer.send(STREAM, b"1")
            (pending,) = writer.dir.outbox.pending(hub.service.rules.hub_id, label)
        stopped.discard(label)
        assert hub.post("/v1/submit", SubmitRequest(pending.msg)).status == 200  # the client gets no answer
        async with people.reader() as other:
            await send_all(other, *(b"%d" % number for number in range(2, ENTRIES + 1)))
        in_chunks(hub)
        hub.clock.now += 10 * DAY
        keep(hub, policy)
        run(hub)
        async with people.writer() as writer:
            follower = writer.follower(STREAM)
            found = await follower.find(pending.leaf_hash, 0)
            assert isinstance(found, PrunedEntries if policy.receipt_sec else Receipt)
            assert await follower.find(bytes(32), 0) is None
            if policy.receipt_sec:
                with pytest.raises(Unverified):  # the hub cannot claim that a pruned place has another message
                    await follower.placed(pending.leaf_hash, 2)
            (settled,) = await writer.recover()
            if policy.receipt_sec:
                assert isinstance(settled.outcome, PrunedEntries)
                assert "the message is entry 1, and its receipt cannot be had" in str(settled.outcome)
            else:
                assert isinstance(settled.outcome, Receipt)
                assert settled.outcome.stream_seq == 1
            assert writer.dir.outbox.places() == ()
            assert (await writer.send(STREAM, b"next")).stream_seq == ENTRIES + 1

    at_a_hub(place, work)


def refused_run(hub: Hub, request: RetentionRequest | None = None) -> str:
    """Why a run is refused."""
    found = hub.post("/tooling/retention/run", request or RetentionRequest(False), authorization=f"Bearer {TOKEN}")
    assert found.status == 409, found.body
    assert found.error().code == "E.CONFLICT"
    return found.error().message


def accept_clock(hub: Hub, clock: Clock) -> None:
    operator(hub, "/tooling/clock", ClockAcceptance(int(clock.now)))


@pytest.mark.parametrize("jump", [100 * DAY, -100 * DAY])
def test_nothing_is_pruned_by_age_after_a_jump_of_the_clock(place: Path, jump: int) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        await filled(hub, people)  # ten days old
        keep(hub, RetentionPolicy(50 * DAY))
        assert isinstance(hub.clock, Clock)
        hub.clock.step(jump)
        assert "the wall clock jumped" in refused_run(hub)
        assert run(hub, RetentionRequest(True)).range_count == 0  # a plan follows the hub's own time
        hub.clock.step(-jump)
        assert run(hub).range_count == 0
        hub.clock.now += 41 * DAY
        assert run(hub).range_count == 1

    at_a_hub(place, work)


def test_an_erasure_does_not_depend_on_the_clock(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        await filled(hub, people)
        assert isinstance(hub.clock, Clock)
        hub.clock.step(100 * DAY)
        erasure = RetentionRequest(True, hub.label(STREAM), 1, 1, "request 3")
        until(lambda: hub.post("/tooling/retention/run", erasure, authorization=f"Bearer {TOKEN}").status == 200)
        assert run(hub, replace(erasure, dry=False)).range_count == 1

    at_a_hub(place, work)


def test_a_clock_that_moved_while_no_hub_ran_must_be_accepted_before_anything_is_pruned(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        await filled(hub, people)
        keep(hub, RetentionPolicy(50 * DAY))

    data_dir = at_a_hub(place, work)
    clock = Clock()
    clock.now += 10 * DAY + MAX_UNWATCHED_S
    with running(data_dir, clock) as hub:
        assert run(hub).range_count == 0  # a pause of two days is usual
    clock.now += 25 * DAY
    for _ in range(2):  # also after another restart
        with running(data_dir, clock) as hub:
            keep(hub, RetentionPolicy(20 * DAY))
            assert f"moved by {25 * DAY} s while no hub was running" in refused_run(hub)
            assert hub.status()["clock"]["unwatched_sec"] == 25 * DAY
    with running(data_dir, clock) as hub:
        accept_clock(hub, clock)
        assert hub.status()["clock"]["unwatched_sec"] == 0
    with running(data_dir, clock) as hub:
        assert run(hub).range_count == 1
