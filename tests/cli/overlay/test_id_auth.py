"""`veen id auth`: challenges, signed answers, and the reasons to reject an answer."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.overlay.identity_fixture import IdentityFixture, identity_hub
from tests.cli.runner import Ran, Veen
from veen.client import ClientDir
from veen.core import naming
from veen.core.naming import realm_id
from veen.hub.admission_rules import Admission
from veen.overlays.identity_events import ctx_id, ctx_stream, org_id, org_stream, principal_stream

REALM = realm_id("shop")


@pytest.fixture
def id_hub(veen: Veen, tmp_path: Path) -> Iterator[IdentityFixture]:
    with identity_hub(veen, tmp_path) as found:
        found.run("ann", "create")
        found.run("ann", "device", "add", found.card("phone"))
        found.share_key("ann", principal_stream(found.key("ann")), "shop")
        found.town.veen.done(
            "cap", "issue", "--issuer", found.folder("ann"), "--subject", found.key("phone").hex(), "--stream",
            "orders", "--ttl", 1000, "--hub", tmp_path / "hub", "--out", tmp_path / "phone.cap",
        )  # fmt: skip
        yield found


def make_challenge(id_hub: IdentityFixture, name: str = "asked") -> Path:
    out = id_hub.town.root / name
    id_hub.town.veen.done("id", "auth", "challenge", "--realm", "shop", "--audience", "shop.example", "--out", out)
    return out


def answer_challenge(
    id_hub: IdentityFixture, challenge_file: Path, person: str = "phone", audience: str = "shop.example"
) -> Ran:
    cap, out = id_hub.town.root / "phone.cap", id_hub.town.root / f"{challenge_file.name}.answer"
    return id_hub.town.veen(
        "id", "auth", "answer", challenge_file, "--audience", audience, "--cap", cap, "--out", out, "--client",
        id_hub.folder(person),
    )  # fmt: skip


def verify_answer(id_hub: IdentityFixture, challenge_file: Path, answered: Path | None = None, *options: object) -> Ran:
    given = ("--issued-at", int(time.time()) - 5) if "--issued-at" not in options else ()
    file = answered or id_hub.town.root / f"{challenge_file.name}.answer"
    return id_hub.attempt("shop", "auth", "verify", challenge_file, file, "--for", "orders", "--json", *given, *options)


def test_an_answer_of_a_device_proves_the_account_of_its_principal(id_hub: IdentityFixture) -> None:
    challenge_file = make_challenge(id_hub)
    assert answer_challenge(id_hub, challenge_file).status == 0
    ran = verify_answer(id_hub, challenge_file, None, "--prove")
    assert ran.status == 0, ran.err
    found = ran.json()
    assert found["ctx_id"] == ctx_id(id_hub.key("ann"), REALM).hex()
    assert found["device_pk"] == id_hub.key("phone").hex()
    assert [one["stream_seq"] for one in found["evidence"]["entries"]] == [2]


def test_a_device_answers_only_the_expected_audience_and_only_with_a_capability(id_hub: IdentityFixture) -> None:
    challenge_file = make_challenge(id_hub)
    ran = answer_challenge(id_hub, challenge_file, audience="shop.evil")
    assert ran.status == 4
    assert "audience is 'shop.example'" in ran.error
    ran = answer_challenge(id_hub, challenge_file, person="tablet")
    assert ran.status == 4
    assert "no capability in the file is for the long-term key" in ran.error


def test_an_answer_is_valid_only_for_its_challenge(id_hub: IdentityFixture) -> None:
    challenge_file, other = make_challenge(id_hub), make_challenge(id_hub, "other")
    assert answer_challenge(id_hub, challenge_file).status == 0
    ran = verify_answer(id_hub, other, id_hub.town.root / "asked.answer")
    assert ran.status == 4
    assert "another challenge" in ran.error


def test_a_revoked_device_cannot_authenticate(id_hub: IdentityFixture) -> None:
    challenge_file = make_challenge(id_hub)
    assert answer_challenge(id_hub, challenge_file).status == 0
    id_hub.run("ann", "device", "revoke", id_hub.card("phone"))
    ran = verify_answer(id_hub, challenge_file)
    assert ran.status == 4
    assert "was revoked" in ran.error
    assert verify_answer(id_hub, challenge_file, None, "--at", "2").status == 0


def test_an_expired_or_revoked_capability_cannot_authenticate(id_hub: IdentityFixture) -> None:
    challenge_file = make_challenge(id_hub)
    assert answer_challenge(id_hub, challenge_file).status == 0
    assert "capability is valid from" in verify_answer(id_hub, challenge_file, None, "--issued-at", 5).error
    shown = id_hub.town.veen.done("cap", "show", id_hub.town.root / "phone.cap", "--json").json()
    id_hub.run("ann", "revoke", "--auth-ref", shown[0]["auth_ref"])
    assert "capability was revoked" in verify_answer(id_hub, challenge_file).error


def test_a_required_role_must_be_granted(id_hub: IdentityFixture) -> None:
    org, ann = org_id(id_hub.key("company")), ctx_id(id_hub.key("ann"), REALM).hex()
    id_hub.run("company", "org", "create")
    id_hub.share_key("company", org_stream(org), "shop")
    challenge_file = make_challenge(id_hub)
    assert answer_challenge(id_hub, challenge_file).status == 0
    asks_role = ("--org", id_hub.card("company"), "--role", "clerk")
    assert "lacks the role 'clerk'" in verify_answer(id_hub, challenge_file, None, *asks_role).error
    id_hub.run("company", "group", "add", "staff", ann)
    id_hub.run("company", "role", "grant", "clerk", "--group", "staff")
    ran = verify_answer(id_hub, challenge_file, None, *asks_role)
    assert ran.status == 0, ran.err
    assert ran.json()["roles"] == ["clerk"]
    assert verify_answer(id_hub, challenge_file, None, "--role", "clerk").status == 2


def test_the_start_of_a_capability_comes_from_the_hubs_log(id_hub: IdentityFixture, tmp_path: Path) -> None:
    challenge_file = make_challenge(id_hub)
    assert answer_challenge(id_hub, challenge_file).status == 0
    given = ("auth", "verify", challenge_file, id_hub.town.root / "asked.answer", "--for", "orders", "--json")
    ran = id_hub.attempt("shop", *given)
    assert ran.status == 6
    assert "was never presented to this hub" in ran.error
    trusted(id_hub, "operator", tmp_path / "phone.cap")
    again = make_challenge(id_hub, "again")
    assert answer_challenge(id_hub, again).status == 0
    given = ("auth", "verify", again, id_hub.town.root / "again.answer", "--for", "orders", "--json")
    assert id_hub.attempt("shop", *given).status == 6
    cap = ("cap", "authorize", tmp_path / "phone.cap", "--client", id_hub.folder("shop"), "--hub", id_hub.town.url)
    id_hub.town.veen.done(*cap, "--all")
    ran = id_hub.attempt("shop", *given)
    assert ran.status == 0, ran.err
    assert ran.json()["ctx_id"] == ctx_id(id_hub.key("operator"), REALM).hex()
    assert id_hub.run_on_copy("shop", *given).json() == ran.json()


def trusted(id_hub: IdentityFixture, principal: str, cap: Path) -> None:
    """Grant the phone a capability of a principal whom the hub accepts as issuer; share the stream with the shop."""
    id_hub.run(principal, "create")
    id_hub.run(principal, "device", "add", id_hub.card("phone"), "--client-ids")
    id_hub.share_key(principal, principal_stream(id_hub.key(principal)), "shop")
    cap.unlink(missing_ok=True)
    made = id_hub.town.veen.done(
        "id", "device", "grant", id_hub.card("phone"), "--client", id_hub.folder(principal), "--realm", "shop",
        "--stream", "orders", "--ttl", 1000, "--hub", id_hub.town.hub.data_dir, "--out", cap, "--json",
    ).json()  # fmt: skip
    with ClientDir.open(id_hub.folder("phone")) as phone:
        assert made["tokens"] == 1 + len(phone.card.client_ids)
    account = ctx_stream(ctx_id(id_hub.key(principal), REALM), REALM)
    wanted = {naming.stream_id("orders"), principal_stream(id_hub.key(principal)), account}
    assert set(made["streams"]) == {one.hex() for one in wanted}


def sends(id_hub: IdentityFixture, cap: Path | None, person: str = "phone") -> Ran:
    given = () if cap is None else ("--cap", cap)
    return id_hub.town.veen(
        "send", "--stream", "orders", "--body", "two apples", "--client", id_hub.folder(person), "--hub",
        id_hub.town.url, "--pin", id_hub.town.hub.data_dir, *given,
    )  # fmt: skip


def test_a_message_is_attributed_to_the_account_of_its_sender(veen: Veen, tmp_path: Path) -> None:
    with identity_hub(veen, tmp_path, Admission.CAPABILITY) as id_hub:
        cap, own = tmp_path / "phone.cap", tmp_path / "operator.cap"
        stream = principal_stream(id_hub.key("operator")).hex()
        veen.done(
            "cap", "issue", "--issuer", id_hub.folder("operator"), "--subject", id_hub.folder("operator"), "--stream",
            stream, "--ttl", 1000, "--hub", tmp_path / "hub", "--out", own,
        )  # fmt: skip
        id_hub.run("operator", "create", "--cap", own)
        trusted(id_hub, "operator", cap)
        id_hub.create_key("shop", "orders")
        id_hub.share_key("shop", naming.stream_id("orders"), "phone", "tablet")
        assert sends(id_hub, cap).status == 0
        challenge_file = ("auth", "message", "1", "--stream", "orders", "--realm", "shop", "--json")
        ran = id_hub.attempt("shop", *challenge_file, "--prove")
        assert ran.status == 0, ran.err
        assert ran.json()["ctx_id"] == ctx_id(id_hub.key("operator"), REALM).hex()
        assert ran.json()["evidence"]["entries"]
        copied = id_hub.run_on_copy("shop", *challenge_file)
        assert copied.json()["ctx_id"] == ran.json()["ctx_id"]
        with ClientDir.open(id_hub.folder("phone")) as phone:
            client_id = phone.card.client_ids[0].hex()
        id_hub.run("operator", "device", "revoke", client_id)
        assert "was revoked" in id_hub.attempt("shop", *challenge_file).error
        assert id_hub.attempt("shop", *challenge_file, "--at", "11").status == 0
        assert id_hub.attempt("shop", "auth", "message", "2", "--stream", "orders", "--realm", "shop").status != 0


def test_a_message_without_a_capability_cannot_be_attributed(id_hub: IdentityFixture) -> None:
    id_hub.create_key("shop", "orders")
    id_hub.share_key("shop", naming.stream_id("orders"), "phone")
    assert sends(id_hub, None).status == 0
    ran = id_hub.attempt("shop", "auth", "message", "1", "--stream", "orders", "--realm", "shop")
    assert ran.status == 4
    assert "names no capability" in ran.error


def test_an_answer_verifies_against_a_data_directory(id_hub: IdentityFixture) -> None:
    challenge_file = make_challenge(id_hub)
    assert answer_challenge(id_hub, challenge_file).status == 0
    verify_answer(id_hub, challenge_file)  # so that the hub is known
    given = (
        "auth",
        "verify",
        challenge_file,
        id_hub.town.root / "asked.answer",
        "--for",
        "orders",
        "--json",
        "--issued-at",
    )
    ran = id_hub.run_on_copy("shop", *given, int(time.time()) - 5)
    assert ran.json()["ctx_id"] == ctx_id(id_hub.key("ann"), REALM).hex()
    assert id_hub.run_on_copy("shop", *given, 5).status == 4


def test_a_challenge_needs_an_audience(id_hub: IdentityFixture) -> None:
    out = id_hub.town.root / "asked"
    ran = id_hub.town.veen("id", "auth", "challenge", "--realm", "shop", "--audience", "", "--out", out)
    assert ran.status == 2
    assert "audience is empty" in ran.error
    assert not out.exists()


@pytest.mark.parametrize("damage", [b"", b"\x00", b"not cbor"])
def test_a_damaged_challenge_file_is_malformed(id_hub: IdentityFixture, tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "asked").write_bytes(damage)
    ran = answer_challenge(id_hub, tmp_path / "asked")
    assert ran.status == 3
    assert ran.err.startswith("veen: error: ")
