"""Messages and events of one group are durable or undone together."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plumbing.durable import Disk
from tests.hub.client import ISSUER, PATIENCE_S, START, Clock, Hub, Writer, make_dir, running, until
from tests.hub.disks import FailingDisk, FullDisk, GatedFullDisk, WatchedDisk
from tests.storage import hubs
from veen.core import Profile, Receipt, Refused, SigningKey, Unverified, cap_token, naming
from veen.core.control_stream import RegisteredStream
from veen.core.envelopes import CheckpointRequest, CheckpointResponse
from veen.hub import admission_state, submit
from veen.hub.admission_rules import Admission
from veen.hub.admission_state import ControlEvent, Group, Item, Outcome, Submission
from veen.hub.config import HubConfig
from veen.hub.service import HubService
from veen.hub.submit import FULL_GROUP, IDLE_ENTRIES, MAX_TICKS, QUICK_SYNCS
from veen.storage import rotation
from veen.storage.frame import CommitGroup
from veen.storage.paths import Folders

OPEN = {"admission": Admission.OPEN}


def ignore_outcome(outcome: Outcome) -> None:
    """A callback that ignores the answer."""


def submission(writer: Writer, **given: Any) -> Submission:
    message = writer.message(**given)
    return Submission(message, message.encode(), ignore_outcome)


def prepared(hub: Hub, *items: Item) -> Group:
    """One group, decided and signed on the hub's thread, and kept."""

    async def prepare() -> Group:
        sequencer, store = hub.service.sequencer, hub.service.store
        group = hubs.decided(sequencer, hub.service.signer, list(items))
        if group.records:
            store.pending.add_group(group, store.commit(group))
        sequencer.state.keep()
        return group

    return hub.do(prepare())


def shown(group: Group) -> list[int | str | None]:
    return [
        outcome.detail_enum or outcome.code if isinstance(outcome, Refused) else Receipt.decode(outcome).stream_seq
        for outcome in hubs.outcomes(group)
    ]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with running(make_dir(tmp_path)) as found:
        yield found


def test_messages_of_one_group_follow_each_other(hub: Hub) -> None:
    writer = hub.writer()
    items = [submission(writer, client_seq=number) for number in (1, 2, 4, 3, 2)]
    assert shown(prepared(hub, *items)) == [1, 2, "CLIENT_SEQ", 3, "DUPLICATE"]


def test_prev_ack_may_name_an_entry_of_the_same_group(hub: Hub) -> None:
    writer = hub.writer()
    items = [submission(writer, client_seq=1), submission(writer, client_seq=2, prev_ack=1)]
    assert shown(prepared(hub, *items)) == [1, 2]


def test_a_duplicate_in_the_same_group_gets_the_place_of_the_first(hub: Hub) -> None:
    item = submission(hub.writer())
    group = prepared(hub, item, item)
    assert shown(group) == [1, "DUPLICATE"]
    refused = hubs.outcomes(group)[1]
    assert isinstance(refused, Refused)
    assert refused.detail.get("stream_seq") == 1


def test_a_capability_twice_in_one_group_is_logged_once(hub: Hub) -> None:
    token = cap_token.mint(ISSUER, SigningKey.generate().public_key, [naming.stream_id("s")], 10)
    group = prepared(hub, ControlEvent(token, ignore_outcome), ControlEvent(token, ignore_outcome))
    first, second = hubs.outcomes(group)
    assert first == second
    assert len(group.records) == 1


def test_a_stream_twice_in_one_group_is_logged_once(hub: Hub) -> None:
    event = RegisteredStream(bytes(32))
    group = prepared(hub, ControlEvent(event, ignore_outcome), ControlEvent(event, ignore_outcome))
    first, second = hubs.outcomes(group)
    assert first == second
    assert len(group.records) == 1


def test_a_capability_serves_the_messages_behind_it_in_its_group(tmp_path: Path) -> None:
    with running(make_dir(tmp_path), admission=Admission.CAPABILITY) as hub:
        key = SigningKey.generate()
        token = cap_token.mint(ISSUER, key.public_key, [naming.stream_id("s")], 10)
        early, late = hub.writer("s", key, token), hub.writer("s", key, token)
        group = prepared(hub, submission(early), ControlEvent(token, ignore_outcome), submission(late))
        assert shown(group) == ["CAP_MISSING", 1, 1]


def test_nothing_said_about_an_undone_group_rests_on_it(tmp_path: Path) -> None:
    """A duplicate of a message that was undone is not a duplicate."""
    disk = FullDisk()
    with running(make_dir(tmp_path), disk=disk) as hub:
        first = hub.writer()
        first.send()
        writer = hub.writer()
        items = writer.next_messages(2)
        disk.full = True
        answers = hub.batch(items[0], items[0], items[1])
        assert [answer.code for answer in answers if not isinstance(answer, Receipt)] == ["E.UNAVAILABLE"] * 3
        disk.full = False
        kept = hub.batch(*items)
        assert [answer.stream_seq for answer in kept if isinstance(answer, Receipt)] == [2, 3]


def test_what_was_decided_behind_a_group_that_failed_is_undone_with_it(tmp_path: Path) -> None:
    """While a group is being written, the next is decided on top of it: a new place, and a duplicate."""
    disk = GatedFullDisk()
    with running(make_dir(tmp_path), disk=disk) as hub:
        hub.writer().send()
        writer = hub.writer()
        first, second = writer.next_messages(2)
        heard: list[Outcome] = []

        async def put(*encoded: bytes) -> None:
            for one in encoded:
                hub.service.pipeline.submit(one, heard.append)

        disk.full = True
        hub.do(put(first))
        assert disk.waiting.wait(PATIENCE_S)
        hub.do(put(second, first))
        until(lambda: hub.do(decided(hub)) == 3)  # with the one that is being written
        assert heard == []
        disk.gate.set()
        until(lambda: len(heard) == 3)
        assert [outcome.code for outcome in heard if isinstance(outcome, Refused)] == ["E.UNAVAILABLE"] * 3
        disk.full = False
        kept = hub.batch(first, second)
        assert [answer.stream_seq for answer in kept if isinstance(answer, Receipt)] == [2, 3]


def test_the_loop_syncs_by_itself_while_the_disk_is_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a slow sync the thread is used until syncs have been fast for a while."""
    disk = WatchedDisk()
    with running(make_dir(tmp_path), disk=disk) as hub:
        writer = hub.writer()
        writer.send()  # the first also creates the journal
        for quick_s, syncs, expected in (
            (0.0, 2, ["commit"] * 2),
            (3600.0, QUICK_SYNCS + 2, ["commit"] * QUICK_SYNCS + ["hub"] * 2),
            (0.0, 2, ["hub", "commit"]),
            (3600.0, QUICK_SYNCS + 1, ["commit"] * QUICK_SYNCS + ["hub"]),
        ):
            monkeypatch.setattr(submit, "QUICK_S", quick_s)
            disk.by.clear()
            for _ in range(syncs):
                writer.send()
            assert disk.by == expected


def test_a_large_group_is_left_to_the_thread_however_quick_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "QUICK_S", 3600.0)
    monkeypatch.setattr(submit, "QUICK_BYTES", 2000)
    disk = WatchedDisk()
    with running(make_dir(tmp_path), disk=disk) as hub:
        writer = hub.writer()
        for _ in range(QUICK_SYNCS + 1):
            writer.send()
        disk.by.clear()
        for body in (b"small", bytes(2000), b"small"):
            writer.send(body)
        assert disk.by == ["hub", "commit", "hub"]


def test_a_mistake_on_the_commit_thread_ends_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the thread died, every client would wait for ever."""
    hub = Hub(make_dir(tmp_path), settings=OPEN).start()
    try:

        def mistaken(batch: CommitGroup) -> int:
            raise ValueError("a mistake of ours")

        monkeypatch.setattr(hub.service.store, "commit", mistaken)
        encoded = hub.writer().message().encode()

        async def put() -> None:
            hub.service.pipeline.submit(encoded, ignore_outcome)

        hub.do(put())
        assert hub.service.broken is not None
        assert isinstance(hub.do(hub.service.broken), ValueError)
    finally:
        hub.abandon()


def test_a_busy_hub_catches_up_when_there_is_enough_to_do_or_after_a_while(hub: Hub) -> None:
    found, store = hub.service.pipeline._catch_up, hub.service.store

    async def look(entries: int) -> int:
        """The number of entries that the log lacks after a tick, with `entries` new ones since the last."""
        if store.catching is not None:
            return -1
        found.stop_timer()
        found._recent_entries = entries
        found._tick()
        found.stop_timer()
        return len(store.pending.records)

    until(lambda: hub.do(look(0)) == 0)
    for busy_looks, last in ((1, IDLE_ENTRIES), (MAX_TICKS - 1, IDLE_ENTRIES + 1)):
        hub.writer().send()
        until(lambda: hub.do(look(IDLE_ENTRIES + 1)) == 1)
        found._ticks = 0
        assert [hub.do(look(IDLE_ENTRIES + 1)) for _ in range(busy_looks)] == [1] * busy_looks
        assert hub.do(look(last)) == 0


class FlushRecorder:
    """A verifier that records how many items were decided when the pipeline flushed it."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._verifier = hub.service.pipeline._verifier
        self.check = self._verifier.check
        self.close = self._verifier.close
        self.decided: list[int] = []

    def flush(self) -> None:
        self.decided.append(undurable(self._hub))
        self._verifier.flush()


def test_signatures_are_sent_off_before_the_loop_signs(hub: Hub) -> None:
    """Otherwise the verifier would be idle until the group is on disk."""
    recorder = hub.service.pipeline._verifier = FlushRecorder(hub)
    hub.writer().send()
    assert recorder.decided == [0]


def undurable(hub: Hub) -> int:
    """Items that are decided but not durable."""
    return sum(len(group.outcomes) for group in hub.service.sequencer.state.undurable())


async def decided(hub: Hub) -> int:
    return undurable(hub)


def test_a_small_group_waits_for_those_that_are_being_verified(tmp_path: Path) -> None:
    with running(make_dir(tmp_path)) as hub:
        heard: list[Outcome] = []
        found = hub.service.pipeline

        async def put(coming: int) -> None:
            found._checks_started = found._checks_finished + coming
            message = hub.writer().message()
            found._put(Submission(message, message.encode(), heard.append))

        hub.do(put(coming=2))
        hub.do(nothing())
        assert hub.do(decided(hub)) == 0
        hub.do(put(coming=1))
        until(lambda: len(heard) == 2)
        assert all(isinstance(outcome, bytes) for outcome in heard)


def test_a_small_group_waits_for_a_few_answers_however_many_are_coming(tmp_path: Path) -> None:
    """A flood of bad signatures: each answered check is followed by another."""
    with running(make_dir(tmp_path)) as hub:
        heard: list[Outcome] = []
        found = hub.service.pipeline

        async def put() -> None:
            found._checks_started = found._checks_finished + 1000
            message = hub.writer().message()
            found._put(Submission(message, message.encode(), heard.append))

        async def answer_and_ask() -> None:
            found._checks_started += 1
            found._checks_finished += 1
            found._schedule_turn()

        hub.do(put())
        for _ in range(FULL_GROUP - 1):
            hub.do(answer_and_ask())
        hub.do(nothing())
        assert hub.do(decided(hub)) == 0
        hub.do(answer_and_ask())
        until(lambda: len(heard) == 1)
        assert isinstance(heard[0], bytes)
        assert found._checks_started - found._checks_finished == 1000


def test_a_stopping_hub_does_not_wait_for_a_group_to_grow(tmp_path: Path) -> None:
    heard: list[Outcome] = []
    with running(make_dir(tmp_path)) as hub:

        async def put() -> None:
            hub.service.pipeline._checks_started += 1000
            message = hub.writer().message()
            hub.service.pipeline._put(Submission(message, message.encode(), heard.append))

        hub.do(put())
        hub.do(nothing())
        assert heard == []
    assert [type(outcome) for outcome in heard] == [bytes]


def test_a_failing_callback_does_not_affect_the_rest_of_its_group(hub: Hub) -> None:
    heard: list[Outcome] = []

    def fail(outcome: Outcome) -> None:
        raise OSError("the callback failed")

    async def put() -> None:
        for done in (heard.append, fail, heard.append):
            hub.service.pipeline.submit(hub.writer().message().encode(), done)

    hub.do(put())
    until(lambda: len(heard) == 2)
    assert all(isinstance(outcome, bytes) for outcome in heard)
    assert hub.writer().send().stream_seq == 4


def test_what_was_forgotten_meanwhile_is_undone_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log catches up while a group is being written, and state is evicted: then the write fails."""
    monkeypatch.setattr(admission_state, "MAX_CACHED", 0)
    with running(make_dir(tmp_path), admission=Admission.CAPABILITY) as hub:
        state = hub.service.sequencer.state
        key = SigningKey.generate()
        token = cap_token.mint(ISSUER, key.public_key, [naming.stream_id("s")], 10)
        writer = hub.writer("s", key, token)

        async def undone(*items: Item) -> None:
            hubs.decided(hub.service.sequencer, hub.service.signer, list(items))
            state.forget()
            assert state.undo() == list(items)

        hub.do(undone(ControlEvent(token, ignore_outcome)))
        assert shown(prepared(hub, submission(writer))) == ["CAP_MISSING"]
        first = submission(writer)
        assert shown(prepared(hub, ControlEvent(token, ignore_outcome), first)) == [1, 1]
        second = submission(writer, client_seq=2)
        hub.do(undone(second))
        assert shown(prepared(hub, second, second)) == [2, "DUPLICATE"]


def test_after_a_failed_sync_nothing_more_is_acknowledged(tmp_path: Path) -> None:
    disk = FailingDisk()
    hub = Hub(make_dir(tmp_path), disk=disk, settings=OPEN).start()
    try:
        hub.writer().send()
        disk.fail_next = True
        heard: list[Outcome] = []

        async def put(writer: Writer) -> None:
            hub.service.pipeline.submit(writer.message().encode(), heard.append)

        hub.do(put(hub.writer()))
        broken = hub.service.broken
        assert broken is not None
        hub.do(broken)
        hub.do(put(hub.writer()))
        hub.service.pipeline._writer.close()
        hub.do(nothing())
        hub.do(nothing())
        assert not [outcome for outcome in heard if isinstance(outcome, bytes)]
    finally:
        hub.abandon()


async def nothing() -> None:
    """Wait for one turn of the loop."""


def test_a_clock_before_the_hubs_own_beginning_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(Unverified) as caught:
        HubService(HubConfig(make_dir(tmp_path), port=0), clocks=Clock(START - 1000).read)
    assert "no key is active" in str(caught.value)


def test_a_time_without_a_usable_key_rejects_instead_of_blocking(tmp_path: Path) -> None:
    clock, data_dir = Clock(START), make_dir(tmp_path)
    newest = rotation.rotate_key(Disk(), Folders(data_dir), START + 10, 0).newest
    shutil.rmtree(Folders(data_dir).handovers)  # as in a directory that was rotated before there were hand-overs
    (key_file,) = (data_dir / "keys").glob(f"hub-{newest.key_id.hex()[:16]}*")
    hidden = key_file.rename(tmp_path / "elsewhere")
    with running(data_dir, clock) as hub:
        clock.now = START + 10
        assert hub.submit(hub.writer().message()).refusal()[:2] == (503, "E.UNAVAILABLE")
        assert hub.get("/readyz").json(503)["bad_states"] == ["signing_key"]
        hidden.rename(key_file)
        assert hub.writer().send().stream_seq == 1
        assert hub.get("/readyz").json()["bad_states"] == []


def test_a_hub_starts_with_a_clock_that_went_back(tmp_path: Path) -> None:
    data_dir, clock = make_dir(tmp_path), Clock(START + 10)
    with running(data_dir, clock) as hub:
        hub.writer().send()
    clock.now = START - 1000
    with running(data_dir, clock) as hub:
        assert hub.writer().send().hub_ts == START + 10


def test_a_rotations_checkpoint_is_the_same_before_and_after_the_log_caught_up(tmp_path: Path) -> None:
    profile, clock = Profile(epoch_sec=60), Clock()
    data_dir = make_dir(tmp_path, profile)
    with running(data_dir, clock) as hub:
        hub.register(naming.stream_id("s"))
        hub.writer().send()
        clock.now += 60
        later = hub.writer()
        later.send()
        request = CheckpointRequest(later.label, 1)
        first = hub.post("/v1/checkpoint", request)
    with running(data_dir, clock) as hub:
        again = hub.post("/v1/checkpoint", request)
        assert again.body == first.body
        found = again.read(CheckpointResponse).checkpoint
        assert found.label_prev == hub.label("s", profile.epoch(START))
