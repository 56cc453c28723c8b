"""A simulated world in one thread: processes with event loops, virtual time, a network, and background work.

One seed determines everything: which process runs next, how long blocking work takes, when bytes arrive, what
`os.urandom` returns. Time does not pass while code runs, except a microsecond per callback; if nothing is ready, it
jumps to the next timer.

The programs inside are the real ones. They get a real asyncio loop (`VirtualLoop`), and the standard library is
replaced for them where it would reach the machine: clocks, randomness, sockets and child processes. `install` does
that once, before the programs are imported, because some of them keep references to these functions.

Blocking code runs as one step. Code that waits for another thread or machine is a `Strand`: it has a real thread, which
takes turns with the world.
"""

import asyncio
import errno
import faulthandler
import gc
import heapq
import io
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from contextvars import Context
from functools import partial
from hashlib import blake2b
from itertools import count
from pathlib import Path
from random import Random
from threading import Semaphore, Thread
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")

EPOCH = 1_750_000_000.0  # the wall clock when a world begins
_STEP_S = 1e-6  # a callback takes this long
_STALL_STEPS = 2_000_000  # a world that runs so many callbacks is stuck
_BUFFER_BYTES = 1 << 16


class ProcessEnded(BaseException):
    """The simulated process ended at this call. Programs must not catch it.

    Code that runs while the stack unwinds, such as `finally`, changes nothing outside of the process any more.
    """


class Stuck(Exception):
    """The world does not come to an end."""


TAIL = 40  # notes that a failing seed shows


class World:
    """Virtual time, the processes in it, and the random choices of one seed."""

    def __init__(self, seed: int, *, keep_trace: bool = False, keep_all: bool = False) -> None:
        self.seed = seed
        self.rng = Random(f"world {seed}")
        self.entropy = Random(f"entropy {seed}")
        self.now = 0.0
        self.current: Process | None = None
        self.processes: list[Process] = []
        self.network = Network(self)
        self.background_pace = self.rng.choice((0.2, 1.0, 1.0, 5.0))  # how slow disks and threads are
        self.steps = 0
        self.lines: deque[str] = deque(maxlen=None if keep_trace else TAIL)  # the last ones, or all
        self.descriptors: dict[int, tuple[Process, int]] = {}  # opened by processes, with their inodes
        self.placeholders: set[int] = set()  # descriptors of dead processes, which are open on /dev/null
        self.strand: Strand | None = None  # the one that runs
        self.strands: list[Strand] = []  # those that wait
        self.keep_all = keep_all
        self._digest = blake2b(digest_size=16)
        self._timers: list[tuple[float, int, Process | None, Callable[[], None]]] = []
        self._numbers = count()

    # Time and order.

    def at(self, when: float, process: "Process | None", act: Callable[[], None]) -> None:
        """Call `act` at a time, on the loop of `process` if one is given; never if it has ended by then."""
        heapq.heappush(self._timers, (max(when, self.now), next(self._numbers), process, act))

    def run(self, until: Callable[[], bool], limit_s: float = 7 * 86_400.0) -> None:
        """Run callbacks until a condition holds. Raises `Stuck` if it never does."""
        deadline = self.now + limit_s
        while not until():
            strand = next((one for one in self.strands if one.is_ready()), None) if self.strands else None
            if strand:
                self._count_step(strand.process)
                strand.resume()
                continue
            ready = [one for one in self.processes if one.alive and one.loop.ready and not one.is_blocked]
            if ready:
                chosen = ready[0] if len(ready) == 1 else self.rng.choice(ready)
                self._due()
                if chosen.loop.ready:  # unless what was due ended it
                    self._step(chosen)
            elif self._timers:
                self.now = max(self.now, self._timers[0][0])
                self._due()
            else:
                raise Stuck("nothing is left to do")
            if self.now > deadline or self.steps > _STALL_STEPS:
                raise Stuck(f"the run did not end within {limit_s:g} simulated seconds and {self.steps} steps")

    def _due(self) -> None:
        """Move timers that have passed to the loops of their processes."""
        while self._timers and self._timers[0][0] <= self.now:
            _, _, process, act = heapq.heappop(self._timers)
            if process is None:
                act()
            elif process.alive:
                process.loop.ready.append(asyncio.Handle(act, (), process.loop))

    def _step(self, process: "Process") -> None:
        handle = process.loop.ready.popleft()
        if handle.cancelled():
            return
        self._count_step(process)
        with _Inside(self, process, process.loop):
            handle._run()

    def _count_step(self, process: "Process") -> None:
        self.steps += 1
        self.now += _STEP_S
        self._digest.update(struct.pack(">dI", self.now, process.number))

    def wait(self, until: Callable[[], bool], seconds: float | None = None) -> bool:
        """Blocking code of the current process waits for a condition. Returns whether it holds."""
        process = self.current
        assert process is not None, "nobody waits outside of a process"
        deadline = self.now + (7 * 86_400.0 if seconds is None else seconds)
        self.at(deadline, None, lambda: None)

        def is_over() -> bool:
            return not process.alive or self.now >= deadline or until()

        if self.strand:
            self.strand.wait(is_over)
        else:  # on the loop's thread: nothing else runs there meanwhile
            process.is_blocked = True
            self.run(is_over)
            process.is_blocked = False
        if not process.alive:
            raise ProcessEnded
        return until()

    def delay(self) -> float:
        """How long a piece of blocking work waits for its thread and the disk."""
        kind = self.rng.random()
        longest = 0.0005 if kind < 0.85 else 0.02 if kind < 0.98 else 1.5
        return self.background_pace * self.rng.uniform(0.02, 1.0) * longest

    # Processes.

    def process(self, name: str) -> "Process":
        made = Process(self, name, len(self.processes))
        self.processes.append(made)
        return made

    def wall(self) -> float:
        """The wall clock of the current process's machine."""
        return EPOCH + self.now + (self.current.clock_step if self.current else 0.0)

    # The trace.

    def note(self, what: str, *, detail: bytes = b"") -> None:
        """Record an event. `detail` only enters the digest."""
        who = self.current.name if self.current else "-"
        line = f"{self.now:12.6f}  {who:10}  {what}"
        self._digest.update(line.encode() + detail)
        self.lines.append(line)

    def detail(self, what: str) -> None:
        """Record an event that only a full trace shows."""
        if self.keep_all:
            who = self.current.name if self.current else "-"
            self.lines.append(f"{self.now:12.6f}  {who:10}    {what}")

    def fingerprint(self) -> str:
        """Equal for two runs in which the same happened at the same time."""
        return self._digest.copy().hexdigest()


class _Inside:
    """The code within runs in a process, on its loop or on one of its threads."""

    __slots__ = ("_before", "_loop", "_outer", "_process", "_world")

    def __init__(self, world: World, process: "Process", loop: "VirtualLoop | None") -> None:
        self._world, self._process, self._loop = world, process, loop

    def __enter__(self) -> None:
        self._before, self._outer = self._world.current, asyncio._get_running_loop()
        self._world.current = self._process
        asyncio._set_running_loop(self._loop)

    def __exit__(self, *_: object) -> None:
        self._world.current = self._before
        asyncio._set_running_loop(self._outer)


class Process:
    """One simulated process: its loop, its threads and its connections, which all end with it."""

    def __init__(self, world: World, name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.number = number
        self.alive = True
        self.is_blocked = False  # the thread of its loop waits
        self.clock_step = 0.0  # of its machine's wall clock
        self.faults: list[str] = []  # exceptions that nobody handled
        self.loop = VirtualLoop(self)
        self.ends: list[End] = []  # of connections, open ones
        self.listeners: list[Listener] = []
        self.children: list[_SignerChild] = []

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start a coroutine on the loop of this process."""
        with _Inside(self.world, self, self.loop):
            return NumberedTask(work, loop=self.loop)

    def call(self, work: Callable[[], T]) -> T:
        """Run blocking code in this process now, as its main thread before a loop runs."""
        with _Inside(self.world, self, None):
            return work()

    def end(self, *, silently: bool = False) -> None:
        """End the process at once. Peers see a reset, or nothing at all if the machine lost power."""
        if not self.alive:
            return
        self.alive = False
        self.loop.ready.clear()
        self._close_descriptors()
        for listener in self.listeners:
            listener.close()
        for end in tuple(self.ends):
            end.vanish(silently=silently)

    def _close_descriptors(self) -> None:
        """Release what its descriptors hold, such as locks. The numbers stay in use: dead code may still close them."""
        for number, (owner, inode) in tuple(self.world.descriptors.items()):
            if owner is self:
                del self.world.descriptors[number]
                with suppress(OSError):
                    if os.fstat(number).st_ino == inode:
                        os.dup2(_nowhere(), number, inheritable=False)
                        self.world.placeholders.add(number)

    def later(self, job: Callable[[], None], delay: float, *, waits: bool = False) -> None:
        """Run blocking work of this process at a later moment: as one step, or as a strand if it waits for others."""

        def run() -> None:
            if not self.alive:
                return
            self.world.steps += 1
            if waits:
                Strand(self, job).resume()
                return
            with _Inside(self.world, self, None):
                try:
                    job()
                except ProcessEnded:
                    self.end()

        self.world.at(self.world.now + delay, None, run)


class Strand:
    """Blocking code of a process that waits for other threads or machines. It and the world take turns."""

    def __init__(self, process: Process, job: Callable[[], None]) -> None:
        self.process = process
        self._job = job
        self._is_over: Callable[[], bool] = lambda: True
        self._turn, self._back = Semaphore(0), Semaphore(0)
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def is_ready(self) -> bool:
        return self._is_over()

    def resume(self) -> None:
        """Run it until it waits or ends. Only the world does this."""
        world = self.process.world
        before, outer = world.current, world.strand
        world.current, world.strand = self.process, self
        if self._thread is None:
            self._thread = Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            world.strands.remove(self)
            self._turn.release()
        self._back.acquire()
        world.current, world.strand = before, outer
        if self._error:
            raise self._error

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Let the world run until a condition holds. Only the code of the strand does this."""
        if not is_over():
            self._is_over = is_over
            self.process.world.strands.append(self)
            self._back.release()
            self._turn.acquire()

    def _run(self) -> None:
        try:
            self._job()
        except ProcessEnded:
            self.process.end()
        except BaseException as error:  # noqa: BLE001  the world raises it
            self._error = error
        self._back.release()


_hashes = count()


def number_objects(cls: type) -> None:
    """Give the objects of a class a hash that is the same in every run: libraries iterate over sets of them."""
    any_class: Any = cls
    make, numbers = any_class.__init__, dict[int, int]()

    def number(self: Any, *args: Any, **kwargs: Any) -> None:
        numbers[id(self)] = next(_hashes)
        make(self, *args, **kwargs)

    any_class.__init__ = number
    any_class.__hash__ = lambda self: numbers[id(self)]


class NumberedTask(asyncio.Task[T]):
    """A task of a world."""


number_objects(NumberedTask)


_Loop: Any = asyncio.AbstractEventLoop  # its methods that no program in the lab uses are missing


class VirtualLoop(_Loop):  # type: ignore[misc]
    """The asyncio loop of one process. The world runs its callbacks."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.ready: deque[asyncio.Handle] = deque()
        self._world = process.world
        self._readers: dict[object, Callable[[], None]] = {}

    def time(self) -> float:
        return self._world.now

    def get_debug(self) -> bool:
        return False

    def get_task_factory(self) -> None:
        return None

    def is_running(self) -> bool:
        return self.process.alive

    def is_closed(self) -> bool:
        return not self.process.alive

    # Callbacks.

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self.process.alive:
            self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._world.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)

        def due() -> None:
            if self.process.alive and not timer.cancelled():
                self.ready.append(timer)

        self._world.at(when, None, due)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is dropped when it is due."""

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> Any:
        return NumberedTask(coro, loop=self, name=name, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, ProcessEnded):
            self.process.end()
        elif self.process.alive:
            text = f"{context.get('message')}: {error!r}"
            self.process.faults.append(text)
            self._world.note(f"unhandled: {text}")

    # Threads.

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
        if executor is not None:
            return asyncio.wrap_future(executor.submit(func, *args), loop=self)
        future: asyncio.Future[T] = asyncio.Future(loop=self)

        def job() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001  the caller gets it
                self.call_soon(_set_exception, future, error)
            else:
                self.call_soon(_set_result, future, result)

        self.process.later(job, self._world.delay())
        return future

    async def shutdown_default_executor(self) -> None:
        """Its work runs in the steps of the world."""

    async def shutdown_asyncgens(self) -> None:
        """Generators end with the world."""

    # Descriptors: listeners and the channels of child processes.

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        self._readers[fd] = lambda: self._read(fd, callback, args)
        fd.reader = self
        fd.notify()

    def remove_reader(self, fd: Any) -> bool:
        fd.reader = None
        return self._readers.pop(fd, None) is not None

    def readable(self, fd: Any) -> None:
        """Call the reader of a descriptor until nothing is left."""
        if fd in self._readers:
            self.call_soon(self._readers[fd])

    def _read(self, fd: Any, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if fd in self._readers and fd.has_input():
            callback(*args)
            if fd in self._readers and fd.has_input():
                self.readable(fd)

    # The network.

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        end = await self._world.network.connect(self.process, (str(host), int(port)))
        return end.attach(protocol_factory()), end.protocol

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **_: Any) -> Any:
        await asyncio.sleep(0)
        return sock.end.attach(protocol_factory()), sock.end.protocol


def _set_result(future: "asyncio.Future[T]", result: T) -> None:
    if not future.cancelled():
        future.set_result(result)


def _set_exception(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.cancelled():
        future.set_exception(error)


class Network:
    """Connections between processes. Bytes of one connection keep their order; connections are independent."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.latency_s = world.rng.choice((0.0002, 0.002, 0.03))
        self.cut: set[str] = set()  # names of processes that reach nobody
        self.trouble: Callable[[End, bytes], str] = lambda end, data: ""  # chooses the fault of a write
        self._ports = count(40_000)

    def delay(self) -> float:
        rng = self._world.rng
        return self.latency_s * (rng.uniform(0.5, 1.5) if rng.random() < 0.95 else rng.uniform(2, 20))

    def listen(self, process: Process, host: str, port: int) -> "Listener":
        address = (host, port or next(self._ports))
        if address in self.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.listeners[address] = listener = Listener(self, process, address)
        process.listeners.append(listener)
        return listener

    async def connect(self, process: Process, address: tuple[str, int]) -> "End":
        await asyncio.sleep(self.delay())
        while self._is_unreachable(process, address):
            await asyncio.sleep(3600)  # until the caller gives up
        return self._connected(process, address)

    def connect_blocking(self, process: Process, address: tuple[str, int], timeout: float | None) -> "BlockingSocket":
        self._world.wait(lambda: False, self.delay())
        if self._is_unreachable(process, address):
            self._world.wait(lambda: False, timeout)
            raise TimeoutError("timed out")
        return BlockingSocket(self._connected(process, address), timeout)

    def _is_unreachable(self, process: Process, address: tuple[str, int]) -> bool:
        listener = self.listeners.get(address)
        return process.name in self.cut or (listener is not None and listener.process.name in self.cut)

    def _connected(self, process: Process, address: tuple[str, int]) -> "End":
        listener = self.listeners.get(address)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        ours, theirs = End(self._world, process, address), End(self._world, listener.process, ("127.0.0.1", 1))
        ours.peer, theirs.peer, ours.is_client = theirs, ours, True
        listener.arrived(VirtualSocket(theirs))
        return ours

    def repeat(self, end: "End") -> None:
        """Send what a client sent on a connection again, on a new one. Nobody reads the answers."""
        ghost = self._world.process("network")
        data = bytes(end.sent)

        async def send() -> None:
            again = await self.connect(ghost, end.address)
            again.attach(asyncio.Protocol())
            again.write(data)

        ghost.spawn(send()).add_done_callback(lambda task: task.exception())

    def cut_off(self, end: "End") -> bool:
        assert end.peer is not None
        return end.process.name in self.cut or end.peer.process.name in self.cut


class Listener:
    """A listening socket, as far as a server uses it."""

    def __init__(self, network: Network, process: Process, address: tuple[str, int]) -> None:
        self.process = process
        self.reader: VirtualLoop | None = None
        self._network = network
        self._address = address
        self._arrived: deque[VirtualSocket] = deque()
        self._open = True

    def arrived(self, peer: "VirtualSocket") -> None:
        self._arrived.append(peer)
        self.notify()

    def notify(self) -> None:
        if self.reader and self._arrived:
            self.reader.readable(self)

    def has_input(self) -> bool:
        return bool(self._arrived)

    def accept(self) -> tuple["VirtualSocket", tuple[str, int]]:
        if not self._arrived:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return self._arrived.popleft(), ("127.0.0.1", 1)

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def fileno(self) -> int:
        return 1 << 20 if self._open else -1

    def close(self) -> None:
        self._open = False
        if self._network.listeners.get(self._address) is self:
            del self._network.listeners[self._address]
        for peer in self._arrived:
            peer.close()


class VirtualSocket:
    """One side of a connection, for code that asks for the socket behind a transport."""

    family = socket.AF_INET
    _quiet, _at_end = -1, -1  # real descriptors: one that has no input, and one that always has

    def __init__(self, end: "End") -> None:
        self.end = end

    def __enter__(self) -> "VirtualSocket":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """A descriptor that can be polled: readable if the peer closed or sent something that nobody has read."""
        if VirtualSocket._quiet < 0:
            VirtualSocket._quiet, VirtualSocket._at_end = os.eventfd(0), os.eventfd(1)
        return VirtualSocket._at_end if self.end.lost or self.end.inbox else VirtualSocket._quiet

    def getpeername(self) -> tuple[str, int]:
        return self.end.address

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", 2)

    def setsockopt(self, *_: object) -> None:
        """Options have no effect here."""

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def send(self, data: bytes) -> int:
        self.end.send(data)
        return len(data)

    def close(self) -> None:
        self.end.finish()


class BlockingSocket(io.RawIOBase):
    """The socket of blocking code such as `http.client`, and the protocol of its connection."""

    def __init__(self, end: "End", timeout: float | None) -> None:
        self._end, self._timeout = end, timeout
        self._buffer = bytearray()
        self._is_ended = False
        self._error: Exception | None = None
        end.is_blocking = True
        end.attach(self)

    def setsockopt(self, *_: object) -> None:
        """Options have no effect here."""

    def sendall(self, data: Any) -> None:
        if self._error:
            raise self._error
        self._end.write(data)

    def makefile(self, *_: object) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        if not self._end.process.world.wait(lambda: bool(self._buffer) or self._is_ended, self._timeout):
            raise TimeoutError("timed out")
        if not self._buffer and self._error:
            raise self._error
        size = min(len(target), len(self._buffer))
        target[:size] = self._buffer[:size]
        del self._buffer[:size]
        return size

    def close(self) -> None:
        self._end.close()

    def connection_made(self, transport: object) -> None:
        """It was made."""

    def data_received(self, data: bytes) -> None:
        self._buffer += data

    def eof_received(self) -> bool:
        self._is_ended = True
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._is_ended, self._error = True, error

    def pause_writing(self) -> None:
        """Requests are small."""

    resume_writing = pause_writing


_EOF = b""


def _called(act: Callable[..., object], *args: Any) -> None:
    act(*args)


class End(asyncio.Transport):
    """One side of a connection, and the transport of its protocol."""

    def __init__(self, world: World, process: Process, address: tuple[str, int]) -> None:
        super().__init__({"peername": address, "socket": VirtualSocket(self)})
        self._world = world
        self.process = process
        self.address = address
        self.peer: End | None = None
        self.is_client = False
        self.is_blocking = False  # used by blocking code: it does not need the loop of its process
        self.protocol: Any = None
        self.inbox: deque[bytes] = deque()  # arrived, not read; `_EOF` at the end
        self.sent = bytearray()  # by a client, if the network may repeat it
        self.lost = False  # nothing more arrives
        self._closing = False
        self._wrote_eof = False
        self._paused = False
        self._in_flight = 0
        self._last_arrival = 0.0
        self._high, self._low = _BUFFER_BYTES, _BUFFER_BYTES // 4
        self._write_paused = False
        self._stalled = False
        process.ends.append(self)

    def attach(self, protocol: Any) -> "End":
        self.protocol = protocol
        protocol.connection_made(self)
        if self in self.process.ends:
            self._flush_later()
        else:  # the network broke the connection before it was accepted
            reset = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            self._soon(protocol.connection_lost, reset)
        return self

    def _at(self, when: float, act: Callable[[], None]) -> None:
        """Do something in the process of this side at a time."""
        if self.is_blocking:
            self._world.at(when, None, lambda: act() if self.process.alive else None)
        else:
            self._world.at(when, self.process, act)

    def _soon(self, act: Callable[..., object], *args: Any) -> None:
        if self.is_blocking:
            self._at(self._world.now, partial(_called, act, *args))
        else:
            self.process.loop.call_soon(act, *args)

    # Sending.

    def send(self, data: bytes) -> None:
        """Put bytes, or the end of the stream, on the network."""
        peer = self.peer
        assert peer is not None
        network, world = self._world.network, self._world
        if self._stalled or network.cut_off(self):
            self._stalled = True  # whatever follows on this connection cannot arrive in order either
            return
        trouble = network.trouble(self, data)
        if trouble:
            world.note(f"network: {trouble} of {len(data)} bytes to {peer.process.name}")
        if trouble == "stall":
            self._stalled = True
            return
        if trouble == "reset":
            self._reset()
            return
        when = max(
            world.now + network.delay() + (30.0 * world.rng.random() if trouble == "delay" else 0.0), self._last_arrival
        )
        self._last_arrival = when
        self._in_flight += len(data)
        if self.is_client:
            self.sent += data
            if trouble == "repeat":
                world.at(when + network.delay(), None, lambda: network.repeat(self))
        peer._at(when, lambda: self._deliver(data))
        if self._in_flight > self._high and not self._write_paused:
            self._write_paused = True
            self.protocol.pause_writing()

    def _deliver(self, data: bytes) -> None:
        """Runs in the peer's process: bytes arrive."""
        self._in_flight -= len(data)
        if self._write_paused and self._in_flight <= self._low and self.process.alive:
            self._write_paused = False
            self._soon(self.protocol.resume_writing)
        peer = self.peer
        assert peer is not None
        if not peer._closing and not self._world.network.cut_off(self):
            peer.inbox.append(data)
            peer._flush()

    def _reset(self) -> None:
        """The network breaks the connection for both sides."""
        for end in (self, self.peer):
            assert end is not None
            end._stalled = True
            end._soon(end._drop, ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def vanish(self, *, silently: bool) -> None:
        """The process of this side ended."""
        self.lost = self._closing = True
        peer = self.peer
        assert peer is not None
        if not silently and not self._stalled and not self._world.network.cut_off(self):
            when = max(self._world.now + self._world.network.delay(), self._last_arrival)
            reset = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            peer._at(when, lambda: peer._drop(reset))

    # Receiving.

    def _flush_later(self) -> None:
        if self.inbox:
            self._soon(self._flush)

    def _flush(self) -> None:
        while self.inbox and not self._paused and not self._closing and self.protocol is not None:
            data = self.inbox.popleft()
            if data:
                self.protocol.data_received(data)
            elif not self.protocol.eof_received():
                self.close()
            else:
                self.lost = True

    def _drop(self, error: Exception | None) -> None:
        """Tell the protocol that the connection is gone. Once."""
        if self in self.process.ends:
            self.process.ends.remove(self)
            self.lost = self._closing = True
            if self.protocol is not None:
                self.protocol.connection_lost(error)

    # The transport.

    def write(self, data: Any) -> None:
        if data and not self._closing and not self._wrote_eof:
            self.send(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._wrote_eof and not self._closing:
            self._wrote_eof = True
            self.send(_EOF)

    def can_write_eof(self) -> bool:
        return True

    def finish(self) -> None:
        """Close a socket that no protocol uses yet."""
        self.close()

    def close(self) -> None:
        if not self._closing:
            self.write_eof()
            self._closing = True
            self._soon(self._drop, None)

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            self.vanish(silently=False)
            self._soon(self._drop, None)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._flush_later()

    def is_reading(self) -> bool:
        return not self._paused

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _BUFFER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._in_flight

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high


# Child processes.


class _Channel:
    """One side of a socket pair between a program and its child process."""

    _numbers = count(1 << 21)
    by_number: ClassVar[dict[int, "_Channel"]] = {}

    def __init__(self, process: Process) -> None:
        self.process = process
        self.peer: _Channel | None = None
        self.reader: VirtualLoop | None = None
        self.child: _SignerChild | None = None  # on the side of the child
        self.waits = True  # whether `recv` waits for the child
        self.buffer = bytearray()
        self.is_open = True
        self._number = next(_Channel._numbers)
        _Channel.by_number[self._number] = self

    def __enter__(self) -> "_Channel":
        return self

    def __exit__(self, *_: object) -> None:
        """The program closes its copy of the child's side; the child has its own."""

    def fileno(self) -> int:
        return self._number

    def settimeout(self, seconds: float | None) -> None:
        self.waits = True

    def setblocking(self, flag: bool) -> None:
        self.waits = flag

    def notify(self) -> None:
        if self.reader and self.has_input():
            self.reader.readable(self)

    def has_input(self) -> bool:
        assert self.peer is not None
        return bool(self.buffer) or not self.peer.is_open

    def sendall(self, data: bytes) -> None:
        peer = self.peer
        assert peer is not None
        if not peer.is_open or not self.is_open:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        peer.buffer += data
        if peer.child and not self.waits:
            peer.child.work_later(peer)
        else:
            peer.notify()

    def send(self, data: bytes) -> int:
        self.sendall(data)
        return len(data)

    def recv(self, size: int) -> bytes:
        peer = self.peer
        assert peer is not None
        if not self.buffer and peer.child and self.waits:
            peer.child.work(peer)
        if not self.buffer and peer.is_open:
            if self.child:
                return b""  # never happens: the child only runs if there is a request
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        return data

    def close(self) -> None:
        self.is_open = False
        _Channel.by_number.pop(self._number, None)


class _SignerChild:
    """The signer process: its server, called for each request at a later moment."""

    pid = 2

    def __init__(self, process: Process, folder: str, descriptors: Sequence[str]) -> None:
        from veen.hub.signer_process import SigningServer  # after `install`

        self._process = process
        self._server = SigningServer(Path(folder))
        self._channels = [_Channel.by_number[int(number)] for number in descriptors]
        for channel in self._channels:
            channel.child = self
        process.children.append(self)

    def work_later(self, channel: _Channel) -> None:
        self._process.later(lambda: self.work(channel), self._process.world.delay())

    def work(self, channel: _Channel) -> None:
        """Answer every request that has arrived."""
        while channel.is_open and channel.buffer:
            self._server.serve_one(channel)  # type: ignore[arg-type]

    def kill(self) -> None:
        """End it. Its side of the channels closes."""
        for channel in self._channels:
            channel.close()
            assert channel.peer is not None
            channel.peer.notify()

    def wait(self) -> int:
        return -9


# The standard library.

_world: World | None = None  # the world that the replaced functions belong to
_CLOCKS = ("time", "monotonic", "perf_counter")
_result = Future.result


def install() -> None:
    """Replace clocks, randomness, sockets and child processes. Without a running world they are the real ones."""
    if getattr(time, "_lab", False):
        return
    loaded = [name for name in sys.modules if name.partition(".")[0] in ("veen", "plumbing", "httpx", "anyio")]
    assert not loaded, f"the lab must be installed before {loaded[0]} is imported"
    time._lab = True  # type: ignore[attr-defined]
    for name in _CLOCKS:
        _replace(time, name, (lambda w: w.wall()) if name == "time" else (lambda w: w.now))
        _replace(
            time, f"{name}_ns", (lambda w: int(w.wall() * 1e9)) if name == "time" else (lambda w: int(w.now * 1e9))
        )
    _replace(time, "clock_gettime", lambda w, clock: w.wall() if clock == time.CLOCK_REALTIME else w.now)
    for module, name in ((os, "urandom"), (random, "_urandom")):
        _replace(module, name, lambda w, size: w.entropy.randbytes(size))
    _replace(os, "getpid", lambda w: 2 + (w.current.number if w.current else 0))
    os.open = _recorded_open(os.open)
    os.close = _recorded_close(os.close)  # type: ignore[assignment]
    for name in ("unlink", "rmdir", "ftruncate"):
        setattr(os, name, _living_only(getattr(os, name)))
    faulthandler.enable()  # a hub that finds it enabled does not use it, and its state is not that of one process
    _replace(time, "thread_time", lambda w: 0.0)  # code takes no time
    _replace(socket, "create_server", _create_server)
    _replace(socket, "create_connection", _create_connection)
    Future.result = _waited_result  # type: ignore[method-assign, assignment]
    _replace(socket, "socketpair", _socketpair)
    subprocess.Popen = _Popen  # type: ignore[misc, assignment]


def _replace(module: Any, name: str, simulated: Callable[..., Any]) -> None:
    real = getattr(module, name)

    def chosen(*args: Any, **kwargs: Any) -> Any:
        return real(*args, **kwargs) if _world is None else simulated(_world, *args, **kwargs)

    setattr(module, name, chosen)


def _create_server(world: World, address: tuple[str, int], **_: Any) -> Listener:
    assert world.current is not None
    return world.network.listen(world.current, *address)


def _create_connection(world: World, address: tuple[str, int], timeout: float | None = None, *_: Any) -> BlockingSocket:
    assert world.current is not None
    return world.network.connect_blocking(world.current, address, timeout)


def _waited_result(future: "Future[T]", timeout: float | None = None) -> T:
    """`Future.result` of blocking code."""
    if _world is not None and not future.done() and not _world.wait(future.done, timeout):
        raise TimeoutError
    return _result(future, timeout)


def _socketpair(world: World) -> tuple[_Channel, _Channel]:
    assert world.current is not None
    one, other = _Channel(world.current), _Channel(world.current)
    one.peer, other.peer = other, one
    return one, other


class _Popen(subprocess.Popen):  # type: ignore[type-arg]
    """Starts a simulated signer in a world, and a real process elsewhere."""

    def __new__(cls, command: Sequence[str], *_: Any, **__: Any) -> Any:
        if _world is None:
            return super().__new__(cls)
        assert command[2] == "veen.hub.signer_process", command
        assert _world.current is not None
        return _SignerChild(_world.current, command[3], command[4:])


def _nowhere() -> int:
    """A descriptor of /dev/null."""
    global _null
    if _null < 0:
        _null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    return _null


_null = -1


def _close_placeholders(world: World) -> None:
    """Close the descriptors that dead processes left."""
    device = os.fstat(_nowhere()).st_rdev
    for number in world.placeholders:
        with suppress(OSError):  # dead code closed it without `os.close`
            if os.fstat(number).st_rdev == device:
                os.close(number)


def _recorded_open(real: Callable[..., int]) -> Callable[..., int]:
    """`os.open` that records which process has the descriptor."""

    def opened(*args: Any, **kwargs: Any) -> int:
        number = real(*args, **kwargs)
        if _world is not None and _world.current is not None:
            _world.descriptors[number] = _world.current, os.fstat(number).st_ino
        return number

    return opened


def _recorded_close(real: Callable[[int], None]) -> Callable[[int], None]:
    def close(number: int) -> None:
        if _world is not None:
            _world.descriptors.pop(number, None)
            _world.placeholders.discard(number)
        real(number)

    return close


def _living_only(real: Callable[..., T]) -> Callable[..., T]:
    """A function that changes files, for processes that have not ended."""

    def checked(*args: Any, **kwargs: Any) -> T:
        if _world is not None and _world.current is not None and not _world.current.alive:
            raise ProcessEnded
        return real(*args, **kwargs)

    return checked


class Running:
    """Makes a world the one that the standard library belongs to."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> World:
        global _world, _hashes
        assert _world is None, "one world at a time"
        gc.disable()  # when it runs depends on what the machine did before
        self._stderr, sys.stderr = sys.stderr, None
        random.seed(self._world.seed)
        tempfile._name_sequence = _Names(self._world.entropy)  # type: ignore[attr-defined]
        _hashes = count()
        _world = self._world
        return self._world

    def __exit__(self, *_: object) -> None:
        global _world
        for process in self._world.processes:
            process.end(silently=True)
        while self._world.strands:
            self._world.strands[0].resume()  # it ends, because its process has ended
        self._world.current = self._world.process("dead")
        self._world.current.end()
        self._world.at = lambda *_: None  # type: ignore[method-assign]
        unraisable, sys.unraisablehook = sys.unraisablehook, lambda _: None
        gc.collect()  # dead code runs its `finally` here, where it cannot change anything
        sys.unraisablehook = unraisable
        _world = None
        _close_placeholders(self._world)
        sys.stderr = self._stderr
        tempfile._name_sequence = None  # type: ignore[attr-defined]
        gc.enable()


class _Names:
    """Names of temporary files."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def __iter__(self) -> "_Names":
        return self

    def __next__(self) -> str:
        return f"{self._rng.getrandbits(32):08x}"
