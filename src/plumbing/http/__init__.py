"""The HTTP server: HTTP/1.1, HTTP/2 and WebSocket over TCP or TLS, with every resource bounded.

It is independent of logs and receipts. It parses a `Request`, passes it to an `App`, and writes the `Response`.
"""

from plumbing.http.connection import HttpSettings
from plumbing.http.message import App, Request, Respond, Response, Upload, WebSocketHandler
from plumbing.http.server import HttpServer, tls_context

__all__ = [
    "App",
    "HttpServer",
    "HttpSettings",
    "Request",
    "Respond",
    "Response",
    "Upload",
    "WebSocketHandler",
    "tls_context",
]
