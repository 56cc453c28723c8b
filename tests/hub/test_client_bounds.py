"""How long and how often a client key may be used on a label, if the limits say so. 001, spec-2 §4.1."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hub.client import START, TOKEN, Clock, Hub, Writer, make_dir, running
from tests.hub.disks import NoLogDisk, QuickDisk
from tests.hub.test_revocation import LIVES, granted, lives, refused
from veen.core import Limits, naming
from veen.hub.admission_rules import Admission
from veen.storage import fsck

USED_UP = (403, "E.AUTH", "auth", "AUTH_REF")
MOST, LIFETIME_SEC = 5, 100
LIMITS = Limits(max_msgs_per_client_id_per_label=MOST, max_client_id_lifetime_sec=LIFETIME_SEC)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=list(Admission))
def hub(tmp_path: Path, clock: Clock, request: pytest.FixtureRequest) -> Iterator[Hub]:
    with running(make_dir(tmp_path, limits=LIMITS), clock, QuickDisk(), admission=request.param) as found:
        yield found


def test_without_these_limits_a_key_is_used_as_often_and_as_long_as_its_owner_likes(
    tmp_path: Path, clock: Clock
) -> None:
    assert Limits().max_msgs_per_client_id_per_label is None
    assert Limits().max_client_id_lifetime_sec is None
    with running(make_dir(tmp_path), clock, QuickDisk()) as hub:
        writer = hub.writer()
        writer.send_many(MOST + 1)
        clock.now += 10 * 365 * 86_400
        writer.send()


# Number of messages.


def test_a_key_writes_so_many_messages_under_a_label_and_no_more(hub: Hub) -> None:
    writer, _ = granted(hub)
    writer.send_many(MOST)
    reply = hub.submit(writer.message())
    assert reply.refusal() == USED_UP
    assert reply.error().refused().detail["max_allowed"] == MOST
    assert granted(hub)[0].send().stream_seq == MOST + 1


def test_each_label_counts_for_itself(tmp_path: Path) -> None:
    with running(make_dir(tmp_path, limits=LIMITS), disk=QuickDisk()) as hub:
        writer = hub.writer("s")
        writer.send_many(MOST)
        Writer(hub, hub.label("other"), writer.key).send_many(MOST)
        assert refused(writer) == USED_UP


def test_the_last_message_it_may_write_is_a_duplicate_when_it_comes_again(hub: Hub) -> None:
    """A client that lost the answer must still learn the place of its message."""
    writer, _ = granted(hub)
    writer.send_many(MOST - 1)
    message = writer.message()
    receipt = hub.submit(message).receipt()
    reply = hub.submit(message)
    assert reply.refusal()[3] == "DUPLICATE"
    assert reply.error().refused().detail["stream_seq"] == receipt.stream_seq


# Lifetime.


def test_a_key_is_used_for_so_long_from_its_first_message_under_a_label(hub: Hub, clock: Clock) -> None:
    writer, _ = granted(hub)
    clock.now += 1000  # time before the first message does not count
    writer.send()
    clock.now += LIFETIME_SEC
    writer.send()
    clock.now += 1
    reply = hub.submit(writer.message())
    assert reply.refusal() == USED_UP
    assert reply.error().refused().detail["max_allowed"] == LIFETIME_SEC
    granted(hub)[0].send()


def test_each_label_has_its_own_beginning(tmp_path: Path, clock: Clock) -> None:
    with running(make_dir(tmp_path, limits=LIMITS), clock, QuickDisk()) as hub:
        writer = hub.writer("s")
        writer.send()
        clock.now += LIFETIME_SEC + 1
        other = Writer(hub, hub.label("other"), writer.key)
        other.send()
        other.send()
        assert refused(writer) == USED_UP


def test_what_was_accepted_in_time_is_a_duplicate_later(hub: Hub, clock: Clock) -> None:
    writer, _ = granted(hub)
    message = writer.message()
    hub.submit(message).receipt()
    clock.now += LIFETIME_SEC + 1
    assert hub.submit(message).refusal()[3] == "DUPLICATE"
    writer.accepted(message)
    assert refused(writer) == USED_UP


def test_the_hubs_own_key_is_not_bounded(tmp_path: Path, clock: Clock) -> None:
    with running(make_dir(tmp_path, limits=LIMITS), clock, QuickDisk()) as hub:
        for number in range(MOST + 2):
            hub.register(naming.stream_id(f"{number}"))
        clock.now += LIFETIME_SEC + 1
        assert hub.register(naming.stream_id("another")).stream_seq == MOST + 3


# Restarts.


@pytest.mark.parametrize("how", LIVES)
def test_the_beginning_of_a_key_is_known_after_restarts_and_rebuilds(tmp_path: Path, clock: Clock, how: str) -> None:
    data_dir = make_dir(tmp_path, limits=LIMITS)
    first = Hub(data_dir, clock, LIVES[how](), {"operator_token": TOKEN, "admission": Admission.OPEN}).start()
    old, young = first.writer(), first.writer()
    old.send_many(2)
    clock.now += 10
    young.send()
    hub = lives(first, how)
    try:
        old.hub = young.hub = hub
        clock.now = START + LIFETIME_SEC + 1
        assert refused(old) == USED_UP
        young.send()
    finally:
        hub.stop()
    if not isinstance(hub.disk, NoLogDisk):
        assert fsck.check(data_dir).findings == []


def test_the_first_use_of_a_key_is_known_after_its_state_was_evicted(tmp_path: Path, clock: Clock) -> None:
    """It is looked up in the log."""
    with running(make_dir(tmp_path, limits=LIMITS), clock, QuickDisk()) as hub:
        writer = hub.writer()
        writer.send()
    shutil.rmtree(hub.data_dir / "index")
    with running(hub.data_dir, clock, QuickDisk()) as again:
        assert again.service.sequencer.state._first_ts == {}
        clock.now += LIFETIME_SEC + 1
        assert refused(replace(writer, hub=again)) == USED_UP
