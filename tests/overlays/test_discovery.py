"""Discovery: descriptors, and the directory that is folded from them. 001, spec-5 §4, §5, §8.2."""

from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.overlays.directories import Maps, directory_events, hub, id_of, overlay, service
from tests.overlays.logs import CLIENTS, START, LogLine, log, logs, msg_id
from veen.core import Malformed, PayloadHdr, cbor
from veen.core.hashing import U64_MAX
from veen.overlays import Event, FaultKind, Fold, FoldEntry, check_laws, fold
from veen.overlays.discovery import (
    ADVERTISE,
    DISCOVERY,
    HUBS_STREAM,
    MAX_DESCRIPTOR_BYTES,
    OVERLAYS_STREAM,
    RETIRE,
    SERVICES_STREAM,
    DescriptorKind,
    DirectoryRecord,
    Discovery,
    HubRetire,
    ServiceEndpoint,
    ServiceRetire,
    find,
    join,
    kind_and_id,
    live_advertisements,
    overlay_id,
    part_of,
)

HUB = part_of(DescriptorKind.HUB, id_of("h1"))
PINNED = Discovery(publishers=[CLIENTS[0]])


def known(states: dict[bytes, DirectoryRecord], now: int, kind: DescriptorKind = DescriptorKind.HUB) -> list[bytes]:
    return [one.descriptor.id for one in live_advertisements(states, kind, now)]


@given(logs(directory_events))
def test_a_directory_keeps_the_laws(entries: list[FoldEntry]) -> None:
    check_laws(DISCOVERY, entries)


@given(logs(directory_events, most=14))
def test_a_directory_of_pinned_publishers_keeps_the_laws(entries: list[FoldEntry]) -> None:
    check_laws(PINNED, entries)


@given(logs(directory_events, most=40), st.integers(-5, 90_000))
def test_the_fold_equals_the_algorithm_of_the_specification(entries: list[FoldEntry], later: int) -> None:
    folded, expected = Fold(DISCOVERY), Maps()
    for entry in entries:
        outcomes = folded.add(entry)
        read = DISCOVERY.read(entry)
        copy = any(getattr(one, "kind", None) == FaultKind.COPY for one in outcomes)
        if isinstance(read, tuple) and not copy:
            expected.fold(read[0].event, entry.hub_ts)
    now = START + later
    for kind in DescriptorKind:
        found = {(kind, one.descriptor.id): one.descriptor for one in live_advertisements(folded.states, kind, now)}
        assert found == {key: event for key, event in expected.current(now).items() if key[0] == kind}


def test_schemas_and_streams_are_the_hashes_of_their_names() -> None:
    for kind in DescriptorKind:
        schemas = [ADVERTISE[kind].SCHEMA, RETIRE[kind].SCHEMA]
        assert schemas == [sha256(f"disc.{kind}.{verb}.v1".encode()).digest() for verb in ("advertise", "retire")]
    streams = (HUBS_STREAM, SERVICES_STREAM, OVERLAYS_STREAM)
    assert streams == tuple(sha256(b"disc.%s.v1" % name).digest() for name in (b"hubs", b"services", b"overlays"))


def test_a_hub_descriptor_has_the_listed_keys_in_the_listed_order() -> None:
    one = hub(
        region="r", tags=("t",), endpoints=(ServiceEndpoint("k", "u"),), overlays=(bytes(32),), version="v", ttl_sec=9
    )
    assert one.encode() == (
        b"\xa9\x66hub_id\x58\x20" + one.hub_id + b"\x66hub_pk\x58\x20" + one.hub_pk
        + b"\x6aprofile_id\x58\x20" + one.profile_id + b"\x66region\x61r\x64tags\x81\x61t"
        + b"\x69endpoints\x81\xa2\x64kind\x61k\x63url\x61u\x68overlays\x81\x58\x20" + bytes(32)
        + b"\x67ttl_sec\x09\x67version\x61v"
    )  # fmt: skip
    assert HubRetire(one.hub_id).encode() == b"\xa1\x66hub_id\x58\x20" + one.hub_id


def test_an_overlay_descriptor_leaves_out_the_documentation_it_does_not_have() -> None:
    keys = [b"overlay_id", b"name", b"version", b"schemas", b"docs_url", b"tags", b"ttl_sec"]
    places = [overlay(docs_url="https://x").encode().index(key) for key in keys]
    assert places == sorted(places)
    assert b"docs_url" not in overlay().encode()


def test_a_service_descriptor_leaves_out_policy_and_operator_where_there_are_none() -> None:
    bare = service(auth_policy=None, operator=None)
    assert b"auth_policy" not in bare.encode()
    assert b"operator" not in bare.encode()
    assert type(bare).decode(bare.encode()) == bare


@pytest.mark.parametrize("details", [b"", b"\x01\x02", b"\xf9\x00\x00", b"\xa2\x61b\x01\x61a\x02"])
def test_details_of_a_policy_are_one_deterministic_value(details: bytes) -> None:
    policy = service().auth_policy
    assert policy is not None
    with pytest.raises(ValueError, match="details"):
        service(auth_policy=replace(policy, details=details)).encode()


def test_the_last_advertisement_replaces_the_one_before() -> None:
    folded = fold(DISCOVERY, log(hub(region="x"), hub(region="y")))
    found = find(folded.states, DescriptorKind.HUB, id_of("h1"), START)
    assert found is not None
    assert found.descriptor == hub(region="y")
    assert (found.stream_seq, found.publisher) == (2, CLIENTS[0])
    assert folded.faults == []


def test_an_advertisement_is_found_until_its_ttl_is_over_and_not_a_second_longer() -> None:
    states = fold(DISCOVERY, log(hub(ttl_sec=10))).states
    assert known(states, START + 1 + 10) == [id_of("h1")]
    assert known(states, START + 1 + 11) == []


def test_a_header_expiry_can_only_shorten_the_ttl() -> None:
    (entry,) = log(hub(ttl_sec=10))
    for ends, expected in [(5, 5), (10, 10), (99, 10)]:
        header = PayloadHdr(entry.header.schema, expires_at=entry.hub_ts + ends) if entry.header else None
        (record,) = fold(DISCOVERY, [replace(entry, header=header)]).states.values()
        assert record.advertised is not None
        assert record.advertised.expires_at == entry.hub_ts + expected


def test_a_ttl_beyond_the_maximum_time_is_capped() -> None:
    (record,) = fold(DISCOVERY, log(hub(ttl_sec=U64_MAX))).states.values()
    assert record.advertised is not None
    assert record.advertised.expires_at == U64_MAX


def test_advertising_again_makes_it_last_longer() -> None:
    states = fold(DISCOVERY, log(hub(ttl_sec=10), LogLine(hub(ttl_sec=10), after=100))).states
    assert known(states, START + 1 + 100 + 10) == [id_of("h1")]


def test_a_retired_record_is_not_found_but_stays_in_the_state() -> None:
    folded = fold(DISCOVERY, log(hub(), HubRetire(id_of("h1"), "moved")))
    assert known(folded.states, START) == []
    record = folded.states[HUB]
    assert record.advertised is not None
    assert record.retired is not None
    assert record.retired.reason == "moved"
    assert not DISCOVERY.live(record)


def test_a_second_retirement_is_refused_and_the_first_reason_stays() -> None:
    folded = fold(DISCOVERY, log(hub(), HubRetire(id_of("h1"), "moved"), HubRetire(id_of("h1"), "gone")))
    retired = folded.states[HUB].retired
    assert retired is not None
    assert retired.reason == "moved"
    assert [(fault.kind, fault.stream_seq) for fault in folded.faults] == [(FaultKind.REFUSED, 3)]


def test_an_advertisement_after_a_retirement_counts_again() -> None:
    folded = fold(DISCOVERY, log(hub(), HubRetire(id_of("h1")), hub(region="new")))
    assert known(folded.states, START + 3) == [id_of("h1")]
    assert folded.states[HUB].retired is None


def test_a_retirement_without_an_advertisement_is_recorded() -> None:
    folded = fold(DISCOVERY, log(HubRetire(id_of("h1"))))
    assert folded.faults == []
    assert known(folded.states, 0) == []
    assert find(folded.states, DescriptorKind.HUB, id_of("h1"), 0) is None


def test_one_id_may_be_used_once_per_kind() -> None:
    same = bytes(32)
    entries = log(hub(hub_id=same), service(service_id=same), overlay(overlay_id=same), ServiceRetire(same))
    states = fold(DISCOVERY, entries).states
    assert [known(states, START + 4, kind) for kind in DescriptorKind] == [[same], [same], []]


def test_results_ascend_by_id() -> None:
    names = [f"h{number}" for number in range(20)]
    states = fold(DISCOVERY, log(*(hub(name) for name in names))).states
    assert known(states, START) == sorted(id_of(name) for name in names)


def test_a_mirrored_copy_counts_once_and_is_marked() -> None:
    first = LogLine(hub(ttl_sec=10), msg_id(70), client=2)
    folded = fold(DISCOVERY, log(first, replace(first, after=100)))
    record = folded.states[HUB]
    assert record.advertised is not None
    assert (record.advertised.mirrored, record.advertised.publisher) == (True, CLIENTS[2])
    assert record.advertised.expires_at == START + 1 + 10
    assert [fault.kind for fault in folded.faults] == [FaultKind.COPY]


def test_only_pinned_publishers_change_a_pinned_directory() -> None:
    theirs = LogLine(hub(region="elsewhere"), client=1)
    folded = fold(PINNED, log(hub(), theirs, LogLine(HubRetire(id_of("h1")), client=1)))
    found = find(folded.states, DescriptorKind.HUB, id_of("h1"), START)
    assert found is not None
    assert found.descriptor == hub()
    assert [fault.kind for fault in folded.faults] == [FaultKind.REFUSED, FaultKind.REFUSED]
    assert find(fold(DISCOVERY, log(hub(), theirs)).states, DescriptorKind.HUB, id_of("h1"), START) != found


def test_an_unpinned_publisher_cannot_suppress_a_genuine_event() -> None:
    bridged = LogLine(hub(), msg_id(70), client=0)
    folded = fold(PINNED, log(LogLine(hub(region="z"), msg_id(70), client=1), bridged))
    found = find(folded.states, DescriptorKind.HUB, id_of("h1"), START)
    assert found is not None
    assert found.descriptor == hub()


def test_caches_of_other_pins_are_other_caches() -> None:
    told = [one.settings() for one in (DISCOVERY, PINNED, Discovery([]), Discovery(CLIENTS), Discovery(CLIENTS[::-1]))]
    assert len(set(told)) == 4
    assert told[3] == told[4]


@pytest.mark.parametrize("size", [MAX_DESCRIPTOR_BYTES, MAX_DESCRIPTOR_BYTES + 1])
def test_a_descriptor_has_a_bounded_size(size: int) -> None:
    one = hub(version="")
    one = replace(one, version="v" * (size - len(one.encode()) - 2))
    folded = fold(DISCOVERY, log(one))
    assert len(one.encode()) == size
    assert (folded.faults == []) is (size <= MAX_DESCRIPTOR_BYTES)
    assert bool(folded.states) is (size <= MAX_DESCRIPTOR_BYTES)


@pytest.mark.parametrize("names", [256, 257])
def test_a_list_has_a_bounded_length(names: int) -> None:
    one = hub(tags=("t",) * names)
    if names > 256:
        with pytest.raises(ValueError, match="tags"):
            one.encode()
    else:
        assert type(one).decode(one.encode()) == one


def test_a_state_of_another_part_does_not_decode() -> None:
    (record,) = fold(DISCOVERY, log(hub())).states.values()
    data = DISCOVERY.encode_state(record)
    assert DISCOVERY.decode_state(HUB, data) == record
    with pytest.raises(Malformed, match="another part"):
        DISCOVERY.decode_state(part_of(DescriptorKind.SERVICE, id_of("h1")), data)
    with pytest.raises(Malformed, match="not a descriptor"):
        DirectoryRecord.decode(data.replace(b"\x66hub_id", b"\x66hub_ix"))


def test_an_unknown_part_kind_is_malformed() -> None:
    assert kind_and_id(HUB) == (DescriptorKind.HUB, id_of("h1"))
    with pytest.raises(Malformed):
        kind_and_id(b"x" + bytes(32))


def test_the_first_directory_with_a_live_record_wins() -> None:
    near = fold(DISCOVERY, log(hub(region="near", ttl_sec=10), service())).states
    far = fold(DISCOVERY, log(hub(region="far"), overlay())).states
    both = join([near, far], START)
    assert set(both) == {*near, *far}
    first = find(both, DescriptorKind.HUB, id_of("h1"), START)
    later = find(join([near, far], START + 100), DescriptorKind.HUB, id_of("h1"), START + 100)
    assert first is not None
    assert later is not None
    assert [one.descriptor for one in (first, later)] == [hub(region="near", ttl_sec=10), hub(region="far")]


def test_a_directory_shows_plain_values() -> None:
    entries = log(service(), HubRetire(id_of("h1"), "moved"))
    states = fold(DISCOVERY, entries).states
    shown = DISCOVERY.plain(part_of(DescriptorKind.SERVICE, service().service_id), next(iter(states.values())))
    assert shown["kind"] == "service"
    descriptor = shown["descriptor"]
    assert isinstance(descriptor, dict)
    assert descriptor["auth_policy"] == {"mode": "cap_token", "details": {"issuer_service": id_of("service desk")}}
    assert descriptor["operator"] == {"org": "Example", "contact": "ops@example.org"}
    assert cbor.encode(shown)
    retired = DISCOVERY.plain(HUB, states[HUB])
    assert (retired["retired"], retired["reason"]) == (True, "moved")


def test_an_overlay_without_an_id_of_its_own_gets_one_for_its_name_and_version() -> None:
    ids = {overlay_id(name, version) for name in ("a", "ab") for version in ("1", "b1")}
    assert len(ids) == 4
    assert overlay_id("rpc", "1") == sha256(b"disc/overlay-id\0rpc\x001").digest()


def test_bad_entries_are_faults_and_change_nothing() -> None:
    said: list[Event | LogLine] = [hub(), LogLine(hub(region="z"), spoil=b"\0"), LogLine(hub(region="z"), sealed=True)]
    folded = fold(DISCOVERY, log(*said))
    assert [(fault.stream_seq, fault.kind) for fault in folded.faults] == [
        (2, FaultKind.MALFORMED),
        (3, FaultKind.SEALED),
    ]
    assert folded.states == fold(DISCOVERY, log(hub())).states
