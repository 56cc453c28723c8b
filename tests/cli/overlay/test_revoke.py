"""`veen revoke`: at a hub that goes by it, from the log, at any time and place, and with proof."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.overlay.realms import REALM, Realm, realm
from tests.cli.runner import Veen
from veen.client import capabilities
from veen.core import admin, naming
from veen.core.hashing import h
from veen.overlays.admin import REVOCATIONS
from veen.overlays.admin.revocation import part_of
from veen.state.state_proof import verify_state

SOMEBODY = "ab" * 32


@pytest.fixture
def town(veen: Veen, tmp_path: Path) -> Iterator[Realm]:
    with realm(veen, tmp_path) as found:
        yield found


def checked(ran_json: Any) -> dict[str, Any]:
    """By name, what each is worth."""
    return {one["name"]: one["worth"] for one in ran_json["checked"]}


def test_a_hub_of_the_realm_refuses_a_capability_once_it_is_revoked(town: Realm) -> None:
    assert town.sends().status == 0
    revoked = town.says(
        "revoke", "cap-token", town.root / "writer.cap", "--reason", "issued by mistake", "--json"
    ).json()
    assert all(one["taken"] for one in revoked)
    refused = town.sends()
    assert refused.status == 5
    assert "E.CAP/CAP_INVALID" in refused.error


def test_a_client_key_is_revoked_with_all_that_its_card_lists(town: Realm) -> None:
    listed = town.says("revoke", "client-id", town.root / "writer", "--json").json()
    assert len(listed) == 8
    refused = town.sends()
    assert refused.status == 5
    assert "E.AUTH/AUTH_REF" in refused.error


def test_a_revocation_that_has_ended_no_longer_holds(town: Realm) -> None:
    token = capabilities.read_tokens(town.root / "writer.cap")[0]
    said = town.says("revoke", "auth-ref", token.auth_ref().hex(), "--from", 1000, "--ttl", 60).facts()
    assert (said["from"], said["until"], said["state"]) == ("1000", "1060", "taken")
    assert town.sends().status == 0
    worth = {
        when: checked(town.does("reader", "revoke", "check", town.root / "writer.cap", "--when", when, "--json").json())
        for when in (999, 1000, 1059, 1060, int(time.time()))
    }
    assert [one[token.auth_ref().hex()] for one in worth.values()] == ["later", "revoked", "revoked", "later", "valid"]


def test_what_is_revoked_is_listed_by_time_and_with_its_reason(town: Realm) -> None:
    town.says("revoke", "client-id", SOMEBODY, "--reason", "lost\x1b[31m", "--from", "2030-01-31", "--ttl", 60)
    assert town.does("reader", "revoke", "list").out == ""
    ((kind, target, start, until, reason, entry),) = [
        line.split("\t") for line in town.does("reader", "revoke", "list", "--all").out.splitlines()
    ]
    assert (kind, target, int(until) - int(start), entry) == ("client-id", SOMEBODY, 60, "1")
    assert reason == "lost\\x1b[31m"
    then = town.does("reader", "revoke", "list", "--when", "2030-01-31T00:00:59Z", "--json").json()
    assert [(one["target"], one["holds"]) for one in then["revocations"]] == [(SOMEBODY, True)]
    assert town.does("reader", "revoke", "list", "--when", "2030-01-31T00:01:00+00:00").out == ""


def test_the_data_directory_says_the_same_as_the_hub(town: Realm) -> None:
    town.says("revoke", "client-id", SOMEBODY)
    at_hub = town.does("reader", "revoke", "list", "--json").json()
    from_disk = town.reads("revoke", "list", "--json", "--no-cache")
    assert from_disk.status == 0
    keys = ("revocations", "realm_id", "stream", "at", "mmr_root", "hub_id")
    assert {key: from_disk.json()[key] for key in keys} == {key: at_hub[key] for key in keys}
    assert at_hub["realm_id"] == naming.realm_id(REALM).hex()
    assert at_hub["stream"] == admin.revocation_stream(naming.realm_id(REALM)).hex()


def test_the_past_is_told_as_it_was(town: Realm) -> None:
    town.says("revoke", "client-id", SOMEBODY)
    town.says("revoke", "client-id", "cd" * 32)
    before = town.reads("revoke", "list", "--at", 1, "--json").json()
    assert [one["target"] for one in before["revocations"]] == [SOMEBODY]
    assert town.reads("revoke", "list", "--at", 9).status == 6
    assert town.reads("revoke", "list", "--at", "x").status == 2


def test_a_proof_shows_a_stranger_that_a_key_is_revoked(town: Realm, tmp_path: Path) -> None:
    town.says("revoke", "client-id", SOMEBODY, "--reason", "stolen")
    file = tmp_path / "revoked.evidence"
    shown = town.does("reader", "revoke", "check", SOMEBODY, "--prove", "--out", file, "--json").json()
    part = part_of("client-id", bytes.fromhex(SOMEBODY))
    stream = admin.revocation_stream(naming.realm_id(REALM))
    found = verify_state(file.read_bytes(), REVOCATIONS, stream, part, pin=bytes.fromhex(town.hub_id))
    assert found.state_hash.hex() == shown["state_hash"]
    assert [record.event.reason for record in found.states[part]] == ["stolen"]
    assert town.veen.done("evidence", "verify", file, "--pin", town.hub_id).out.startswith("verdict\tit holds\n")


def test_where_nothing_is_revoked_the_proof_is_what_the_hub_was_shown(town: Realm) -> None:
    assert town.sends().status == 0
    token = capabilities.read_tokens(town.root / "writer.cap")[0]
    shown = town.does("reader", "revoke", "check", token.auth_ref().hex(), "--prove", "--json").json()
    assert shown["stream"] == naming.control_stream(bytes.fromhex(town.hub_id)).hex()
    assert len(shown["evidence"]["entries"]) == 1
    assert shown["checked"][0]["expires_at"] == shown["checked"][0]["issued_at"] + 3600


def test_what_only_the_whole_log_shows_cannot_be_proved_by_some_entries(town: Realm) -> None:
    ran = town.tries("reader", "revoke", "check", SOMEBODY, "--prove")
    assert ran.status == 2
    assert "only the whole log" in ran.error


def test_a_client_sees_what_its_own_keys_and_capabilities_are_worth(town: Realm) -> None:
    assert town.sends().status == 0
    tokens = capabilities.read_tokens(town.root / "writer.cap")
    before = town.does("writer", "revoke", "check", "--json").json()
    worth = checked(before)
    assert worth[tokens[0].auth_ref().hex()] == "valid"
    assert worth[tokens[1].auth_ref().hex()] == "unknown"
    assert worth[tokens[0].subject_pk.hex()] is None
    town.says("revoke", "client-id", tokens[0].subject_pk.hex())
    after = checked(town.does("writer", "revoke", "check", "--json").json())
    assert after[tokens[0].auth_ref().hex()] == "revoked"
    assert after[tokens[0].subject_pk.hex()] == "revoked"
    assert after[tokens[1].auth_ref().hex()] == "unknown"


def test_a_key_is_found_by_any_of_its_names(town: Realm) -> None:
    assert town.sends().status == 0
    token = capabilities.read_tokens(town.root / "writer.cap")[0]
    for name in (token.auth_ref(), token.subject_pk, h(token.encode())):
        found = checked(town.does("reader", "revoke", "check", name.hex(), "--json").json())
        assert found[token.auth_ref().hex()] == "valid", name.hex()
    assert checked(town.does("reader", "revoke", "check", SOMEBODY, "--json").json()) == {SOMEBODY: "unknown"}
    town.says("revoke", "cap-token", SOMEBODY)
    assert checked(town.does("reader", "revoke", "check", SOMEBODY, "--json").json()) == {SOMEBODY: "revoked"}


def test_what_is_revoked_already_is_not_sent_again(town: Realm) -> None:
    town.says("revoke", "client-id", SOMEBODY)
    again = town.tries("admin", "revoke", "client-id", SOMEBODY, "--ttl", 60)
    assert again.status == 5
    assert "entry 1 holds for all of its time" in again.error
    assert town.reads("revoke", "list", "--json").json()["at"]["stream_seq"] == 1


def test_of_several_those_that_are_revoked_already_are_left_out(town: Realm) -> None:
    tokens = capabilities.read_tokens(town.root / "writer.cap")
    town.says("revoke", "auth-ref", tokens[3].auth_ref().hex())
    ran = town.says("revoke", "auth-ref", town.root / "writer.cap", "--json")
    assert len(ran.json()) == len(tokens) - 1
    assert f"{tokens[3].auth_ref().hex()[:12]}… is left out: entry 1 holds for all of its time" in ran.err


def test_only_who_has_leave_to_may_revoke_and_is_told_what_is_missing(town: Realm) -> None:
    ran = town.tries("writer", "revoke", "client-id", SOMEBODY)
    assert ran.status == 5
    assert "E.CAP/CAP_MISSING" in ran.error
    assert "veen authority streams" in ran.err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("client-id", "no-such-card"), "not a client_id"),
        (("auth-ref", "abcd"), "64 hex digits"),
        (("cap-token", "no-such.cap"), "64 hex digits"),
        (("auth-ref", SOMEBODY, "--ttl", "0"), "ttl"),
        (("auth-ref", SOMEBODY, "--from", "yesterday"), "seconds since 1970"),
        (("auth-ref", SOMEBODY, "--from", str(1 << 64)), "not a time"),
        (("auth-ref", SOMEBODY, "--realm", ""), "realm"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_sent(
    town: Realm, arguments: tuple[str, ...], word: str
) -> None:
    ran = town.tries("admin", "revoke", *arguments)
    assert ran.status == 2
    assert word in ran.error


def test_a_file_that_holds_no_capability_revokes_nothing(town: Realm, tmp_path: Path) -> None:
    (tmp_path / "noise.cap").write_bytes(b"noise")
    assert town.tries("admin", "revoke", "cap-token", tmp_path / "noise.cap").status == 3
    assert json.loads(town.does("reader", "revoke", "list", "--all", "--json").out)["revocations"] == []


def test_a_hub_without_a_realm_keeps_revocations_and_readers_go_by_them(veen: Veen, tmp_path: Path) -> None:
    with realm(veen, tmp_path, realm_id=None) as town:
        assert town.sends().status == 0
        said = town.says("revoke", "cap-token", town.root / "writer.cap", "--json").json()
        assert {one["realm_id"] for one in said} == {admin.GLOBAL_REALM.hex()}
        assert town.sends().status == 0
        worth = set(checked(town.does("reader", "revoke", "check", town.root / "writer.cap", "--json").json()).values())
        assert worth == {"revoked"}
        elsewhere = town.does(
            "reader", "revoke", "check", town.root / "writer.cap", "--realm", "other", "--json"
        ).json()
        assert "revoked" not in checked(elsewhere).values()
