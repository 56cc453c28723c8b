"""CPU time of the HTTP server for one small POST: with a repeated head, and with a head that is parsed each time.

Each server runs in its own process and reports its CPU time. The client sends one request at a time over one
connection, with bodies of changing length. If `uvicorn` is installed, it is measured too, with its httptools parser.
"""

import asyncio
import http.client
import importlib.util
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import uvloop

from plumbing.http import HttpServer, Request, Respond, Response, WebSocketHandler
from veen.bench.bench_report import BenchReport, BenchRow

ROUNDS = 15
POSTS = 2_000
LENGTHS = range(300, 1_300)
_RESPONSE = b"x" * 180
_REPEATED, _PARSED, _UVICORN = "repeated head", "parsed head", "uvicorn with httptools"


class PostApp:
    """Answers every POST; `GET` returns the CPU time of the process."""

    def __init__(self, shortcuts: bool) -> None:
        self._shortcuts = shortcuts

    def body_limit(self, method: str, path: str) -> int | None:
        return 1 << 20

    def too_large(self, head: Request) -> Response:
        return Response(413)

    def refused(self, status: int, reason: str, head: Request) -> Response:
        return Response(status)

    def upload(self, head: Request) -> None:
        return None

    def handle(self, request: Request, respond: Respond) -> None:
        respond(Response(200, _RESPONSE if request.method == "POST" else str(time.process_time()).encode()))

    def shortcut(self, head: Request) -> Callable[[bytes, Respond], None] | None:
        return (lambda body, respond: respond(Response(200, _RESPONSE))) if self._shortcuts else None

    def websocket(self, head: Request) -> WebSocketHandler | Response:
        return Response(404)


def measure() -> BenchReport:
    kinds = [_REPEATED, _PARSED, *([_UVICORN] if importlib.util.find_spec("uvicorn") else [])]
    processes = [subprocess.Popen([sys.executable, "-m", __name__, kind], stdout=subprocess.PIPE) for kind in kinds]
    try:
        ports = [_port(process) for process in processes]
        rounds = [[_round(port) for port in ports] for _ in range(ROUNDS)]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    times = {kind: [one[number] * 1e6 for one in rounds] for number, kind in enumerate(kinds)}
    rows = [BenchRow.of(kind, values, "µs") for kind, values in times.items()]
    for kind in kinds[1:]:
        ratios = [slow / fast for slow, fast in zip(times[kind], times[_REPEATED], strict=True)]
        rows.append(BenchRow.of(f"{kind} / {_REPEATED}", ratios, "×"))
    return BenchReport("CPU time of the HTTP server per POST", tuple(rows))


def _port(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def _round(port: int) -> float:
    """CPU seconds of the server per POST."""
    lengths = random.choices(LENGTHS, k=POSTS)
    requests = [
        b"POST /v1/submit HTTP/1.1\r\nhost: h\r\naccept: */*\r\naccept-encoding: gzip, deflate\r\n"
        b"connection: keep-alive\r\nuser-agent: bench\r\ncontent-type: application/cbor\r\n"
        b"content-length: %d\r\n\r\n%b" % (length, bytes(length))
        for length in lengths
    ]
    before = _cpu_s(port)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for request in requests:
            connection.sendall(request)
            received = connection.recv(4096)
            while not received.endswith(_RESPONSE):
                received += connection.recv(4096)
    return (_cpu_s(port) - before) / POSTS


def _cpu_s(port: int) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/")
    return float(connection.getresponse().read())


async def _serve(shortcuts: bool) -> None:
    server = HttpServer(lambda place, error: print(place, error, file=sys.stderr))
    await server.start(PostApp(shortcuts), "127.0.0.1", 0)
    print(server.port, flush=True)
    await asyncio.Event().wait()


def _serve_uvicorn() -> None:
    uvicorn = importlib.import_module("uvicorn")

    async def app(scope, receive, send):  # type: ignore[no-untyped-def]
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        answer = _RESPONSE if scope["method"] == "POST" else str(time.process_time()).encode()
        length = str(len(answer)).encode()
        headers = [(b"content-type", b"application/cbor"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, http="httptools", loop="uvloop", lifespan="off", log_level="error", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    if sys.argv[1] == _UVICORN:
        _serve_uvicorn()
    else:
        uvloop.run(_serve(sys.argv[1] == _REPEATED))
