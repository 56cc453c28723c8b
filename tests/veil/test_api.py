"""The local API: token, error statuses, views, and events without gaps."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Ping, Pong, RejectConnection, Request, TextMessage

from tests.slow_server import STARTS, dripping
from tests.veil.api_hosts import Running, linked_nodes, make, running
from tests.veil.test_lanes_endpoints import contact
from veil import veil_errors
from veil.api import api_server
from veil.api.api_client import STATUS, Client
from veil.api.api_server import MAX_BODY_BYTES, MAX_HEAD_BYTES
from veil.api.routes import ROUTES
from veil.lanes import Unavailable
from veil.node import Bounds, Destination, NodeConfig
from veil.runtime.daemon import SPECS

DOCS = Path(__file__).parents[2] / "docs" / "veil.md"
Work = Callable[[Running], Awaitable[None]]


def alone(folder: Path, work: Work) -> None:
    async def all_of_it() -> None:
        async with running(make(folder, "alice")) as alice:
            await work(alice)

    asyncio.run(all_of_it())


def test_no_route_answers_without_the_token(tmp_path: Path) -> None:
    async def work(alice: Running) -> None:
        for method, path in ROUTES:
            for token in ("", "Bearer", "Bearer 00", "Basic {}", "{}", "Bearer {}0"):
                answer = await alice.ask(method, path, headers={"authorization": token.format(alice.token)})
                assert (answer.status_code, answer.json()["error"]["what"]) == (401, "token"), (method, path, token)
        assert not alice.host.stopping.is_set()

    alone(tmp_path, work)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "evil.example:80"}, 403),
        ({"host": "127.evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example:80"}, 403),
        ({"host": "[::1"}, 403),
        ({"origin": "http://127.evil.example"}, 403),
        ({"origin": "http://[::1"}, 403),
        ({"origin": "http://[::1]:80"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:8000"}, 200),
        ({"origin": "http://localhost"}, 200),
        ({"host": "localhost"}, 200),
    ],
)
def test_a_request_from_another_site_is_rejected(headers: dict[str, str], status: int, tmp_path: Path) -> None:
    async def work(alice: Running) -> None:
        assert (await alice.ask("GET", "/v1/status", headers=headers)).status_code == status

    alone(tmp_path, work)


def test_only_the_owner_can_read_the_token(tmp_path: Path) -> None:
    async def work(alice: Running) -> None:
        for name in ("api.token", "api.json", "identity.json", "lanes.pem", "settings.json"):
            assert (alice.host.directory.path / name).stat().st_mode & 0o777 == 0o600, name
        assert alice.host.directory.path.stat().st_mode & 0o777 == 0o700

    alone(tmp_path, work)


def test_every_error_has_a_status() -> None:
    kinds = {
        one for one in vars(veil_errors).values() if isinstance(one, type) and issubclass(one, veil_errors.VeilError)
    }
    assert kinds - {veil_errors.VeilError} | {Unavailable} == set(STATUS)


WRONG: list[tuple[str, str, Any, int, str]] = [
    ("POST", "/v1/publish", {}, 400, "payload"),
    ("POST", "/v1/publish", {"text": "a", "payload_b64": "YQ=="}, 400, "payload"),
    ("POST", "/v1/publish", {"payload_b64": "?"}, 400, "payload_b64"),
    ("POST", "/v1/publish", {"text": 1}, 400, "text"),
    ("POST", "/v1/publish", {"text": "a", "namespace": -1}, 400, "namespace"),
    ("POST", "/v1/publish", {"text": "a", "namespace": 65536}, 400, "namespace"),
    ("POST", "/v1/publish", {"text": "a", "namespace": True}, 400, "namespace"),
    ("POST", "/v1/publish", {"text": "a", "ack": "yes"}, 400, "ack"),
    ("POST", "/v1/publish", {"text": "a", "to": "unknown"}, 409, "contact"),
    ("POST", "/v1/publish", {"text": "a", "group": "none"}, 409, "group"),
    ("POST", "/v1/publish", {"text": "a", "group": "x", "to": "y"}, 400, "to"),
    ("POST", "/v1/publish", {"text": "x" * 262_144}, 409, "payload"),
    ("POST", "/v1/subscriptions", {"kind": "all"}, 409, "kind"),
    ("POST", "/v1/subscriptions", {"kind": "feed", "tag": "00"}, 400, "tag"),
    ("POST", "/v1/subscriptions", {"kind": "feed"}, 400, "publisher"),
    ("POST", "/v1/contacts", {"contact": "veil:AA"}, 400, "contact"),
    ("POST", "/v1/contacts", {}, 400, "contact"),
    ("POST", "/v1/policy", {"pubkey": "00" * 32, "tier": "best"}, 400, "tier"),
    ("POST", "/v1/policy", {"pubkey": "zz", "tier": "known"}, 409, "contact"),
    ("POST", "/v1/groups", {"name": ""}, 409, "group"),
    ("POST", "/v1/groups/rotate", {"group": "x", "stay": "bob"}, 400, "stay"),
    ("GET", "/v1/events?since=x", None, 400, "since"),
    ("GET", "/v1/events?limit=-1", None, 400, "limit"),
    ("GET", "/v1/events?limit=100000", None, 400, "limit"),
    ("GET", "/v1/events?wait_s=3600", None, 400, "wait_s"),
    ("GET", "/v1/policy/explain", None, 400, "pubkey"),
    ("DELETE", "/v1/cache?object_root=1", None, 400, "object_root"),
    ("DELETE", "/v1/contacts?contact=unknown", None, 409, "contact"),
    ("GET", "/v1/nothing", None, 404, "path"),
    ("PUT", "/v1/status", {}, 405, "method"),
]


def test_an_invalid_request_gets_an_error_with_the_reason(tmp_path: Path) -> None:
    async def work(alice: Running) -> None:
        before = alice.host.node.last_seq
        for method, path, body, status, what in WRONG:
            answer = await alice.ask(method, path, **({} if body is None else {"json": body}))
            told = answer.json()["error"]
            assert (answer.status_code, told["what"]) == (status, what), (path, body, told)
        assert alice.host.node.last_seq == before

    alone(tmp_path, work)


@pytest.mark.parametrize(
    "begun",
    [
        b"GET /",
        b"GET /v1/status HTTP/1.1\r\nx-filler: ",
        b"POST /v1/publish HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999\r\n\r\n",
    ],
)
def test_a_slow_request_is_closed_at_its_deadline_while_others_are_served(begun: bytes, tmp_path: Path) -> None:
    async def run() -> None:
        async with running(make(tmp_path, "alice"), http_settings=api_server.settings(0.5)) as alice:
            host, port = alice.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(begun)
            ended = asyncio.ensure_future(reader.read())
            assert (await alice.get("/v1/status"))["name"] == "alice"
            async with asyncio.timeout(60):
                while not ended.done():
                    writer.write(b"x")
                    await asyncio.wait([ended], timeout=0.02)
            with suppress(ConnectionError):
                assert ended.result() == b""
            writer.transport.abort()

    asyncio.run(run())


@pytest.mark.parametrize("kind", STARTS)
def test_a_client_gives_up_on_a_node_that_answers_too_slowly(kind: str, tmp_path: Path) -> None:
    folder = make(tmp_path, "alice")
    with dripping(kind) as address:
        folder.write("api.json", {"url": f"http://{address}", "pid": 1})
        client = Client(folder.path, seconds=0.5)
        with pytest.raises(Unavailable, match="no complete answer to GET /v1/st"):
            client.get("/v1/status")


@pytest.mark.parametrize("body", [b"[]", b"1", b"{", b"\xff", b"[" * 100_000, b'"x"'])
def test_a_body_that_is_not_a_json_object_is_rejected(body: bytes, tmp_path: Path) -> None:
    async def work(alice: Running) -> None:
        answer = await alice.ask("POST", "/v1/publish", content=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["what"] == "body"

    alone(tmp_path, work)


RAW = {
    "garbage": b"\x00\xff" * 50 + b"\r\n\r\n",
    "a head without end": b"GET / HTTP/1.1\r\nx: " + b"y" * (2 * MAX_HEAD_BYTES),
    "a body too large": b"POST /v1/publish HTTP/1.1\r\ncontent-length: 9999999\r\n\r\n" + bytes(2 * MAX_BODY_BYTES),
    "two requests at once": 2 * b"POST /v1/publish HTTP/1.1\r\ncontent-length: 1\r\n\r\na",
    "the beginning of another": b"GET /v1/status HTTP/1.1\r\n\r\nG",
    "two lengths": b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
}


@pytest.mark.parametrize("raw", RAW)
def test_an_invalid_http_request_gets_an_error_and_the_connection_is_closed(raw: str, tmp_path: Path) -> None:
    async def work(alice: Running) -> None:
        host, port = alice.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(RAW[raw])
        answered = await reader.read()
        assert answered.startswith(b"HTTP/1.1 400 ")
        writer.close()
        assert (await alice.get("/v1/status"))["name"] == "alice"

    alone(tmp_path, work)


def test_a_body_may_arrive_in_chunks_of_one_byte(tmp_path: Path) -> None:
    async def work(alice: Running) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for at in range(len(body)):
                yield body[at : at + 1]

        body = json.dumps({"text": "x" * 500, "namespace": 40}).encode()
        answer = await alice.ask("POST", "/v1/publish", content=chunks())
        assert answer.status_code == 200

    alone(tmp_path, work)


def test_a_published_payload_is_delivered_unchanged(tmp_path: Path) -> None:
    async def work() -> None:
        async with linked_nodes(tmp_path, "alice", "bob") as (alice, bob):
            await bob.post("/v1/subscriptions", publisher="alice", namespace=40)
            for given in ({"text": "käse\n"}, {"payload_b64": base64.b64encode(b"\x00\xff").decode()}):
                await alice.post("/v1/publish", namespace=40, **given)
            await bob.said(2)
            first, second = (one["data"] for one in await bob.get("/v1/feed", namespace=40, sender="alice"))
            assert (first["text"], second["text"]) == ("käse\n", None)
            assert base64.b64decode(second["payload_b64"]) == b"\x00\xff"
            assert first["sender"] == alice.pubkey.hex()
            assert await bob.get("/v1/feed", namespace=41) == []
            assert await bob.get("/v1/feed", sender="self") == []
            assert len(await bob.get("/v1/feed", limit=1)) == 1

    asyncio.run(work())


def test_every_view_returns_json(tmp_path: Path) -> None:
    async def work() -> None:
        async with linked_nodes(tmp_path, "alice", "bob") as (alice, bob):
            await bob.post("/v1/subscriptions", publisher="alice")
            await alice.post("/v1/publish", text="hello")
            await bob.said(1)
            (peer,) = await bob.get("/v1/peers")
            assert (peer["name"], peer["lanes"]) == ("alice", ["tls"])
            lanes = {one["lane"]: one for one in await bob.get("/v1/lanes")}
            assert lanes["tls"]["running"]
            assert lanes["tls"]["frames_received"] > 0
            assert "proxy" in lanes["tor"]["why_not"]
            assert (await bob.get("/v1/cache"))[0]["size"] == 2048
            root = (await bob.get("/v1/cache"))[0]["object_root"]
            assert json.loads((await bob.ask("DELETE", f"/v1/cache?object_root={root}")).content)["shards"] > 0
            text = (await bob.ask("GET", "/v1/metrics")).text
            assert re.search(r"^veil_objects_delivered 1$", text, re.MULTILINE)
            assert re.search(r'^veil_lane_sessions\{lane="tls"\} \d$', text, re.MULTILINE)
            assert (await bob.get("/v1/metrics", format="json"))["objects_delivered"] == 1

    asyncio.run(work())


def test_a_policy_is_set_explained_and_removed(tmp_path: Path) -> None:
    async def work(alice: Running) -> None:
        bob = contact()
        await alice.post("/v1/contacts", contact=bob.text(), name="bob")
        assert (await alice.post("/v1/policy", pubkey="bob", tier="blocked"))["tier"] == "blocked"
        assert await alice.get("/v1/policy") == [{"pubkey": bob.pubkey.hex(), "name": "bob", "tier": "blocked"}]
        told = await alice.get("/v1/policy/explain", pubkey="bob")
        assert told["forward_quota"] == 0
        assert told["reasons"]
        await alice.post("/v1/policy", pubkey="bob", tier="none")
        assert await alice.get("/v1/policy") == []
        assert (await alice.get("/v1/policy/explain", tag="00" * 32))["reasons"]

    alone(tmp_path, work)


def test_contacts_are_added_replaced_by_newer_ones_and_removed(tmp_path: Path) -> None:
    async def work(alice: Running) -> None:
        newer = contact(made_ms=1_700_000_000_001, name="bobby")
        await alice.post("/v1/contacts", contact=newer.text(), name="bob")
        answer = await alice.ask("POST", "/v1/contacts", json={"contact": contact().text()})
        assert answer.status_code == 409
        (kept,) = await alice.get("/v1/contacts")
        assert (kept["name"], kept["calls_itself"]) == ("bob", "bobby")
        own = await alice.get("/v1/contacts/self")
        assert own["pubkey"] == alice.pubkey.hex()
        assert own["contact"] == (await alice.get("/v1/contacts/self"))["contact"]
        await alice.ask("DELETE", "/v1/contacts?contact=bob")
        assert await alice.get("/v1/contacts") == []

    alone(tmp_path, work)


def test_a_queued_message_can_be_cancelled(tmp_path: Path) -> None:
    async def work(alice: Running) -> None:
        said = await alice.post("/v1/publish", text="later")
        assert [one["message_id"] for one in await alice.get("/v1/outbound")] == [said["message_id"]]
        taken = await alice.ask("DELETE", f"/v1/outbound?message_id={said['message_id']}")
        assert taken.json() == {"cancelled": True}
        assert await alice.get("/v1/outbound") == []

    alone(tmp_path, work)


class Follower:
    """A reader of events over a WebSocket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.wire = WSConnection(ConnectionType.CLIENT)
        self.reader, self.writer = reader, writer
        self.events: list[Any] = []

    @classmethod
    async def to(
        cls, node: Running, target: str, *, subprotocols: list[str] | None = None, bearer: str = ""
    ) -> "Follower":
        host, port = node.url.removeprefix("http://").split(":")
        made = cls(*await asyncio.open_connection(host, int(port)))
        headers = [(b"authorization", f"Bearer {bearer}".encode())] if bearer else []
        opening = Request(host="127.0.0.1", target=target, subprotocols=subprotocols or [], extra_headers=headers)
        made.writer.write(made.wire.send(opening))
        return made

    async def next(self) -> Any:
        while not self.events:
            data = await self.reader.read(65_536)
            if not data:
                return None
            self.wire.receive_data(data)
            self.events.extend(self.wire.events())
        return self.events.pop(0)

    async def numbers(self, count: int) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            event = await self.next()
            assert isinstance(event, TextMessage)
            found.append(json.loads(event.data)["seq"])
        return found


def speak(node: Running, count: int) -> None:
    for _ in range(count):
        node.host.node.publish(Destination.feed(40), b"x")


def test_events_are_replayed_from_a_number_and_then_followed(tmp_path: Path) -> None:
    async def work(alice: Running) -> None:
        speak(alice, 5)
        follower = await Follower.to(alice, "/v1/events?since=2", bearer=alice.token)
        assert isinstance(await follower.next(), AcceptConnection)
        assert await follower.numbers(3) == [3, 4, 5]
        speak(alice, 2)
        assert await follower.numbers(2) == [6, 7]
        follower.writer.write(follower.wire.send(Ping(b"there?")))
        assert isinstance(await follower.next(), Pong)
        follower.writer.write(follower.wire.send(CloseConnection(code=1000)))
        while await follower.reader.read(100):
            pass
        follower.writer.close()
        assert len(alice.host.listeners) == 1

    alone(tmp_path, work)


def test_a_reader_that_is_too_late_gets_a_gap_event(tmp_path: Path) -> None:
    async def work() -> None:
        config = NodeConfig(lanes=SPECS, bounds=Bounds(events=4))
        async with running(make(tmp_path, "alice"), config) as alice:
            speak(alice, 10)
            follower = await Follower.to(alice, "/v1/events?since=2", bearer=alice.token)
            assert isinstance(await follower.next(), AcceptConnection)
            gap = json.loads((await follower.next()).data)
            assert (gap["kind"], gap["seq"], gap["data"]) == ("gap", 6, {"from": 3})
            assert await follower.numbers(4) == [7, 8, 9, 10]
            follower.writer.close()

    asyncio.run(work())


def test_events_survive_a_restart_with_their_numbers(tmp_path: Path) -> None:
    folder = make(tmp_path, "alice")

    async def once(since: int) -> list[int]:
        async with running(folder) as alice:
            speak(alice, 3)
            found = await alice.get("/v1/events", since=since)
            return [one["seq"] for one in found["events"]]

    assert asyncio.run(once(0)) == [1, 2, 3]
    assert asyncio.run(once(2)) == [3, 4, 5, 6]


def test_a_browser_can_send_the_token_as_a_subprotocol(tmp_path: Path) -> None:
    async def work(alice: Running) -> None:
        words = [f"veil.token.{alice.token}"]
        follower = await Follower.to(alice, "/v1/events", subprotocols=words)
        accepted = await follower.next()
        assert isinstance(accepted, AcceptConnection)
        assert accepted.subprotocol == words[0]
        follower.writer.close()

    alone(tmp_path, work)


@pytest.mark.parametrize("target", ["/v1/events", "/v1/status", "/v1/events?since=x"])
@pytest.mark.parametrize("word", ["veil.token.00", "other"])
def test_no_events_without_the_token(target: str, word: str, tmp_path: Path) -> None:
    async def work(alice: Running) -> None:
        refused = await Follower.to(alice, target, subprotocols=[word])
        rejected = await refused.next()
        assert isinstance(rejected, RejectConnection)
        assert rejected.status_code == 401
        refused.writer.close()
        if target != "/v1/events":
            wrong = await Follower.to(alice, target, bearer=alice.token)
            rejected = await wrong.next()
            assert isinstance(rejected, RejectConnection)
            assert rejected.status_code in (400, 404)
            wrong.writer.close()

    alone(tmp_path, work)


def test_a_waiting_request_returns_when_an_event_happens(tmp_path: Path) -> None:
    async def work(alice: Running) -> None:
        waiting = asyncio.ensure_future(alice.get("/v1/events", since=0, wait_s=60))
        while len(alice.host.listeners) < 2:
            await asyncio.sleep(0.01)
        speak(alice, 1)
        assert [one["kind"] for one in (await waiting)["events"]] == ["queued"]

    alone(tmp_path, work)


def test_the_docs_list_every_route() -> None:
    told = set(re.findall(r"^\| `(GET|POST|DELETE) (/v1/\S+)` \|", DOCS.read_text("utf-8"), re.MULTILINE))
    assert told == set(ROUTES)
