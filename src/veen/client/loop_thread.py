"""An event loop in a separate thread, for blocking callers of async code."""

import asyncio
from collections.abc import Coroutine
from threading import Lock, Thread
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Starts with the first `run`. Any thread may call `run`; the owner calls `close` when nothing runs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_started(self) -> bool:
        return self._loop is not None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and return its result. An interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._started())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return self._loop
