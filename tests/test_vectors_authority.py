"""Capability tokens and hub identities of the vector files verify, and invalid ones are rejected."""

import json
from typing import Any

import pytest

from tests import vectors_oracle as oracle
from tests.vectors_files import entries, load, unhex
from tests.vectors_replay import Replay
from veen.core import (
    CapPresentation,
    CapToken,
    Checkpoint,
    HubIdentity,
    IdentitySignature,
    Malformed,
    Profile,
    Receipt,
    Unverified,
    wire_json,
)

Doc = dict[str, Any]


# Capability tokens


def tokens() -> list[tuple[str, str]]:
    """Every valid token with its auth_ref."""
    shown = [(case["cbor"], case["auth_ref"]) for case in entries("captoken.json", "tokens")]
    own = load("scenario-d.json")["tokens"]
    return shown + [(own[name]["cbor"], own[name]["auth_ref"]) for name in ("steady", "short", "once", "moment")]


def test_each_token_verifies_and_has_its_auth_ref() -> None:
    for data, auth_ref in tokens():
        token = CapToken.decode(unhex(data))
        token.verify()
        assert token.auth_ref() == oracle.ht("veen/cap", unhex(data)) == unhex(auth_ref)


def test_the_second_implementation_makes_the_same_tokens() -> None:
    seed = unhex(load("captoken.json")["issuer"]["seed"])
    for case in entries("captoken.json", "tokens"):
        allow: dict[int, Any] = {1: [unhex(stream) for stream in case["stream_ids"]], 2: case["ttl"]}
        assert allow[1] == sorted(set(allow[1]))
        if case["rate"]:
            allow[3] = {1: case["rate"]["per_sec"], 2: case["rate"]["burst"]}
        token: dict[int, Any] = {1: 1, 2: oracle.ed25519_public(seed), 3: unhex(case["subject_pk"]), 4: allow}
        grant = oracle.cbor(token)
        chain = [bytes(64)]
        for _ in case["sig_chain"]:
            chain.append(oracle.ed25519(seed, oracle.ht("veen/cap-link", grant, chain[-1])))
        assert case["without_sig_chain"] == grant.hex()
        assert case["issuer_pk"] == token[2].hex()
        assert case["sig_chain"] == [link.hex() for link in chain[1:]]
        assert case["cbor"] == oracle.cbor({**token, 5: chain[1:]}).hex()
    assert sorted(len(case["sig_chain"]) for case in entries("captoken.json", "tokens")) == [1, 1, 1, 2, 8]


@pytest.mark.parametrize("case", entries("captoken.json", "malformed"), ids=lambda case: case["name"])
def test_a_malformed_token_with_valid_links_is_rejected(case: Doc) -> None:
    with pytest.raises(Malformed) as caught:
        CapToken.decode(unhex(case["cbor"]))
    assert caught.value.fault.name == case["fault"]
    empty = load("scenario-d.json")
    links = oracle.uncbor(unhex(case["cbor"]))[5]
    assert Replay(empty).authorize(unhex(case["cbor"])) is None
    assert len(links) == {"nine links": 9, "no link": 0}.get(case["name"], 1)


@pytest.mark.parametrize("case", entries("captoken.json", "unverified"), ids=lambda case: case["name"])
def test_a_token_with_a_broken_chain_is_rejected(case: Doc) -> None:
    token = CapToken.decode(unhex(case["cbor"]))
    with pytest.raises(Unverified):
        token.verify()
    assert Replay(load("scenario-d.json")).authorize(unhex(case["cbor"])) == "CAP_INVALID"


def test_the_second_implementation_makes_the_same_presentations() -> None:
    seed = unhex(load("captoken.json")["issuer"]["seed"])
    for case in entries("captoken.json", "presentations"):
        unsigned = {1: 1, 2: unhex(case["hub_id"]), 3: case["not_after"], 4: oracle.uncbor(unhex(case["token"]))}
        sig = oracle.ed25519(seed, oracle.ht("veen/cap-presentation", oracle.cbor(unsigned)))
        assert (case["sig"], case["cbor"]) == (sig.hex(), oracle.cbor({**unsigned, 5: sig}).hex())
        shown = CapPresentation.decode(unhex(case["cbor"]))
        shown.verify()
        ttl = unsigned[4][4][2]
        assert shown.expires_at(case["issued_at"]) == case["expires_at"]
        assert case["expires_at"] == min(case["issued_at"] + ttl, case["not_after"])


@pytest.mark.parametrize("case", entries("captoken.json", "unverified_presentations"), ids=lambda case: case["name"])
def test_a_presentation_that_was_altered_is_rejected(case: Doc) -> None:
    shown = CapPresentation.decode(unhex(case["cbor"]))
    with pytest.raises(Unverified):
        shown.verify()


# The identity of a hub


def record() -> HubIdentity:
    return wire_json.decode_canonical(
        HubIdentity, entries("identity.json", "records")[-1]["hub_identity_json"].encode()
    )


def test_the_second_implementation_makes_the_same_records() -> None:
    doc = load("identity.json")
    seeds = {key["public_key"]: unhex(key["seed"]) for key in doc["keys"].values()}
    for count, case in enumerate(entries("identity.json", "records"), 1):
        text = case["hub_identity_json"]
        shown = json.loads(text)
        keys = shown["hub_keys"]
        assert text == json.dumps(shown, sort_keys=True, separators=(",", ":"))
        assert shown["hub_id"] == doc["hub_id"] == oracle.ht("veen/hub-id", unhex(keys[0]["hub_pk"])).hex()
        assert len(keys) == count
        digest = oracle.ht("veen/hub-identity", text.encode())
        newest = keys[-1]["hub_pk"]
        sig = {"key_id": keys[-1]["key_id"], "sig": oracle.ed25519(seeds[newest], digest).hex()}
        assert case["digest"] == digest.hex()
        assert case["hub_identity_sig"] == json.dumps(sig, separators=(",", ":"))
        assert case["hub_key_map"] == json.dumps(
            {key["key_id"]: key["hub_pk"] for key in keys}, sort_keys=True, separators=(",", ":")
        )
        assert [key["key_id"] for key in keys] == [
            oracle.ht("veen/hub-key-id", unhex(key["hub_pk"])).hex() for key in keys
        ]
        for before, key, told in zip(keys, keys[1:], case["endorsements"], strict=False):
            parts = unhex(doc["hub_id"]), unhex(key["hub_pk"]), oracle.u64(key["valid_from"])
            assert told["digest"] == oracle.ht("veen/hub-key", *parts).hex()
            assert key["endorsement"] == oracle.ed25519(seeds[before["hub_pk"]], unhex(told["digest"])).hex()
            assert told["endorsement"] == key["endorsement"]


def test_the_second_implementation_makes_the_same_records_with_a_root() -> None:
    seeds = {key["public_key"]: unhex(key["seed"]) for key in load("identity.json")["keys"].values()}
    for case in entries("identity.json", "records_with_a_root"):
        shown = json.loads(case["hub_identity_json"])
        keys, hub_id = shown["hub_keys"], unhex(shown["hub_id"])
        assert hub_id == oracle.ht("veen/hub-id", unhex(keys[0]["hub_pk"]))
        newest = [key for key in keys if "role" not in key][-1]
        digest = oracle.ht("veen/hub-identity", case["hub_identity_json"].encode())
        assert json.loads(case["hub_identity_sig"])["sig"] == oracle.ed25519(seeds[newest["hub_pk"]], digest).hex()
        assert json.loads(case["hub_key_map"]) == {key["key_id"]: key["hub_pk"] for key in keys if "role" not in key}
        for at, key in enumerate(keys[1:], 1):
            roots = [one for one in keys[:at] if "role" in one]
            tag, by = ("veen/hub-root", keys[0]) if "role" in key else ("veen/hub-key", [*keys[:at], *roots][-1])
            signed = oracle.ht(tag, hub_id, unhex(key["hub_pk"]), oracle.u64(key["valid_from"]))
            assert key["endorsement"] == oracle.ed25519(seeds[by["hub_pk"]], signed).hex()


def test_each_record_verifies() -> None:
    for case in (*entries("identity.json", "records"), *entries("identity.json", "records_with_a_root")):
        found = wire_json.decode_canonical(HubIdentity, case["hub_identity_json"].encode())
        found.verify_chain()
        wire_json.decode_canonical(IdentitySignature, case["hub_identity_sig"].encode()).verify(found)
        assert found.key_map().decode() == case["hub_key_map"]
        for pin in case["pins"]:
            found.check_pinned(unhex(pin))
        for moment in case["signing_key_at"]:
            if moment["key_id"] is None:
                with pytest.raises(Unverified):
                    found.signing_key_at(moment["hub_ts"])
            else:
                assert found.signing_key_at(moment["hub_ts"]).key_id.hex() == moment["key_id"]


def windows() -> dict[str, tuple[int, int]]:
    """The validity period of each hub key, according to the record."""
    keys = json.loads(entries("identity.json", "records")[-1]["hub_identity_json"])["hub_keys"]
    return {key["hub_pk"]: (key["valid_from"], key.get("valid_until", 1 << 64)) for key in keys}


def test_a_receipt_verifies_only_while_its_key_was_active() -> None:
    keys, times, found = load("identity.json")["keys"], windows(), record()
    for case in entries("identity.json", "receipts"):
        made = Receipt.decode(unhex(case["cbor"]))
        key = keys[case["signed_by"]]["public_key"]
        start, end = times.get(key, (0, 0))
        assert case["verifies"] == (start <= made.hub_ts < end)
        made.verify_signature(unhex(key))
        if case["verifies"]:
            assert found.verify_receipt(made).hub_pk.hex() == key
        else:
            with pytest.raises(Unverified):
                found.verify_receipt(made)


def test_a_checkpoint_verifies_only_if_its_key_was_active_in_its_epoch() -> None:
    doc, times, found = load("identity.json"), windows(), record()
    profile = Profile.decode(unhex(doc["profile"]["cbor"]))
    for case in entries("identity.json", "checkpoints"):
        made = Checkpoint.decode(unhex(case["cbor"]))
        key = doc["keys"][case["signed_by"]]["public_key"]
        start, end = times.get(key, (0, 0))
        seconds = range(made.epoch * profile.epoch_sec, (made.epoch + 1) * profile.epoch_sec)
        assert case["verifies"] == any(start <= second < end for second in seconds)
        if case["verifies"]:
            assert found.verify_checkpoint(made, profile).hub_pk.hex() == key
        else:
            with pytest.raises(Unverified):
                found.verify_checkpoint(made, profile)


@pytest.mark.parametrize("case", entries("identity.json", "unverified_records"), ids=lambda case: case["name"])
def test_a_record_with_a_broken_chain_is_rejected(case: Doc) -> None:
    with pytest.raises((Malformed, Unverified)):
        wire_json.decode_canonical(HubIdentity, case["hub_identity_json"].encode()).verify_chain()


@pytest.mark.parametrize("case", entries("identity.json", "unverified_signatures"), ids=lambda case: case["name"])
def test_a_record_that_the_newest_key_did_not_sign_is_rejected(case: Doc) -> None:
    found = wire_json.decode_canonical(HubIdentity, case["hub_identity_json"].encode())
    signature = wire_json.decode_canonical(IdentitySignature, case["hub_identity_sig"].encode())
    with pytest.raises(Unverified):
        signature.verify(found)
