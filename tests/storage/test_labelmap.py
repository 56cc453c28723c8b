"""A label is found among those derived from streams, with no more work than needed."""

from hypothesis import given
from hypothesis import strategies as st

from veen.core import Profile, naming
from veen.storage.label_map import LabelMap

ROUTING = naming.routing_key(b"\x05" * 32)
HOUR = 3600
NOW = 400_000 * HOUR
STREAMS = [naming.stream_id(f"stream {number}") for number in range(100)]


def made(streams: list[bytes], epoch_sec: int = HOUR, skew_sec: int = HOUR) -> LabelMap:
    labels = LabelMap(ROUTING, Profile(epoch_sec=epoch_sec), skew_sec)
    for stream in streams:
        labels.add(stream)
    return labels


def label(stream: bytes, epoch: int) -> bytes:
    return naming.label(ROUTING, stream, epoch)


def prepared(labels: LabelMap, hub_ts: int) -> LabelMap:
    while not labels.prepare(hub_ts, 1, 64):
        pass
    return labels


@given(
    st.integers(0, 12),
    st.integers(0, 3),
    st.sampled_from([0, 1, HOUR]),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 14), st.integers(-4, 4), st.integers(0, 5), st.integers(0, 9)), max_size=12),
)
def test_every_label_is_found_in_its_epochs_and_in_no_others(
    first: int, later: int, epoch_sec: int, skew: int, asked: list[tuple[int, int, int, int]]
) -> None:
    profile = Profile(epoch_sec=epoch_sec)
    labels = made(STREAMS[:first], epoch_sec, skew * epoch_sec)
    hub_ts = NOW
    for turn, (number, offset, passed, slice_) in enumerate(asked):
        if turn < later:
            labels.add(STREAMS[first + turn])
        known = STREAMS[: first + min(turn + 1, later)]
        hub_ts += passed * epoch_sec
        labels.prepare(hub_ts, 1, slice_)
        epoch = max(0, profile.epoch(hub_ts) + offset)
        right = STREAMS[number] in known and profile.accepts_epoch(epoch, hub_ts, skew * epoch_sec)
        expected = (STREAMS[number], epoch) if right else None
        wanted = label(STREAMS[number], epoch)
        assert labels.recent(wanted, hub_ts) in (None, expected)
        assert labels.known(wanted, hub_ts) in (None, expected)
        assert labels.find(wanted, hub_ts) == expected
        assert labels.recent(wanted, hub_ts) == expected


def test_a_look_up_derives_no_further_than_to_what_it_finds() -> None:
    labels = made(STREAMS)
    epoch = NOW // HOUR
    assert labels.find(label(STREAMS[7], epoch), NOW) == (STREAMS[7], epoch)  # the current epoch is searched first
    assert labels.derived == 8
    assert labels.find(label(STREAMS[3], epoch), NOW) == (STREAMS[3], epoch)
    assert labels.derived == 8


def test_what_nothing_explains_costs_every_label_once_and_then_nothing() -> None:
    labels = made(STREAMS)
    assert labels.find(bytes(32), NOW) is None
    assert labels.derived == 3 * len(STREAMS)
    assert labels.find(b"\x01" * 32, NOW) is None
    assert labels.derived == 3 * len(STREAMS)


def test_a_slice_is_no_larger_than_it_may_be() -> None:
    labels = made(STREAMS)
    sizes = []
    while True:
        before = labels.derived
        left = labels.prepare(NOW, 1, 64)
        sizes.append(labels.derived - before)
        assert sizes[-1] == 64 - left
        if left:
            break
    assert sum(sizes) == 4 * len(STREAMS)
    assert set(sizes[:-1]) == {64}


def test_the_next_epoch_is_ready_when_it_comes() -> None:
    labels = prepared(made(STREAMS), NOW)
    before = labels.derived
    assert labels.is_complete(NOW + HOUR)
    assert labels.find(label(STREAMS[9], NOW // HOUR + 2), NOW + HOUR) == (STREAMS[9], NOW // HOUR + 2)
    assert labels.find(bytes(32), NOW + HOUR) is None
    assert labels.derived == before


def test_only_what_is_new_is_derived_when_an_epoch_changes() -> None:
    labels = prepared(made(STREAMS), NOW)
    before = labels.derived
    prepared(labels, NOW + HOUR)
    assert labels.derived == before + len(STREAMS)


def test_labels_of_past_epochs_are_freed_in_steps() -> None:
    labels = prepared(made(STREAMS), NOW)
    before = labels.derived
    assert labels.prepare(NOW + 100 * HOUR, 0, 64) == 0
    assert labels.derived == before
    prepared(labels, NOW + 100 * HOUR)
    assert labels.find(label(STREAMS[0], NOW // HOUR), NOW + 100 * HOUR) is None


def test_a_stream_that_is_taken_back_explains_nothing_any_more() -> None:
    labels = prepared(made(STREAMS), NOW)
    labels.add(b"\x09" * 32)
    assert labels.find(label(b"\x09" * 32, NOW // HOUR), NOW) is not None
    labels.add(b"\x08" * 32)
    labels.drop(b"\x09" * 32)
    assert labels.find(label(b"\x09" * 32, NOW // HOUR), NOW) is None
    assert labels.find(label(b"\x08" * 32, NOW // HOUR), NOW) == (b"\x08" * 32, NOW // HOUR)
    assert labels.find(label(STREAMS[-1], NOW // HOUR), NOW) == (STREAMS[-1], NOW // HOUR)


def test_what_is_said_to_explain_a_label_must() -> None:
    labels = made([])
    epoch = NOW // HOUR
    right = label(STREAMS[0], epoch)
    assert not labels.matches(right, STREAMS[1], epoch, NOW)
    assert not labels.matches(right, STREAMS[0], epoch + 1, NOW)
    assert not labels.matches(right, STREAMS[0], epoch, NOW + 2 * HOUR)
    assert labels.recent(right, NOW) is None
    assert labels.matches(right, STREAMS[0], epoch, NOW)
    assert labels.recent(right, NOW) == (STREAMS[0], epoch)
