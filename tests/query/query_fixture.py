"""A real hub with recorded events, their tables, and a query service with principals, on loopback."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.hub.client import Hub, make_dir, running
from tests.hub.disks import QuickDisk
from veen.client import ClientDir
from veen.client.client import Client
from veen.client.sender import Draft
from veen.client.transport import RetryPolicy
from veen.client.trust import Pin
from veen.core import Profile, canonical_json, naming
from veen.overlays.record import RecordEvent
from veen.pipeline.decoding import Keys
from veen.query.audit_events import REQUESTS, RESULTS
from veen.query.execution import QueryLimits
from veen.query.policy import ALL, PolicyBook, QueryPrincipal
from veen.query.query_server import PRINCIPALS, Settings, refresher_of, serving
from veen.state import HubSource

WEB, LOGIN, SECRET = "record/app/web", "record/security/login", "record/security/secret"
STREAMS = (WEB, LOGIN, SECRET, REQUESTS, RESULTS)
PATIENCE_S = 300.0  # bounds a hang, not a slow machine
QUICK = RetryPolicy(
    attempts=3, first_wait_s=0.001, longest_wait_s=0.05, poll_s=0.01, connect_s=PATIENCE_S, answer_s=PATIENCE_S
)
COUNT = 12


def event(number: int, event_type: str = "http.request") -> RecordEvent:
    content = canonical_json.encode({"n": number, "http": {"status": 200 + number % 3}}).decode()
    return RecordEvent(f"user:{number % 4}", event_type, 1_700_000_000_000 + number, "shop", content)


def asking(**changes: Any) -> dict[str, Any]:
    """A valid query."""
    usual = {"scope": [WEB], "filter": {}, "projection": ["subject_id", "payload.n"], "evidence": {"mode": "none"}}
    return {**usual, **changes}


@dataclass
class QuerySetup:
    """The folders, keys and servers of a test."""

    root: Path
    hub: Hub
    tokens: dict[str, str] = field(default_factory=dict)
    port: int = 0
    tls: Any = None
    source: str | None = None
    failures: list[tuple[str, BaseException]] = field(default_factory=list)

    @property
    def hub_url(self) -> str:
        return f"http://127.0.0.1:{self.hub.port}"

    @property
    def hub_id(self) -> bytes:
        return self.hub.service.hub_metadata.identity.hub_id

    def label(self, stream: str) -> bytes:
        return naming.label(self.hub.service.hub_metadata.identity.routing_key, naming.stream_id(stream), 0)

    @property
    def folder(self) -> Path:
        return self.root / "queries"

    @property
    def tables(self) -> Path:
        return self.root / "tables"

    @property
    def book(self) -> PolicyBook:
        return PolicyBook(self.folder / PRINCIPALS)

    def settings(self, **given: Any) -> Settings:
        keys = Keys((str(self.root / "service"),))
        given.setdefault("limits", QueryLimits(fill_wait_s=PATIENCE_S))
        return Settings(self.folder, self.tables, source=self.source, keys=keys, tls=self.tls, **given)

    @asynccontextmanager
    async def client(self, who: str = "service") -> AsyncIterator[Client]:
        with ClientDir.open(self.root / who) as folder:
            async with Client(self.hub_url, folder, pin=Pin(key=self.hub_id), retry_policy=QUICK) as client:
                yield client

    def does(self, work: Any, who: str = "service") -> Any:
        async def run() -> Any:
            async with self.client(who) as client:
                return await work(client)

        return asyncio.run(run())

    def record(self, stream: str, events: Sequence[RecordEvent], who: str = "service") -> None:
        async def send(client: Client) -> None:
            for one in events:
                await client.sender(stream).put(Draft(one.encode(), one.SCHEMA))

        self.does(send, who)

    def load(self) -> None:
        """Load the tables up to the end of the log."""
        settings = Settings(self.folder, self.tables, source=self.hub_url, keys=self.settings().keys)
        refresher = refresher_of(settings, self.hub_id)
        assert refresher is not None

        async def epochs(client: Client) -> Sequence[int]:
            return await HubSource(client).epochs(naming.stream_id(WEB), None)

        refresher.refresh(self.does(epochs))

    @contextmanager
    def serving(self, **given: Any) -> Iterator["QuerySetup"]:
        """The service, running in its own thread."""
        ready, stop = threading.Event(), threading.Event()
        crashed: list[BaseException] = []

        async def run() -> None:
            loop, ended = asyncio.get_running_loop(), asyncio.Event()
            waiter = loop.run_in_executor(None, stop.wait)
            waiter.add_done_callback(lambda _: ended.set())
            async with self.client() as client:
                settings = self.settings(**given)
                async with serving(client, settings, lambda *told: self.failures.append(told)) as server:
                    self.port = server.port
                    ready.set()
                    await ended.wait()

        def live() -> None:
            try:
                asyncio.run(run())
            except BaseException as error:  # noqa: BLE001  told to the test, below
                crashed.append(error)
            finally:
                ready.set()

        thread = threading.Thread(target=live)
        thread.start()
        ready.wait()
        try:
            if crashed:
                raise crashed[0]
            yield self
        finally:
            stop.set()
            thread.join()
        if crashed:
            raise crashed[0]

    # Requests

    def ask(self, method: str, path: str, who: str | None = "alice", **given: Any) -> httpx.Response:
        headers = dict(given.pop("headers", {}))
        if who is not None:
            headers["authorization"] = f"Bearer {self.tokens.get(who, who)}"
        url = f"http://127.0.0.1:{self.port}{path}"
        return httpx.request(method, url, headers=headers, timeout=PATIENCE_S, **given)

    def get(self, path: str, who: str | None = "alice", **given: Any) -> httpx.Response:
        return self.ask("GET", path, who, **given)

    def submit(self, query: Any, who: str | None = "alice", *, wait: bool = True) -> httpx.Response:
        headers = {"prefer": "wait=30"} if wait else {}
        return self.ask("POST", "/api/query/submit", who, json=query, headers=headers)

    def answer(self, who: str = "alice", **changes: Any) -> dict[str, Any]:
        found = self.submit(asking(**changes), who)
        assert found.status_code == 200, found.text
        return dict(found.json())


@contextmanager
def query_setup(root: Path, profile: Profile | None = None) -> Iterator[QuerySetup]:
    """Twelve requests and five logins are recorded and in the tables. `alice` and `bob` may query record/app."""
    now = int(time.time())
    data_dir = make_dir(root, profile, now=now - 60)
    with ClientDir.create(root / "service", None, now) as folder:
        for stream in STREAMS:
            folder.stream_keys.create(stream)
        secrets = {stream: folder.stream_keys.secret(naming.stream_id(stream)) for stream in STREAMS}
    with ClientDir.create(root / "auditor", None, now) as folder:
        for stream, key in secrets.items():
            assert key is not None
            folder.stream_keys.import_secret(stream, key)
    (root / "queries").mkdir(mode=0o700)
    with running(data_dir, time.time, QuickDisk()) as hub:
        made = QuerySetup(root, hub)
        if profile is not None:  # a hub with epochs
            for stream in STREAMS:
                hub.register(naming.stream_id(stream))
        made.record(WEB, [event(number) for number in range(COUNT)])
        made.record(LOGIN, [event(number, "login") for number in range(5)])
        made.record(SECRET, [event(0, "secret")])
        made.load()
        people = {
            "alice": QueryPrincipal(
                "alice", "a1" * 32, ("record/app/*", "record/security/login", "import/*", "nowhere")
            ),
            "bob": QueryPrincipal("bob", "b0" * 32, ("record/app/*",)),
            "auditor": QueryPrincipal("auditor", "c2" * 32, ("*",), ALL, subject="audit office"),
        }
        for name, principal in people.items():
            made.book.put(principal)
            made.tokens[name] = made.book.issue(name, "test")
        yield made
