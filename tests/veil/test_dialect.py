"""The dialect of existing nodes: encodings, shapes, tags and keys, compared with known values."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import cbor2
import pytest
from coincurve import PublicKeyXOnly
from hypothesis import given
from hypothesis import strategies as st

from tests.veil.builders import ADDRESS, KEY, NONCE, SIGNER, corrupted, modes, pattern, restore
from tests.veil.vector_files import DIALECT as KNOWN
from tests.veil.vector_files import unhex
from veil import (
    Address,
    ErasureMode,
    Flags,
    Malformed,
    NamespacePolicy,
    ObjectV1,
    Published,
    Reassembly,
    Refused,
    Shape,
    ShardSet,
    ShardV1,
    SharedKey,
    Unverified,
    dialect,
)
from veil.codec import Reader
from veil.dialect import DIALECT, Scheme, SchnorrKey, choose_shape, encode_ints, read_bytes
from veil.hashing import h
from veil.veil_limits import KIB

POLICY = NamespacePolicy()
OBJECT_FIELDS = KNOWN["object"]["fields"]
ORDER = [*("version", "namespace", "epoch", "flags", "tag", "object_root", "sender_pubkey", "signature", "nonce")]
ORDER += ["ciphertext", "padding"]
SHARD_FIELDS = KNOWN["shard"]["fields"]
OBJECT = ObjectV1(
    Address(unhex(OBJECT_FIELDS["tag"]), OBJECT_FIELDS["namespace"], OBJECT_FIELDS["epoch"]),
    Flags(OBJECT_FIELDS["flags"]),
    unhex(OBJECT_FIELDS["nonce"]),
    unhex(OBJECT_FIELDS["ciphertext"]),
    unhex(OBJECT_FIELDS["padding"]),
    unhex(OBJECT_FIELDS["sender_pubkey"]),
    unhex(OBJECT_FIELDS["signature"]),
    unhex(OBJECT_FIELDS["object_root"]),
)
SHARD = ShardV1(
    ShardSet(
        Address(unhex(SHARD_FIELDS["tag"]), SHARD_FIELDS["namespace"], SHARD_FIELDS["epoch"]),
        unhex(SHARD_FIELDS["object_root"]),
        Shape(SHARD_FIELDS["profile_id"], SHARD_FIELDS["k"], SHARD_FIELDS["n"], SHARD_FIELDS["bucket_size"]),
        ErasureMode.HARDENED,
    ),
    SHARD_FIELDS["index"],
    unhex(KNOWN["shard"]["payload_byte"]) * (SHARD_FIELDS["bucket_size"] - 85),
)
SMALL_SHARD = DIALECT.decode_shard(dialect.publish(b"small", ADDRESS).shards[1])


def as_byte_strings(encoded: bytes) -> bytes:
    """The same value with every array of bytes as a byte string."""

    def convert(value: object) -> object:
        if isinstance(value, dict):
            return {name: convert(one) for name, one in value.items()}
        return bytes(value) if isinstance(value, list) else value

    return cbor2.dumps(convert(cbor2.loads(encoded)))


def test_the_golden_object_is_written_and_read() -> None:
    encoded = unhex(KNOWN["object"]["encoded"])
    assert DIALECT.encode_object(OBJECT) == encoded
    assert DIALECT.decode_object(encoded) == OBJECT


def test_the_golden_shard_is_written_and_read() -> None:
    encoded = DIALECT.encode_shard(SHARD)
    assert (len(encoded), h(encoded).hex()) == (KNOWN["shard"]["encoded_len"], KNOWN["shard"]["encoded_blake3"])
    assert DIALECT.decode_shard(encoded) == SHARD
    assert DIALECT.shard_id(encoded).hex() == KNOWN["shard"]["encoded_blake3"]


def test_byte_strings_are_read_too_and_a_shard_has_one_id_in_both_spellings() -> None:
    encoded = DIALECT.encode_shard(SHARD)
    short = as_byte_strings(encoded)
    assert len(short) == len(SHARD.payload) + 211
    assert DIALECT.decode_shard(short) == SHARD
    assert DIALECT.shard_id(short) == DIALECT.shard_id(encoded)
    assert DIALECT.decode_object(as_byte_strings(DIALECT.encode_object(OBJECT))) == OBJECT


def test_an_unsigned_object_has_null_where_a_signature_would_be() -> None:
    plain = replace(OBJECT, flags=Flags.PUBLIC, sender_pubkey=None, signature=None)
    encoded = DIALECT.encode_object(plain)
    fields = cbor2.loads(encoded)
    assert (fields["sender_pubkey"], fields["signature"]) == (None, None)
    assert list(fields) == ORDER
    assert DIALECT.decode_object(encoded) == plain


@given(st.binary(max_size=400), st.booleans())
def test_bytes_as_integers_are_those_of_another_library(data: bytes, marks: bool) -> None:
    data = data.translate(bytes(0x18 if byte % 3 else byte for byte in range(256))) if marks else data
    encoded = encode_ints(data)
    assert encoded == cbor2.dumps(list(data))
    reader = Reader(encoded + b"\x18\x18", "bytes")
    assert read_bytes(reader, 400) == data
    assert reader.at == len(encoded)


@pytest.mark.parametrize(
    "encoded",
    [
        "82",
        "8200",
        "821818",
        "82181700",
        "82001900ff",
        "821819",
        "8100ff"[:2] + "19",
        "8120",
        "8140",
        "81f6",
        "9f00ff",
        "811900ff",
        "8118",
    ],
)
def test_an_invalid_byte_array_is_rejected(encoded: str) -> None:
    with pytest.raises(Malformed):
        read_bytes(Reader(unhex(encoded), "bytes"), 100)


def spoilt(encoded: bytes) -> dict[str, bytes]:
    fields = cbor2.loads(encoded)
    names = list(fields)

    def changed(**values: object) -> bytes:
        return cbor2.dumps({**fields, **values})

    found = {
        "another order of keys": cbor2.dumps(dict(reversed(fields.items()))),
        "a key too few": cbor2.dumps({name: fields[name] for name in names[:-1]}),
        "a key too many": changed(more=1),
        "another key": cbor2.dumps({name.upper(): value for name, value in fields.items()}),
        "something after it": encoded + b"\x00",
        "a byte less": encoded[:-1],
        "an indefinite map": b"\xbf" + encoded[1:] + b"\xff",
        "no map": cbor2.dumps(list(fields.values())),
    }
    if "header" in fields:
        header = fields["header"]
        changes: dict[str, object] = {
            "version": 1, "erasure_mode": 1, "bucket_size": 4096, "k": 0, "n": 1, "index": 3, "profile_id": 1 << 16
        }  # fmt: skip
        for name, value in changes.items():
            found[f"{name} of {value}"] = changed(header={**header, name: value})
        found["an unknown mode"] = changed(header={**header, "erasure_mode": "Hardened"})
        found["a short payload"] = changed(payload=fields["payload"][:-1])
    else:
        for name, value in {"version": 2, "flags": 0, "ciphertext": [], "tag": [0] * 31, "nonce": bytes(12)}.items():
            found[f"{name} of {value}"] = changed(**{name: value})
        found["an unknown flag"] = changed(flags=0x15)
        found["a byte of 256"] = changed(padding=[256])
    return found


@pytest.mark.parametrize("name", spoilt(DIALECT.encode_object(OBJECT)))
def test_an_object_of_the_dialect_is_refused_with(name: str) -> None:
    with pytest.raises(Malformed):
        DIALECT.decode_object(spoilt(DIALECT.encode_object(OBJECT))[name])


@pytest.mark.parametrize("name", spoilt(DIALECT.encode_shard(SMALL_SHARD)))
def test_a_shard_of_the_dialect_is_refused_with(name: str) -> None:
    with pytest.raises(Malformed):
        DIALECT.decode_shard(spoilt(DIALECT.encode_shard(SMALL_SHARD))[name])


@pytest.mark.parametrize(("channel", "namespace"), KNOWN["channel_namespaces"]["cases"].items())
def test_a_channel_has_the_known_namespace(channel: str, namespace: int) -> None:
    assert dialect.channel_namespace(KNOWN["channel_namespaces"]["base"], channel) == namespace


def test_discovery_has_the_known_tag() -> None:
    namespace, tag = KNOWN["discovery_tag"]
    assert dialect.discovery_tag(namespace).hex() == dialect.discovery_tag().hex() == tag


@pytest.mark.parametrize(("size", "profile_id", "k", "n", "bucket"), KNOWN["profiles"])
def test_existing_nodes_choose_by_these_thresholds(
    size: int, profile_id: int, k: int, n: int, bucket: int | None
) -> None:
    shape = choose_shape(size, bytes(32))
    assert (shape.profile_id, shape.k, shape.n) == (profile_id, k, n)
    assert bucket is None or shape.bucket_size == bucket


@pytest.mark.parametrize(("size", "bucket"), KNOWN["breakpoints"])
def test_existing_nodes_change_buckets_at_these_sizes(size: int, bucket: int) -> None:
    assert choose_shape(size, bytes(32)).bucket_size == bucket


@pytest.mark.parametrize("size", [0, 654_511])
def test_a_size_without_a_shape_is_rejected(size: int) -> None:
    with pytest.raises(Refused):
        choose_shape(size, bytes(32))


def test_jitter_is_drawn_from_the_first_byte_of_the_root() -> None:
    buckets = [choose_shape(1_000, bytes((first,)) + bytes(31), 2).bucket_size // KIB for first in range(6)]
    assert buckets == [2, 4, 8, 2, 4, 8]
    assert choose_shape(8_100, b"\xff" * 32, 9).bucket_size == 8 * KIB


@pytest.mark.parametrize("case", KNOWN["batches"], ids=str)
def test_a_batch_is_the_known_one(case: dict[str, object]) -> None:
    items = tuple(unhex(item) for item in case["items"])  # type: ignore[attr-defined]
    assert dialect.encode_batch(items).hex() == case["cbor"]
    assert dialect.decode_batch(dialect.encode_batch(items)) == items
    assert dialect.decode_batch(cbor2.dumps(list(items))) == items


@pytest.mark.parametrize(("target", "limit", "sizes", "count"), KNOWN["batch_lengths"])
def test_batch_length_matches_existing_nodes(target: int, limit: int, sizes: list[int], count: int) -> None:
    assert dialect.batch_length(sizes, target, limit) == count


def test_a_shard_request_is_the_known_one() -> None:
    known = KNOWN["shard_request"]
    request = dialect.ShardRequest(
        unhex(known["object_root"]), unhex(known["tag"]), known["k"], known["n"], tuple(known["want"]), known["hop"]
    )
    assert request.encode().hex() == known["packet"]
    assert dialect.ShardRequest.decode(unhex(known["packet"])) == request


@pytest.mark.parametrize(
    "change", [{"k": 0}, {"k": 11}, {"want": (10,)}, {"want": tuple(range(9))}, {"hop": 256}, {"n": 25}]
)
def test_an_invalid_shard_request_is_rejected(change: dict[str, Any]) -> None:
    good = dialect.ShardRequest(bytes(32), bytes(32), 6, 10, (1, 2, 3), 1)
    with pytest.raises(Malformed):
        dialect.ShardRequest.decode(replace(good, **change).encode())


def test_an_acknowledgement_names_a_root() -> None:
    assert dialect.decode_ack(dialect.encode_ack(b"\x07" * 32)) == b"\x07" * 32
    for bad in (b"", b"VEIL_ACK_V1", dialect.encode_ack(bytes(31)), dialect.encode_ack(bytes(33)), bytes(43)):
        with pytest.raises(Malformed):
            dialect.decode_ack(bad)


def test_keys_and_nonces_are_the_known_ones() -> None:
    assert dialect.node_key(unhex(KNOWN["node_key"]["secret"])).hex() == KNOWN["node_key"]["key"]
    known = KNOWN["object_nonce"]
    address = Address(unhex(known["tag"]), known["namespace"], known["epoch"])
    assert dialect.object_nonce(address, known["now_step"], unhex(known["payload"])).hex() == known["nonce"]


def test_two_nodes_have_the_known_key_for_direct_messages() -> None:
    known = KNOWN["dm"]
    secret_a, secret_b = unhex(known["secret_a"]), unhex(known["secret_b"])
    assert SchnorrKey(secret_a).public_key.hex() == known["pub_a"]
    assert dialect.dm_key(secret_a, unhex(known["pub_b"])).hex() == known["key"]
    assert dialect.dm_key(secret_b, unhex(known["pub_a"])).hex() == known["key"]
    with pytest.raises(Malformed):
        dialect.dm_key(secret_a, b"\xff" * 32)


def test_the_known_schnorr_signature_is_made_and_holds() -> None:
    known = KNOWN["schnorr"]
    key, digest = SchnorrKey(unhex(known["secret"])), unhex(known["digest"])
    assert key.public_key.hex() == known["pubkey"]
    assert sha256(digest).hexdigest() == known["message"]
    assert key.sign(digest).hex() == known["signature"]
    assert PublicKeyXOnly(key.public_key).verify(unhex(known["signature"]), unhex(known["message"]))


@pytest.mark.parametrize("secret", [b"", bytes(32), b"\xff" * 32, b"\x01" * 33])
def test_an_invalid_curve_secret_is_rejected(secret: bytes) -> None:
    with pytest.raises(Malformed):
        SchnorrKey(secret)


@pytest.mark.parametrize(
    ("key", "scheme"), [(SchnorrKey(b"\x07" * 32), Scheme.BIP340), (SIGNER, Scheme.ED25519)], ids=["bip340", "ed25519"]
)
def test_either_scheme_holds_and_covers_the_header_and_the_ciphertext(key: SchnorrKey, scheme: Scheme) -> None:
    plain = replace(OBJECT, flags=Flags.PUBLIC, sender_pubkey=None, signature=None)
    signed = dialect.sign_object(plain, key)
    assert dialect.verify_object(signed) is scheme
    assert dialect.verify_object(plain) is None
    for altered in (
        replace(signed, nonce=bytes(24)),
        replace(signed, flags=signed.flags | Flags.BATCHED),
        replace(signed, ciphertext=b"other"),
        replace(signed, payload_root=bytes(32)),
        replace(signed, address=replace(signed.address, epoch=1)),
        replace(signed, sender_pubkey=SchnorrKey(b"\x08" * 32).public_key),
        replace(signed, signature=bytes(64)),
    ):
        with pytest.raises(Unverified):
            dialect.verify_object(altered)


def restored(made: Published, key: SharedKey | None = None) -> bytes:
    found = restore(made.of, made.shards[-made.of.shape.k :], DIALECT)
    assert found is not None
    assert found.encoded == made.encoded
    return dialect.open_object(dialect.receive(made.of, found.encoded, POLICY), key).payload


@given(st.integers(0, 120_000), modes, st.booleans())
def test_an_object_of_the_dialect_is_restored_from_any_k_shards(size: int, mode: ErasureMode, public: bool) -> None:
    payload = pattern(size)
    flags, lock = (Flags.PUBLIC, dialect.PUBLIC_KEY) if public else (Flags.NONE, KEY)
    made = dialect.publish(payload, ADDRESS, lock, flags=flags, mode=mode, signer=SIGNER)
    assert restored(made, None if public else KEY) == payload


def test_an_object_longer_than_existing_nodes_take_is_refused() -> None:
    with pytest.raises(Refused):
        dialect.publish(b"\xff" * (140 * KIB), ADDRESS)


def test_a_private_object_does_not_open_without_its_key() -> None:
    made = dialect.publish(b"mine", ADDRESS, KEY, flags=Flags.NONE)
    received = dialect.receive(made.of, made.encoded, POLICY)
    for key in (None, dialect.PUBLIC_KEY, SharedKey(b"\x01" * 32)):
        with pytest.raises(Unverified):
            dialect.open_object(received, key)


def test_a_payload_that_has_another_root_than_it_names_is_refused() -> None:
    made = dialect.publish(b"mine", ADDRESS)
    received = dialect.receive(made.of, made.encoded, POLICY)
    forged = replace(received, obj=replace(received.obj, payload_root=bytes(32)))
    with pytest.raises(Unverified):
        dialect.open_object(forged)


def test_an_object_of_the_dialect_must_be_where_its_shards_say_and_signed_where_it_must() -> None:
    made = dialect.publish(b"mine", replace(ADDRESS, namespace=1))
    with pytest.raises(Refused):
        dialect.receive(made.of, made.encoded, POLICY)
    with pytest.raises(Malformed):
        dialect.receive(replace(made.of, address=ADDRESS), made.encoded, POLICY)


@pytest.mark.parametrize("mode", ErasureMode)
def test_anything_but_zeros_behind_an_object_is_refused(mode: ErasureMode) -> None:
    made = dialect.publish(b"small", ADDRESS, mode=mode)
    for behind, fits in [(bytes(9), True), (b"\x00\x01", False), (made.encoded, False)]:
        payloads = DIALECT.cut(made.of, made.encoded + behind)
        if fits:
            assert DIALECT.restore(made.of, dict(enumerate(payloads[:2]))) == made.encoded
        else:
            with pytest.raises(Unverified):
                DIALECT.restore(made.of, dict(enumerate(payloads[:2])))


def test_a_poisoned_shard_of_the_dialect_does_not_block_its_object() -> None:
    made = dialect.publish(pattern(20_000), ADDRESS, nonce=NONCE)
    reassembly, found = Reassembly(made.of, DIALECT), None
    bad = replace(DIALECT.decode_shard(made.shards[0]), payload=corrupted(DIALECT.decode_shard(made.shards[0]).payload))
    for shard in [bad, *map(DIALECT.decode_shard, made.shards[1 : made.of.shape.k + 1])]:
        found = reassembly.add(shard)
    assert found is not None
    assert found.encoded == made.encoded


def test_the_old_hardened_mode_leaves_a_small_object_in_plain_and_ours_does_not() -> None:
    """The reason why only the dialect uses it."""
    made = dialect.publish(b"a small object", ADDRESS, mode=ErasureMode.HARDENED)
    payloads = [DIALECT.decode_shard(shard).payload for shard in made.shards]
    assert made.encoded.ljust(len(payloads[0]), b"\x00") in payloads
    assert bytes(len(payloads[0])) in payloads
