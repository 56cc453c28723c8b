"""Queue: at least once, several consumers, retries and dead letters. Spec §11.4."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.overlays.logs import START, LogLine, log, logs, msg_id, root
from veen.core import PayloadHdr
from veen.core.hashing import U64_MAX
from veen.overlays import Event, FaultKind, Fold, FoldEntry, check_laws, fold
from veen.overlays.kept_fold_lmdb import Cache
from veen.overlays.queue import QUEUE, Ack, Nack, Put, Task, TaskClaim, TaskRetry, TaskStatus, holds, ready

TASK = msg_id(1)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Put, st.binary(max_size=2), st.sampled_from([None, 1, 2])),
    st.builds(TaskClaim, st.sampled_from([msg_id(1), msg_id(2), msg_id(99)]), st.sampled_from([0, 5, 50_000])),
    st.builds(Ack, st.sampled_from([msg_id(1), msg_id(2)]), st.sampled_from([msg_id(n) for n in range(1, 9)])),
    st.builds(Nack, st.sampled_from([msg_id(1), msg_id(2)]), st.sampled_from([msg_id(n) for n in range(1, 9)])),
    st.builds(TaskRetry, st.sampled_from([msg_id(1), msg_id(2)])),
)


@given(logs(events))
def test_a_queue_keeps_the_laws(entries: list[FoldEntry]) -> None:
    check_laws(QUEUE, entries)


def after(*said: Event | LogLine) -> Fold:  # type: ignore[type-arg]
    return fold(QUEUE, log(*said))


def status(*said: Event | LogLine, later: int = 0) -> TaskStatus:
    entries = log(*said)
    return fold(QUEUE, entries).state(TASK).status(entries[-1].hub_ts + later)


def refused(*said: Event | LogLine) -> list[tuple[int, str]]:
    return [(fault.stream_seq, fault.reason) for fault in after(*said).faults if fault.kind == FaultKind.REFUSED]


def test_a_task_goes_from_put_to_claim_to_done() -> None:
    assert status(Put(b"x")) is TaskStatus.READY
    assert status(Put(b"x"), TaskClaim(TASK, 60)) is TaskStatus.CLAIMED
    assert status(Put(b"x"), TaskClaim(TASK, 60), Ack(TASK, msg_id(2))) is TaskStatus.DONE


def test_the_first_claim_in_the_log_wins_and_all_consumers_see_it() -> None:
    folded = after(Put(b"x"), LogLine(TaskClaim(TASK, 60), client=1), LogLine(TaskClaim(TASK, 60), client=2))
    assert holds(folded.state(TASK), msg_id(2), START + 3)
    assert not holds(folded.state(TASK), msg_id(3), START + 3)
    assert [(fault.stream_seq, fault.reason) for fault in folded.faults] == [(3, "the task is claimed")]


def test_an_expired_claim_frees_the_task() -> None:
    claim = LogLine(TaskClaim(TASK, 60), client=1)
    assert status(Put(b"x"), claim, later=59) is TaskStatus.CLAIMED
    assert status(Put(b"x"), claim, later=60) is TaskStatus.READY
    assert refused(Put(b"x"), claim, LogLine(TaskClaim(TASK, 60), after=59)) == [(3, "the task is claimed")]
    folded = after(Put(b"x"), claim, LogLine(TaskClaim(TASK, 60), after=60))
    assert folded.faults == []
    assert folded.state(TASK).tries == 2


def test_a_late_ack_counts_unless_another_consumer_has_claimed_the_task() -> None:
    late = LogLine(Ack(TASK, msg_id(2)), after=1000)
    assert status(Put(b"x"), TaskClaim(TASK, 5), late) is TaskStatus.DONE
    taken_over = LogLine(TaskClaim(TASK, 5), after=100)
    assert refused(Put(b"x"), TaskClaim(TASK, 5), taken_over, late) == [(4, "the task is not held by this claim")]


def test_a_returned_task_can_be_claimed_at_once() -> None:
    assert status(Put(b"x"), TaskClaim(TASK, 60), Nack(TASK, msg_id(2), "no paper")) is TaskStatus.READY
    folded = after(Put(b"x"), TaskClaim(TASK, 60), Nack(TASK, msg_id(2), "no paper"), TaskClaim(TASK, 60))
    assert folded.faults == []
    assert (folded.state(TASK).tries, folded.state(TASK).reason) == (2, "no paper")


def test_after_its_last_try_a_task_is_a_dead_letter_until_it_is_retried() -> None:
    said = [Put(b"x", 2), TaskClaim(TASK, 60), Nack(TASK, msg_id(2)), TaskClaim(TASK, 60)]
    assert status(*said) is TaskStatus.CLAIMED
    assert status(*said, later=60) is TaskStatus.DEAD
    given_back = [*said, Nack(TASK, msg_id(4))]
    assert status(*given_back) is TaskStatus.DEAD
    assert refused(*given_back, TaskClaim(TASK, 60)) == [(6, "the task is dead")]
    assert after(*given_back).state(TASK).status(START) is TaskStatus.DEAD
    assert status(*given_back, TaskRetry(TASK)) is TaskStatus.READY
    assert after(*given_back, TaskRetry(TASK), TaskClaim(TASK, 60)).faults == []


def test_a_task_without_max_tries_is_never_a_dead_letter() -> None:
    said: list[Event | LogLine] = [Put(b"x")]
    for _ in range(30):
        said += [LogLine(TaskClaim(TASK, 1), after=5)]
    assert status(*said, later=5) is TaskStatus.READY


def test_an_expired_task_cannot_be_claimed() -> None:
    put, claim = log(Put(b"x"), LogLine(TaskClaim(TASK, 60), after=100))
    for expires_at, expected in [(claim.hub_ts, None), (claim.hub_ts - 1, "the task is expired")]:
        expiring = replace(put, header=PayloadHdr(Put.SCHEMA, expires_at=expires_at))
        folded = fold(QUEUE, [expiring, claim])
        assert [fault.reason for fault in folded.faults] == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([TaskClaim(TASK, 60)], "no such task"),
        ([Ack(TASK, TASK)], "no such task"),
        ([TaskRetry(TASK)], "no such task"),
        ([Put(b"x"), Ack(TASK, msg_id(9))], "the task is not held by this claim"),
        ([Put(b"x"), Nack(TASK, msg_id(9))], "the task is not held by this claim"),
        ([Put(b"x"), TaskRetry(TASK)], "the task is not a dead letter"),
        ([Put(b"x"), TaskClaim(TASK, 60), TaskRetry(TASK)], "the task is not a dead letter"),
        ([Put(b"x"), TaskClaim(TASK, 60), Ack(TASK, msg_id(2)), Ack(TASK, msg_id(2))], "the task is done"),
        ([Put(b"x"), TaskClaim(TASK, 60), Ack(TASK, msg_id(2)), TaskClaim(TASK, 60)], "the task is done"),
        ([Put(b"x"), TaskClaim(TASK, 60), Ack(TASK, msg_id(2)), Nack(TASK, msg_id(2))], "the task is done"),
    ],
)
def test_an_event_that_does_not_fit_the_task_state_is_refused(said: list[Event], reason: str) -> None:
    assert refused(*said)[-1] == (len(said), reason)
    assert after(*said).states == after(*said[:-1]).states


def test_a_mirrored_put_is_the_same_task() -> None:
    folded = after(
        Put(b"x"), LogLine(Put(b"x"), msg_id(1)), LogLine(Put(b"y"), msg_id(77)), LogLine(Put(b"y"), msg_id(77))
    )
    assert list(folded.states) == [TASK, msg_id(77)]
    assert [fault.kind for fault in folded.faults] == [FaultKind.COPY, FaultKind.COPY]


def test_a_lease_beyond_64_bits_is_capped() -> None:
    assert after(Put(b"x"), TaskClaim(TASK, U64_MAX)).state(TASK).until == U64_MAX


def test_tasks_are_ready_in_the_order_of_their_puts() -> None:
    folded = after(*(Put(b"%d" % number) for number in range(20)), TaskClaim(msg_id(3), 60), TaskClaim(msg_id(1), 1))
    assert [task.item for _, task in ready(folded.states.items(), START + 22)] == [
        b"%d" % number for number in range(20) if number not in (0, 2)
    ]


def test_a_cache_lists_open_tasks_without_scanning_done_ones(tmp_path: Path) -> None:
    said: list[Event | LogLine] = [Put(b"%d" % number) for number in range(100)]
    for number in range(1, 98):
        said += [TaskClaim(msg_id(number), 60), Ack(msg_id(number), msg_id(len(said) + 1))]
    entries = log(*said)
    with Cache(tmp_path / "q", QUEUE) as cache:
        cache.extend(entries[:150], root(entries[:150]))
        cache.extend(entries[150:], root(entries))
        with cache.reading() as timeline:
            assert [task.item for _, task in timeline.live()] == [b"97", b"98", b"99"]
            assert [task.item for _, task in ready(timeline.live(), START)] == [b"97", b"98", b"99"]
            assert timeline.state(msg_id(1)) == Task(1, entries[100].hub_ts + 60, True, b"0", claim=msg_id(101))


def test_every_task_is_done_at_least_once_by_consumers_that_crash() -> None:
    from random import Random

    random, running, done = Random(5), Fold(QUEUE), set()
    tasks = [msg_id(number) for number in range(1, 11)]
    entries = log(*(Put(bytes([number])) for number in range(10)))
    running.extend(entries)
    seq, now = 10, START + 10
    while any(True for _ in ready(running.states.items(), now + 1000)):
        now += random.choice([1, 5, 40])
        waiting = [task for task, _ in ready(running.states.items(), now)]
        claims: list[bytes] = []
        for _ in range(2):  # both consumers see the same first task, and race for it
            if waiting:
                seq += 1
                running.add(log(TaskClaim(waiting[0], 30), start=seq, hub_ts=now - 1)[0])
                claims.append(msg_id(seq))
        for claim in claims:
            if holds(running.state(waiting[0]), claim, now) and random.random() < 0.7:
                done.add(waiting[0])  # the work; a consumer that crashes does it or not, and says nothing
                if random.random() < 0.8:
                    seq += 1
                    running.add(log(Ack(waiting[0], claim), start=seq, hub_ts=now - 1)[0])
    assert done == set(tasks)
    assert all(running.state(task).done for task in tasks)
