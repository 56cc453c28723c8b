"""The scenarios verify with our verifiers, and with a replay by independently written rules."""

from functools import cache
from typing import Any

import pytest

from tests import vectors_oracle as oracle
from tests.vectors_files import entries, load, maybe, unhex
from tests.vectors_replay import Replay
from tests.vectors_sealed import check_sealed, header_cbor
from veen.core import (
    Checkpoint,
    DhKey,
    Limits,
    Malformed,
    MmrProof,
    Msg,
    Place,
    Profile,
    Receipt,
    Refused,
    Unverified,
    ciphertext,
    proof,
    signing,
)
from veen.core.admission import refused_structure

SCENARIOS = [f"scenario-{letter}.json" for letter in "abcd"]
STRUCTURE = {"CBOR_INVALID", "FIELD_SIZE", "VERSION"}

# Spec §8.2, literally.
TABLE = {
    "CBOR_INVALID": ("E.FORMAT", "structural"),
    "FIELD_SIZE": ("E.SIZE", "structural"),
    "VERSION": ("E.FORMAT", "structural"),
    "PROFILE": ("E.FORMAT", "structural"),
    "CT_HASH": ("E.FORMAT", "structural"),
    "SIG_INVALID": ("E.SIG", "auth"),
    "CAP_MISSING": ("E.CAP", "auth"),
    "CAP_INVALID": ("E.CAP", "auth"),
    "AUTH_REF": ("E.AUTH", "auth"),
    "CAP_TTL": ("E.TIME", "auth"),
    "CAP_RATE": ("E.RATE", "auth"),
    "PREV_ACK": ("E.SEQ", "commit"),
    "DUPLICATE": ("E.SEQ", "commit"),
    "CLIENT_SEQ": ("E.SEQ", "commit"),
    "EPOCH": ("E.TIME", "commit"),
}

Doc = dict[str, Any]
each_scenario = pytest.mark.parametrize("name", SCENARIOS)


def steps(name: str) -> list[Doc]:
    return entries(name, "steps")


def accepted(name: str) -> list[Doc]:
    return [step for step in steps(name) if "msg" in step and "accepted" in step]


@cache
def head(data: str) -> Receipt:
    return Receipt.decode(unhex(data))


# Every step of every scenario


@each_scenario
def test_each_step_is_accepted_or_rejected_according_to_the_table(name: str) -> None:
    for number, step in enumerate(steps(name), 1):
        assert step["step"] == number
        assert ("accepted" in step) != ("refused" in step)
        if "refused" in step:
            refused = step["refused"]
            assert (refused["code"], refused["stage"]) == TABLE[refused["detail_enum"]]


def test_the_scenarios_cover_every_rejection_a_hub_can_make() -> None:
    shown = {step["refused"]["detail_enum"] for name in SCENARIOS for step in steps(name) if "refused" in step}
    assert shown == set(TABLE)


@each_scenario
def test_a_replay_by_the_specification_gives_the_same_answers(name: str) -> None:
    doc = load(name)
    replay = Replay(doc)
    for step in doc["steps"]:
        expected = step.get("refused", {}).get("detail_enum")
        if expected in STRUCTURE:
            continue
        if "authorize" in step:
            found = replay.authorize(unhex(doc["tokens"][step["authorize"]]["cbor"]), step["hub_ts"])
        else:
            found = replay.submit(unhex(step["msg"]), step["hub_ts"])
        assert (step["note"], found) == (step["note"], expected)
        if found == "CAP_RATE":
            rate = replay.tokens[oracle.uncbor(unhex(step["msg"]))[6]][4][3]
            # A bucket with a refill rate has a token one second later.
            assert step["refused"].get("retry_after") == (1 if rate[1] and rate[2] else None)


@each_scenario
def test_a_choice_of_the_hub_is_marked_and_comes_last(name: str) -> None:
    for step in steps(name):
        assert step.get("other_detail_enum", "PREV_ACK") in TABLE
        if step.get("may_accept"):
            assert (step["step"], step["refused"]["detail_enum"]) == (len(steps(name)), "PREV_ACK")


@each_scenario
def test_a_message_rejected_for_its_structure_is_malformed(name: str) -> None:
    for step in steps(name):
        if step.get("refused", {}).get("detail_enum") not in STRUCTURE:
            continue
        with pytest.raises(Malformed) as caught:
            ciphertext.check_sizes(Msg.decode(unhex(step["msg"])).ciphertext, Limits())
        found = refused_structure(caught.value)
        assert isinstance(found, Refused)
        assert found.detail_enum == step["refused"]["detail_enum"]


@each_scenario
def test_the_second_implementation_makes_the_same_receipts_and_proofs(name: str) -> None:
    doc = load(name)
    seed = unhex(doc["hub"]["seed"])
    leaves: dict[bytes, list[bytes]] = {unhex(log["label"]): [] for log in doc["logs"]}
    for step in accepted(name):
        msg = oracle.uncbor(unhex(step["msg"]))
        mine = leaves[msg[2]]
        mine.append(oracle.leaf_hash(msg))
        seq, root = len(mine), oracle.root(mine)
        unsigned = [1, msg[2], seq, mine[-1], root, step["hub_ts"]]
        made = [*unsigned, oracle.ed25519(seed, oracle.signed([*unsigned, b""], oracle.RECEIPT))]
        assert step["accepted"] == {
            "stream_seq": seq,
            "leaf_hash": mine[-1].hex(),
            "mmr_root": root.hex(),
            "peaks": [peak.hex() for peak in oracle.peaks(mine)],
            "receipt": oracle.cbor(made).hex(),
            "mmr_proof": oracle.cbor(oracle.proof(mine, seq)).hex(),
        }
    for log in doc["logs"]:
        mine = leaves[unhex(log["label"])]
        assert log["leaves"] == [leaf.hex() for leaf in mine]
        assert log["size"] == len(mine)
        assert log["proofs"] == [oracle.cbor(oracle.proof(mine, seq)).hex() for seq in range(1, len(mine) + 1)]
        assert log["mmr_root"] == (oracle.root(mine).hex() if mine else None)


@each_scenario
def test_the_second_implementation_makes_the_same_messages(name: str) -> None:
    doc = load(name)
    composed = [step for step in doc["steps"] if "inputs" in step]
    assert composed
    for step in composed:
        inputs, msg = step["inputs"], oracle.uncbor(unhex(step["msg"]))
        client = doc["clients"][inputs["client"]]
        assert [doc["profile"]["profile_id"], inputs["label"], client["public_key"]] == [
            part.hex() for part in msg[1:4]
        ]
        assert msg[4:7] == [inputs["client_seq"], inputs["prev_ack"], maybe(inputs["auth_ref"])]
        check_sealed(
            msg,
            reader_secret=unhex(doc["reader"]["secret"]),
            ephemeral=unhex(inputs["ephemeral_secret"]),
            header=header_cbor(inputs["payload_hdr"]),
            body=unhex(inputs["body"]),
            pad_block=doc["profile"]["pad_block"],
        )
        assert inputs["payload_hdr_cbor"] == header_cbor(inputs["payload_hdr"]).hex()
        assert msg[9] == oracle.ed25519(unhex(client["seed"]), oracle.signed(msg, oracle.MSG))


@each_scenario
def test_the_names_of_a_scenario_are_derived_from_its_keys(name: str) -> None:
    doc = load(name)
    hub = doc["hub"]
    for key in (hub, *doc["clients"].values()):
        assert key["public_key"] == oracle.ed25519_public(unhex(key["seed"])).hex()
    assert doc["reader"]["public_key"] == oracle.x25519_public(unhex(doc["reader"]["secret"])).hex()
    assert hub["hub_id"] == oracle.ht("veen/hub-id", unhex(hub["public_key"])).hex()
    routing = bytes(32) if name == "scenario-a.json" else oracle.ht("veen/routing_key", unhex(hub["hub_id"]))
    assert hub["routing_key"] == routing.hex()
    for log in doc["logs"]:
        assert log["label"] == oracle.label(routing, unhex(log["stream_id"]), log["epoch"]).hex()
    profile = doc["profile"]
    assert Profile.decode(unhex(profile["cbor"])) == Profile(profile["epoch_sec"], profile["pad_block"])
    assert profile["profile_id"] == oracle.ht("veen/profile", unhex(profile["cbor"])).hex()


@each_scenario
def test_each_accepted_message_verifies_and_opens(name: str) -> None:
    doc = load(name)
    hub_pk, reader = unhex(doc["hub"]["public_key"]), DhKey(unhex(doc["reader"]["secret"]))
    for step in accepted(name):
        msg, made = Msg.decode(unhex(step["msg"])), head(step["accepted"]["receipt"])
        msg.verify_signature()
        made.verify_signature(hub_pk)
        made.check_binds(msg)
        proof.verify_in_receipt(MmrProof.decode(unhex(step["accepted"]["mmr_proof"])), made)
        place = Place(msg.profile_id, msg.label, msg.client_id, msg.client_seq, msg.prev_ack, msg.auth_ref)
        assert ciphertext.open_sealed(reader, place, msg.ciphertext, Limits()).body.hex() == step["inputs"]["body"]


@each_scenario
def test_each_leaf_and_receipt_is_proved_in_the_last_receipt(name: str) -> None:
    doc = load(name)
    for log in doc["logs"]:
        made = [head(step["accepted"]["receipt"]) for step in accepted(name)]
        mine = [one for one in made if one.label.hex() == log["label"]]
        assert len(mine) == len(log["proofs"])
        for one, data in zip(mine, log["proofs"], strict=True):
            found = MmrProof.decode(unhex(data))
            proof.verify_inclusion(found, proof.Leaf.of(one), mine[-1])
            proof.verify_consistency(found, one, mine[-1])


# Checkpoints of scenario C


def test_the_second_implementation_makes_the_same_checkpoints() -> None:
    doc = load("scenario-c.json")
    logs = {log["label"]: [unhex(leaf) for leaf in log["leaves"]] for log in doc["logs"]}
    witnesses = [unhex(key["seed"]) for key in doc["witnesses"].values()]
    for case in entries("scenario-c.json", "checkpoints"):
        leaves = logs[case["label_curr"]][: case["upto_seq"]]
        labels = [unhex(case["label_prev"]), unhex(case["label_curr"])]
        unsigned = [1, *labels, len(leaves), oracle.root(leaves), case["epoch"]]
        digest = oracle.signed([*unsigned, b""], oracle.CHECKPOINT)
        by = [oracle.ed25519(seed, digest) for seed in witnesses[: len(case["witness_sigs"] or [])]]
        made = [*unsigned, oracle.ed25519(unhex(doc["hub"]["seed"]), digest), *([by] if by else [])]
        assert case["cbor"] == oracle.cbor(made).hex()
        assert case["signing_digest"] == digest.hex()
        assert [case["hub_sig"], case["mmr_root"]] == [made[6].hex(), made[4].hex()]
        assert case["witness_sigs"] == ([sig.hex() for sig in by] or None)
        assert case["peaks"] == [peak.hex() for peak in oracle.peaks(leaves)]
        expected = [oracle.cbor(oracle.proof(leaves, seq)).hex() for seq in range(1, len(leaves) + 1)]
        assert case["proofs"] == expected


def test_each_checkpoint_verifies_and_follows_the_one_before() -> None:
    doc = load("scenario-c.json")
    routing, stream = unhex(doc["hub"]["routing_key"]), unhex(doc["stream_id"])
    known = tuple(unhex(key["public_key"]) for key in doc["witnesses"].values())
    logs = {log["label"]: log["leaves"] for log in doc["logs"]}
    found: list[Checkpoint] = []
    for case in entries("scenario-c.json", "checkpoints"):
        made = Checkpoint.decode(unhex(case["cbor"]))
        made.verify_signature(unhex(doc["hub"]["public_key"]))
        sigs = made.witness_sigs or ()
        signed = [any(signing.is_valid(pk, made.signing_digest(), sig) for pk in known) for sig in sigs]
        assert signed == [True] * len(case["witness_sigs"] or [])
        made.check_labels(Profile(epoch_sec=1), routing, stream)
        for seq, data in enumerate(case["proofs"], 1):
            leaf = unhex(logs[case["label_curr"]][seq - 1])
            proof.verify_inclusion(MmrProof.decode(unhex(data)), proof.Leaf(made.label_curr, leaf, seq), made)
        for before in found:
            made.check_follows(before)
        found.append(made)
    assert {one.label_prev == one.label_curr for one in found} == {True, False}
    step = MmrProof.decode(unhex(entries("scenario-c.json", "checkpoints")[1]["proofs"][2]))
    proof.verify_consistency(step, found[0], found[1])


@pytest.mark.parametrize("case", entries("scenario-c.json", "invalid_checkpoints"), ids=lambda case: case["note"])
def test_a_signed_checkpoint_with_wrong_labels_is_rejected(case: Doc) -> None:
    doc, made = load("scenario-c.json"), Checkpoint.decode(unhex(case["cbor"]))
    made.verify_signature(unhex(doc["hub"]["public_key"]))
    with pytest.raises(Unverified):
        made.check_labels(Profile(epoch_sec=1), unhex(doc["hub"]["routing_key"]), unhex(doc["stream_id"]))


@pytest.mark.parametrize("case", entries("scenario-c.json", "contradicting_checkpoints"), ids=lambda case: case["note"])
def test_a_contradicting_signed_checkpoint_is_rejected(case: Doc) -> None:
    doc, made = load("scenario-c.json"), Checkpoint.decode(unhex(case["cbor"]))
    made.verify_signature(unhex(doc["hub"]["public_key"]))
    with pytest.raises(Unverified):
        made.check_follows(Checkpoint.decode(unhex(case["accepted"])))
