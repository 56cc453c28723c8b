"""One sealed message, checked by the second implementation from its keys and inputs alone."""

from typing import Any

from tests import vectors_oracle as oracle


def check_sealed(
    msg: list[Any], *, reader_secret: bytes, ephemeral: bytes, header: bytes, body: bytes, pad_block: int
) -> None:
    """Check every byte of a MSG's ciphertext against these inputs and this ephemeral key."""
    ciphertext = msg[8]
    enc, hdr_len, body_len = ciphertext[:32], *(int.from_bytes(ciphertext[at : at + 4], "big") for at in (32, 36))
    assert enc == oracle.x25519_public(ephemeral)
    end = 40 + hdr_len + body_len
    context = oracle.hpke_receiver(reader_secret, enc)
    assert context.open(ciphertext[40 : 40 + hdr_len], oracle.aad(msg)) == header
    k_body = context.export(b"veen/body-k", 32)
    assert ciphertext[40 + hdr_len : end] == oracle.xchacha_seal(k_body, oracle.nonce(msg), oracle.aad(msg), body)
    padded = -(-end // pad_block) * pad_block if pad_block else end
    assert ciphertext[end:] == bytes(padded - end)
    assert msg[7] == oracle.h(ciphertext)


def header_cbor(shown: dict[str, Any]) -> bytes:
    """payload_hdr from its JSON form, fields in the order of the specification."""
    keys = {"schema": 1, "parent_id": 2, "att_root": 3, "cap_ref": 4, "expires_at": 5}
    fields = {key: shown[name] for name, key in keys.items() if name in shown}
    assert len(fields) == len(shown)
    return oracle.cbor({key: field if key == 5 else bytes.fromhex(field) for key, field in fields.items()})
