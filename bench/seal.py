"""Sealing a message, compared with its primitives, and our HPKE context and HMAC compared with the libraries."""

import hmac
import os

from nacl import bindings
from pyhpke import AEADId, CipherSuite, KDFId, KEMId

from bench.call_times import microseconds, per_call
from veen.bench.bench_report import BenchReport, BenchRow
from veen.core import DhKey, Limits, PayloadHdr, Place, ciphertext
from veen.core.hpke import hmac32, setup_sender

BODY = os.urandom(256)


def measure() -> BenchReport:
    reader, secret, nonce = DhKey.generate(), os.urandom(32), os.urandom(24)
    place = Place(os.urandom(32), os.urandom(32), os.urandom(32), 70_000, 69_999)
    header, limits = PayloadHdr(os.urandom(32)), Limits()
    sealed = ciphertext.seal(reader.public_key, place, header, BODY, 256)
    suite = CipherSuite.new(KEMId.DHKEM_X25519_HKDF_SHA256, KDFId.HKDF_SHA256, AEADId.CHACHA20_POLY1305)
    library_key = suite.kem.deserialize_public_key(reader.public_key)
    encoded_header = header.encode()

    def thin_context() -> None:
        _, context = setup_sender(reader.public_key)
        context.seal(secret, encoded_header)
        context.export(b"veen/body-k", 32)

    def library_context() -> None:
        _, context = suite.create_sender_context(library_key)
        context.seal(encoded_header, secret)
        context.export(b"veen/body-k", 32)

    times = per_call(
        {
            "X25519, base point": lambda: bindings.crypto_scalarmult_base(secret),
            "X25519, exchange": lambda: bindings.crypto_scalarmult(secret, reader.public_key),
            "XChaCha20-Poly1305, 256 bytes": lambda: bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(
                BODY, secret, nonce, secret
            ),
            "seal": lambda: ciphertext.seal(reader.public_key, place, header, BODY, 256),
            "open": lambda: ciphertext.open_sealed(reader, place, sealed, limits),
            "HPKE seal and export, ours": thin_context,
            "HPKE seal and export, pyhpke": library_context,
            "HMAC, ours": lambda: hmac32(secret, encoded_header),
            "HMAC, hmac.digest": lambda: hmac.digest(secret, encoded_header, "sha256"),
        }
    )
    needed = sum(list(times.values())[:3])
    library = times["HPKE seal and export, pyhpke"] / times["HPKE seal and export, ours"]
    rows = (
        BenchRow.of("seal a 256-byte body", [times["seal"] / needed], "of 2 X25519 and 1 AEAD", most=1.35),
        BenchRow.of("the HPKE library, to be preferred at 1.5 or less", [library], "of our thin context"),
        BenchRow.of("hmac.digest", [times["HMAC, hmac.digest"] / times["HMAC, ours"]], "of our HMAC"),
    )
    return BenchReport("seal", (*microseconds(times), *rows))
