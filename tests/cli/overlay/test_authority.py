"""`veen authority`: who is primary for a stream, and a hub that goes by it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.overlay.realms import REALM, Realm, realm
from tests.cli.runner import Veen
from tests.cli.town import STREAM
from veen.core import admin, naming
from veen.overlays.admin import Authorities
from veen.overlays.admin.authority import part_of
from veen.state.state_proof import verify_state

ELSEWHERE = "4b" * 32
HOUR = 3600


@pytest.fixture
def town(veen: Veen, tmp_path: Path) -> Iterator[Realm]:
    with realm(veen, tmp_path) as found:
        yield found


def test_without_a_record_the_authority_is_unspecified_and_the_hub_admits(town: Realm) -> None:
    shown = town.does("reader", "authority", "show", STREAM).facts()
    assert (shown["policy"], shown["primary_hub"], shown["here"]) == ("unspecified", "", "nobody has said")
    assert town.sends().status == 0


def test_a_hub_that_is_named_primary_admits_and_one_that_is_not_refuses(town: Realm) -> None:
    assert town.says("authority", "set", STREAM, "--ttl", HOUR).facts()["primary_hub"] == town.hub_id
    assert town.does("reader", "authority", "show", STREAM, "--json").json()["primary_hub"] == town.hub_id
    assert town.sends().status == 0
    town.says("authority", "set", "windows", "--primary", ELSEWHERE, "--ttl", HOUR)
    assert town.sends().status == 0


def test_a_hub_refuses_what_another_is_primary_for(town: Realm) -> None:
    town.says("authority", "set", STREAM, "--primary", ELSEWHERE, "--ttl", HOUR)
    refused = town.sends()
    assert refused.status == 5
    assert "not primary for label" in refused.error
    shown = town.does("reader", "authority", "show", STREAM, "--json").json()
    assert (shown["policy"], shown["primary_hub"]) == ("single-primary", ELSEWHERE)
    assert (
        shown["label"]
        == naming.label(naming.routing_key(bytes.fromhex(town.hub_id)), naming.stream_id(STREAM), 0).hex()
    )


def test_where_several_may_be_primary_each_admits(town: Realm) -> None:
    town.says("authority", "set", STREAM, "--primary", ELSEWHERE, "--policy", "multi-primary", "--ttl", HOUR)
    assert town.sends().status == 0


def test_a_later_record_waits_for_the_one_that_holds_and_that_is_said(town: Realm) -> None:
    town.says("authority", "set", STREAM, "--from", 1000, "--ttl", 100)
    ran = town.says("authority", "set", STREAM, "--primary", ELSEWHERE, "--from", 1050, "--ttl", 100)
    assert "entry 1 holds until 1100: this record counts from then on" in ran.err
    primaries = {
        when: town.reads("authority", "show", STREAM, "--when", when, "--json").json()["primary_hub"]
        for when in (999, 1000, 1099, 1100, 1149, 1150)
    }
    assert list(primaries.values()) == [None, town.hub_id, town.hub_id, ELSEWHERE, ELSEWHERE, None]
    contested = town.reads("authority", "show", STREAM, "--when", 1060)
    assert "1 more are active" in contested.err
    assert [line.split("\t")[-1] for line in contested.out.splitlines()[-2:]] == ["counts", ""]


def test_a_record_that_could_never_count_is_not_sent(town: Realm) -> None:
    town.says("authority", "set", STREAM, "--from", 1000, "--ttl", 100)
    ran = town.tries("admin", "authority", "set", STREAM, "--from", 1020, "--ttl", 80)
    assert ran.status == 5
    assert "entry 1 holds for all of its time" in ran.error


def test_records_are_listed_by_time_from_hub_and_directory_alike(town: Realm) -> None:
    town.says("authority", "set", STREAM, "--ttl", HOUR, "--replica", ELSEWHERE)
    town.says("authority", "set", "windows", "--from", 1000, "--ttl", 10)
    now = town.does("reader", "authority", "list", "--json").json()["records"]
    assert [(one["stream_id"], one["replica_hubs"]) for one in now] == [(naming.stream_id(STREAM).hex(), [ELSEWHERE])]
    everything = town.does("reader", "authority", "list", "--all", "--json").json()["records"]
    assert len(everything) == 2
    assert town.reads("authority", "list", "--all", "--json", "--no-cache").json()["records"] == everything
    first = town.reads("authority", "list", "--all", "--at", 1, "--json").json()["records"]
    assert [one["stream_seq"] for one in first] == [1]


def test_a_proof_shows_who_is_primary(town: Realm, tmp_path: Path) -> None:
    town.says("authority", "set", STREAM, "--ttl", HOUR)
    file = tmp_path / "primary.evidence"
    shown = town.reads("authority", "show", STREAM, "--prove", "--out", file, "--json").json()
    realm_id = naming.realm_id(REALM)
    part = part_of(realm_id, naming.stream_id(STREAM))
    found = verify_state(file.read_bytes(), Authorities(realm_id), admin.fed_admin_stream(realm_id), part)
    assert found.state_hash.hex() == shown["state_hash"]
    assert found.states[part][0].event.primary_hub.hex() == town.hub_id


def test_that_nobody_has_said_so_is_nothing_to_prove(town: Realm) -> None:
    ran = town.tries("reader", "authority", "show", STREAM, "--prove")
    assert ran.status == 2
    assert "only the whole log" in ran.error


def test_the_streams_of_a_realm_are_told_with_a_hub_and_without(town: Realm, veen: Veen) -> None:
    expected = [one.hex() for one in (naming.realm_id(REALM), *admin.admin_streams(naming.realm_id(REALM)))]
    assert list(town.does("reader", "authority", "streams").facts().values()) == expected
    assert list(veen.done("authority", "streams", "--realm", REALM).facts().values()) == expected
    assert list(veen.done("authority", "streams", "--realm", expected[0], "--json").json().values()) == expected


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--ttl", "5", "--policy", "unspecified"), "policy"),
        (("--ttl", "5", "--policy", "primary"), "policy"),
        (("--ttl", "0"), "ttl"),
        ((), "ttl"),
        (("--ttl", "5", "--primary", "ab"), "id of a hub"),
        (("--ttl", "5", "--replica", "zz"), "id of a hub"),
    ],
)
def test_what_no_record_can_say_is_refused(town: Realm, arguments: tuple[str, ...], word: str) -> None:
    ran = town.tries("admin", "authority", "set", STREAM, *arguments)
    assert ran.status == 2
    assert word in ran.error


def test_who_has_no_leave_is_not_heard(town: Realm) -> None:
    ran = town.tries("writer", "authority", "set", STREAM, "--ttl", HOUR)
    assert ran.status == 5
    assert town.does("reader", "authority", "list", "--all", "--when", int(time.time())).out == ""
