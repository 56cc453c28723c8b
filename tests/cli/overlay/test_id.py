"""`veen id`: principals, devices, accounts, organizations, groups, roles, handles and links, against a hub."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.overlay.identity_fixture import IdentityFixture, identity_hub
from tests.cli.runner import Veen
from tests.overlays.test_identity_gateway import KEY, token
from veen.client import BlockingClient, ClientDir, Pin
from veen.core.hashing import ht
from veen.core.naming import realm_id
from veen.overlays.identity_events import (
    Device,
    ctx_id,
    ctx_stream,
    device_id,
    group_id,
    handle_stream,
    org_id,
    org_stream,
    principal_stream,
    scoped_org_id,
)

REALM = realm_id("shop")


@pytest.fixture
def id_hub(veen: Veen, tmp_path: Path) -> Iterator[IdentityFixture]:
    with identity_hub(veen, tmp_path) as found:
        yield found


def test_a_principal_is_created_and_shown_with_its_info(id_hub: IdentityFixture) -> None:
    made = id_hub.run("ann", "create", "--info", "name=Ann", "--json").json()
    assert made["principal_pk"] == id_hub.key("ann").hex()
    assert made["taken"] is True
    shown = id_hub.run("ann", "show", "--json").json()
    assert shown["info"] == {"name": "Ann"}
    assert shown["stream"] == principal_stream(id_hub.key("ann")).hex()
    id_hub.run("ann", "create", "--info", "name=Anna")
    assert id_hub.run("ann", "show", "--json").json()["info"] == {"name": "Anna"}
    assert id_hub.run("ann", "show", "--at", "1", "--json").json()["info"] == {"name": "Ann"}


def test_a_reader_without_the_key_gets_an_error_until_it_has_the_key(id_hub: IdentityFixture) -> None:
    id_hub.run("ann", "create")
    ran = id_hub.attempt("shop", "show", "--principal", id_hub.card("ann"))
    assert ran.status != 0
    assert "no reader key" in ran.error
    id_hub.share_key("ann", principal_stream(id_hub.key("ann")), "shop")
    assert id_hub.run("shop", "show", "--principal", id_hub.card("ann"), "--json").json()["info"] is None


def test_devices_are_added_disabled_rotated_and_revoked(id_hub: IdentityFixture) -> None:
    id_hub.run("ann", "create")

    def status() -> dict[str, bool]:
        listed = id_hub.run("ann", "device", "list", "--json").json()["devices"]
        return {one["device_pk"]: one["active"] for one in listed}

    phone, tablet = id_hub.key("phone").hex(), id_hub.key("tablet").hex()
    id_hub.run("ann", "device", "add", id_hub.card("phone"), "--name", "phone")
    assert status() == {phone: True}
    id_hub.run("ann", "device", "add", id_hub.folder("phone"), "--disabled")
    assert status() == {phone: False}
    id_hub.run("ann", "device", "add", id_hub.card("phone"), "--expires-in", 1000)
    assert status() == {phone: True}
    sent = id_hub.run("ann", "device", "rotate", id_hub.card("phone"), id_hub.card("tablet"), "--reason", "new").facts()
    assert sent["revoked"] == device_id(id_hub.key("phone")).hex()
    assert status() == {phone: False, tablet: True}
    id_hub.run("ann", "device", "add", id_hub.card("phone"))
    assert status() == {phone: False, tablet: True}
    id_hub.run("ann", "device", "revoke", tablet)
    assert status() == {phone: False, tablet: False}
    assert "revoked" in id_hub.run("ann", "device", "list").out


def test_a_device_is_not_rotated_to_itself(id_hub: IdentityFixture) -> None:
    id_hub.run("ann", "create")
    ran = id_hub.attempt("ann", "device", "rotate", id_hub.card("phone"), id_hub.folder("phone"))
    assert (ran.status, ran.error) == (2, "the new device is the old one")


def test_a_data_directory_gives_the_same_answer_and_evidence_as_the_hub(
    id_hub: IdentityFixture, tmp_path: Path
) -> None:
    id_hub.run("ann", "create")
    id_hub.run("ann", "device", "add", id_hub.card("phone"))
    id_hub.run("ann", "device", "revoke", id_hub.card("phone"))
    here = id_hub.run("ann", "device", "list", "--json", "--prove").json()
    ran = id_hub.run_on_copy("ann", "device", "list", "--json", "--prove")
    assert ran.status == 0, ran.err
    there = ran.json()
    assert here["devices"] == there["devices"]
    assert here["state_hash"] == there["state_hash"]
    assert [one["stream_seq"] for one in here["evidence"]["entries"]] == [1, 2, 3]
    evidence = tmp_path / "devices.evidence"
    id_hub.run("ann", "device", "list", "--prove", "--out", evidence, "--at", "2")
    id_hub.town.veen.done("evidence", "verify", evidence, "--pin", id_hub.town.hub.data_dir)


def test_an_account_has_the_profile_that_was_set_last(id_hub: IdentityFixture) -> None:
    mine = ctx_id(id_hub.key("ann"), REALM)
    id_hub.run("ann", "context", "set", "--realm", "shop", "--name", "Ann", "--pref", "theme=dark")
    id_hub.run("ann", "context", "set", "--realm", "shop", "--name", "Annie")
    shown = id_hub.run("ann", "context", "show", "--realm", "shop", "--json", "--prove").json()
    assert (shown["ctx_id"], shown["display_name"], shown["prefs"]) == (mine.hex(), "Annie", None)
    assert id_hub.run("ann", "context", "show", "--realm", REALM.hex(), "--at", "1", "--json").json()["prefs"] == {
        "theme": "dark"
    }
    id_hub.share_key("ann", ctx_stream(mine, REALM), "shop")
    shown = id_hub.run("shop", "context", "show", "--realm", "shop", "--account", mine.hex(), "--json").json()
    assert shown["display_name"] == "Annie"
    assert id_hub.attempt("ann", "context", "show", "--realm", "elsewhere").status != 0


def test_roles_include_those_of_groups(id_hub: IdentityFixture) -> None:
    ann, bob = (ctx_id(id_hub.key(person), REALM).hex() for person in ("ann", "bob"))
    id_hub.run("company", "org", "create", "--name", "Company", "--meta", "kind=firm")
    shown = id_hub.run("company", "org", "show", "--json").json()
    assert (shown["org_id"], shown["metadata"]) == (org_id(id_hub.key("company")).hex(), {"kind": "firm"})
    id_hub.run("company", "group", "add", "staff", ann, bob, "--called", "The staff")
    id_hub.run("company", "group", "remove", "staff", bob)
    (staff,) = id_hub.run("company", "group", "list", "--json", "--prove").json()["groups"]
    assert (staff["name"], staff["members"]) == ("The staff", [ann])
    assert staff["group_id"] == group_id(org_id(id_hub.key("company")), "staff").hex()
    id_hub.run("company", "role", "grant", "clerk", "--group", "staff")
    id_hub.run("company", "role", "grant", "admin", "--account", ann, "--realm", "shop")

    def roles(*options: object) -> list[str]:
        found = id_hub.run("company", "role", "list", ann, "--json", *options).json()["roles"]
        assert isinstance(found, list)
        return found

    assert roles() == ["clerk"]
    assert roles("--realm", "shop", "--prove") == ["admin", "clerk"]
    id_hub.run("company", "role", "revoke", "clerk", "--group", "staff")
    assert roles("--realm", "shop") == ["admin"]
    assert roles("--realm", "shop", "--at", "5") == ["admin", "clerk"]
    id_hub.run("company", "revoke", "--as-org", "--reason", "wound up")
    assert id_hub.run("company", "org", "show", "--json").json()["revoked_at"] is not None


def test_the_twin_of_an_organization_has_its_own_groups(id_hub: IdentityFixture) -> None:
    org, ann = org_id(id_hub.key("company")), ctx_id(id_hub.key("ann"), REALM).hex()
    id_hub.run("company", "org", "create", "--scoped", "shop")
    id_hub.run("company", "group", "add", "staff", ann, "--scoped", "shop")
    listed = id_hub.run("company", "group", "list", "--scoped", "shop", "--json").json()
    assert listed["org_id"] == scoped_org_id(org, REALM).hex()
    assert listed["stream"] == org_stream(scoped_org_id(org, REALM)).hex()
    id_hub.run("company", "role", "grant", "clerk", "--group", "staff", "--scoped", "shop")
    assert id_hub.run("company", "role", "list", ann, "--scoped", "shop", "--json").json()["roles"] == ["clerk"]


def test_a_handle_is_assigned_resolved_and_reassigned_only_explicitly(id_hub: IdentityFixture) -> None:
    stream = handle_stream(REALM)
    id_hub.create_key("shop", stream.hex())
    id_hub.share_key("shop", stream, "ann", "bob")
    id_hub.run("ann", "handle", "set", "@ann", "--realm", "shop")
    shown = id_hub.run("shop", "handle", "resolve", "@ann", "--realm", "shop", "--json", "--prove").json()
    assert shown["target_id"] == ctx_id(id_hub.key("ann"), REALM).hex()
    ran = id_hub.attempt("bob", "handle", "set", "@ann", "--realm", "shop")
    assert ran.status != 0
    assert ran.error.startswith("@ann is already assigned to ")
    id_hub.run("bob", "handle", "set", "@ann", "--realm", "shop", "--reassign", "--org", id_hub.card("company"))
    assert id_hub.run("bob", "handle", "list", "--realm", "shop", "--json").json()["handles"][0]["target_type"] == "org"
    for handle in ("@Ann", "a b", ""):
        assert id_hub.attempt("ann", "handle", "set", handle, "--realm", "shop").status == 2
    assert "is not assigned" in id_hub.attempt("ann", "handle", "resolve", "@eve", "--realm", "shop").error


def test_links_are_on_the_accounts_stream_and_logins_create_accounts(id_hub: IdentityFixture, tmp_path: Path) -> None:
    id_hub.run("ann", "link", "add", "github", "ann-42", "--realm", "shop")
    (link,) = id_hub.run("ann", "link", "list", "--realm", "shop", "--json").json()["links"]
    assert (link["provider"], link["external_sub"]) == ("github", "ann-42")
    now = int(time.time())
    jwt, described = tmp_path / "token.jwt", tmp_path / "corp.json"
    jwt.write_text(token(iat=now, exp=now + 600))
    sent = {"name": "oidc:corp", "issuer": "https://id.corp.example", "audience": "veen-app"}
    described.write_text(json.dumps({**sent, "keys": {"k1": KEY.public_key.hex()}, "mirrored": ["email"]}))
    id_hub.create_key("shop", "logins")
    arguments = ("link", "login", jwt, "--provider", described, "--realm", "shop", "--stream", "logins", "--json")
    first, second = id_hub.run("shop", *arguments).json(), id_hub.run("shop", *arguments).json()
    assert first["ctx_id"] == second["ctx_id"]
    assert (first["entries"], second["entries"]) == ([1, 2], [])
    jwt.write_text(token(iat=now - 1000, exp=now - 900))
    assert id_hub.attempt("shop", *arguments).status == 4
    described.write_text("{}")
    assert id_hub.attempt("shop", *arguments).status == 2


def test_one_stream_can_hold_several_principals_and_foreign_events_are_faults(id_hub: IdentityFixture) -> None:
    id_hub.create_key("ann", "people")
    id_hub.run("ann", "create", "--stream", "people")
    id_hub.run("ann", "context", "set", "--realm", "shop", "--name", "Ann", "--stream", "people")
    assert id_hub.run("ann", "context", "show", "--realm", "shop", "--stream", "people", "--json").json()["ctx_id"]
    id_hub.town.veen.done(
        "send", "--stream", "people", "--schema", "id.principal.v1", "--body", "no map", "--client",
        id_hub.folder("ann"), "--hub", id_hub.town.url,
    )  # fmt: skip
    (fault,) = id_hub.run("ann", "faults", "--stream", "people", "--json").json()["faults"]
    assert (fault["stream_seq"], fault["kind"]) == (3, "malformed")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("revoke",), "missing --auth-ref or --account"),
        (("create", "--info", "name"), "'name' is not NAME=TEXT"),
        (("group", "add", "staff", *["00" * 32] * 1025), "1025 ids are given, above the limit of 1024"),
        (("role", "grant", "admin"), "missing --account or --group"),
        (("group", "remove", "staff", "ann"), "'ann' is not a ctx_id: give 64 hex digits"),
        (
            ("show", "--principal", "nowhere"),
            "'nowhere' is neither a public key of 64 hex digits, nor a client directory or card",
        ),
        (("context", "set", "--realm", ""), "the realm is empty: give its name, or its id of 64 hex digits"),
        (
            ("handle", "set", "@a", "--realm", "shop", "--org", "00" * 32, "--account", "00" * 32),
            "--account and --org contradict each other",
        ),
    ],
)
def test_invalid_arguments_are_misuse_and_nothing_is_sent(
    id_hub: IdentityFixture, arguments: tuple[str, ...], error: str
) -> None:
    ran = id_hub.attempt("ann", *arguments)
    assert (ran.status, ran.error) == (2, error)


def test_revocations_of_accounts_and_capabilities_are_on_the_principals_stream(id_hub: IdentityFixture) -> None:
    id_hub.run("ann", "create")
    mine, auth_ref = ctx_id(id_hub.key("ann"), REALM).hex(), ht("veen/cap", b"some").hex()
    sent = id_hub.run("ann", "revoke", "--account", mine, "--realm", "shop", "--auth-ref", auth_ref, "--json").json()
    assert (sent["ctx_id"], sent["revoked_auth_ref"], sent["taken"]) == (mine, auth_ref, True)


def test_streams_are_derived_from_ids(id_hub: IdentityFixture) -> None:
    def stream(*options: object) -> str:
        return id_hub.town.veen.done("id", "stream", "--client", id_hub.folder("ann"), *options).out.strip()

    ann, company = id_hub.key("ann"), org_id(id_hub.key("company"))
    assert stream() == principal_stream(ann).hex()
    assert stream("--principal", id_hub.card("bob")) == principal_stream(id_hub.key("bob")).hex()
    assert stream("--realm", "shop") == ctx_stream(ctx_id(ann, REALM), REALM).hex()
    assert stream("--org", id_hub.card("company")) == stream("--org", company.hex()) == org_stream(company).hex()
    assert stream("--org", company.hex(), "--realm", "shop") == org_stream(scoped_org_id(company, REALM)).hex()
    assert stream("--realm", "shop", "--handles") == handle_stream(REALM).hex()
    assert json.loads(stream("--realm", "shop", "--json"))["ctx_id"] == ctx_id(ann, REALM).hex()
    assert id_hub.town.veen("id", "stream", "--handles", "--client", id_hub.folder("ann")).status == 2


def test_records_of_another_principal_are_faults_with_and_without_stream_option(id_hub: IdentityFixture) -> None:
    id_hub.run("ann", "create")
    stream = principal_stream(id_hub.key("ann"))
    phone = id_hub.key("phone")
    event = Device(id_hub.key("bob"), device_id(phone), phone, bytes(32), None, 1)
    with (
        ClientDir.open(id_hub.folder("ann")) as folder,
        BlockingClient(id_hub.town.url, folder, pin=Pin.parse(id_hub.town.hub_id)) as client,
    ):
        client.send(stream, event.encode(), schema=event.SCHEMA)
        client.send(stream, b"no map", schema=event.SCHEMA)
    for named in ((), ("--stream", stream.hex()), ("--principal", id_hub.card("ann"))):
        faults = id_hub.run("ann", "faults", *named, "--json").json()["faults"]
        assert [(one["stream_seq"], one["kind"]) for one in faults] == [(2, "malformed"), (3, "malformed")]
        assert "does not match this stream" in faults[0]["reason"]
        assert id_hub.run_on_copy("ann", "faults", *named, "--json").json()["faults"] == faults
    listed = id_hub.run("ann", "device", "list", "--principal", id_hub.card("bob"), "--stream", stream.hex(), "--json")
    assert [one["device_pk"] for one in listed.json()["devices"]] == [phone.hex()]  # of several on one stream
    assert id_hub.run("ann", "device", "list", "--stream", stream.hex(), "--json").json()["devices"] == []
    assert id_hub.attempt("ann", "faults", "--handles").status == 2
