"""A witness that serves on loopback, in a thread of this process."""

import asyncio
import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from plumbing.json_log import JsonLog, LineWriter
from tests.hub.client import START
from veen.core.cbor import Wire
from veen.hub.config import WitnessAddress
from veen.witness import witness_dir
from veen.witness.witness_app import serving
from veen.witness.witness_dir import WitnessDir


@dataclass
class RunningWitness:
    """One run. `stop` and `start` may be repeated, on the same port."""

    folder: Path
    port: int = 0
    now: float = START
    _stopped: asyncio.Event | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.folder.exists():
            witness_dir.create(self.folder, None)
        self.key = witness_dir.read_key(self.folder, None)

    @property
    def address(self) -> WitnessAddress:
        return WitnessAddress(f"http://127.0.0.1:{self.port}", self.key.public_key)

    def start(self) -> "RunningWitness":
        ready = Event()
        self._thread = Thread(target=lambda: asyncio.run(self._serve(ready)), name="witness")
        self._thread.start()
        ready.wait()
        return self

    def stop(self) -> None:
        if self._stopped is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join()
            self._stopped = None

    def ask(self, method: str, path: str, body: bytes | Wire = b"") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request(method, path, body.encode() if isinstance(body, Wire) else body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    async def _serve(self, ready: Event) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        stopped = self._stopped
        state = WitnessDir(self.folder, self.key, clock=lambda: self.now)
        log = JsonLog(LineWriter(None), "witness", "witness")
        try:
            async with serving(state, log, "127.0.0.1", self.port) as server:
                self.port = server.port
                ready.set()
                await stopped.wait()
        finally:
            state.close()
            ready.set()


@contextmanager
def witnesses(root: Path, count: int) -> Iterator[list[RunningWitness]]:
    """Some witnesses that run."""
    running = [RunningWitness(root / f"witness{number}").start() for number in range(count)]
    try:
        yield running
    finally:
        for one in running:
            one.stop()
