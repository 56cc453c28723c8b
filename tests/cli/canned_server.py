"""A server on loopback that gives prepared answers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

Answers = Mapping[str, tuple[int, str, bytes]]


@contextmanager
def canned_server(answers: Answers) -> Iterator[str]:
    """Start the server and yield its URL. A path without an answer gets 404 in HTML."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

        def answer(self) -> None:
            length = int(self.headers.get("content-length", 0))
            self.rfile.read(length)
            status, kind, body = answers.get(self.path, (404, "text/html", b"<h1>no</h1>"))
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
