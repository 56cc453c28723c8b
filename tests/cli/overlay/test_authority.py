"""`veen authority`: the primary hub of a stream, and a hub that enforces it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.hub_fixture import STREAM
from tests.cli.overlay.realm_fixture import REALM, RealmFixture, realm
from tests.cli.runner import Veen
from veen.core import admin, naming
from veen.overlays.authority import Authorities, part_of
from veen.state.state_proof import verify_state

ELSEWHERE = "4b" * 32
HOUR = 3600


@pytest.fixture
def realm_hub(veen: Veen, tmp_path: Path) -> Iterator[RealmFixture]:
    with realm(veen, tmp_path) as found:
        yield found


def test_without_a_record_the_authority_is_unspecified_and_the_hub_admits(realm_hub: RealmFixture) -> None:
    shown = realm_hub.run("reader", "authority", "show", STREAM).facts()
    assert (shown["policy"], shown["primary_hub"], shown["this hub"]) == ("unspecified", "", "no record")
    assert realm_hub.send_as_writer().status == 0


def test_a_primary_hub_admits_and_another_hub_rejects(realm_hub: RealmFixture) -> None:
    assert realm_hub.run_as_admin("authority", "set", STREAM, "--ttl", HOUR).facts()["primary_hub"] == realm_hub.hub_id
    assert realm_hub.run("reader", "authority", "show", STREAM, "--json").json()["primary_hub"] == realm_hub.hub_id
    assert realm_hub.send_as_writer().status == 0
    realm_hub.run_as_admin("authority", "set", "windows", "--primary", ELSEWHERE, "--ttl", HOUR)
    assert realm_hub.send_as_writer().status == 0


def test_a_hub_rejects_messages_of_a_stream_with_another_primary(realm_hub: RealmFixture) -> None:
    realm_hub.run_as_admin("authority", "set", STREAM, "--primary", ELSEWHERE, "--ttl", HOUR)
    refused = realm_hub.send_as_writer()
    assert refused.status == 5
    assert "not primary for label" in refused.error
    shown = realm_hub.run("reader", "authority", "show", STREAM, "--json").json()
    assert (shown["policy"], shown["primary_hub"]) == ("single-primary", ELSEWHERE)
    assert (
        shown["label"]
        == naming.label(naming.routing_key(bytes.fromhex(realm_hub.hub_id)), naming.stream_id(STREAM), 0).hex()
    )


def test_every_hub_admits_under_multi_primary(realm_hub: RealmFixture) -> None:
    realm_hub.run_as_admin(
        "authority", "set", STREAM, "--primary", ELSEWHERE, "--policy", "multi-primary", "--ttl", HOUR
    )
    assert realm_hub.send_as_writer().status == 0


def test_a_later_record_takes_effect_when_the_current_one_ends(realm_hub: RealmFixture) -> None:
    realm_hub.run_as_admin("authority", "set", STREAM, "--from", 1000, "--ttl", 100)
    ran = realm_hub.run_as_admin("authority", "set", STREAM, "--primary", ELSEWHERE, "--from", 1050, "--ttl", 100)
    assert "entry 1 is in effect until 1100; this record takes effect then" in ran.err
    primaries = {
        when: realm_hub.run_offline("authority", "show", STREAM, "--when", when, "--json").json()["primary_hub"]
        for when in (999, 1000, 1099, 1100, 1149, 1150)
    }
    assert list(primaries.values()) == [None, realm_hub.hub_id, realm_hub.hub_id, ELSEWHERE, ELSEWHERE, None]
    contested = realm_hub.run_offline("authority", "show", STREAM, "--when", 1060)
    assert "1 more active records take effect" in contested.err
    assert [line.split("\t")[-1] for line in contested.out.splitlines()[-2:]] == ["in effect", ""]


def test_a_record_that_could_never_take_effect_is_not_sent(realm_hub: RealmFixture) -> None:
    realm_hub.run_as_admin("authority", "set", STREAM, "--from", 1000, "--ttl", 100)
    ran = realm_hub.attempt("admin", "authority", "set", STREAM, "--from", 1020, "--ttl", 80)
    assert ran.status == 5
    assert "entry 1 covers its whole period" in ran.error


def test_records_are_listed_by_time_from_hub_and_directory_alike(realm_hub: RealmFixture) -> None:
    realm_hub.run_as_admin("authority", "set", STREAM, "--ttl", HOUR, "--replica", ELSEWHERE)
    realm_hub.run_as_admin("authority", "set", "windows", "--from", 1000, "--ttl", 10)
    now = realm_hub.run("reader", "authority", "list", "--json").json()["records"]
    assert [(one["stream_id"], one["replica_hubs"]) for one in now] == [(naming.stream_id(STREAM).hex(), [ELSEWHERE])]
    everything = realm_hub.run("reader", "authority", "list", "--all", "--json").json()["records"]
    assert len(everything) == 2
    assert realm_hub.run_offline("authority", "list", "--all", "--json", "--no-cache").json()["records"] == everything
    first = realm_hub.run_offline("authority", "list", "--all", "--at", 1, "--json").json()["records"]
    assert [one["stream_seq"] for one in first] == [1]


def test_a_proof_shows_the_primary_hub(realm_hub: RealmFixture, tmp_path: Path) -> None:
    realm_hub.run_as_admin("authority", "set", STREAM, "--ttl", HOUR)
    file = tmp_path / "primary.evidence"
    shown = realm_hub.run_offline("authority", "show", STREAM, "--prove", "--out", file, "--json").json()
    realm_id = naming.realm_id(REALM)
    part = part_of(realm_id, naming.stream_id(STREAM))
    found = verify_state(file.read_bytes(), Authorities(realm_id), admin.fed_admin_stream(realm_id), part)
    assert found.state_hash.hex() == shown["state_hash"]
    assert found.states[part][0].event.primary_hub.hex() == realm_hub.hub_id


def test_a_missing_authority_record_cannot_be_proved(realm_hub: RealmFixture) -> None:
    ran = realm_hub.attempt("reader", "authority", "show", STREAM, "--prove")
    assert ran.status == 2
    assert "depends on the whole log" in ran.error


def test_the_streams_of_a_realm_are_shown_with_and_without_a_hub(realm_hub: RealmFixture, veen: Veen) -> None:
    expected = [one.hex() for one in (naming.realm_id(REALM), *admin.admin_streams(naming.realm_id(REALM)))]
    assert list(realm_hub.run("reader", "authority", "streams").facts().values()) == expected
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
def test_an_invalid_authority_record_is_misuse(realm_hub: RealmFixture, arguments: tuple[str, ...], word: str) -> None:
    ran = realm_hub.attempt("admin", "authority", "set", STREAM, *arguments)
    assert ran.status == 2
    assert word in ran.error


def test_an_authority_record_without_a_capability_is_rejected(realm_hub: RealmFixture) -> None:
    ran = realm_hub.attempt("writer", "authority", "set", STREAM, "--ttl", HOUR)
    assert ran.status == 5
    assert realm_hub.run("reader", "authority", "list", "--all", "--when", int(time.time())).out == ""
