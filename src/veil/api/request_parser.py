"""Request fields from JSON or the query string. Every accessor raises `Malformed` for invalid values."""

import base64
import binascii
import json
from typing import Any

from veil.hashing import HASH_BYTES
from veil.namespaces import Namespace
from veil.node import Destination, Subscription
from veil.runtime.daemon import Host
from veil.tags import feed_tag
from veil.veil_errors import Malformed, Refused
from veil.veil_limits import MAX_UINT16

_MAX_DIGITS = 15


class RequestFields:
    """The fields of a request body or query string."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    @classmethod
    def body(cls, body: bytes) -> "RequestFields":
        try:
            found = json.loads(body or b"{}")
        except (ValueError, RecursionError):
            raise Malformed("body", "not JSON") from None
        if not isinstance(found, dict):
            raise Malformed("body", "not a JSON object")
        return cls(found)

    def has(self, name: str) -> bool:
        return self._fields.get(name) not in (None, "")

    def text(self, name: str, default: str | None = None) -> str:
        found = self._fields.get(name, default)
        if not isinstance(found, str):
            raise Malformed(name, "missing, or not a string")
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        found = self._fields.get(name, [])
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise Malformed(name, "not a list of strings")
        return tuple(found)

    def number(self, name: str, default: int, most: int = MAX_UINT16) -> int:
        found = self._fields.get(name, default)
        if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) <= _MAX_DIGITS:
            found = int(found)
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= most:
            raise Malformed(name, f"not an integer from 0 to {most}")
        return found

    def flag(self, name: str, default: bool | None = None) -> bool | None:
        found = self._fields.get(name, default)
        if found is not None and not isinstance(found, bool):
            raise Malformed(name, "not true or false")
        return found

    def hex32(self, name: str) -> bytes:
        return hex32(self.text(name), name)

    def payload(self) -> bytes:
        """The payload from `text` or `payload_b64`."""
        if self.has("payload_b64") == self.has("text"):
            raise Malformed("payload", "give either text or payload_b64")
        if self.has("text"):
            return self.text("text").encode()
        try:
            return base64.b64decode(self.text("payload_b64"), validate=True)
        except (binascii.Error, ValueError):
            raise Malformed("payload_b64", "not base64") from None


def hex32(text: str, name: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != HASH_BYTES or len(text) != 2 * HASH_BYTES:
        raise Malformed(name, f"not {2 * HASH_BYTES} hex digits")
    return found


def pubkey(host: Host, wanted: str) -> bytes:
    """A public key from hex, from the name of a contact, or from `self`."""
    if wanted == "self":
        return host.groups.ring.signing.public_key
    try:
        return hex32(wanted, "pubkey")
    except Malformed:
        return host.book.find(wanted).contact.pubkey


def destination(host: Host, fields: RequestFields) -> Destination:
    """The destination: contact `to`, group `group`, or the own feed without either."""
    if fields.has("to") and fields.has("group"):
        raise Malformed("to", "give a contact or a group, not both")
    if fields.has("to"):
        to = host.book.find(fields.text("to")).contact
        return Destination.private(to.delivery_pubkey, fields.number("namespace", Namespace.PRIVATE))
    if fields.has("group"):
        group = host.groups.ring.group(fields.text("group"))
        return Destination.group(group.group_id, fields.number("namespace", Namespace.PRIVATE))
    return Destination.feed(fields.number("namespace", Namespace.PUBLIC_FEED))


def subscription(host: Host, fields: RequestFields) -> Subscription:
    kind = fields.text("kind", "feed")
    if kind == "feed":
        namespace = fields.number("namespace", Namespace.PUBLIC_FEED)
        return Subscription.feed(_tag(host, fields, namespace), namespace)
    if kind == "relay":
        return Subscription.relay(_tag(host, fields, fields.number("namespace", Namespace.PUBLIC_FEED)))
    namespace = fields.number("namespace", Namespace.PRIVATE)
    if kind == "mailbox":
        return Subscription.mailbox(namespace)
    if kind == "group":
        return Subscription.group(host.groups.ring.group(fields.text("group")).group_id, namespace)
    if kind == "relay-mailbox":
        return Subscription.relay_mailbox(host.book.find(fields.text("contact")).contact.delivery_pubkey, namespace)
    raise Refused("kind", f"{kind!r} is not one of feed, mailbox, group, relay, relay-mailbox")


def _tag(host: Host, fields: RequestFields, namespace: int) -> bytes:
    """The field `tag`, or the feed tag of `publisher`."""
    if fields.has("tag"):
        return fields.hex32("tag")
    return feed_tag(pubkey(host, fields.text("publisher")), namespace)
