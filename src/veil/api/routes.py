"""The routes of the local API. docs/veil.md has the same table."""

import asyncio
import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum, IntEnum
from typing import Any

from veil.hashing import HASH_BYTES
from veil.node import Destination, Event, Subscription, Tier
from veil.objects import Namespace
from veil.runtime.contacts import AddressBookEntry, Contact
from veil.runtime.daemon import Host
from veil.runtime.groups import MAGIC, NamedGroup
from veil.tags import feed_tag
from veil.veil_errors import Malformed, Refused
from veil.veil_limits import MAX_UINT16


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
        case Contact():
            return contact(value)
        case AddressBookEntry():
            return {"name": value.name, **contact(value.contact)}
        case NamedGroup():
            return group(value)
        case Subscription():
            return subscription(value)
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


def group(one: NamedGroup) -> dict[str, Any]:
    """A group without its secrets."""
    newest = one.group.newest
    kept = [secret.generation for secret in one.group.secrets]
    return {"name": one.name, "group_id": newest.group_id.hex(), "generation": newest.generation, "readable": kept}


def subscription(one: Subscription) -> dict[str, Any]:
    return {"kind": one.kind.name.lower().replace("_", "-"), "key": one.key.hex(), "namespace": one.namespace}


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


def read_destination(host: Host, fields: RequestFields) -> Destination:
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


def read_subscription(host: Host, fields: RequestFields) -> Subscription:
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


MAX_EVENTS = 1_024
MAX_WAIT_S = 60
DEFAULT_EVENTS = 256
MAX_SHOWN = 4_096
_ANY_SEQ = (1 << 53) - 1

Handler = Callable[[Host, RequestFields], object]  # text, or a value with a JSON form; or a coroutine of it


def names(host: Host) -> dict[bytes, str]:
    """Local names by public key."""
    known = {entry.contact.pubkey: entry.name for entry in host.book}
    return known | {host.groups.ring.signing.public_key: "self"}


def status(host: Host, fields: RequestFields) -> object:
    own = {"pubkey": host.contact.pubkey, "name": host.groups.ring.name, "started_at": host.started_at}
    return {**plain(own), **plain(host.node.status()), "sessions": len(host.sessions)}


def lanes(host: Host, fields: RequestFields) -> object:
    """Each lane: endpoints, statistics, or why it is absent."""
    found = []
    for info in host.node.lanes():
        lane = host.lanes.running.get(info.lane)
        found.append(
            {
                **plain(info),
                "running": lane is not None,
                "why_not": host.lanes.absent.get(info.lane),
                "endpoints": [str(one) for one in lane.endpoints] if lane else [],
                **plain(host.sessions.totals(info.lane)),
                "strangers": getattr(lane, "unauthenticated", 0),
                "refused": getattr(lane, "refused", 0),
            }
        )
    return found


def peers(host: Host, fields: RequestFields) -> object:
    known = names(host)
    remotes: dict[bytes, list[str]] = {}
    for lane, session in host.sessions.all():
        remotes.setdefault(session.peer, []).append(f"{lane} {session.remote}")
    return [
        {**plain(one), "name": known.get(one.pubkey or b""), "remotes": remotes.get(one.pubkey or b"", [])}
        for one in host.node.peers()
    ]


def add_contact(host: Host, fields: RequestFields) -> object:
    return host.add_contact(Contact.from_text(fields.text("contact")), fields.text("name", ""))


def remove_contact(host: Host, fields: RequestFields) -> object:
    entry = host.book.find(fields.text("contact"))
    return {"removed": host.remove_contact(entry.contact.pubkey), "name": entry.name}


def subscribe(host: Host, fields: RequestFields) -> object:
    wanted = read_subscription(host, fields)
    return {"new": host.node.subscribe(wanted), **subscription(wanted)}


def unsubscribe(host: Host, fields: RequestFields) -> object:
    wanted = read_subscription(host, fields)
    return {"removed": host.node.unsubscribe(wanted), **subscription(wanted)}


def publish(host: Host, fields: RequestFields) -> object:
    interactive = fields.flag("interactive", True)
    published = host.node.publish(
        read_destination(host, fields), fields.payload(), ack=fields.flag("ack"), interactive=bool(interactive)
    )
    host.dialler.dial_now()
    return published


def feed(host: Host, fields: RequestFields) -> object:
    """Delivered messages, newest last."""
    limit = fields.number("limit", DEFAULT_EVENTS, MAX_EVENTS)
    since = fields.number("since", 0, _ANY_SEQ)
    sender = pubkey(host, fields.text("sender")) if fields.has("sender") else None
    namespace = fields.number("namespace", 0) if fields.has("namespace") else None
    found = []
    while events := host.node.events(since, MAX_EVENTS):
        since = events[-1].seq
        for one in events:
            of = one.data
            if one.kind == "delivered" and sender in (None, of["sender"]) and namespace in (None, of["namespace"]):
                found.append(one)
    known = names(host)
    shown = (event(one, known) for one in found)
    return [one for one in shown if "invitation" not in one["data"]][-limit:] if limit else []


async def events(host: Host, fields: RequestFields) -> object:
    """Events after `since`. If there are none, wait up to `wait_s` for one."""
    since, limit = fields.number("since", 0, _ANY_SEQ), fields.number("limit", DEFAULT_EVENTS, MAX_EVENTS)
    wait_s = fields.number("wait_s", 0, MAX_WAIT_S)
    found = host.node.events(since, limit)
    if not found and wait_s:
        await _wait_for_event(host, wait_s)
        found = host.node.events(since, limit)
    known = names(host)
    shown = [event(one, known) for one in found]
    return {"first_seq": host.node.first_seq, "last_seq": host.node.last_seq, "events": shown}


async def _wait_for_event(host: Host, wait_s: float) -> None:
    more = asyncio.Event()

    def listener(event: object) -> None:
        more.set()

    host.listeners.add(listener)
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(more.wait(), wait_s)
    finally:
        host.listeners.discard(listener)


def policy(host: Host, fields: RequestFields) -> object:
    known = names(host)
    return [
        {"pubkey": key.hex(), "name": known.get(key), "tier": tier.name.lower()}
        for key, tier in host.node.tiers().items()
    ]


def set_policy(host: Host, fields: RequestFields) -> object:
    key, wanted = pubkey(host, fields.text("pubkey")), fields.text("tier")
    if wanted.upper() not in (*Tier.__members__, "NONE"):
        raise Malformed("tier", f"{wanted!r}, not {', '.join(name.lower() for name in Tier.__members__)} or none")
    host.node.set_tier(key, None if wanted == "none" else Tier[wanted.upper()])
    return host.node.explain(key)


def explain(host: Host, fields: RequestFields) -> object:
    """The tier of a node or tag, with reasons."""
    if fields.has("tag"):
        return host.node.explain_tag(fields.hex32("tag"), fields.number("namespace", Namespace.PUBLIC_FEED))
    return host.node.explain(pubkey(host, fields.text("pubkey")))


def tag(host: Host, fields: RequestFields) -> object:
    """The tag of the feed of a publisher."""
    namespace = fields.number("namespace", Namespace.PUBLIC_FEED)
    return {"tag": feed_tag(pubkey(host, fields.text("publisher", "self")), namespace).hex(), "namespace": namespace}


def create_group(host: Host, fields: RequestFields) -> object:
    """Create a group, or join the agreed group of `secret`."""
    if fields.has("secret"):
        namespace = fields.number("namespace", Namespace.PRIVATE)
        return host.groups.join(fields.text("name"), fields.hex32("secret"), namespace)
    return host.groups.create(fields.text("name"))


def rotate(host: Host, fields: RequestFields) -> object:
    stay = tuple(host.book.find(one) for one in fields.texts("stay"))
    named, sent = host.groups.rotate(fields.text("group"), stay)
    return {**group(named), "sent": sent}


def metrics(host: Host, fields: RequestFields) -> object:
    """Prometheus text, or JSON with `format=json`."""
    numbers = host.node.metrics()
    if fields.text("format", "") == "json":
        return numbers
    lines = [f"veil_{name} {value}" for name, value in sorted(numbers.items())]
    for name in host.lanes.running:
        for field, value in plain(host.sessions.totals(name)).items():
            if not isinstance(value, str):
                lines.append(f'veil_lane_{field}{{lane="{name}"}} {value}')
    return "\n".join([*lines, ""])


def stop(host: Host, fields: RequestFields) -> object:
    asyncio.get_running_loop().call_soon(host.stopping.set)
    return {"stopping": True}


ROUTES: dict[tuple[str, str], Handler] = {
    ("GET", "/v1/status"): status,
    ("GET", "/v1/lanes"): lanes,
    ("GET", "/v1/peers"): peers,
    ("GET", "/v1/contacts"): lambda host, fields: tuple(host.book),
    ("POST", "/v1/contacts"): add_contact,
    ("DELETE", "/v1/contacts"): remove_contact,
    ("GET", "/v1/contacts/self"): lambda host, fields: host.contact,
    ("GET", "/v1/subscriptions"): lambda host, fields: host.node.subscriptions(),
    ("POST", "/v1/subscriptions"): subscribe,
    ("DELETE", "/v1/subscriptions"): unsubscribe,
    ("POST", "/v1/publish"): publish,
    ("GET", "/v1/outbound"): lambda host, fields: host.node.outbound(),
    ("DELETE", "/v1/outbound"): lambda host, fields: {
        "cancelled": host.node.cancel(fields.number("message_id", 0, _ANY_SEQ))
    },
    ("GET", "/v1/feed"): feed,
    ("GET", "/v1/events"): events,
    ("GET", "/v1/tag"): tag,
    ("GET", "/v1/policy"): policy,
    ("POST", "/v1/policy"): set_policy,
    ("GET", "/v1/policy/explain"): explain,
    ("POST", "/v1/policy/endorse"): lambda host, fields: host.node.endorse(pubkey(host, fields.text("pubkey"))),
    ("GET", "/v1/cache"): lambda host, fields: host.node.cache_entries(
        fields.number("limit", DEFAULT_EVENTS, MAX_SHOWN)
    ),
    ("DELETE", "/v1/cache"): lambda host, fields: {"shards": host.node.forget(fields.hex32("object_root"))},
    ("GET", "/v1/groups"): lambda host, fields: host.groups.ring.groups,
    ("POST", "/v1/groups"): create_group,
    ("POST", "/v1/groups/invite"): lambda host, fields: host.groups.invite(
        fields.text("group"), host.book.find(fields.text("contact"))
    ),
    ("POST", "/v1/groups/rotate"): rotate,
    ("POST", "/v1/groups/leave"): lambda host, fields: host.groups.leave(fields.text("group")),
    ("GET", "/v1/metrics"): metrics,
    ("POST", "/v1/stop"): stop,
}
