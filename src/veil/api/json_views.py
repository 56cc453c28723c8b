"""JSON views: bytes as lowercase hex, payloads as base64 and, if printable, also as text."""

import base64
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum, IntEnum
from typing import Any

from veil.node import Event, Subscription
from veil.runtime.contacts import AddressBookEntry, Contact
from veil.runtime.groups import MAGIC
from veil.runtime.keyring import NamedGroup


def plain(value: object) -> Any:
    """The JSON form of a value."""
    match value:
        case bytes():
            return value.hex()
        case IntEnum() | Enum():
            return value.name.lower()
        case float():
            return value if math.isfinite(value) else None
        case None | bool() | int() | str():
            return value
        case Mapping():
            return {plain(name): plain(one) for name, one in value.items()}
        case tuple() | list() | frozenset() | set():
            return [plain(one) for one in value]
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def event(one: Event, names: Mapping[bytes, str]) -> dict[str, Any]:
    """An event, with its payload in base64 and, if printable, in `text`. Invitations contain a group secret and are
    shown without payload.
    """
    data = {name: plain(value) for name, value in one.data.items() if name != "payload"}
    payload, sender = one.data.get("payload"), one.data.get("sender")
    if isinstance(payload, bytes) and payload.startswith(MAGIC):
        data["invitation"] = True
    elif isinstance(payload, bytes):
        data["payload_b64"] = base64.b64encode(payload).decode()
        data["text"] = as_text(payload)
    if isinstance(sender, bytes):
        data["sender_name"] = names.get(sender)
    return {"seq": one.seq, "at": one.at, "kind": one.kind, "data": data}


def as_text(payload: bytes) -> str | None:
    """The payload as text, or None if it is not printable UTF-8."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    return text if all(one.isprintable() or one in "\n\t" for one in text) else None


def contact(one: Contact) -> dict[str, Any]:
    return {
        "pubkey": one.pubkey.hex(),
        "delivery_pubkey": one.delivery_pubkey.hex(),
        "pin": one.pin.hex(),
        "made_ms": one.made_ms,
        "calls_itself": one.name,
        "endpoints": [str(endpoint) for endpoint in one.endpoints],
        "contact": one.text(),
    }


def entry(one: AddressBookEntry) -> dict[str, Any]:
    return {"name": one.name, **contact(one.contact)}


def group(one: NamedGroup) -> dict[str, Any]:
    """A group without its secrets."""
    newest = one.group.newest
    kept = [secret.generation for secret in one.group.secrets]
    return {"name": one.name, "group_id": newest.group_id.hex(), "generation": newest.generation, "readable": kept}


def subscription(one: Subscription) -> dict[str, Any]:
    return {"kind": one.kind.name.lower().replace("_", "-"), "key": one.key.hex(), "namespace": one.namespace}
