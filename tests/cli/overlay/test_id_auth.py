"""`veen id auth`: a challenge, an answer that is really signed, and what makes an application say no."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.overlay.identities import Society, society
from tests.cli.runner import Ran, Veen
from veen.client import ClientDir
from veen.core import naming
from veen.hub.admission_rules import Admission
from veen.overlays.identity import ctx_id, ctx_stream, org_id, org_stream, principal_stream, realm_id

REALM = realm_id("shop")


@pytest.fixture
def people(veen: Veen, tmp_path: Path) -> Iterator[Society]:
    with society(veen, tmp_path) as found:
        found.does("ann", "create")
        found.does("ann", "device", "add", found.card("phone"))
        found.shares("ann", principal_stream(found.key("ann")), "shop")
        found.town.veen.done(
            "cap", "issue", "--issuer", found.folder("ann"), "--subject", found.key("phone").hex(), "--stream",
            "orders", "--ttl", 1000, "--out", tmp_path / "phone.cap",
        )  # fmt: skip
        yield found


def asks(people: Society, name: str = "asked") -> Path:
    out = people.town.root / name
    people.town.veen.done("id", "auth", "challenge", "--realm", "shop", "--audience", "shop.example", "--out", out)
    return out


def answers(people: Society, asked: Path, person: str = "phone", audience: str = "shop.example") -> Ran:
    cap, out = people.town.root / "phone.cap", people.town.root / f"{asked.name}.answer"
    return people.town.veen(
        "id", "auth", "answer", asked, "--audience", audience, "--cap", cap, "--out", out, "--client",
        people.folder(person),
    )  # fmt: skip


def verifies(people: Society, asked: Path, answered: Path | None = None, *options: object) -> Ran:
    given = ("--issued-at", int(time.time()) - 5) if "--issued-at" not in options else ()
    file = answered or people.town.root / f"{asked.name}.answer"
    return people.tries("shop", "auth", "verify", asked, file, "--for", "orders", "--json", *given, *options)


def test_a_device_that_answers_is_the_account_of_its_principal(people: Society) -> None:
    asked = asks(people)
    assert answers(people, asked).status == 0
    ran = verifies(people, asked, None, "--prove")
    assert ran.status == 0, ran.err
    found = ran.json()
    assert found["ctx_id"] == ctx_id(people.key("ann"), REALM).hex()
    assert found["device_pk"] == people.key("phone").hex()
    assert [one["stream_seq"] for one in found["evidence"]["entries"]] == [2]


def test_a_device_does_not_answer_whom_it_does_not_mean_or_with_keys_that_were_given_no_leave(people: Society) -> None:
    asked = asks(people)
    ran = answers(people, asked, audience="shop.evil")
    assert ran.status == 4
    assert "asked by 'shop.example'" in ran.error
    ran = answers(people, asked, person="tablet")
    assert ran.status == 4
    assert "none of these is for the long-term key" in ran.error


def test_an_answer_to_one_challenge_is_none_to_another(people: Society) -> None:
    asked, other = asks(people), asks(people, "other")
    assert answers(people, asked).status == 0
    ran = verifies(people, other, people.town.root / "asked.answer")
    assert ran.status == 4
    assert "another challenge" in ran.error


def test_a_device_that_was_revoked_is_nobody(people: Society) -> None:
    asked = asks(people)
    assert answers(people, asked).status == 0
    people.does("ann", "device", "revoke", people.card("phone"))
    ran = verifies(people, asked)
    assert ran.status == 4
    assert "was revoked" in ran.error
    assert verifies(people, asked, None, "--at", "2").status == 0


def test_a_capability_that_ran_out_or_was_revoked_lets_nobody_in(people: Society) -> None:
    asked = asks(people)
    assert answers(people, asked).status == 0
    assert "capability holds from" in verifies(people, asked, None, "--issued-at", 5).error
    shown = people.town.veen.done("cap", "show", people.town.root / "phone.cap", "--json").json()
    people.does("ann", "revoke", "--auth-ref", shown[0]["auth_ref"])
    assert "capability was revoked" in verifies(people, asked).error


def test_a_role_that_is_asked_for_must_be_held(people: Society) -> None:
    org, ann = org_id(people.key("company")), ctx_id(people.key("ann"), REALM).hex()
    people.does("company", "org", "create")
    people.shares("company", org_stream(org), "shop")
    asked = asks(people)
    assert answers(people, asked).status == 0
    asks_role = ("--org", people.card("company"), "--role", "clerk")
    assert "lacks the role 'clerk'" in verifies(people, asked, None, *asks_role).error
    people.does("company", "group", "add", "staff", ann)
    people.does("company", "role", "grant", "clerk", "--group", "staff")
    ran = verifies(people, asked, None, *asks_role)
    assert ran.status == 0, ran.err
    assert ran.json()["roles"] == ["clerk"]
    assert verifies(people, asked, None, "--role", "clerk").status == 2


def test_the_hubs_own_log_says_when_a_capability_began(people: Society, tmp_path: Path) -> None:
    asked = asks(people)
    assert answers(people, asked).status == 0
    given = ("auth", "verify", asked, people.town.root / "asked.answer", "--for", "orders", "--json")
    ran = people.tries("shop", *given)
    assert ran.status == 6
    assert "never shown the capability" in ran.error
    trusted(people, "operator", tmp_path / "phone.cap")
    again = asks(people, "again")
    assert answers(people, again).status == 0
    given = ("auth", "verify", again, people.town.root / "again.answer", "--for", "orders", "--json")
    assert people.tries("shop", *given).status == 6
    cap = ("cap", "authorize", tmp_path / "phone.cap", "--client", people.folder("shop"), "--hub", people.town.url)
    people.town.veen.done(*cap, "--all")
    ran = people.tries("shop", *given)
    assert ran.status == 0, ran.err
    assert ran.json()["ctx_id"] == ctx_id(people.key("operator"), REALM).hex()
    assert people.reads_copy("shop", *given).json() == ran.json()


def trusted(people: Society, principal: str, cap: Path) -> None:
    """A principal whose word the hub takes gives the phone leave, and the shop can read about it."""
    people.does(principal, "create")
    people.does(principal, "device", "add", people.card("phone"), "--client-ids")
    people.shares(principal, principal_stream(people.key(principal)), "shop")
    cap.unlink(missing_ok=True)
    made = people.town.veen.done(
        "id", "device", "grant", people.card("phone"), "--client", people.folder(principal), "--realm", "shop",
        "--stream", "orders", "--ttl", 1000, "--out", cap, "--json",
    ).json()  # fmt: skip
    with ClientDir.open(people.folder("phone")) as phone:
        assert made["tokens"] == 1 + len(phone.card.client_ids)
    account = ctx_stream(ctx_id(people.key(principal), REALM), REALM)
    wanted = {naming.stream_id("orders"), principal_stream(people.key(principal)), account}
    assert set(made["streams"]) == {one.hex() for one in wanted}


def sends(people: Society, cap: Path | None, person: str = "phone") -> Ran:
    given = () if cap is None else ("--cap", cap)
    return people.town.veen(
        "send", "--stream", "orders", "--body", "two apples", "--client", people.folder(person), "--hub",
        people.town.url, "--pin", people.town.hub.data_dir, *given,
    )  # fmt: skip


def test_a_message_is_its_senders_principals(veen: Veen, tmp_path: Path) -> None:
    with society(veen, tmp_path, Admission.CAPABILITY) as people:
        cap, own = tmp_path / "phone.cap", tmp_path / "operator.cap"
        stream = principal_stream(people.key("operator")).hex()
        veen.done(
            "cap", "issue", "--issuer", people.folder("operator"), "--subject", people.folder("operator"), "--stream",
            stream, "--ttl", 1000, "--out", own,
        )  # fmt: skip
        people.does("operator", "create", "--cap", own)
        trusted(people, "operator", cap)
        people.begins("shop", "orders")
        people.shares("shop", naming.stream_id("orders"), "phone", "tablet")
        assert sends(people, cap).status == 0
        asked = ("auth", "message", "1", "--stream", "orders", "--realm", "shop", "--json")
        ran = people.tries("shop", *asked, "--prove")
        assert ran.status == 0, ran.err
        assert ran.json()["ctx_id"] == ctx_id(people.key("operator"), REALM).hex()
        assert ran.json()["evidence"]["entries"]
        copied = people.reads_copy("shop", *asked)
        assert copied.json()["ctx_id"] == ran.json()["ctx_id"]
        with ClientDir.open(people.folder("phone")) as phone:
            client_id = phone.card.client_ids[0].hex()
        people.does("operator", "device", "revoke", client_id)
        assert "was revoked" in people.tries("shop", *asked).error
        assert people.tries("shop", *asked, "--at", "11").status == 0
        assert people.tries("shop", "auth", "message", "2", "--stream", "orders", "--realm", "shop").status != 0


def test_a_message_without_a_capability_is_nobodys(people: Society) -> None:
    people.begins("shop", "orders")
    people.shares("shop", naming.stream_id("orders"), "phone")
    assert sends(people, None).status == 0
    ran = people.tries("shop", "auth", "message", "1", "--stream", "orders", "--realm", "shop")
    assert ran.status == 4
    assert "names no capability" in ran.error


def test_an_answer_is_checked_against_a_data_directory_too(people: Society) -> None:
    asked = asks(people)
    assert answers(people, asked).status == 0
    verifies(people, asked)  # so that the hub is known
    given = ("auth", "verify", asked, people.town.root / "asked.answer", "--for", "orders", "--json", "--issued-at")
    ran = people.reads_copy("shop", *given, int(time.time()) - 5)
    assert ran.json()["ctx_id"] == ctx_id(people.key("ann"), REALM).hex()
    assert people.reads_copy("shop", *given, 5).status == 4


def test_a_challenge_names_who_asks(people: Society) -> None:
    out = people.town.root / "asked"
    ran = people.town.veen("id", "auth", "challenge", "--realm", "shop", "--audience", "", "--out", out)
    assert ran.status == 2
    assert "who asks" in ran.error
    assert not out.exists()


@pytest.mark.parametrize("damage", [b"", b"\x00", b"not cbor"])
def test_a_file_that_is_no_challenge_is_said_to_be_none(people: Society, tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "asked").write_bytes(damage)
    ran = answers(people, tmp_path / "asked")
    assert ran.status == 3
    assert ran.err.startswith("veen: error: ")
