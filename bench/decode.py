"""Decoding and validating a MSG, compared with the signature check that follows."""

import os

import cbor2

from bench.call_times import microseconds, per_call
from veen.bench.bench_report import BenchReport, BenchRow
from veen.core import Msg, Profile, SigningKey, msg, signing
from veen.core.cbor import Wire

MSG_BYTES = 600


def example(key: SigningKey, profile_id: bytes) -> bytes:
    """A MSG of exactly 600 bytes with integers of the usual widths."""

    def with_ciphertext(size: int) -> bytes:
        return msg.sign(
            key,
            profile_id=profile_id,
            label=os.urandom(32),
            client_seq=70_000,
            prev_ack=69_999,
            auth_ref=os.urandom(32),
            ciphertext=os.urandom(size),
        ).encode()

    overhead = len(with_ciphertext(256)) - 256
    return with_ciphertext(MSG_BYTES - overhead)


def measure() -> BenchReport:
    key = SigningKey.generate()
    supported = Profile().profile_id()
    encoded = example(key, supported)
    digest, sig = msg.signing_digest(encoded), Msg.decode(encoded).sig

    def decode_and_validate() -> None:
        found = Msg.decode(encoded)
        found.check_ct_hash()
        if found.profile_id != supported:
            raise AssertionError

    times = per_call(
        {
            "Ed25519 verify": lambda: signing.verify(key.public_key, digest, sig),
            "decode and validate": decode_and_validate,
            "decode, by shortcut": lambda: Msg.decode(encoded),
            "decode, by table": lambda: Wire.decode.__func__(Msg, encoded),  # type: ignore[attr-defined]
            "cbor2, loads only": lambda: cbor2.loads(encoded),
            "cbor2, loads and re-encode": lambda: cbor2.dumps(cbor2.loads(encoded), canonical=True) == encoded,
        }
    )
    share = times["decode and validate"] / times["Ed25519 verify"]
    row = BenchRow.of("decode and validate a 600-byte MSG", [share], "of one Ed25519 verify", most=0.15)
    return BenchReport("decode", (*microseconds(times), row))
