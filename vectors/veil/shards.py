"""Objects and their shards, from a payload to every encoded byte."""

from random import Random

from vectors.form import Doc
from veil import NATIVE, Address, ErasureMode, Flags, SharedKey, SigningKey, publish
from veil.codec import payload_bytes
from veil.encryption import signing_digest
from veil.erasure_code import encode, harden, parity_rows
from veil.hashing import h
from veil.profiles import PROFILES, SHAPES, Shape

ADDRESS = Address(h(b"veil vectors/tag"), 40, 20_000)
KEY = h(b"veil vectors/key")
SEED = h(b"veil vectors/seed")
NONCE = h(b"veil vectors/nonce")[:24]
# Numbers of every width, so every head occurs.
WIDE = Address(h(b"veil vectors/wide"), 65_535, 4_294_967_295)
NARROW = Address(h(b"veil vectors/narrow"), 1, 0)


def payload(size: int) -> bytes:
    """Reproducible bytes: the low byte of each position, times 7."""
    return bytes(place * 7 & 0xFF for place in range(size))


def objects() -> Doc:
    """Published payloads. Small shards are included completely, larger ones by their ids."""
    cases = [
        ("an empty payload", 0, ADDRESS, Flags.NONE, False, ErasureMode.HARDENED),
        ("a few bytes", 12, ADDRESS, Flags.ACK_REQUESTED, False, ErasureMode.HARDENED),
        ("a signed post", 500, NARROW, Flags.PUBLIC, True, ErasureMode.SYSTEMATIC),
        ("numbers as wide as they can be", 12, WIDE, Flags.NONE, True, ErasureMode.HARDENED),
        ("a bucket of 4 KiB", 5_000, ADDRESS, Flags.NONE, False, ErasureMode.HARDENED),
        ("a bucket of 8 KiB", 15_000, ADDRESS, Flags.NONE, False, ErasureMode.SYSTEMATIC),
        ("six shards", 65_536, ADDRESS, Flags.BATCHED, True, ErasureMode.HARDENED),
        ("six larger shards", 150_000, ADDRESS, Flags.NONE, False, ErasureMode.SYSTEMATIC),
        ("ten shards", 250_000, ADDRESS, Flags.NONE, False, ErasureMode.HARDENED),
    ]
    return {
        "key": KEY,
        "seed": SEED,
        "public_key": SigningKey(SEED).public_key,
        "nonce": NONCE,
        "payload_rule": "byte i of a payload is 7 * i mod 256",
        "cases": [_published(*case) for case in cases],
    }


def _published(name: str, size: int, address: Address, flags: Flags, signed: bool, mode: ErasureMode) -> Doc:
    made = publish(
        payload(size),
        address,
        SharedKey(KEY),
        flags=flags,
        signer=SigningKey(SEED) if signed else None,
        mode=mode,
        nonce=NONCE,
    )
    obj = NATIVE.decode_object(made.encoded)
    whole = made.of.shape.bucket_size == SHAPES[0].bucket_size
    return {
        "name": name,
        "payload_len": size,
        "address": _address(address),
        "aad": address.aad(),
        "flags": int(obj.flags),
        "ciphertext_len": len(obj.ciphertext),
        "ciphertext_blake3": h(obj.ciphertext),
        "signing_digest": signing_digest(obj, obj.sender_pubkey) if obj.sender_pubkey else None,
        "signature": obj.signature,
        "object_len": len(made.encoded),
        "object_root": made.object_root,
        "erasure_mode": int(mode),
        "shape": _shape(made.of.shape),
        "payload_bytes": payload_bytes(made.of),
        "shard_ids": [NATIVE.shard_id(shard) for shard in made.shards],
        "object": made.encoded if whole else None,
        "shards": list(made.shards) if whole else None,
    }


def erasure() -> Doc:
    """The code on a few bytes, and the hardened transform alone."""
    codes = []
    for profile in PROFILES:
        data = Random(profile.k).randbytes(4 * profile.k)
        rows = list(map(bytes, encode(data, profile.k, profile.n)))
        codes.append(
            {"k": profile.k, "n": profile.n, "parity_rows": list(parity_rows(profile.k, profile.n)), "rows": rows}
        )
    hardened = [
        {"object": data, "root": h(data), "package": harden(h(data), data)} for data in map(payload, (0, 1, 64, 200))
    ]
    return {"codes": codes, "hardened": hardened}


def _address(address: Address) -> Doc:
    return {"tag": address.tag, "namespace": address.namespace, "epoch": address.epoch}


def _shape(shape: Shape) -> Doc:
    return {"profile_id": shape.profile_id, "k": shape.k, "n": shape.n, "bucket_size": shape.bucket_size}
