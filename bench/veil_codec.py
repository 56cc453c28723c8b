"""VEIL objects of 64 KiB, to shards and back, compared with the necessary hash and seal."""

import os

from blake3 import blake3
from nacl import bindings

from bench.call_times import Action, microseconds, per_call
from veen.bench.bench_report import BenchReport, BenchRow
from veil import (
    NATIVE,
    Address,
    ErasureMode,
    Inbox,
    NamespacePolicy,
    Published,
    SharedKey,
    SigningKey,
    dialect,
    erasure_code,
    open_object,
    publish,
    receive,
)
from veil.erasure_code import harden

KIB = 1024
OBJECT_BYTES = 64 * KIB
LEAST_MIB_S = 50
SMALL_OBJECT_BYTES = 6 * KIB  # cut into buckets of 4 KiB
_ADDRESS = Address(os.urandom(32), 40, 20_000)
_KEY, _SIGNER = SharedKey.generate(), SigningKey.generate()
_POLICY = NamespacePolicy()


def encode(payload: bytes, mode: ErasureMode) -> Published:
    """Everything a sender does: seal, sign, cut, and compute every shard id."""
    made = publish(payload, _ADDRESS, _KEY, signer=_SIGNER, mode=mode)
    for shard in made.shards:
        NATIVE.shard_id(shard)
    return made


def decode(shards: tuple[bytes, ...]) -> bytes:
    """Everything a receiver does with k shards, from their bytes to the payload."""
    inbox, gathered = Inbox(NATIVE), None
    for data in shards:
        NATIVE.shard_id(data)
        gathered = inbox.add(NATIVE.decode_shard(data), 0)
    assert gathered is not None
    return open_object(receive(gathered.of, gathered.encoded, _POLICY), _KEY).payload


def measure() -> BenchReport:
    payload, key, nonce = os.urandom(OBJECT_BYTES), os.urandom(32), os.urandom(24)
    made = {mode: encode(payload, mode) for mode in ErasureMode}
    small = encode(payload[:SMALL_OBJECT_BYTES], ErasureMode.HARDENED)
    package = harden(bytes(32), made[ErasureMode.HARDENED].encoded)
    k, n = small.of.shape.k, made[ErasureMode.HARDENED].of.shape.n
    actions: dict[str, Action] = {
        "BLAKE3 and XChaCha20-Poly1305": lambda: (
            blake3(payload).digest(),
            bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(payload, b"", nonce, key),
        ),
        "Reed-Solomon, four rows of six": lambda: erasure_code.encode(package, 6, n),
        "one object of 4 KiB shards, from k of them": lambda: decode(small.shards[-k:]),
        "the dialect: encode 64 KiB": lambda: dialect.publish(payload, _ADDRESS),
    }
    for mode, one in made.items():
        name = mode.name.lower()
        lost = one.shards[one.of.shape.n - one.of.shape.k :]
        actions[f"{name}: encode"] = lambda mode=mode: encode(payload, mode)  # type: ignore[misc]
        actions[f"{name}: decode, as many lost as may be"] = lambda lost=lost: decode(lost)  # type: ignore[misc]
    # Short rounds: on a shared machine they are more likely to be uninterrupted.
    times = per_call(actions, rounds=200, calls=1)
    needed = times["BLAKE3 and XChaCha20-Poly1305"]
    rows = [*microseconds(times)]
    for name, seconds in times.items():
        if name.startswith(("systematic", "hardened")):
            rows.append(
                BenchRow.of(f"{name}, 64 KiB", [OBJECT_BYTES / KIB / KIB / seconds], "MiB/s", least=LEAST_MIB_S)
            )
            rows.append(BenchRow.of(f"{name}: of BLAKE3 and AEAD over the same bytes", [seconds / needed], "times"))
    ingest = times["one object of 4 KiB shards, from k of them"]
    rows.append(BenchRow.of("shards of 4 KiB received, objects opened", [k / ingest], "/s"))
    return BenchReport("veil", tuple(rows))
