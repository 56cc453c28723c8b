"""Policy files: which witnesses a reader trusts, and how many of them must have cosigned.

threshold = 2

[witnesses]
alpha = "5f1c…"   # 64 hex digits
beta = "77a1…"
gamma = "0c9e…"
"""

import tomllib
from pathlib import Path

from veen.client import local_files
from veen.core import Malformed
from veen.core.cosignature import WitnessPolicy
from veen.core.limits import MAX_WITNESS_SIGS
from veen.core.signing import PUBLIC_KEY_BYTES

MAX_POLICY_BYTES = 1 << 16


def read_policy(path: Path) -> WitnessPolicy:
    """Read a policy file. Raises `Malformed` with the field that is wrong."""
    data = local_files.read_file(path, MAX_POLICY_BYTES)
    try:
        found = tomllib.loads(data.decode())
        return _policy(found)
    except ValueError as error:  # also of tomllib and of UTF-8
        raise Malformed(str(path), str(error)) from None


def _policy(found: dict[str, object]) -> WitnessPolicy:
    unknown = sorted(found.keys() - {"threshold", "witnesses"})
    if unknown:
        raise ValueError(f"there is no setting {unknown[0]!r}; a policy has threshold and the table witnesses")
    threshold, listed = found.get("threshold"), found.get("witnesses")
    if not isinstance(listed, dict) or not 1 <= len(listed) <= MAX_WITNESS_SIGS:
        raise ValueError(f"witnesses must be a table of 1 to {MAX_WITNESS_SIGS} names with public keys")
    keys = {name: _key(name, text) for name, text in listed.items()}
    if len(set(keys.values())) != len(keys):
        raise ValueError("two witnesses have the same key, so that one would count twice")
    if isinstance(threshold, bool) or not isinstance(threshold, int) or not 1 <= threshold <= len(keys):
        raise ValueError(f"threshold must be a number from 1 to {len(keys)}")
    return WitnessPolicy(threshold, keys)


def _key(name: str, text: object) -> bytes:
    try:
        key = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        key = b""
    if len(key) != PUBLIC_KEY_BYTES:
        raise ValueError(f"witnesses.{name} is not a public key of {2 * PUBLIC_KEY_BYTES} hex digits")
    return key
