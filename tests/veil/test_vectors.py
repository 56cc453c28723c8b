"""The vector files match their generator, and a second implementation computes the same values."""

from typing import Any

import pytest
from blake3 import blake3
from nacl import bindings

from tests.veil import oracle
from tests.veil.vector_files import FOLDER, load, unhex
from vectors.form import render
from vectors.veil.generate import GENERATED
from veil import (
    NATIVE,
    Address,
    DeliveryKey,
    ErasureMode,
    Flags,
    GroupSecret,
    NamespacePolicy,
    ObjectV1,
    Opened,
    Shape,
    ShardSet,
    ShardV1,
    SharedKey,
    open_object,
    receive,
)
from veil.channels import feed_key
from veil.encryption import read_letter
from veil.tags import feed_tag, rv_tag

OBJECTS, ERASURE, CHANNELS = load("objects.json"), load("erasure.json"), load("channels.json")
CASES = {case["name"]: case for case in OBJECTS["cases"]}


def payload(size: int) -> bytes:
    return bytes(7 * place % 256 for place in range(size))


def address_of(case: dict[str, Any]) -> Address:
    return Address(unhex(case["address"]["tag"]), case["address"]["namespace"], case["address"]["epoch"])


@pytest.mark.parametrize("name", GENERATED)
def test_a_file_is_what_its_generator_writes(name: str) -> None:
    assert (FOLDER / name).read_bytes() == render(GENERATED[name]())


def test_every_file_is_generated_or_copied() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == {*GENERATED, "dialect.json"}


@pytest.mark.parametrize("name", CASES)
def test_a_published_object_is_what_the_formulas_say(name: str) -> None:
    """From payload to root, using only the types of the package."""
    case = CASES[name]
    address = address_of(case)
    aad = address.tag + address.namespace.to_bytes(2, "big") + address.epoch.to_bytes(4, "big")
    body = payload(case["payload_len"])
    padded = body + b"\x80" + bytes(case["ciphertext_len"] - 16 - len(body) - 1)
    sealed = bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(
        padded, aad, unhex(OBJECTS["nonce"]), unhex(OBJECTS["key"])
    )
    signed = case["signature"] is not None
    obj = ObjectV1(
        address,
        Flags(case["flags"]),
        unhex(OBJECTS["nonce"]),
        sealed,
        b"",
        unhex(OBJECTS["public_key"]) if signed else None,
        unhex(case["signature"]) if signed else None,
    )
    encoded = oracle.object_bytes(obj)
    assert blake3(sealed).hexdigest() == case["ciphertext_blake3"]
    assert (len(encoded), blake3(encoded).hexdigest()) == (case["object_len"], case["object_root"])
    if signed:
        digest = oracle.signing_digest(obj)
        assert digest.hex() == case["signing_digest"]
        bindings.crypto_sign_open(unhex(case["signature"]) + digest, unhex(OBJECTS["public_key"]))
    if case["shards"]:
        assert encoded.hex() == case["object"]
        assert [shard.hex() for shard in oracle.shards_of(encoded, address, case)] == case["shards"]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["shards"]])
def test_the_last_k_shards_of_a_case_give_the_payload_back(name: str) -> None:
    case = CASES[name]
    shards = [NATIVE.decode_shard(unhex(shard)) for shard in case["shards"]]
    assert [NATIVE.shard_id(unhex(shard)).hex() for shard in case["shards"]] == case["shard_ids"]
    of = ShardSet(
        address_of(case), unhex(case["object_root"]), Shape(**case["shape"]), ErasureMode(case["erasure_mode"])
    )
    assert {shard.of for shard in shards} == {of}
    chosen: list[ShardV1] = shards[-of.shape.k :]
    encoded = NATIVE.restore(of, {shard.index: shard.payload for shard in chosen})
    opened: Opened = open_object(receive(of, encoded, NamespacePolicy()), SharedKey(unhex(OBJECTS["key"])))
    assert opened.payload == payload(case["payload_len"])


def test_every_shape_but_the_largest_is_met() -> None:
    assert {case["shape"]["bucket_size"] // 1024 for case in CASES.values()} == {2, 4, 8, 16, 32}
    assert {case["shape"]["k"] for case in CASES.values()} == {2, 6, 10}


def test_the_code_and_the_transform_are_what_the_formulas_say() -> None:
    for code in ERASURE["codes"]:
        rows = [unhex(row) for row in code["rows"]]
        assert oracle.encode(rows[: code["k"]], code["n"]) == rows
    for case in ERASURE["hardened"]:
        assert oracle.harden(unhex(case["root"]), unhex(case["object"])).hex() == case["package"]


def test_the_feed_has_its_tag_and_key() -> None:
    feed = CHANNELS["feed"]
    tag = feed_tag(unhex(feed["public_key"]), feed["namespace"])
    assert tag.hex() == feed["tag"]
    sealed = SharedKey(unhex(feed["key"])).seal(Address(tag, 1, 0), bytes(24), b"x")
    assert feed_key(tag).open(Address(tag, 1, 0), bytes(24), sealed) == b"x"


def test_the_letter_opens_for_its_recipient() -> None:
    case = CHANNELS["private"]
    key = DeliveryKey(unhex(case["recipient_secret"]))
    address = Address(
        rv_tag(key.public_key, CHANNELS["epoch"], case["namespace"]), case["namespace"], CHANNELS["epoch"]
    )
    assert (address.tag.hex(), address.aad().hex()) == (case["tag"], case["aad"])
    letter = key.open(address, unhex(case["nonce"]), unhex(case["ciphertext"]))
    assert letter.hex() == case["letter"]
    read = read_letter(address, letter)
    assert (read.sender_pubkey.hex(), read.body.hex()) == (case["sender_public_key"], case["body"])


def test_each_generation_of_the_group_follows_from_the_one_before() -> None:
    secrets = [GroupSecret.decode(unhex(case["share"])) for case in CHANNELS["groups"]]
    assert secrets[1:] == [secret.ratchet() for secret in secrets[:-1]]
    for secret, case in zip(secrets, CHANNELS["groups"], strict=True):
        assert (secret.generation, secret.secret.hex()) == (case["generation"], case["secret"])
        material = secret.group_id + secret.generation.to_bytes(4, "big") + secret.secret
        locator = blake3(material, derive_key_context="veil group locator v1").digest()
        assert locator.hex() == case["locator"]
        address = Address(rv_tag(locator, CHANNELS["epoch"], case["namespace"]), case["namespace"], CHANNELS["epoch"])
        assert address.tag.hex() == case["tag"]
        key = SharedKey(blake3(material, derive_key_context="veil group content v1").digest())
        assert key.open(address, unhex(case["nonce"]), unhex(case["ciphertext"])).hex() == case["plaintext"]
