"""`veen op` at a hub and on its data directory."""

import json
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.cli.overlay.state_fixture import StateFixture, state_hub
from tests.cli.runner import Veen
from veen.cli.kit.exit_status import VIOLATED_STATUS
from veen.client import ClientDir, capabilities
from veen.core import CapPresentation
from veen.overlays.operations.operation_events import operation_id
from veen.overlays.operations.operation_index import BY_NAME

OPS = "ops"
PAID = (
    "-f", "operation_type=store", "-f", 'operation_args={"size":[1,null]}', "-f", "payer_account=name:ann",
    "-f", "payee_account=name:bob", "-f", "amount=300", "-f", "currency_code=JPY",
)  # fmt: skip


def name(text: str) -> str:
    return sha256(text.encode()).hexdigest()


@pytest.fixture
def op_hub(veen: Veen, tmp_path: Path) -> Iterator[StateFixture]:
    with state_hub(veen, tmp_path, OPS) as found:
        yield found


def send(op_hub: StateFixture, kind: str, *given: object) -> dict[str, Any]:
    found = op_hub.run("op", "send", kind, *given, "--json", stream=OPS).json()
    assert isinstance(found, dict)
    return found


def fields(**given: object) -> list[object]:
    return [word for key, value in given.items() for word in ("-f", f"{key}={value}")]


def test_an_operation_is_sent_and_shown_by_a_prefix_of_its_id(op_hub: StateFixture) -> None:
    sent = send(op_hub, "paid.operation", *PAID)
    assert sent["operation_id"] == operation_id(bytes.fromhex(sent["msg_id"])).hex()
    assert sent["taken"] is True
    shown = op_hub.run("op", "show", sent["operation_id"][:12], "--json", stream=OPS).json()
    assert shown["operation_id"] == sent["operation_id"]
    assert shown["body"] == {
        "operation_type": "store", "operation_args": {"size": [1, None]}, "payer_account": name("ann"),
        "payee_account": name("bob"), "amount": 300, "currency_code": "JPY",
    }  # fmt: skip
    facts = op_hub.run("op", "show", sent["operation_id"], stream=OPS).facts()
    assert (facts["kind"], facts["amount"], facts["entry"]) == ("paid.operation", "300", "1")
    folded = op_hub.run("fold", "--overlay", "paid.operation", "--json", stream=OPS).json()
    balances = [part["state"]["balances"] for part in folded["parts"]]
    assert sorted(amount for one in balances for amount in one.values()) == [-300, 300]


def test_a_body_may_be_json_and_a_field_wins_over_it(op_hub: StateFixture, tmp_path: Path) -> None:
    file = tmp_path / "read.json"
    file.write_text(json.dumps({"requester_identity": name("ann"), "resource_identifier": "x", "resource_class": "y"}))
    made = send(
        op_hub, "query.audit", "--body", f"@{file}", "-f", "resource_class=z", "-f", 'query_parameters="hex:00ff"'
    )
    shown = op_hub.run("op", "show", made["operation_id"], "--json", stream=OPS).json()
    assert shown["body"]["resource_class"] == "z"
    assert shown["body"]["query_parameters"] == "00ff"


def sent_of_every_kind(op_hub: StateFixture, tmp_path: Path) -> dict[str, str]:
    """Send one valid operation of every kind and return their ids."""
    ann, bob = "name:ann", "name:bob"
    ids = {"paid.operation": send(op_hub, "paid.operation", *PAID, "-f", "ttl_seconds=600")["operation_id"]}

    def add(kind: str, **given: object) -> Any:
        listed = [*fields(**given)]
        ids[kind] = send(op_hub, kind, *listed)["operation_id"]
        return ids[kind]

    add("access.grant", subject_identity=ann, allowed_stream_ids=OPS, expiry_time=9_999_999_999, maximum_burst=5)
    add("access.revoke", subject_identity=bob, reason="left")
    inner = json.dumps({"subject_identity": ann, "reason": "moved"})
    add(
        "delegated.execution", principal_identity=ann, agent_identity=bob, delegation_chain="name:token",
        operation_schema="access.revoke", operation_body=inner, parent_operation_id=ids["paid.operation"],
    )  # fmt: skip
    add("agreement.definition", agreement_id="name:deal", version=1, terms_hash="name:terms", parties=ann)
    add("agreement.confirmation", agreement_id="name:deal", version=1, party_identity=ann, decision="accept")
    add(
        "data.publication", publication_id="name:model", publisher_identity=ann, content_root="name:root",
        content_class="model", version="v1.0", labels="beta",
    )  # fmt: skip
    add("state.checkpoint", state_class="paid.operation")
    request = add("recovery.request", target_identity=ann, requested_new_identity=bob)
    approval = add(
        "recovery.approval", target_identity=ann, requested_new_identity=bob, approver_identity="name:carol",
        decision="approve", parent_operation_id=request,
    )  # fmt: skip
    add("recovery.execution", target_identity=ann, new_identity=bob, approval_references=approval)
    add("query.audit", requester_identity=ann, resource_identifier="patient:7", resource_class="personal-data")
    op_hub.run("send", "--body", "to be mirrored")
    evidence = tmp_path / "one.evidence"
    op_hub.run("evidence", "make", 1, "--out", evidence)
    ids["federation.mirror"] = send(
        op_hub, "federation.mirror", "--source", evidence, "--source-pin", op_hub.town.hub_id
    )["operation_id"]
    return ids


def test_every_kind_is_sent_listed_and_checked_from_hub_and_directory_alike(
    op_hub: StateFixture, tmp_path: Path
) -> None:
    ids = sent_of_every_kind(op_hub, tmp_path)
    assert list(ids) == list(BY_NAME)
    listed = op_hub.run("op", "list", "--json", stream=OPS).json()["operations"]
    assert [(one["kind"], one["operation_id"]) for one in listed] == list(ids.items())
    lines = op_hub.run("op", "list", "--kind", "paid.operation", stream=OPS).out.splitlines()
    assert [line.split("\t")[2] for line in lines] == ["paid.operation"]
    checked = op_hub.run("op", "check", "--json", stream=OPS).json()
    assert checked["counts"]["violated"] == 0
    found = {(one["rule"], one["verdict"]) for one in checked["findings"]}
    assert {("snapshot.S2", "holds"), ("recovery.R1", "holds"), ("mirror.F1", "open")} <= found
    copy = tmp_path / "copy"
    shutil.copytree(op_hub.town.hub.data_dir, copy)
    for command in (["list"], ["check"], ["trace", ids["recovery.approval"]]):
        here = op_hub.run("op", *command, "--json", stream=OPS).json()
        there = op_hub.run_offline(copy, "op", *command, "--json", "--pin", op_hub.town.hub.data_dir, stream=OPS).json()
        assert here == there
    assert op_hub.run("op", "list", "--at", 3, "--json", stream=OPS).json()["operations"] == listed[:3]


def test_a_trace_shows_references_in_both_directions_and_missing_operations(op_hub: StateFixture) -> None:
    ann = {"target_identity": "name:ann", "requested_new_identity": "name:bob"}
    request = send(op_hub, "recovery.request", *fields(**ann))["operation_id"]
    approval = send(
        op_hub, "recovery.approval",
        *fields(**ann, approver_identity="name:c", decision="approve", parent_operation_id=request),
    )["operation_id"]  # fmt: skip
    done = send(
        op_hub, "recovery.execution",
        *fields(target_identity="name:ann", new_identity="name:bob", approval_references=approval),
    )["operation_id"]  # fmt: skip
    answer = op_hub.run("op", "trace", approval, "--json", stream=OPS).json()["trace"]
    assert [(one["distance"], one["operation_id"]) for one in answer] == [(-1, request), (0, approval), (1, done)]
    lost = send(op_hub, "access.revoke", *fields(subject_identity="name:x", parent_operation_id="name:nowhere"))
    lines = op_hub.run("op", "trace", lost["operation_id"], stream=OPS).out.splitlines()
    assert [line.split("\t")[3] for line in lines] == ["not in this stream", "access.revoke"]


def test_an_operation_that_its_profile_rejects_is_not_sent(op_hub: StateFixture) -> None:
    release = fields(
        publication_id="name:m", publisher_identity="name:p", content_root="name:r", content_class="c", version="1"
    )
    send(op_hub, "data.publication", *release)
    again = op_hub.attempt("op", "send", "data.publication", *release, stream=OPS)
    assert again.status == 5
    assert "publication.P1" in again.error
    assert "nothing was sent" in again.err
    empty = fields(principal_identity="name:a", agent_identity="name:b", operation_schema="name:s", operation_body="{}")
    refused = op_hub.attempt("op", "send", "delegated.execution", *empty, "-f", "delegation_chain=", stream=OPS)
    assert (refused.status, "delegated.D1" in refused.error) == (5, True)
    assert len(op_hub.run("op", "list", "--json", stream=OPS).json()["operations"]) == 1


def test_a_violated_rule_is_reported_with_its_places_and_its_own_status(op_hub: StateFixture, tmp_path: Path) -> None:
    release = fields(
        publication_id="name:m", publisher_identity="name:p", content_root="name:r", content_class="c", version="1"
    )
    send(op_hub, "data.publication", *release)
    send(op_hub, "data.publication", *release, "--blind")
    ran = op_hub.attempt("op", "check", "--json", stream=OPS)
    assert ran.status == VIOLATED_STATUS == 13
    (broken,) = [one for one in ran.json()["findings"] if one["verdict"] == "violated"]
    assert broken["rule"] == "publication.P1"
    assert [directory_hub["stream_seq"] for directory_hub in broken["places"]] == [1, 2]
    table = op_hub.attempt("op", "check", "--rule", "publication.P1", stream=OPS)
    assert [line.split("\t")[:3] for line in table.out.splitlines()] == [["publication.P1", "violated", "1, 2"]]
    assert table.err == "veen: 1 holds, 1 is violated\n"
    assert op_hub.run("op", "check", "--at", 1, stream=OPS).status == 0
    proof = tmp_path / "violation.evidence"
    assert op_hub.attempt("op", "check", "--out", proof, stream=OPS).status == 13
    shown = op_hub.town.veen.done("evidence", "verify", proof, "--pin", op_hub.town.hub.data_dir, "--json").json()
    assert [entry["stream_seq"] for entry in shown["entries"]] == [2]


def test_a_writer_without_the_reader_key_sends_blind(op_hub: StateFixture) -> None:
    given = ("send", "access.revoke", *fields(subject_identity="name:x"))
    assert op_hub.town.fails("writer", "op", *given).status == 6
    op_hub.town.does("writer", "op", *given, "--blind")
    listed = op_hub.run("op", "list", "--json").json()["operations"]
    assert [one["kind"] for one in listed] == ["access.revoke"]


def test_known_facts_decide_open_rules(op_hub: StateFixture, tmp_path: Path) -> None:
    sent = send(op_hub, "paid.operation", *PAID)
    known = tmp_path / "known.json"
    effect = {"operation_id": sent["operation_id"], "idempotent": False}
    for key, verdict, status in ((sent["operation_id"], "holds", 0), (name("else"), "violated", 13)):
        known.write_text(json.dumps({"effects": [{**effect, "key": key}]}))
        ran = op_hub.attempt("op", "check", "--known", known, "--rule", "paid.P2", "--json", stream=OPS)
        assert (ran.status, [one["verdict"] for one in ran.json()["findings"]]) == (status, [verdict])
    assert op_hub.run("op", "check", "--rule", "paid.P2", "--json", stream=OPS).json()["counts"]["open"] == 1
    known.write_text('{"effects": 7}')
    ran = op_hub.attempt("op", "check", "--known", known, stream=OPS)
    assert ran.status == 3
    assert f"{known}: effects has the wrong type" in ran.error
    assert "bootstrapped, capabilities" in ran.err


def test_a_checkpoint_that_differs_from_the_log_is_a_violation(op_hub: StateFixture) -> None:
    send(op_hub, "paid.operation", *PAID)
    send(op_hub, "state.checkpoint", "-f", "state_class=paid.operation")
    wrong = {"state_id": "name:s", "upto_stream_seq": 1, "mmr_root": "name:r", "state_hash": "name:h"}
    send(op_hub, "state.checkpoint", *fields(**wrong, state_class="paid.operation"))
    send(op_hub, "state.checkpoint", *fields(**{**wrong, "state_id": "name:t"}, state_class="nobody's"))
    ran = op_hub.attempt("op", "check", "--rule", "snapshot.S2", "--json", stream=OPS)
    found = {one["places"][-1]["stream_seq"]: one["verdict"] for one in ran.json()["findings"]}
    assert (ran.status, found) == (13, {2: "holds", 3: "violated", 4: "violated"})


def test_evidence_of_one_operation_verifies_offline(op_hub: StateFixture, tmp_path: Path) -> None:
    sent = send(op_hub, "paid.operation", *PAID)
    send(op_hub, "access.revoke", *fields(subject_identity="name:x"))
    proof = tmp_path / "paid.evidence"
    op_hub.run("op", "show", sent["operation_id"], "--prove", "--out", proof, stream=OPS)
    shown = op_hub.town.veen.done("evidence", "verify", proof, "--pin", op_hub.town.hub.data_dir, "--json").json()
    assert [(entry["stream_seq"], entry["msg_id"]) for entry in shown["entries"]] == [(1, sent["msg_id"])]


def test_a_grant_becomes_a_capability_until_it_is_revoked(op_hub: StateFixture, tmp_path: Path, veen: Veen) -> None:
    issuer = tmp_path / "operator"
    subject = fields(subject_identity="name:bob")
    made = send(op_hub, "access.grant", *subject, *fields(allowed_stream_ids=OPS, expiry_time=9_999_999_999))
    given = ("--issuer", issuer, "--cap-out", tmp_path / "bob.cap", "--json")
    shown = op_hub.run("op", "capability", made["operation_id"], *given, stream=OPS).json()
    presented = CapPresentation.decode((tmp_path / "bob.cap").read_bytes())
    token = presented.token
    presented.verify()
    assert (presented.hub_id, presented.not_after) == (bytes.fromhex(op_hub.town.hub_id), 9_999_999_998)
    assert (token.auth_ref().hex(), token.subject_pk.hex()) == (shown["auth_ref"], name("bob"))
    send(op_hub, "access.revoke", *subject)
    again = ("--issuer", issuer, "--cap-out", tmp_path / "again.cap")
    refused = op_hub.attempt("op", "capability", made["operation_id"], *again, stream=OPS)
    assert (refused.status, refused.error) == (6, "the grant was revoked")
    assert not (tmp_path / "again.cap").exists()


def test_a_grant_to_a_long_term_key_becomes_a_token_for_each_client_of_its_card(
    op_hub: StateFixture, tmp_path: Path
) -> None:
    with ClientDir.open(tmp_path / "reader") as reader:
        card = reader.card
    bob = fields(subject_identity=card.id_sign.hex(), allowed_stream_ids=OPS, expiry_time=9_999_999_999)
    made = send(op_hub, "access.grant", *bob, *fields(maximum_rate_per_second=7))["operation_id"]
    given = ("--issuer", tmp_path / "operator", "--cap-out", tmp_path / "bob.cap")
    wrong = op_hub.attempt("op", "capability", made, *given, "--card", tmp_path / "writer", stream=OPS)
    assert (wrong.status, "not the card of the subject" in wrong.error) == (2, True)
    shown = op_hub.run("op", "capability", made, *given, "--card", tmp_path / "reader", "--json", stream=OPS).json()
    tokens = capabilities.tokens_of(capabilities.read_capabilities(tmp_path / "bob.cap"))
    assert [token.subject_pk for token in tokens] == list(card.client_ids)
    assert [token.auth_ref().hex() for token in tokens] == shown["auth_refs"]


def test_a_mirror_record_is_made_from_evidence_and_nothing_else(op_hub: StateFixture, tmp_path: Path) -> None:
    op_hub.run("send", "--body", "one")
    op_hub.run("send", "--body", "two")
    one, both = tmp_path / "one.evidence", tmp_path / "both.evidence"
    op_hub.run("evidence", "make", 1, "--out", one)
    op_hub.run("evidence", "make", 1, 2, "--out", both)
    made = send(op_hub, "federation.mirror", "--source", one, "--source-pin", op_hub.town.hub.data_dir,
                *fields(source_hub_identifier="http://hub.example", mirror_time=7))  # fmt: skip
    body = op_hub.run("op", "show", made["operation_id"], "--json", stream=OPS).json()["body"]
    assert (body["source_hub_identifier"], body["source_stream_seq"], body["mirror_time"]) == (
        "http://hub.example", 1, 7,
    )  # fmt: skip
    assert body["target_label"] == made["label"]
    twice = op_hub.attempt("op", "send", "federation.mirror", "--source", one, "--source-pin", op_hub.town.hub.data_dir,
                       *fields(source_hub_identifier="http://hub.example"), stream=OPS)  # fmt: skip
    assert (twice.status, "mirror.F2" in twice.error) == (5, True)
    damaged = tmp_path / "damaged.evidence"
    damaged.write_bytes(one.read_bytes()[:-40] + bytes(40))
    wrong: list[tuple[list[object], set[int]]] = [
        ([], {2}),
        (["--source", both], {4}),
        (["--source", damaged], {3, 4}),
        (["--source", one], {4}),  # no hub was named
        (["--source", one, "--source-pin", name("another hub")], {4}),
        (["--source", one, *fields(source_leaf_hash="name:x")], {2}),
        (["--source", one, *fields(source_hub_identifier="http://hub.example")], {2}),
    ]
    for given, statuses in wrong:
        ran = op_hub.attempt("op", "send", "federation.mirror", *given, stream=OPS)
        assert ran.status in statuses, (given, ran.err)
        assert ran.error
    assert (
        op_hub.attempt("op", "send", "access.revoke", *fields(subject_identity="name:x"), "--source", one).status == 2
    )


NO_STREAM = '{"allowed_stream_ids": [7]}'
TERMS = fields(agreement_id="name:a", version=1, terms_hash="name:t")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["nothing"], "there is no kind of operation 'nothing'"),
        (["access.revoke"], "access.revoke: subject_identity is missing"),
        (["access.revoke", "-f", "subject_identity"], "access.revoke: 'subject_identity' is not NAME=VALUE"),
        (["access.revoke", "-f", "subject=x"], "access.revoke: there is no field 'subject'"),
        (["access.revoke", "-f", "subject_identity=xyz"], "must be 64 hex digits"),
        (["access.revoke", "-f", "reason=a", "-f", "reason=b"], "access.revoke: reason is given twice"),
        (["access.revoke", "--body", "[]"], "access.revoke: the body is not a JSON object"),
        (["access.revoke", "--body", "{"], "access.revoke: "),
        (["access.revoke", "--body", '{"subject_identity": 7}'], "subject_identity has the wrong type: 7"),
        (["paid.operation", *PAID[:8], "-f", "amount=-1"], "amount has the wrong type"),
        (["paid.operation", *PAID[:8], "-f", "amount=99999999999999999999"], "amount"),
        (["paid.operation", "-f", "metadata=1.5"], "metadata: 1.5 is not an integer"),
        (["paid.operation", *PAID, "-f", "metadata=hex:xy"], "paid.operation: "),
        (["access.grant", *fields(subject_identity="name:a", expiry_time=1), "--body", NO_STREAM], "stream"),
        (["agreement.definition", *TERMS, *fields(parties="name:p"), *fields(parties="name:p")], "duplicate in"),
    ],
)  # fmt: skip
def test_an_invalid_body_is_misuse(veen: Veen, given: list[str], message: str) -> None:
    ran = veen("op", "send", *given, "--stream", OPS)
    assert ran.status == 2
    assert message in ran.error


def test_unknown_ambiguous_and_invalid_ids_have_different_errors(op_hub: StateFixture) -> None:
    send(op_hub, "access.revoke", *fields(subject_identity="name:x"))
    assert op_hub.attempt("op", "show", "00" * 32, stream=OPS).status == 6
    for text in ("xyz", "12345", "0" * 65):
        assert op_hub.attempt("op", "show", text, stream=OPS).status == 2
    assert op_hub.attempt("op", "check", "--rule", "paid.P9", stream=OPS).status == 2
    assert op_hub.attempt("op", "list", "--kind", "nothing", stream=OPS).status == 2


def test_the_kinds_are_listed_with_their_fields(veen: Veen) -> None:
    assert [row["kind"] for row in veen.done("op", "kinds", "--json").json()] == list(BY_NAME)
    rows = veen.done("op", "kinds", "access.revoke").out.splitlines()
    assert [row.split("\t")[0] for row in rows] == [
        "subject_identity", "target_capability_reference", "reason", "parent_operation_id",
    ]  # fmt: skip
    assert veen("op", "kinds", "nothing").status == 2


def test_entries_that_are_not_operations_are_faults(op_hub: StateFixture) -> None:
    send(op_hub, "access.revoke", *fields(subject_identity="name:x"))
    op_hub.run("send", "--schema", "veen/schema:access.revoke.v1", "--body", "not a map", stream=OPS)
    found = op_hub.run("op", "faults", "--json", stream=OPS).json()["faults"]
    assert [(one["stream_seq"], one["kind"]) for one in found] == [(2, "malformed")]
    assert len(op_hub.run("op", "list", "--json", stream=OPS).json()["operations"]) == 1
