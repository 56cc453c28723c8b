"""The routes of the local API. docs/veil.md has the same table."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from veil.api import json_views
from veil.api.http import Request, Response
from veil.api.request_parser import RequestFields, destination, hex32, pubkey, subscription
from veil.namespaces import Namespace
from veil.node import Tier
from veil.runtime.contacts import Contact
from veil.runtime.daemon import Host
from veil.tags import feed_tag
from veil.veil_errors import Malformed

MAX_EVENTS = 1_024
MAX_WAIT_S = 60
DEFAULT_EVENTS = 256
MAX_SHOWN = 4_096
_ANY_SEQ = (1 << 53) - 1

Handler = Callable[[Host, Request], Any]


def names(host: Host) -> dict[bytes, str]:
    """Local names by public key."""
    known = {entry.contact.pubkey: entry.name for entry in host.book}
    return known | {host.groups.ring.signing.public_key: "self"}


def status(host: Host, request: Request) -> object:
    own = {"pubkey": host.contact.pubkey, "name": host.groups.ring.name, "started_at": host.started_at}
    return {**json_views.plain(own), **json_views.plain(host.node.status()), "sessions": len(host.sessions)}


def lanes(host: Host, request: Request) -> object:
    """Each lane: endpoints, statistics, or why it is absent."""
    found = []
    for info in host.node.lanes():
        lane = host.lanes.running.get(info.lane)
        found.append(
            {
                **json_views.plain(info),
                "running": lane is not None,
                "why_not": host.lanes.absent.get(info.lane),
                "endpoints": [str(one) for one in lane.endpoints] if lane else [],
                **json_views.plain(host.sessions.totals(info.lane)),
                "strangers": getattr(lane, "unauthenticated", 0),
                "refused": getattr(lane, "refused", 0),
            }
        )
    return found


def peers(host: Host, request: Request) -> object:
    known = names(host)
    remotes: dict[bytes, list[str]] = {}
    for lane, session in host.sessions.all():
        remotes.setdefault(session.peer, []).append(f"{lane} {session.remote}")
    return [
        {**json_views.plain(one), "name": known.get(one.pubkey or b""), "remotes": remotes.get(one.pubkey or b"", [])}
        for one in host.node.peers()
    ]


def contacts(host: Host, request: Request) -> object:
    return [json_views.entry(one) for one in host.book]


def own_contact(host: Host, request: Request) -> object:
    return json_views.contact(host.contact)


def add_contact(host: Host, request: Request) -> object:
    fields = RequestFields.body(request.body)
    return json_views.entry(host.add_contact(Contact.from_text(fields.text("contact")), fields.text("name", "")))


def remove_contact(host: Host, request: Request) -> object:
    entry = host.book.find(RequestFields(dict(request.query)).text("contact"))
    return {"removed": host.remove_contact(entry.contact.pubkey), "name": entry.name}


def subscriptions(host: Host, request: Request) -> object:
    return [json_views.subscription(one) for one in host.node.subscriptions()]


def subscribe(host: Host, request: Request) -> object:
    wanted = subscription(host, RequestFields.body(request.body))
    return {"new": host.node.subscribe(wanted), **json_views.subscription(wanted)}


def unsubscribe(host: Host, request: Request) -> object:
    wanted = subscription(host, RequestFields.body(request.body))
    return {"removed": host.node.unsubscribe(wanted), **json_views.subscription(wanted)}


def publish(host: Host, request: Request) -> object:
    fields = RequestFields.body(request.body)
    interactive = fields.flag("interactive", True)
    published = host.node.publish(
        destination(host, fields), fields.payload(), ack=fields.flag("ack"), interactive=bool(interactive)
    )
    host.dialler.dial_now()
    return json_views.plain(published)


def outbound(host: Host, request: Request) -> object:
    return [json_views.plain(one) for one in host.node.outbound()]


def cancel(host: Host, request: Request) -> object:
    return {"cancelled": host.node.cancel(RequestFields(dict(request.query)).number("message_id", 0, _ANY_SEQ))}


def feed(host: Host, request: Request) -> object:
    """Delivered messages, newest last."""
    fields = RequestFields(dict(request.query))
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
    shown = (json_views.event(one, known) for one in found)
    return [one for one in shown if "invitation" not in one["data"]][-limit:] if limit else []


async def events(host: Host, request: Request) -> object:
    """Events after `since`. If there are none, wait up to `wait_s` for one."""
    fields = RequestFields(dict(request.query))
    since, limit = fields.number("since", 0, _ANY_SEQ), fields.number("limit", DEFAULT_EVENTS, MAX_EVENTS)
    wait_s = fields.number("wait_s", 0, MAX_WAIT_S)
    found = host.node.events(since, limit)
    if not found and wait_s:
        await _wait_for_event(host, wait_s)
        found = host.node.events(since, limit)
    known = names(host)
    shown = [json_views.event(one, known) for one in found]
    return {"first_seq": host.node.first_seq, "last_seq": host.node.last_seq, "events": shown}


async def _wait_for_event(host: Host, wait_s: float) -> None:
    more = asyncio.Event()

    def listener(event: object) -> None:
        more.set()

    host.listeners.add(listener)
    try:
        async with asyncio.timeout(wait_s):
            await more.wait()
    except TimeoutError:
        return
    finally:
        host.listeners.discard(listener)


def policy(host: Host, request: Request) -> object:
    known = names(host)
    return [
        {"pubkey": key.hex(), "name": known.get(key), "tier": tier.name.lower()}
        for key, tier in host.node.tiers().items()
    ]


def set_policy(host: Host, request: Request) -> object:
    fields = RequestFields.body(request.body)
    key, wanted = pubkey(host, fields.text("pubkey")), fields.text("tier")
    if wanted.upper() not in (*Tier.__members__, "NONE"):
        raise Malformed("tier", f"{wanted!r}, not {', '.join(name.lower() for name in Tier.__members__)} or none")
    host.node.set_tier(key, None if wanted == "none" else Tier[wanted.upper()])
    return json_views.plain(host.node.explain(key))


def explain(host: Host, request: Request) -> object:
    """The tier of a node or tag, with reasons."""
    fields = RequestFields(dict(request.query))
    if fields.has("tag"):
        return json_views.plain(
            host.node.explain_tag(fields.hex32("tag"), fields.number("namespace", Namespace.PUBLIC_FEED))
        )
    return json_views.plain(host.node.explain(pubkey(host, fields.text("pubkey"))))


def endorse(host: Host, request: Request) -> object:
    return json_views.plain(host.node.endorse(pubkey(host, RequestFields.body(request.body).text("pubkey"))))


def tag(host: Host, request: Request) -> object:
    """The tag of the feed of a publisher."""
    fields = RequestFields(dict(request.query))
    namespace = fields.number("namespace", Namespace.PUBLIC_FEED)
    return {"tag": feed_tag(pubkey(host, fields.text("publisher", "self")), namespace).hex(), "namespace": namespace}


def cache(host: Host, request: Request) -> object:
    fields = RequestFields(dict(request.query))
    return [json_views.plain(one) for one in host.node.cache_entries(fields.number("limit", DEFAULT_EVENTS, MAX_SHOWN))]


def forget(host: Host, request: Request) -> object:
    return {"shards": host.node.forget(hex32(request.query.get("object_root", ""), "object_root"))}


def groups(host: Host, request: Request) -> object:
    return [json_views.group(one) for one in host.groups.ring.groups]


def create_group(host: Host, request: Request) -> object:
    """Create a group, or join the agreed group of `secret`."""
    fields = RequestFields.body(request.body)
    if fields.has("secret"):
        namespace = fields.number("namespace", Namespace.PRIVATE)
        return json_views.group(host.groups.join(fields.text("name"), fields.hex32("secret"), namespace))
    return json_views.group(host.groups.create(fields.text("name")))


def invite(host: Host, request: Request) -> object:
    fields = RequestFields.body(request.body)
    return json_views.plain(host.groups.invite(fields.text("group"), host.book.find(fields.text("contact"))))


def rotate(host: Host, request: Request) -> object:
    fields = RequestFields.body(request.body)
    stay = tuple(host.book.find(one) for one in fields.texts("stay"))
    named, sent = host.groups.rotate(fields.text("group"), stay)
    return {**json_views.group(named), "sent": json_views.plain(sent)}


def leave(host: Host, request: Request) -> object:
    return json_views.group(host.groups.leave(RequestFields.body(request.body).text("group")))


def metrics(host: Host, request: Request) -> object:
    """Prometheus text, or JSON with `format=json`."""
    numbers = host.node.metrics()
    if request.query.get("format") == "json":
        return json_views.plain(numbers)
    lines = [f"veil_{name} {value}" for name, value in sorted(numbers.items())]
    for name in host.lanes.running:
        for field, value in json_views.plain(host.sessions.totals(name)).items():
            if not isinstance(value, str):
                lines.append(f'veil_lane_{field}{{lane="{name}"}} {value}')
    text = "\n".join([*lines, ""]).encode()
    return Response(HTTPStatus.OK, text, "text/plain; version=0.0.4; charset=utf-8")


def stop(host: Host, request: Request) -> object:
    asyncio.get_running_loop().call_soon(host.stopping.set)
    return {"stopping": True}


ROUTES: dict[tuple[str, str], Handler] = {
    ("GET", "/v1/status"): status,
    ("GET", "/v1/lanes"): lanes,
    ("GET", "/v1/peers"): peers,
    ("GET", "/v1/contacts"): contacts,
    ("POST", "/v1/contacts"): add_contact,
    ("DELETE", "/v1/contacts"): remove_contact,
    ("GET", "/v1/contacts/self"): own_contact,
    ("GET", "/v1/subscriptions"): subscriptions,
    ("POST", "/v1/subscriptions"): subscribe,
    ("DELETE", "/v1/subscriptions"): unsubscribe,
    ("POST", "/v1/publish"): publish,
    ("GET", "/v1/outbound"): outbound,
    ("DELETE", "/v1/outbound"): cancel,
    ("GET", "/v1/feed"): feed,
    ("GET", "/v1/events"): events,
    ("GET", "/v1/tag"): tag,
    ("GET", "/v1/policy"): policy,
    ("POST", "/v1/policy"): set_policy,
    ("GET", "/v1/policy/explain"): explain,
    ("POST", "/v1/policy/endorse"): endorse,
    ("GET", "/v1/cache"): cache,
    ("DELETE", "/v1/cache"): forget,
    ("GET", "/v1/groups"): groups,
    ("POST", "/v1/groups"): create_group,
    ("POST", "/v1/groups/invite"): invite,
    ("POST", "/v1/groups/rotate"): rotate,
    ("POST", "/v1/groups/leave"): leave,
    ("GET", "/v1/metrics"): metrics,
    ("POST", "/v1/stop"): stop,
}


async def answer(host: Host, request: Request) -> Response:
    """Run the handler of a route. Raise `VeilError` if it fails."""
    route = ROUTES.get((request.method, request.path))
    if route is None:
        known = {method for method, path in ROUTES if path == request.path}
        if known:
            reason = f"{request.path} supports only {', '.join(sorted(known))}"
            error = {"kind": "refused", "what": "method", "reason": reason}
            return Response.json({"error": error}, HTTPStatus.METHOD_NOT_ALLOWED)
        error = {"kind": "refused", "what": "path", "reason": f"{request.path} does not exist"}
        return Response.json({"error": error}, HTTPStatus.NOT_FOUND)
    found = route(host, request)
    if isinstance(found, Awaitable):
        found = await found
    host.wake_timers()
    return found if isinstance(found, Response) else Response.json(found)
