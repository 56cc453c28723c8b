"""`veen cap`: capabilities are issued, shown, authorized and renewed."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.hub_fixture import STREAM, HubFixture, hub_fixture
from tests.cli.runner import Veen
from tests.hub.client import TOKEN, Clock
from veen.client import ClientDir, capabilities
from veen.core import CapToken, naming
from veen.core.cap_token import token_of
from veen.hub.admission_rules import Admission

TTL = ("--stream", STREAM, "--ttl", 3600)


@pytest.fixture
def strict(veen: Veen, tmp_path: Path) -> Iterator[HubFixture]:
    """A hub with capability admission."""
    with hub_fixture(veen, tmp_path, admission=Admission.CAPABILITY) as found:
        yield found


def issue(place: HubFixture, *arguments: object, issuer: str = "operator", subject: object = None) -> Path:
    out = place.root / f"{issuer}.cap"
    writer = place.root / "writer" if subject is None else subject
    given = ("--issuer", place.root / issuer, "--subject", writer, *TTL, "--out", out, *arguments)
    place.veen.done("cap", "issue", *given, *(() if "--bare" in arguments else ("--hub", place.root / "hub")))
    return out


def tokens_in(file: Path) -> tuple[CapToken, ...]:
    return capabilities.tokens_of(capabilities.read_capabilities(file))


def authorize(place: HubFixture, file: Path, person: str, *arguments: object) -> list[dict[str, object]]:
    who = ("--client", place.root / person, "--hub", place.url, "--pin", place.hub_id)
    found: list[dict[str, object]] = place.veen.done("cap", "authorize", file, *who, *arguments, "--json").json()
    return found


def test_a_card_gets_a_token_for_each_client_id_it_lists(strict: HubFixture) -> None:
    tokens = tokens_in(issue(strict, "--rate", "10,20"))
    with ClientDir.open(strict.root / "writer") as writer:
        assert tuple(token.subject_pk for token in tokens) == writer.card.client_ids
    for token in tokens:
        assert token.allow.stream_ids == (naming.stream_id(STREAM),)
        assert token.allow.ttl == 3600
        assert token.allow.rate is not None
        assert (token.allow.rate.per_sec, token.allow.rate.burst) == (10, 20)


def test_a_client_id_gets_one_token_and_without_out_it_is_printed(strict: HubFixture) -> None:
    with ClientDir.open(strict.root / "writer") as writer:
        client_id = writer.card.client_ids[0]
    given = ("--issuer", strict.root / "operator", "--subject", client_id.hex(), *TTL, "--hub", strict.hub_id)
    issued = strict.veen.done("cap", "issue", *given)
    (shown,) = capabilities.decode_capabilities(bytes.fromhex(issued.facts()["cbor"]), "cap")
    token = token_of(shown)
    assert token.subject_pk == client_id
    assert token.allow.rate is None


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--subject", "ab" * 31, *TTL], 6),
        (["--subject", "nobody", *TTL], 6),
        (["--subject", "ab" * 32, "--stream", STREAM, "--ttl", "0"], 2),
        (["--subject", "ab" * 32, "--stream", STREAM], 2),
        (["--subject", "ab" * 32, "--ttl", "5"], 2),
        (["--subject", "ab" * 32, *TTL, "--rate", "10"], 2),
        (["--subject", "ab" * 32, *TTL, "--rate", "10,x"], 2),
        (["--subject", "ab" * 32, *TTL, "--rate", "10,20,30"], 2),
        (["--subject", "ab" * 32, "--stream", STREAM, "--ttl", str(1 << 64)], 2),
    ],
)
def test_invalid_options_are_rejected(arguments: list[str], status: int, strict: HubFixture) -> None:
    ran = strict.veen("cap", "issue", "--issuer", strict.root / "operator", "--hub", strict.hub_id, *arguments)
    assert ran.status == status
    assert ran.error
    assert ran.out == ""


def test_show_verifies_the_file_and_lists_its_tokens(strict: HubFixture) -> None:
    file = issue(strict)
    shown = strict.veen.done("cap", "show", file, "--json").json()
    assert len(shown) == 8
    assert shown[0]["streams"] == [naming.stream_id(STREAM).hex()]
    assert strict.veen.done("cap", "show", file).out.count("\n") == 8
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes((data[-1] ^ 1,)))
    assert strict.veen("cap", "show", file).status == 4
    file.write_bytes(data[:-1])
    assert strict.veen("cap", "show", file).status == 3
    file.write_bytes(b"")
    assert strict.veen("cap", "show", file).status == 3


def test_the_client_authorizes_the_current_token_and_stores_the_others(strict: HubFixture) -> None:
    file = issue(strict)
    shown = authorize(strict, file, "writer")
    with ClientDir.open(strict.root / "writer") as writer:
        assert [row["client_id"] for row in shown] == [writer.card.client_ids[0].hex()]
        assert len(list(writer.caps)) == 8
    strict.does("writer", "send", "--body", "hello")


def test_another_client_authorizes_the_first_token_or_all(strict: HubFixture) -> None:
    file = issue(strict)
    with ClientDir.open(strict.root / "writer") as writer:
        client_ids = [one.hex() for one in writer.card.client_ids]
    assert [row["client_id"] for row in authorize(strict, file, "operator")] == client_ids[:1]
    again = authorize(strict, file, "operator", "--all")
    assert [row["client_id"] for row in again] == client_ids


def test_the_hub_accepts_capabilities_of_trusted_issuers_only(strict: HubFixture) -> None:
    own = issue(strict, issuer="writer")
    ran = strict.fails("writer", "send", "--body", "x", "--cap", own)
    assert ran.status == 5
    assert "the issuer of the capability is not trusted by this hub" in ran.error
    strict.does("writer", "send", "--body", "x", "--cap", issue(strict))


def test_without_a_capability_the_hint_says_how_to_issue_one(strict: HubFixture) -> None:
    ran = strict.fails("writer", "send", "--body", "x")
    assert ran.status == 5
    assert "E.CAP/CAP_MISSING" in ran.error
    assert f"--subject {strict.root / 'writer' / 'card.cbor'} --stream {STREAM}" in ran.err


def test_an_expired_capability_gets_a_hint_to_renew_it(strict: HubFixture) -> None:
    file, hub = issue(strict), strict.hub
    strict.does("writer", "send", "--body", "x", "--cap", file)
    hub.stop()
    hub.clock, hub.settings = Clock(time.time() + 3700), {**hub.settings, "port": hub.port}
    hub.start()
    ran = strict.fails("writer", "send", "--body", "y", "--cap", file)
    assert ran.status == 5
    assert ran.error.startswith("E.TIME/CAP_TTL: the capability for client_id ")
    assert "expired at " in ran.error
    assert "veen cap issue" in ran.err
    assert "veen cap renew" in ran.err
    who = ("--client", strict.root / "writer", "--hub", strict.url, "--pin", strict.hub_id)
    warned = strict.veen.done("cap", "authorize", file, *who)
    assert "has expired at this hub: its issuer can renew it" in warned.err
    file.unlink()
    again = issue(strict)
    assert (
        "has expired" in strict.veen.done("cap", "authorize", again, *who).err
    )  # the same options give the same token
    renewed = renew(strict, again)
    assert "expired" not in strict.veen.done("cap", "authorize", renewed, *who).err
    strict.does("writer", "send", "--body", "z")


def renew(place: HubFixture, file: Path, issuer: str = "operator", name: str = "renewed.cap") -> Path:
    out = place.root / name
    place.veen.done("cap", "renew", file, "--issuer", place.root / issuer, "--out", out)
    return out


def test_renewing_keeps_the_permissions_and_changes_the_auth_ref(strict: HubFixture) -> None:
    file = issue(strict, "--rate", "10,20")
    before = tokens_in(file)
    shown = strict.veen.done("cap", "renew", file, "--issuer", strict.root / "operator", "--json").json()
    after = capabilities.tokens_of(capabilities.decode_capabilities(bytes.fromhex(shown["cbor"]), "cap"))
    assert shown["auth_refs"] == [token.auth_ref().hex() for token in after]
    assert [(one.issuer_pk, one.subject_pk, one.allow) for one in after] == [
        (one.issuer_pk, one.subject_pk, one.allow) for one in before
    ]
    assert not {one.auth_ref() for one in after} & {one.auth_ref() for one in before}
    assert tokens_in(renew(strict, file)) == after  # renewing is deterministic


def test_only_the_issuer_can_renew(strict: HubFixture) -> None:
    file = issue(strict)
    ran = strict.veen("cap", "renew", file, "--issuer", strict.root / "writer")
    assert ran.status == 2
    assert "issued by another issuer" in ran.error
    assert strict.veen("cap", "renew", strict.root / "none", "--issuer", strict.root / "operator").status == 6


def test_a_capability_is_for_its_streams_only(strict: HubFixture) -> None:
    strict.veen.done("stream-key", "create", "other", "--client", strict.root / "writer")
    who = ("--client", strict.root / "writer", "--hub", strict.url, "--pin", strict.hub_id, "--stream", "other")
    ran = strict.veen("send", "--body", "x", *who, "--cap", issue(strict))
    assert ran.status == 5
    assert "CAP_MISSING" in ran.error


def test_authorize_needs_a_file_of_capabilities(strict: HubFixture) -> None:
    who = ("--client", strict.root / "writer", "--hub", strict.url, "--pin", strict.hub_id)
    assert strict.veen("cap", "authorize", *who).status == 2
    assert strict.veen("cap", "authorize", strict.root / "writer" / "card.cbor", *who).status == 3
    strict.veen.done("context", "add", "c", "--cap", issue(strict), "--hub", strict.url)
    strict.veen.done("cap", "authorize", "--client", strict.root / "writer", "--pin", strict.hub_id)


def test_an_authorized_capability_is_not_authorized_again(strict: HubFixture) -> None:
    file, hub = issue(strict), strict.hub
    strict.does("writer", "send", "--body", "one", "--cap", file)
    hub.stop()
    hub.settings = {**hub.settings, "issuers": frozenset(), "port": hub.port}
    hub.start()  # no longer trusts the issuer, but keeps authorized capabilities
    strict.does("writer", "send", "--body", "two", "--cap", file)
    assert hub.status()["entries"] == 3


def test_a_capability_names_its_hubs_and_its_date(strict: HubFixture) -> None:
    other = "ab" * 32
    file = issue(strict, "--hub", other, "--not-after", "2099-01-31T12:00:00Z")
    rows = strict.veen.done("cap", "show", file, "--json").json()
    assert len(rows) == 16
    assert {row["hub_id"] for row in rows} == {strict.hub_id, other}
    assert {row["not_after"] for row in rows} == {4_073_544_000}
    renewed = strict.veen.done("cap", "show", renew(strict, file), "--json").json()
    assert [row["hub_id"] for row in renewed] == [row["hub_id"] for row in rows]
    strict.does("writer", "send", "--body", "x", "--cap", file)


@pytest.mark.parametrize(("given", "least"), [((), 30 * 86_400), (("--not-after", "2h"), 7200)])
def test_a_capability_ends_after_a_time_even_if_none_is_given(
    strict: HubFixture, given: tuple[str, ...], least: int
) -> None:
    before = int(time.time())
    rows = strict.veen.done("cap", "show", issue(strict, *given), "--json").json()
    assert {before + least <= row["not_after"] <= int(time.time()) + least for row in rows} == {True}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((), "missing --hub"),
        (("--bare", "--hub", "ab" * 32), "contradict"),
        (("--hub", "ab" * 31), "pin"),
        (("--hub", "ab" * 32, "--not-after", "2001-01-01"), "in the past"),
        (("--hub", "ab" * 32, "--not-after", "tomorrow"), "tomorrow"),
    ],
)
def test_a_capability_is_not_issued_without_hub_and_date(
    strict: HubFixture, given: tuple[str, ...], error: str
) -> None:
    who = ("--issuer", strict.root / "operator", "--subject", "ab" * 32, *TTL)
    ran = strict.veen("cap", "issue", *who, *given)
    assert ran.status == 2, ran.err
    assert error in ran.error


def test_the_hub_of_the_context_is_the_default(strict: HubFixture) -> None:
    strict.veen.done("context", "add", "c", "--hub", strict.url, "--client", strict.root / "operator")
    who = ("--issuer", strict.root / "operator", "--subject", "ab" * 32, *TTL)
    assert strict.veen("cap", "issue", *who).status == 2  # the issuer has never used the hub
    strict.veen.done("stream", "--stream", STREAM, "--pin", strict.hub_id)
    assert strict.veen.done("cap", "issue", *who, "--json").json()["hubs"] == [strict.hub_id]


def test_a_bare_token_gets_a_hint_and_a_renewed_one_is_accepted(strict: HubFixture) -> None:
    file = issue(strict, "--bare")
    ran = strict.fails("writer", "send", "--body", "x", "--cap", file)
    assert ran.status == 5
    assert ran.error.startswith("E.CAP/CAP_INVALID: this hub accepts only capabilities that name it")
    assert f"--hub {strict.hub_id}" in ran.err
    new = strict.root / "new.cap"
    strict.veen.done("cap", "renew", file, "--issuer", strict.root / "operator", "--hub", strict.hub_id, "--out", new)
    strict.does("writer", "send", "--body", "x", "--cap", new)


def test_a_capability_for_another_hub_is_rejected_before_it_is_sent(strict: HubFixture) -> None:
    out = strict.root / "other.cap"
    who = ("--issuer", strict.root / "operator", "--subject", strict.root / "writer", *TTL)
    strict.veen.done("cap", "issue", *who, "--hub", "ab" * 32, "--out", out)
    ran = strict.fails("writer", "send", "--body", "x", "--cap", out)
    assert ran.status == 5
    assert ran.error.startswith(f"E.CAP/CAP_INVALID: the capability is for hub {'ab' * 32}, and this hub is ")
    assert strict.hub.status()["entries"] == 0


# Revoking.

OPERATOR = {"VEEN_OPERATOR_TOKEN": TOKEN}


@pytest.fixture
def revoking(strict: HubFixture) -> HubFixture:
    """A hub whose operator may revoke."""
    hub = strict.hub
    hub.stop()
    hub.settings = {**hub.settings, "allow_revocation": True, "port": hub.port}
    hub.start()
    return strict


@pytest.mark.parametrize("kind", ["auth-ref", "cap-token", "client-id"])
def test_the_operator_revokes_what_a_file_contains(revoking: HubFixture, kind: str) -> None:
    file = issue(revoking)
    revoking.does("writer", "send", "--body", "x", "--cap", file)
    given = revoking.root / "writer" if kind == "client-id" else file
    where = ("--reason", "lost", "--hub", revoking.url)
    ran = revoking.veen.done("cap", "revoke", given, "--kind", kind, *where, env=OPERATOR)
    rows = [line.split("\t") for line in ran.out.splitlines()]
    assert [(row[0], row[3]) for row in rows] == [(kind, "permanent")] * 8
    refused = revoking.fails("writer", "send", "--body", "y")
    assert refused.status == 5
    assert refused.error.startswith("E.CAP/CAP_INVALID: the ")
    assert revoking.hub.status()["revocations"] == 8


def test_one_capability_is_revoked_for_a_time_and_checked_by_anyone(revoking: HubFixture) -> None:
    file = issue(revoking)
    revoking.does("writer", "send", "--body", "x", "--cap", file)
    auth_ref = tokens_in(file)[0].auth_ref().hex()
    where = ("--hub", revoking.url)
    (row,) = revoking.veen.done("cap", "revoke", auth_ref, "--ttl", "7d", *where, "--json", env=OPERATOR).json()
    assert (row["kind"], row["target"], row["until"] - row["from"]) == ("auth-ref", auth_ref, 7 * 86_400)
    who = ("--client", revoking.root / "reader", *where, "--pin", revoking.hub_id)
    (found,) = revoking.veen.done("revoke", "check", auth_ref, *who, "--json").json()["checked"]
    assert (found["worth"], found["revoked"]["until"]) == ("revoked", row["until"])
    shown = revoking.veen.done("revoke", "check", auth_ref, *who, "--prove", "--json").json()
    assert shown["stream"] == naming.control_stream(bytes.fromhex(revoking.hub_id)).hex()
    assert [entry["stream_seq"] for entry in shown["evidence"]["entries"]] == [row["stream_seq"]]


def test_a_hub_that_does_not_revoke_says_what_to_do(strict: HubFixture) -> None:
    given = ("cap", "revoke", "ab" * 32, "--hub", strict.url)
    ran = strict.veen(*given, env=OPERATOR)
    assert ran.status == 5
    assert "started without --allow-revocation" in ran.error
    assert "start the hub with --allow-revocation" in ran.err
    assert strict.veen(*given).status == 2
    assert strict.veen(*given, env={"VEEN_OPERATOR_TOKEN": "wrong"}).error.startswith("E.UNAUTHORIZED")
    assert strict.hub.status()["entries"] == 0
