"""The vector files verify with our decoders and verifiers, and with a second, independent implementation."""

import json
import re
from pathlib import Path
from typing import Any

import cbor2
import pytest

from tests import vectors_files
from tests import vectors_oracle as oracle
from tests.vectors_files import FOLDER, entries, load, maybe, unhex
from tests.vectors_sealed import check_sealed, header_cbor
from vectors.form import render
from vectors.generate import GENERATED
from veen.core import (
    CapPresentation,
    CapToken,
    Checkpoint,
    DhKey,
    Fault,
    Limits,
    Malformed,
    MmrProof,
    Msg,
    PayloadHdr,
    Place,
    Profile,
    Receipt,
    Unverified,
    VeenError,
    attachment,
    ciphertext,
    envelopes,
    hashing,
    mmr,
    naming,
    proof,
    strict_json,
)
from veen.core.cbor import Wire

KNOWN = "known-answers.json"
R32 = bytes(range(32))

# The counts when the files were written; fewer means that cases were lost.
LEAST = [
    (13, "captoken.json", "unverified", "malformed"),
    (14, "ciphertext.json", "sealed"),
    (18, "ciphertext.json", "refused"),
    (21, "malformed.json", "objects"),
    (64, "mmr.json", "trees"),
    (78, "mmr.json", "inclusion"),
    (54, "mmr.json", "consistency"),
    (27, "mmr.json", "refused_inclusion", "refused_consistency"),
    (40, "identity.json", "receipts"),
    (23, "scenario-a.json", "steps"),
    (15, "scenario-b.json", "steps"),
    (11, "scenario-c.json", "steps"),
    (39, "scenario-d.json", "steps"),
]

WIRE: dict[str, type[Wire]] = {
    "msg": Msg,
    "receipt": Receipt,
    "checkpoint": Checkpoint,
    "payload_hdr": PayloadHdr,
    "profile": Profile,
    "mmr_proof": MmrProof,
    "cap_token": CapToken,
    "cap_presentation": CapPresentation,
    "submit_request": envelopes.SubmitRequest,
    "submit_response": envelopes.SubmitResponse,
    "stream_request": envelopes.StreamRequest,
    "stream_response": envelopes.StreamResponse,
    "receipt_request": envelopes.ReceiptRequest,
    "receipt_response": envelopes.ReceiptResponse,
    "proof_request": envelopes.ProofRequest,
    "proof_response": envelopes.ProofResponse,
    "checkpoint_request": envelopes.CheckpointRequest,
    "checkpoint_response": envelopes.CheckpointResponse,
    "error": envelopes.ErrorEnvelope,
}


# The files


def test_loading_an_empty_list_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.json").write_text('{"none": [], "one": [{}], "other": {}}')
    monkeypatch.setattr(vectors_files, "FOLDER", tmp_path)
    assert entries("x.json", "one") == [{}]
    for path in ("none", "other", "missing"):
        with pytest.raises(LookupError):
            entries("x.json", path)
    with pytest.raises(FileNotFoundError):
        entries("y.json", "one")


def test_every_file_is_generated_or_copied_and_in_the_readme() -> None:
    files = {path.name for path in FOLDER.glob("*.json")}
    readme = (FOLDER / "README.md").read_text("utf-8")
    assert files == {*GENERATED, KNOWN}
    assert [name for name in sorted(files) if f"`{name}`" not in readme] == []


@pytest.mark.parametrize("name", GENERATED)
def test_generating_a_file_again_gives_the_bytes_on_disk(name: str) -> None:
    # Compare as a flag: printing a diff of two such files would take longer than all tests together.
    same = render(GENERATED[name]()) == (FOLDER / name).read_bytes()
    assert same, f"{name} is not what vectors.generate writes: run it and look at the diff"


@pytest.mark.parametrize(("least", "name", "lists"), [(least, name, lists) for least, name, *lists in LEAST])
def test_no_file_has_lost_its_cases(least: int, name: str, lists: list[str]) -> None:
    assert sum(len(entries(name, part)) for part in lists) >= least


def test_every_file_is_sorted_json_without_floats() -> None:
    for name in GENERATED:
        text = (FOLDER / name).read_text("utf-8")
        found = json.loads(text, parse_float=pytest.fail)
        assert list(found) == sorted(found)


# Known answers


def test_the_known_hashes_match() -> None:
    for case in entries(KNOWN, "hashes"):
        data, expected = unhex(case["data"]), unhex(case["hash"])
        if case["tag"] is None:
            assert hashing.h(data) == oracle.h(data) == expected
        else:
            assert hashing.ht(case["tag"], data) == oracle.ht(case["tag"], data) == expected
    hub = next(case for case in entries(KNOWN, "hashes") if case["name"] == "hub_id")
    assert naming.hub_id(unhex(hub["data"])).hex() == hub["hash"]


def test_the_known_label_matches() -> None:
    case = load(KNOWN)["label"]
    parts = unhex(case["routing_key"]), unhex(case["stream_id"]), case["epoch"]
    assert oracle.u64(case["epoch"]).hex() == case["epoch_u64be"]
    assert naming.label(*parts) == oracle.label(*parts) == unhex(case["label"])


def test_the_known_profile_matches() -> None:
    case = load(KNOWN)["profile"]
    names = ("aead", "kdf", "sig", "dh", "hpke_suite", "epoch_sec", "pad_block", "mmr_hash")
    profile, encoded = Profile(case["epoch_sec"], case["pad_block"]), unhex(case["cbor"])
    assert profile.encode() == oracle.cbor({key: case[name] for key, name in enumerate(names, 1)}) == encoded
    assert Profile.decode(encoded) == profile
    assert profile.profile_id() == oracle.ht("veen/profile", encoded) == unhex(case["profile_id"])


def test_the_known_stream_and_schema_ids_match() -> None:
    realm = load(KNOWN)["realm_streams"]
    assert unhex(realm["realm_id"]) == R32
    assert len(realm["by_tag"]) == 4
    for tag, expected in realm["by_tag"].items():
        assert hashing.ht(tag, R32) == oracle.ht(tag, R32) == unhex(expected)
    schemas = load(KNOWN)["schema_ids"]
    assert len(schemas) == 16
    for name, expected in schemas.items():
        assert naming.schema_id(name) == oracle.h(name.encode()) == unhex(expected)


def test_the_known_proofs_of_work_verify() -> None:
    for case in entries(KNOWN, "proof_of_work"):
        found = hashing.ht("veen/pow", unhex(case["challenge"]) + hashing.u64be(case["nonce"]))
        zero_bits = 256 - int.from_bytes(found, "big").bit_length()
        assert found.hex().startswith(case["hash"])
        assert zero_bits == case["zero_bits"]
        assert (zero_bits >= case["difficulty"]) == case["valid"]


def test_the_known_canonical_json_matches() -> None:
    for case in entries(KNOWN, "canonical_json"):
        assert strict_json.encode(case["value"]).decode() == case["text"]
        assert strict_json.decode(case["text"].encode(), "text") == case["value"]


def test_the_known_roots_and_proofs_verify() -> None:
    shown = 0
    for case in entries(KNOWN, "mmr"):
        leaves = [unhex(byte) * 32 for byte in case["leaf_bytes"]]
        for size, expected in enumerate(case["roots"], 1):
            assert mmr.root(leaves[:size]) == oracle.root(leaves[:size]) == unhex(expected)
        for known in case.get("proofs_at_own_size", []):
            seq = known["stream_seq"]
            path = [{1: step["dir"], 2: unhex(step["sib"])} for step in known["path"]]
            made = {1: 1, 2: leaves[seq - 1], 3: path, 4: [unhex(peak) for peak in known["peaks_after"]]}
            assert oracle.proof(leaves[:seq], seq) == made
            proof.verify_in_receipt(MmrProof.decode(oracle.cbor(made)), head(seq, leaves[seq - 1], case["roots"]))
            shown += 1
    assert shown == 5


def head(size: int, leaf: bytes, roots: list[str]) -> Receipt:
    return Receipt(bytes(32), size, leaf, unhex(roots[size - 1]), 0, bytes(64))


# Malformed encodings


def spoiled(entry: dict[str, Any]) -> list[tuple[str, str, bytes]]:
    valid = unhex(entry["valid"])
    return [
        (
            case["name"],
            case["fault"],
            valid[: case["at"]] + unhex(case["insert"]) + valid[case["at"] + case["remove"] :],
        )
        for case in entry["malformed"]
    ]


def fault(cls: type[Wire], data: bytes) -> str:
    try:
        cls.decode(data)
    except Malformed as error:
        return error.fault.name
    return "accepted"


OBJECTS = entries("malformed.json", "objects")
each_object = pytest.mark.parametrize("entry", OBJECTS, ids=[entry["object"] for entry in OBJECTS])


def test_every_wire_object_has_malformed_encodings_of_every_fault() -> None:
    assert {entry["object"] for entry in OBJECTS} == set(WIRE)
    assert {name for entry in OBJECTS for _, name, _ in spoiled(entry)} == {fault.name for fault in Fault}
    assert sum(len(entry["malformed"]) for entry in OBJECTS) >= 2800


@each_object
def test_a_malformed_encoding_is_rejected_for_its_fault(entry: dict[str, Any]) -> None:
    cls, cases = WIRE[entry["object"]], spoiled(entry)
    found = [(name, expected, fault(cls, data)) for name, expected, data in cases]
    assert [case for case in found if case[1] != case[2]] == []


@each_object
def test_the_damaged_encoding_was_valid_and_cases_are_unique(entry: dict[str, Any]) -> None:
    valid, cases = unhex(entry["valid"]), spoiled(entry)
    assert WIRE[entry["object"]].decode(valid).encode() == valid
    assert oracle.uncbor(valid) is not None
    assert all(data != valid for _, _, data in cases)
    assert len({name for name, _, _ in cases}) == len(cases)


@each_object
def test_a_wrong_size_or_version_is_still_deterministic_cbor(entry: dict[str, Any]) -> None:
    for _, expected, data in spoiled(entry):
        if expected != "CBOR":
            assert isinstance(oracle.uncbor(data), list | dict)


@each_object
def test_a_longer_encoding_has_the_same_value_for_a_lenient_reader(entry: dict[str, Any]) -> None:
    longer = re.compile(r"indefinite length|(in|a head of) \d bytes|count in two bytes")
    same = [data for name, _, data in spoiled(entry) if longer.fullmatch(name.partition(": ")[2])]
    assert same
    for data in same:
        assert oracle.cbor(cbor2.loads(data)) == unhex(entry["valid"])


# Sealed payloads


SEALED = entries("ciphertext.json", "sealed")
each_sealed = pytest.mark.parametrize("case", SEALED, ids=[case["name"] for case in SEALED])
BOX = load("ciphertext.json")


def place(case: dict[str, Any]) -> Place:
    client = unhex(BOX["client"]["public_key"])
    numbers = case["client_seq"], case["prev_ack"]
    return Place(unhex(case["profile_id"]), unhex(BOX["label"]), client, *numbers, maybe(case["auth_ref"]))


@each_sealed
def test_the_second_implementation_seals_the_same_bytes(case: dict[str, Any]) -> None:
    msg = oracle.uncbor(unhex(case["msg"]))
    header, body, secret = unhex(case["payload_hdr_cbor"]), unhex(case["body"]), unhex(BOX["reader"]["secret"])
    ephemeral = unhex(case["ephemeral_secret"])
    check_sealed(msg, reader_secret=secret, ephemeral=ephemeral, header=header, body=body, pad_block=case["pad_block"])
    assert header == header_cbor(case["payload_hdr"])
    assert msg[9] == oracle.ed25519(unhex(BOX["client"]["seed"]), oracle.signed(msg, oracle.MSG))
    parts = [unhex(case[name]) for name in ("enc", "hpke_ct_hdr", "aead_ct_body")]
    lengths = case["hdr_len"].to_bytes(4, "big") + case["body_len"].to_bytes(4, "big")
    assert msg[8].startswith(parts[0] + lengths + parts[1] + parts[2])
    named = {
        "profile_id": msg[1],
        "aad": oracle.aad(msg),
        "nonce": oracle.nonce(msg),
        "k_body": oracle.hpke_receiver(secret, parts[0]).export(b"veen/body-k", 32),
        "ciphertext": msg[8],
        "ct_hash": msg[7],
        "leaf_hash": oracle.leaf_hash(msg),
    }
    assert {name: case[name] for name in named} == {name: value.hex() for name, value in named.items()}


@each_sealed
def test_the_second_implementation_seals_the_same_attachment(case: dict[str, Any]) -> None:
    msg, enc = oracle.uncbor(unhex(case["msg"])), unhex(case["enc"])
    context = oracle.hpke_receiver(unhex(BOX["reader"]["secret"]), enc)
    nonce_id = oracle.ht("veen/leaf", msg[2], msg[1], oracle.h(enc), msg[3], oracle.u64(msg[4]))
    coids = []
    for index, part in enumerate(case["attachments"]):
        key = context.export(b"veen/att-k" + oracle.u64(index), 32)
        n_att = oracle.ht("veen/att-nonce", nonce_id, oracle.u64(index))[:24]
        sealed = oracle.xchacha_seal(key, n_att, b"", unhex(part["plaintext"]))
        coids.append(oracle.h(sealed))
        named = {"k_att": key, "nonce_id": nonce_id, "n_att": n_att, "sealed": sealed, "coid": coids[-1]}
        assert part == {name: value.hex() for name, value in named.items()} | {
            "index": index,
            "plaintext": part["plaintext"],
        }
    if coids or "att_root" in case["payload_hdr"]:
        assert case["payload_hdr"]["att_root"] == oracle.root(coids, "veen/att-node", "veen/att-root").hex()


@each_sealed
def test_a_sealing_opens(case: dict[str, Any]) -> None:
    key, at = DhKey(unhex(BOX["reader"]["secret"])), place(case)
    msg = Msg.decode(unhex(case["msg"]))
    msg.check_ct_hash()
    msg.verify_signature()
    opened = ciphertext.open_sealed(key, at, msg.ciphertext, Limits())
    assert (opened.header.encode().hex(), opened.body.hex()) == (case["payload_hdr_cbor"], case["body"])
    coids = []
    for index, part in enumerate(case["attachments"]):
        coids.append(unhex(part["coid"]))
        plain = attachment.open_sealed(opened, index, coids[-1], unhex(part["sealed"]))
        assert plain.hex() == part["plaintext"]
    sizes = [len(unhex(part["plaintext"])) for part in case["attachments"]]
    attachment.check(opened.header, sizes, coids, sizes, Limits())


@pytest.mark.parametrize("case", entries("ciphertext.json", "refused"), ids=lambda case: case["name"])
def test_a_damaged_or_misplaced_ciphertext_is_rejected(case: dict[str, Any]) -> None:
    key = DhKey(unhex(BOX["reader"]["secret"]))
    with pytest.raises(VeenError) as caught:
        ciphertext.open_sealed(key, place(case), unhex(case["ciphertext"]), Limits())
    found = caught.value.fault.name if isinstance(caught.value, Malformed) else "UNVERIFIED"
    assert isinstance(caught.value, Malformed | Unverified)
    assert found == case["fault"]


def test_sealings_come_with_and_without_each_option() -> None:
    assert {case["pad_block"] for case in SEALED} == {0, 256}
    assert {len(case["attachments"]) for case in SEALED} == {0, 1, 3}
    assert {case["auth_ref"] is None for case in SEALED} == {True, False}
    shown = {name for case in SEALED for name in case["payload_hdr"]}
    assert shown == {"schema", "parent_id", "att_root", "cap_ref", "expires_at"}
    assert BOX["empty_att_root"] == oracle.ht("veen/att-root").hex() == attachment.EMPTY_ROOT.hex()
    for profile in BOX["profiles"]:
        assert Profile.decode(unhex(profile["cbor"])).profile_id().hex() == profile["profile_id"]
