"""Blocking variants for programs without an event loop. Each call runs on the loop of a `BlockingClient`.

with BlockingClient(url, folder) as client, BlockingKvStore(client, "settings") as store:
    store.put(b"door", b"open")
"""

from collections.abc import Generator
from contextlib import aclosing
from types import TracebackType
from typing import Generic, Self, TypeVar

from veen.client.blocking_client import BlockingClient
from veen.core import cbor
from veen.overlays import At, FoldStep
from veen.overlays.queue import Task, TaskStatus
from veen.state.event_sender import SentEvent
from veen.state.rpc_calls import TIMEOUT_S, Caller
from veen.state.stream_stores import LEASE_SEC, KvStore, TaskJob, TaskQueue

F = TypeVar("F", bound=KvStore | TaskQueue | Caller)


class _Blocking(Generic[F]):
    """A context manager around the asynchronous object `face`."""

    def __init__(self, client: BlockingClient, face: F) -> None:
        self.face = face
        self._run = client.run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.face.view.close()


class BlockingKvStore(_Blocking[KvStore]):
    def __init__(self, client: BlockingClient, stream: str | bytes, *, cached: bool = True) -> None:
        super().__init__(client, KvStore.of(client.client, stream, cached=cached))

    def get(self, key: bytes, at: At | None = None) -> bytes | None:
        return self._run(self.face.get(key, at))

    def keys(self, prefix: bytes = b"", at: At | None = None) -> list[bytes]:
        return self._run(self.face.keys(prefix, at))

    def history(self, key: bytes, at: At | None = None) -> list[FoldStep]:
        return self._run(self.face.history(key, at))

    def put(self, key: bytes, value: bytes) -> SentEvent:
        return self._run(self.face.put(key, value))

    def delete(self, key: bytes) -> SentEvent:
        return self._run(self.face.delete(key))


class BlockingTaskQueue(_Blocking[TaskQueue]):
    def __init__(self, client: BlockingClient, stream: str | bytes, *, cached: bool = True) -> None:
        super().__init__(client, TaskQueue.of(client.client, stream, cached=cached))

    def add(self, item: bytes, *, max_tries: int | None = None, expires_at: int | None = None) -> SentEvent:
        return self._run(self.face.add(item, max_tries=max_tries, expires_at=expires_at))

    def take(self, lease_sec: int = LEASE_SEC) -> TaskJob | None:
        return self._run(self.face.take(lease_sec))

    def jobs(self, lease_sec: int = LEASE_SEC) -> Generator[TaskJob, None, None]:
        """Yield claimed tasks as they become ready. Never ends by itself."""
        coming = self.face.jobs(lease_sec)

        async def end() -> None:
            async with aclosing(coming):
                pass

        async def following() -> TaskJob:
            return await anext(coming)

        try:
            while True:
                yield self._run(following())
        finally:
            self._run(end())

    def ack(self, job: TaskJob) -> SentEvent:
        return self._run(self.face.ack(job))

    def fail(self, job: TaskJob, reason: str | None = None) -> SentEvent:
        return self._run(self.face.fail(job, reason))

    def retry(self, task_id: bytes) -> SentEvent:
        return self._run(self.face.retry(task_id))

    def tasks(self, status: TaskStatus | None = None) -> list[tuple[bytes, Task]]:
        return self._run(self.face.tasks(status))


class BlockingCaller(_Blocking[Caller]):
    def __init__(self, client: BlockingClient, stream: str | bytes, *, cached: bool = True) -> None:
        super().__init__(client, Caller.of(client.client, stream, cached=cached))

    def call(
        self, method: str, args: cbor.Value = None, *, timeout_s: float = TIMEOUT_S, idem: int | None = None
    ) -> cbor.Value:
        return self._run(self.face.call(method, args, timeout_s=timeout_s, idem=idem))
