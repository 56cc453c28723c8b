"""The HTTP front of our servers: HTTP/1.1, HTTP/2 and WebSocket over TCP or TLS, with every resource bounded.

It knows nothing of logs or receipts. It turns bytes into a `Request`, hands it to an `App`, and writes the `Response`.
"""

from veen.http.message import App, Request, Respond, Response, Upload, WebSocketHandler
from veen.http.server import HttpServer
from veen.http.settings import HttpSettings
from veen.http.tls import tls_context

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
