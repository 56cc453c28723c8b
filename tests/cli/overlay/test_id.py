"""`veen id`: principals, devices, accounts, organizations, groups, roles, handles and links, against a hub."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.overlay.identities import Society, society
from tests.cli.runner import Veen
from tests.overlays.test_identity_gateway import KEY, token
from veen.client import BlockingClient, ClientDir, Pin
from veen.core.hashing import ht
from veen.overlays.identity import (
    Device,
    ctx_id,
    ctx_stream,
    device_id,
    group_id,
    handle_stream,
    org_id,
    org_stream,
    principal_stream,
    realm_id,
    scoped_org_id,
)

REALM = realm_id("shop")


@pytest.fixture
def people(veen: Veen, tmp_path: Path) -> Iterator[Society]:
    with society(veen, tmp_path) as found:
        yield found


def test_a_principal_is_begun_and_shown_with_what_is_said_of_it(people: Society) -> None:
    made = people.does("ann", "create", "--info", "name=Ann", "--json").json()
    assert made["principal_pk"] == people.key("ann").hex()
    assert made["taken"] is True
    shown = people.does("ann", "show", "--json").json()
    assert shown["info"] == {"name": "Ann"}
    assert shown["stream"] == principal_stream(people.key("ann")).hex()
    people.does("ann", "create", "--info", "name=Anna")
    assert people.does("ann", "show", "--json").json()["info"] == {"name": "Anna"}
    assert people.does("ann", "show", "--at", "1", "--json").json()["info"] == {"name": "Ann"}


def test_another_reader_is_told_of_the_key_that_is_missing_and_reads_once_it_has_it(people: Society) -> None:
    people.does("ann", "create")
    ran = people.tries("shop", "show", "--principal", people.card("ann"))
    assert ran.status != 0
    assert "no reader key" in ran.error
    people.shares("ann", principal_stream(people.key("ann")), "shop")
    assert people.does("shop", "show", "--principal", people.card("ann"), "--json").json()["info"] is None


def test_devices_are_added_disabled_rotated_and_revoked(people: Society) -> None:
    people.does("ann", "create")

    def status() -> dict[str, bool]:
        listed = people.does("ann", "device", "list", "--json").json()["devices"]
        return {one["device_pk"]: one["active"] for one in listed}

    phone, tablet = people.key("phone").hex(), people.key("tablet").hex()
    people.does("ann", "device", "add", people.card("phone"), "--name", "phone")
    assert status() == {phone: True}
    people.does("ann", "device", "add", people.folder("phone"), "--disabled")
    assert status() == {phone: False}
    people.does("ann", "device", "add", people.card("phone"), "--expires-in", 1000)
    assert status() == {phone: True}
    said = people.does(
        "ann", "device", "rotate", people.card("phone"), people.card("tablet"), "--reason", "new"
    ).facts()
    assert said["revoked"] == device_id(people.key("phone")).hex()
    assert status() == {phone: False, tablet: True}
    people.does("ann", "device", "add", people.card("phone"))
    assert status() == {phone: False, tablet: True}
    people.does("ann", "device", "revoke", tablet)
    assert status() == {phone: False, tablet: False}
    assert "revoked" in people.does("ann", "device", "list").out


def test_a_device_is_not_rotated_to_itself(people: Society) -> None:
    people.does("ann", "create")
    ran = people.tries("ann", "device", "rotate", people.card("phone"), people.folder("phone"))
    assert (ran.status, ran.error) == (2, "the new device is the old one")


def test_an_answer_comes_from_a_data_directory_as_from_the_hub_and_with_its_evidence(
    people: Society, tmp_path: Path
) -> None:
    people.does("ann", "create")
    people.does("ann", "device", "add", people.card("phone"))
    people.does("ann", "device", "revoke", people.card("phone"))
    here = people.does("ann", "device", "list", "--json", "--prove").json()
    ran = people.reads_copy("ann", "device", "list", "--json", "--prove")
    assert ran.status == 0, ran.err
    there = ran.json()
    assert here["devices"] == there["devices"]
    assert here["state_hash"] == there["state_hash"]
    assert [one["stream_seq"] for one in here["evidence"]["entries"]] == [1, 2, 3]
    evidence = tmp_path / "devices.evidence"
    people.does("ann", "device", "list", "--prove", "--out", evidence, "--at", "2")
    people.town.veen.done("evidence", "verify", evidence, "--pin", people.town.hub.data_dir)


def test_an_account_has_the_profile_that_was_set_last(people: Society) -> None:
    mine = ctx_id(people.key("ann"), REALM)
    people.does("ann", "context", "set", "--realm", "shop", "--name", "Ann", "--pref", "theme=dark")
    people.does("ann", "context", "set", "--realm", "shop", "--name", "Annie")
    shown = people.does("ann", "context", "show", "--realm", "shop", "--json", "--prove").json()
    assert (shown["ctx_id"], shown["display_name"], shown["prefs"]) == (mine.hex(), "Annie", None)
    assert people.does("ann", "context", "show", "--realm", REALM.hex(), "--at", "1", "--json").json()["prefs"] == {
        "theme": "dark"
    }
    people.shares("ann", ctx_stream(mine, REALM), "shop")
    shown = people.does("shop", "context", "show", "--realm", "shop", "--account", mine.hex(), "--json").json()
    assert shown["display_name"] == "Annie"
    assert people.tries("ann", "context", "show", "--realm", "elsewhere").status != 0


def test_groups_and_roles_of_an_organization_add_up(people: Society) -> None:
    ann, bob = (ctx_id(people.key(person), REALM).hex() for person in ("ann", "bob"))
    people.does("company", "org", "create", "--name", "Company", "--meta", "kind=firm")
    shown = people.does("company", "org", "show", "--json").json()
    assert (shown["org_id"], shown["metadata"]) == (org_id(people.key("company")).hex(), {"kind": "firm"})
    people.does("company", "group", "add", "staff", ann, bob, "--called", "The staff")
    people.does("company", "group", "remove", "staff", bob)
    (staff,) = people.does("company", "group", "list", "--json", "--prove").json()["groups"]
    assert (staff["name"], staff["members"]) == ("The staff", [ann])
    assert staff["group_id"] == group_id(org_id(people.key("company")), "staff").hex()
    people.does("company", "role", "grant", "clerk", "--group", "staff")
    people.does("company", "role", "grant", "admin", "--account", ann, "--realm", "shop")

    def roles(*options: object) -> list[str]:
        found = people.does("company", "role", "list", ann, "--json", *options).json()["roles"]
        assert isinstance(found, list)
        return found

    assert roles() == ["clerk"]
    assert roles("--realm", "shop", "--prove") == ["admin", "clerk"]
    people.does("company", "role", "revoke", "clerk", "--group", "staff")
    assert roles("--realm", "shop") == ["admin"]
    assert roles("--realm", "shop", "--at", "5") == ["admin", "clerk"]
    people.does("company", "revoke", "--as-org", "--reason", "wound up")
    assert people.does("company", "org", "show", "--json").json()["revoked_at"] is not None


def test_an_organizations_twin_in_a_realm_has_groups_of_its_own(people: Society) -> None:
    org, ann = org_id(people.key("company")), ctx_id(people.key("ann"), REALM).hex()
    people.does("company", "org", "create", "--scoped", "shop")
    people.does("company", "group", "add", "staff", ann, "--scoped", "shop")
    listed = people.does("company", "group", "list", "--scoped", "shop", "--json").json()
    assert listed["org_id"] == scoped_org_id(org, REALM).hex()
    assert listed["stream"] == org_stream(scoped_org_id(org, REALM)).hex()
    people.does("company", "role", "grant", "clerk", "--group", "staff", "--scoped", "shop")
    assert people.does("company", "role", "list", ann, "--scoped", "shop", "--json").json()["roles"] == ["clerk"]


def test_a_handle_is_given_resolved_and_not_taken_by_accident(people: Society) -> None:
    stream = handle_stream(REALM)
    people.begins("shop", stream.hex())
    people.shares("shop", stream, "ann", "bob")
    people.does("ann", "handle", "set", "@ann", "--realm", "shop")
    shown = people.does("shop", "handle", "resolve", "@ann", "--realm", "shop", "--json", "--prove").json()
    assert shown["target_id"] == ctx_id(people.key("ann"), REALM).hex()
    ran = people.tries("bob", "handle", "set", "@ann", "--realm", "shop")
    assert ran.status != 0
    assert ran.error == "@ann stands for another"
    people.does("bob", "handle", "set", "@ann", "--realm", "shop", "--reassign", "--org", people.card("company"))
    assert (
        people.does("bob", "handle", "list", "--realm", "shop", "--json").json()["handles"][0]["target_type"] == "org"
    )
    for handle in ("@Ann", "a b", ""):
        assert people.tries("ann", "handle", "set", handle, "--realm", "shop").status == 2
    assert "stands for nobody" in people.tries("ann", "handle", "resolve", "@eve", "--realm", "shop").error


def test_links_are_kept_on_the_accounts_stream_and_logins_make_accounts(people: Society, tmp_path: Path) -> None:
    people.does("ann", "link", "add", "github", "ann-42", "--realm", "shop")
    (link,) = people.does("ann", "link", "list", "--realm", "shop", "--json").json()["links"]
    assert (link["provider"], link["external_sub"]) == ("github", "ann-42")
    now = int(time.time())
    jwt, described = tmp_path / "token.jwt", tmp_path / "corp.json"
    jwt.write_text(token(iat=now, exp=now + 600))
    said = {"name": "oidc:corp", "issuer": "https://id.corp.example", "audience": "veen-app"}
    described.write_text(json.dumps({**said, "keys": {"k1": KEY.public_key.hex()}, "mirrored": ["email"]}))
    people.begins("shop", "logins")
    arguments = ("link", "login", jwt, "--provider", described, "--realm", "shop", "--stream", "logins", "--json")
    first, second = people.does("shop", *arguments).json(), people.does("shop", *arguments).json()
    assert first["ctx_id"] == second["ctx_id"]
    assert (first["entries"], second["entries"]) == ([1, 2], [])
    jwt.write_text(token(iat=now - 1000, exp=now - 900))
    assert people.tries("shop", *arguments).status == 4
    described.write_text("{}")
    assert people.tries("shop", *arguments).status == 2


def test_several_may_be_kept_on_one_stream_and_foreign_events_are_listed(people: Society) -> None:
    people.begins("ann", "people")
    people.does("ann", "create", "--stream", "people")
    people.does("ann", "context", "set", "--realm", "shop", "--name", "Ann", "--stream", "people")
    assert people.does("ann", "context", "show", "--realm", "shop", "--stream", "people", "--json").json()["ctx_id"]
    people.town.veen.done(
        "send", "--stream", "people", "--schema", "id.principal.v1", "--body", "no map", "--client",
        people.folder("ann"), "--hub", people.town.url,
    )  # fmt: skip
    (fault,) = people.does("ann", "faults", "--stream", "people", "--json").json()["faults"]
    assert (fault["stream_seq"], fault["kind"]) == (3, "malformed")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("revoke",), "nothing is named that could be revoked"),
        (("create", "--info", "name"), "'name' is not NAME=TEXT"),
        (("group", "add", "staff", *["00" * 32] * 1025), "1025 at once, above 1024"),
        (("role", "grant", "admin"), "a role is for someone"),
        (("group", "remove", "staff", "ann"), "'ann' is not a ctx_id: 64 hex digits"),
        (("show", "--principal", "nowhere"), "'nowhere' is no public key of 64 hex digits, client directory or card"),
        (("context", "set", "--realm", ""), "a realm has a name, or an id of 64 hex digits"),
        (
            ("handle", "set", "@a", "--realm", "shop", "--org", "00" * 32, "--account", "00" * 32),
            "--account and --org contradict each other",
        ),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_sent(
    people: Society, arguments: tuple[str, ...], error: str
) -> None:
    ran = people.tries("ann", *arguments)
    assert (ran.status, ran.error) == (2, error)


def test_revocations_of_accounts_and_capabilities_are_on_the_principals_stream(people: Society) -> None:
    people.does("ann", "create")
    mine, auth_ref = ctx_id(people.key("ann"), REALM).hex(), ht("veen/cap", b"some").hex()
    said = people.does("ann", "revoke", "--account", mine, "--realm", "shop", "--auth-ref", auth_ref, "--json").json()
    assert (said["ctx_id"], said["revoked_auth_ref"], said["taken"]) == (mine, auth_ref, True)


def test_the_stream_of_anything_follows_from_its_id(people: Society) -> None:
    def stream(*options: object) -> str:
        return people.town.veen.done("id", "stream", "--client", people.folder("ann"), *options).out.strip()

    ann, company = people.key("ann"), org_id(people.key("company"))
    assert stream() == principal_stream(ann).hex()
    assert stream("--principal", people.card("bob")) == principal_stream(people.key("bob")).hex()
    assert stream("--realm", "shop") == ctx_stream(ctx_id(ann, REALM), REALM).hex()
    assert stream("--org", people.card("company")) == stream("--org", company.hex()) == org_stream(company).hex()
    assert stream("--org", company.hex(), "--realm", "shop") == org_stream(scoped_org_id(company, REALM)).hex()
    assert stream("--realm", "shop", "--handles") == handle_stream(REALM).hex()
    assert json.loads(stream("--realm", "shop", "--json"))["ctx_id"] == ctx_id(ann, REALM).hex()
    assert people.town.veen("id", "stream", "--handles", "--client", people.folder("ann")).status == 2


def test_what_a_stream_says_of_another_principal_is_listed_whether_the_stream_is_named_or_not(people: Society) -> None:
    people.does("ann", "create")
    stream = principal_stream(people.key("ann"))
    phone = people.key("phone")
    event = Device(people.key("bob"), device_id(phone), phone, bytes(32), None, 1)
    with (
        ClientDir.open(people.folder("ann")) as folder,
        BlockingClient(people.town.url, folder, pin=Pin.parse(people.town.hub_id)) as client,
    ):
        client.send(stream, event.encode(), schema=event.SCHEMA)
        client.send(stream, b"no map", schema=event.SCHEMA)
    for named in ((), ("--stream", stream.hex()), ("--principal", people.card("ann"))):
        faults = people.does("ann", "faults", *named, "--json").json()["faults"]
        assert [(one["stream_seq"], one["kind"]) for one in faults] == [(2, "malformed"), (3, "malformed")]
        assert "not the one of this stream" in faults[0]["reason"]
        assert people.reads_copy("ann", "faults", *named, "--json").json()["faults"] == faults
    listed = people.does("ann", "device", "list", "--principal", people.card("bob"), "--stream", stream.hex(), "--json")
    assert [one["device_pk"] for one in listed.json()["devices"]] == [phone.hex()]  # of several on one stream
    assert people.does("ann", "device", "list", "--stream", stream.hex(), "--json").json()["devices"] == []
    assert people.tries("ann", "faults", "--handles").status == 2
