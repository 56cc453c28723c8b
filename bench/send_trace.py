"""The calls of our own functions that one `Client.send` needs, from the draft to the verified and stored receipt.

Client and hub run in this process, and the hub verifies in a thread. A resumed coroutine counts as a call, so every
layer that awaits counts once for each wait below it. With VEEN_TRACE_FUNCTIONS set, it also prints how
often each function was called.
"""

import asyncio
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

import veen
from plumbing.durable import Disk
from veen.bench.bench_report import BenchReport, BenchRow
from veen.client import Client, ClientDir, Pin
from veen.core import Limits, Profile
from veen.hub.admission_rules import Admission
from veen.hub.config import HubConfig
from veen.hub.service import HubService
from veen.storage import metadata

STREAM = "bench"
BODY_BYTES = 300
WARM_UP = 20
ROUNDS = 9
MOST_CALLS, MOST_MODULES = 300, 35
_SRC = str(Path(veen.__file__).parents[1]) + os.sep


class CallTrace:
    """Records each call of a function below src/, with its thread, while it is `active`."""

    def __init__(self) -> None:
        self.active = False
        self.calls: list[tuple[CodeType, int]] = []

    def hook(self, frame: FrameType, event: str, _: object) -> None:
        if self.active and event == "call" and frame.f_code.co_filename.startswith(_SRC):
            self.calls.append((frame.f_code, threading.get_ident()))

    @contextmanager
    def recording(self) -> Iterator[None]:
        self.calls.clear()
        self.active = True
        try:
            yield
        finally:
            self.active = False

    def figures(self) -> dict[str, int]:
        """The figures of the last recording."""
        packages = Counter(_package(code) for code, _ in self.calls)
        in_client = [thread for code, thread in self.calls if _package(code) == "veen.client"]
        return {
            "calls": len(self.calls),
            **{f"calls in {package}": count for package, count in packages.most_common()},
            "functions": len({code for code, _ in self.calls}),
            "modules": len({code.co_filename for code, _ in self.calls}),
            "threads": len({thread for _, thread in self.calls}),
            "thread changes": _changes([thread for _, thread in self.calls]),
            "thread changes in veen.client": _changes(in_client),
        }

    def functions(self) -> list[tuple[str, int]]:
        """How often each function was called, most frequent first."""
        named = Counter(f"{code.co_filename.removeprefix(_SRC)}:{code.co_qualname}" for code, _ in self.calls)
        return named.most_common()


def _package(code: CodeType) -> str:
    return ".".join(code.co_filename.removeprefix(_SRC).removesuffix(".py").split(os.sep)[:2])


def _changes(threads: list[int]) -> int:
    return sum(before != after for before, after in pairwise(threads))


async def trace_sends(folder: Path, rounds: int) -> list[dict[str, int]]:
    """The figures of single sends, after enough of them that nothing is done for the first time."""
    trace = CallTrace()
    # Threads take the hook at their start, so it is set before the hub and the client have any.
    threading.setprofile(trace.hook)
    sys.setprofile(trace.hook)
    try:
        metadata.create(Disk(), folder / "hub", Profile(), Limits(), int(time.time()))
        hub = HubService(HubConfig(folder / "hub", port=0, workers=0, admission=Admission.OPEN))
        await hub.start()
        try:
            return await _trace_client(trace, folder, hub, rounds)
        finally:
            await hub.stop()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def _trace_client(trace: CallTrace, folder: Path, hub: HubService, rounds: int) -> list[dict[str, int]]:
    figures = []
    with ClientDir.create(folder / "writer", None, int(time.time())) as writer:
        writer.stream_keys.create(STREAM)
        pin = Pin.of_file(folder / "hub")
        async with Client(f"http://127.0.0.1:{hub.server.port}", writer, pin=pin) as client:
            for _ in range(WARM_UP):
                await client.send(STREAM, os.urandom(BODY_BYTES))
            for _ in range(rounds):
                body = os.urandom(BODY_BYTES)
                with trace.recording():
                    await client.send(STREAM, body)
                figures.append(trace.figures())
    for name, count in trace.functions() if "VEEN_TRACE_FUNCTIONS" in os.environ else ():
        print(f"{count:5} {name}", file=sys.stderr)
    return figures


def measure(rounds: int = ROUNDS) -> BenchReport:
    with tempfile.TemporaryDirectory(prefix="veen-bench-") as name:
        figures = asyncio.run(trace_sends(Path(name), rounds))
    # The send with the fewest calls: during others the hub also wrote its log, which it does in the background.
    fewest = min(figures, key=lambda one: one["calls"])
    bounds = {"calls": MOST_CALLS, "modules": MOST_MODULES}
    rows = [BenchRow.of(what, [count], "", most=bounds.get(what)) for what, count in fewest.items()]
    return BenchReport("send-trace", tuple(rows), (f"one message of {BODY_BYTES} bytes, hub in the same process",))
