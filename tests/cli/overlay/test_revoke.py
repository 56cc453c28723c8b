"""`veen revoke`: enforced by a hub of the realm, and read from the log at any place and time, with proof."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.overlay.realm_fixture import REALM, RealmFixture, realm
from tests.cli.runner import Veen
from veen.client import capabilities
from veen.core import admin, naming
from veen.core.hashing import h
from veen.overlays.authorization import REVOCATIONS, part_of
from veen.state.state_proof import verify_state

SOMEBODY = "ab" * 32


@pytest.fixture
def realm_hub(veen: Veen, tmp_path: Path) -> Iterator[RealmFixture]:
    with realm(veen, tmp_path) as found:
        yield found


def checked(ran_json: Any) -> dict[str, Any]:
    """Return the status of each key and capability by name."""
    return {one["name"]: one["worth"] for one in ran_json["checked"]}


def test_a_hub_of_the_realm_refuses_a_capability_once_it_is_revoked(realm_hub: RealmFixture) -> None:
    assert realm_hub.send_as_writer().status == 0
    revoked = realm_hub.run_as_admin(
        "revoke", "cap-token", realm_hub.root / "writer.cap", "--reason", "issued by mistake", "--json"
    ).json()
    assert all(one["taken"] for one in revoked)
    refused = realm_hub.send_as_writer()
    assert refused.status == 5
    assert "E.CAP/CAP_INVALID" in refused.error


def test_a_client_key_is_revoked_with_all_that_its_card_lists(realm_hub: RealmFixture) -> None:
    listed = realm_hub.run_as_admin("revoke", "client-id", realm_hub.root / "writer", "--json").json()
    assert len(listed) == 8
    refused = realm_hub.send_as_writer()
    assert refused.status == 5
    assert "E.AUTH/AUTH_REF" in refused.error


def test_a_revocation_that_has_ended_is_not_in_effect(realm_hub: RealmFixture) -> None:
    token = capabilities.tokens_of(capabilities.read_capabilities(realm_hub.root / "writer.cap"))[0]
    sent = realm_hub.run_as_admin("revoke", "auth-ref", token.auth_ref().hex(), "--from", 1000, "--ttl", 60).facts()
    assert (sent["from"], sent["until"], sent["state"]) == ("1000", "1060", "applied")
    assert realm_hub.send_as_writer().status == 0
    worth = {
        when: checked(
            realm_hub.run("reader", "revoke", "check", realm_hub.root / "writer.cap", "--when", when, "--json").json()
        )
        for when in (999, 1000, 1059, 1060, int(time.time()))
    }
    assert [one[token.auth_ref().hex()] for one in worth.values()] == ["later", "revoked", "revoked", "later", "valid"]


def test_revocations_are_listed_by_time_with_their_reason(realm_hub: RealmFixture) -> None:
    realm_hub.run_as_admin(
        "revoke", "client-id", SOMEBODY, "--reason", "lost\x1b[31m", "--from", "2030-01-31", "--ttl", 60
    )
    assert realm_hub.run("reader", "revoke", "list").out == ""
    ((kind, target, start, until, reason, entry),) = [
        line.split("\t") for line in realm_hub.run("reader", "revoke", "list", "--all").out.splitlines()
    ]
    assert (kind, target, int(until) - int(start), entry) == ("client-id", SOMEBODY, 60, "1")
    assert reason == "lost\\x1b[31m"
    then = realm_hub.run("reader", "revoke", "list", "--when", "2030-01-31T00:00:59Z", "--json").json()
    assert [(one["target"], one["holds"]) for one in then["revocations"]] == [(SOMEBODY, True)]
    assert realm_hub.run("reader", "revoke", "list", "--when", "2030-01-31T00:01:00+00:00").out == ""


def test_the_data_directory_gives_the_same_answers_as_the_hub(realm_hub: RealmFixture) -> None:
    realm_hub.run_as_admin("revoke", "client-id", SOMEBODY)
    at_hub = realm_hub.run("reader", "revoke", "list", "--json").json()
    from_disk = realm_hub.run_offline("revoke", "list", "--json", "--no-cache")
    assert from_disk.status == 0
    keys = ("revocations", "realm_id", "stream", "at", "mmr_root", "hub_id")
    assert {key: from_disk.json()[key] for key in keys} == {key: at_hub[key] for key in keys}
    assert at_hub["realm_id"] == naming.realm_id(REALM).hex()
    assert at_hub["stream"] == admin.revocation_stream(naming.realm_id(REALM)).hex()


def test_at_and_when_show_the_past(realm_hub: RealmFixture) -> None:
    realm_hub.run_as_admin("revoke", "client-id", SOMEBODY)
    realm_hub.run_as_admin("revoke", "client-id", "cd" * 32)
    before = realm_hub.run_offline("revoke", "list", "--at", 1, "--json").json()
    assert [one["target"] for one in before["revocations"]] == [SOMEBODY]
    assert realm_hub.run_offline("revoke", "list", "--at", 9).status == 6
    assert realm_hub.run_offline("revoke", "list", "--at", "x").status == 2


def test_evidence_of_a_revocation_verifies_offline(realm_hub: RealmFixture, tmp_path: Path) -> None:
    realm_hub.run_as_admin("revoke", "client-id", SOMEBODY, "--reason", "stolen")
    file = tmp_path / "revoked.evidence"
    shown = realm_hub.run("reader", "revoke", "check", SOMEBODY, "--prove", "--out", file, "--json").json()
    part = part_of("client-id", bytes.fromhex(SOMEBODY))
    stream = admin.revocation_stream(naming.realm_id(REALM))
    found = verify_state(file.read_bytes(), REVOCATIONS, stream, part, pin=bytes.fromhex(realm_hub.hub_id))
    assert found.state_hash.hex() == shown["state_hash"]
    assert [record.event.reason for record in found.states[part]] == ["stolen"]
    assert realm_hub.veen.done("evidence", "verify", file, "--pin", realm_hub.hub_id).out.startswith(
        "verdict\tit holds\n"
    )


def test_without_a_revocation_the_proof_is_the_presented_capability(realm_hub: RealmFixture) -> None:
    assert realm_hub.send_as_writer().status == 0
    token = capabilities.tokens_of(capabilities.read_capabilities(realm_hub.root / "writer.cap"))[0]
    shown = realm_hub.run("reader", "revoke", "check", token.auth_ref().hex(), "--prove", "--json").json()
    assert shown["stream"] == naming.control_stream(bytes.fromhex(realm_hub.hub_id)).hex()
    assert len(shown["evidence"]["entries"]) == 1
    assert shown["checked"][0]["expires_at"] == shown["checked"][0]["issued_at"] + 3600


def test_an_absent_revocation_cannot_be_proved_by_entries(realm_hub: RealmFixture) -> None:
    ran = realm_hub.attempt("reader", "revoke", "check", SOMEBODY, "--prove")
    assert ran.status == 2
    assert "depends on the whole log" in ran.error


def test_a_client_sees_the_status_of_its_own_keys_and_capabilities(realm_hub: RealmFixture) -> None:
    assert realm_hub.send_as_writer().status == 0
    tokens = capabilities.tokens_of(capabilities.read_capabilities(realm_hub.root / "writer.cap"))
    before = realm_hub.run("writer", "revoke", "check", "--json").json()
    worth = checked(before)
    assert worth[tokens[0].auth_ref().hex()] == "valid"
    assert worth[tokens[1].auth_ref().hex()] == "unknown"
    assert worth[tokens[0].subject_pk.hex()] is None
    realm_hub.run_as_admin("revoke", "client-id", tokens[0].subject_pk.hex())
    after = checked(realm_hub.run("writer", "revoke", "check", "--json").json())
    assert after[tokens[0].auth_ref().hex()] == "revoked"
    assert after[tokens[0].subject_pk.hex()] == "revoked"
    assert after[tokens[1].auth_ref().hex()] == "unknown"


def test_a_key_is_found_by_any_of_its_names(realm_hub: RealmFixture) -> None:
    assert realm_hub.send_as_writer().status == 0
    token = capabilities.tokens_of(capabilities.read_capabilities(realm_hub.root / "writer.cap"))[0]
    for name in (token.auth_ref(), token.subject_pk, h(token.encode())):
        found = checked(realm_hub.run("reader", "revoke", "check", name.hex(), "--json").json())
        assert found[token.auth_ref().hex()] == "valid", name.hex()
    assert checked(realm_hub.run("reader", "revoke", "check", SOMEBODY, "--json").json()) == {SOMEBODY: "unknown"}
    realm_hub.run_as_admin("revoke", "cap-token", SOMEBODY)
    assert checked(realm_hub.run("reader", "revoke", "check", SOMEBODY, "--json").json()) == {SOMEBODY: "revoked"}


def test_a_second_identical_revocation_is_not_sent(realm_hub: RealmFixture) -> None:
    realm_hub.run_as_admin("revoke", "client-id", SOMEBODY)
    again = realm_hub.attempt("admin", "revoke", "client-id", SOMEBODY, "--ttl", 60)
    assert again.status == 5
    assert "entry 1 covers its whole period" in again.error
    assert realm_hub.run_offline("revoke", "list", "--json").json()["at"]["stream_seq"] == 1


def test_targets_that_are_already_revoked_are_skipped(realm_hub: RealmFixture) -> None:
    tokens = capabilities.tokens_of(capabilities.read_capabilities(realm_hub.root / "writer.cap"))
    realm_hub.run_as_admin("revoke", "auth-ref", tokens[3].auth_ref().hex())
    ran = realm_hub.run_as_admin("revoke", "auth-ref", realm_hub.root / "writer.cap", "--json")
    assert len(ran.json()) == len(tokens) - 1
    assert f"skipped {tokens[3].auth_ref().hex()[:12]}…: entry 1 covers its whole period" in ran.err


def test_revoking_needs_a_capability_and_the_error_names_it(realm_hub: RealmFixture) -> None:
    ran = realm_hub.attempt("writer", "revoke", "client-id", SOMEBODY)
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
def test_an_invalid_target_is_misuse_and_nothing_is_sent(
    realm_hub: RealmFixture, arguments: tuple[str, ...], word: str
) -> None:
    ran = realm_hub.attempt("admin", "revoke", *arguments)
    assert ran.status == 2
    assert word in ran.error


def test_a_file_without_capabilities_revokes_nothing(realm_hub: RealmFixture, tmp_path: Path) -> None:
    (tmp_path / "noise.cap").write_bytes(b"noise")
    assert realm_hub.attempt("admin", "revoke", "cap-token", tmp_path / "noise.cap").status == 3
    assert json.loads(realm_hub.run("reader", "revoke", "list", "--all", "--json").out)["revocations"] == []


def test_a_hub_without_a_realm_stores_revocations_that_readers_apply(veen: Veen, tmp_path: Path) -> None:
    with realm(veen, tmp_path, realm_id=None) as realm_hub:
        assert realm_hub.send_as_writer().status == 0
        sent = realm_hub.run_as_admin("revoke", "cap-token", realm_hub.root / "writer.cap", "--json").json()
        assert {one["realm_id"] for one in sent} == {admin.GLOBAL_REALM.hex()}
        assert realm_hub.send_as_writer().status == 0
        worth = set(
            checked(realm_hub.run("reader", "revoke", "check", realm_hub.root / "writer.cap", "--json").json()).values()
        )
        assert worth == {"revoked"}
        elsewhere = realm_hub.run(
            "reader", "revoke", "check", realm_hub.root / "writer.cap", "--realm", "other", "--json"
        ).json()
        assert "revoked" not in checked(elsewhere).values()
