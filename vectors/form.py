"""The format of a vector file: bytes as lowercase hex, names sorted, small entries on one line, for readable diffs."""

import json
from typing import Any, TypeAlias

from veen.core import Profile, SigningKey
from veen.core.errors import Refused
from veen.core.hashing import h
from veen.core.hpke import DhKey

Doc: TypeAlias = dict[str, Any]

LINE = 120


def render(doc: Doc) -> bytes:
    """The file content. Bytes in the document become hex here."""
    return (_text(doc, "") + "\n").encode()


def _text(value: Any, indent: str) -> str:
    """JSON with short values on one line."""
    flat = json.dumps(value, sort_keys=True, default=_hex)
    if len(indent) + len(flat) <= LINE or not isinstance(value, dict | list | tuple):
        return flat
    inner = indent + "  "
    if isinstance(value, dict):
        lines = [f"{inner}{json.dumps(name)}: {_text(value[name], inner)}" for name in sorted(value)]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + _text(one, inner) for one in value) + f"\n{indent}]"


def _hex(value: object) -> str:
    if not isinstance(value, bytes):
        raise TypeError(f"a vector file cannot contain a {type(value).__name__}")
    return value.hex()


def secret(name: str) -> bytes:
    """32 bytes for a publicly known key."""
    return h(b"veen vectors/" + name.encode())


def signing_key(name: str) -> SigningKey:
    return SigningKey(secret(name))


def dh_key(name: str) -> DhKey:
    return DhKey(secret(name))


def signer_doc(key: SigningKey) -> Doc:
    return {"seed": key.seed, "public_key": key.public_key}


def reader_doc(key: DhKey) -> Doc:
    return {"secret": key.secret, "public_key": key.public_key}


def profile_doc(profile: Profile) -> Doc:
    return {
        "epoch_sec": profile.epoch_sec,
        "pad_block": profile.pad_block,
        "cbor": profile.encode(),
        "profile_id": profile.profile_id(),
    }


def refused_doc(error: Refused) -> Doc:
    """A hub's answer; `retry_after` only if there is one."""
    doc: Doc = {"code": error.code, "stage": str(error.stage), "detail_enum": error.detail_enum}
    return doc if error.retry_after is None else doc | {"retry_after": error.retry_after}
