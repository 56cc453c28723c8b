"""Running nodes with local APIs in this process."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from plumbing.http import HttpSettings
from veil.api.api_server import ApiServer
from veil.node import Event, NodeConfig
from veil.runtime import data_directory, groups
from veil.runtime.daemon import Host
from veil.runtime.data_directory import DataDirectory, Settings


class Running:
    """A running node and a client of its API."""

    def __init__(self, host: Host, api: ApiServer) -> None:
        self.host = host
        self.token = host.directory.token()
        self.url = api.url
        self._event_seen = asyncio.Event()
        host.listeners.add(lambda event: self._event_seen.set())

    @property
    def pubkey(self) -> bytes:
        return self.host.groups.ring.signing.public_key

    async def ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        """Send a request with the token."""
        headers = {"authorization": f"Bearer {self.token}", **given.pop("headers", {})}
        transport = httpx.AsyncHTTPTransport(verify=False)  # plain HTTP: no certificates to load
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, transport=transport, timeout=60) as http:
            return await http.request(method, path, headers=headers, **given)

    async def get(self, path: str, **params: Any) -> Any:
        return _checked(await self.ask("GET", path, params=params))

    async def post(self, path: str, **body: Any) -> Any:
        return _checked(await self.ask("POST", path, json=body))

    async def until(self, wanted: Callable[[list[Event]], bool]) -> list[Event]:
        """Wait until the list of all events satisfies `wanted`, and return it."""
        while True:
            self._event_seen.clear()
            found = list(self.host.node.events(0, 4_096))
            if wanted(found):
                return found
            await self._event_seen.wait()

    async def said(self, count: int) -> list[bytes]:
        """Wait for `count` deliveries and return their payloads."""
        events = await self.until(lambda found: len([one for one in found if one.kind == "delivered"]) >= count)
        return [payload for one in events if isinstance(payload := one.data.get("payload"), bytes)]

    async def linked(self) -> None:
        while not len(self.host.sessions):
            await asyncio.sleep(0.01)


def _checked(answer: httpx.Response) -> Any:
    assert answer.status_code == httpx.codes.OK, answer.text
    return json.loads(answer.content)


def make(folder: Path, name: str, chosen: Settings | None = None) -> DataDirectory:
    """Create the data directory of a new node."""
    made = DataDirectory(folder / name)
    made.make()
    data_directory.save_settings(made, chosen or Settings(listen=("tls://127.0.0.1:0",)))
    groups.save_keyring(made, groups.Keyring.generate(name))
    return made


@asynccontextmanager
async def running(
    folder: DataDirectory, config: NodeConfig | None = None, http_settings: HttpSettings | None = None
) -> AsyncIterator[Running]:
    host = Host(folder, config)
    api = ApiServer(host, http_settings)
    await host.start()
    await api.start()
    try:
        yield Running(host, api)
    finally:
        await api.stop()
        await host.stop()


@asynccontextmanager
async def linked_nodes(folder: Path, *names: str) -> AsyncIterator[list[Running]]:
    """Connected nodes that all have each other's contacts."""
    made = [make(folder, name) for name in names]
    entered = [running(one) for one in made]
    nodes = [await one.__aenter__() for one in entered]
    try:
        for node in nodes:
            for other in nodes:
                if other is not node:
                    node.host.add_contact(other.host.contact)
        for node in nodes:
            await node.linked()
        yield nodes
    finally:
        for one in entered:
            await one.__aexit__(None, None, None)
