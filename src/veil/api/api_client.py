"""A client of the local API. Calls return JSON values, or raise the error that the node raised.

It uses `http.client`, which loads in a tenth of the time of other clients; commands are short-lived.
"""

import http.client
import json
import socket
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from veil.runtime.data_directory import DataDirectory
from veil.veil_errors import Malformed, Refused, Unavailable, Unverified, VeilError

# HTTP status and error kind by class. A test checks that the table is complete.
STATUS: dict[type[VeilError], tuple[int, str]] = {
    Malformed: (HTTPStatus.BAD_REQUEST, "malformed"),
    Unverified: (HTTPStatus.UNPROCESSABLE_ENTITY, "unverified"),
    Refused: (HTTPStatus.CONFLICT, "refused"),
    Unavailable: (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
}
_BY_KIND = {kind: error for error, (_, kind) in STATUS.items()}
_SECONDS = 90.0  # for a whole call; a request for events may wait 60 s at the node


class Client:
    """Sends requests to the running node of a data directory, each over a connection of its own."""

    def __init__(self, data_dir: Path, *, seconds: float = _SECONDS) -> None:
        """A call raises `Unavailable` if the complete answer takes longer than `seconds`."""
        directory = DataDirectory(data_dir)
        directory.check()
        where = directory.read("api.json").get("url")
        if not isinstance(where, str):
            raise _not_running(data_dir)
        self._data_dir = data_dir
        self._headers = {"authorization": f"Bearer {directory.token()}", "content-type": "application/json"}
        place = urlsplit(where)
        self._http = _Connection(place.hostname or "", place.port, timeout=seconds)
        self._seconds = seconds

    def get(self, path: str, **query: object) -> Any:
        return self._call("GET", path, query)

    def post(self, path: str, **body: object) -> Any:
        return self._call("POST", path, {}, body)

    def delete(self, path: str, **query: object) -> Any:
        return self._call("DELETE", path, query)

    def delete_body(self, path: str, **body: object) -> Any:
        return self._call("DELETE", path, {}, body)

    def text(self, path: str) -> str:
        return self._send("GET", path, None).decode()

    def _call(self, method: str, path: str, query: dict[str, object], body: dict[str, object] | None = None) -> Any:
        given = urlencode({name: value for name, value in query.items() if value is not None})
        kept = None if body is None else {name: value for name, value in body.items() if value is not None}
        data = self._send(method, f"{path}?{given}" if given else path, kept)
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise Malformed("node", "the answer is not JSON") from None

    def _send(self, method: str, target: str, body: dict[str, object] | None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        try:
            self._http.request(method, target, data, self._headers)
            answer = self._http.getresponse()
            published = answer.read()
        except TimeoutError:
            error = Unavailable("node", f"no complete answer to {method} {target} within {self._seconds:g} s")
            error.add_note("check the node with veil node status, and retry later")
            raise error from None
        except (OSError, http.client.HTTPException):
            raise _not_running(self._data_dir) from None
        finally:
            self._http.close()  # the node may restart between two calls
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise _error(answer.status, published)
        return published


class _Connection(http.client.HTTPConnection):
    """A connection for one call. The timeout covers the whole call."""

    def connect(self) -> None:
        assert isinstance(self.timeout, float)
        ends = time.monotonic() + self.timeout
        super().connect()
        self.sock = _TimedSocket(self.sock, ends)


class _TimedSocket(socket.socket):
    """A socket with a deadline: slow partial data does not restart the timeout."""

    def __init__(self, connected: socket.socket, ends: float) -> None:
        super().__init__(connected.family, connected.type, connected.proto, connected.detach())
        self._ends = ends

    def sendall(self, data: Any, flags: int = 0) -> None:
        self._set_left()
        super().sendall(data, flags)

    def recv_into(self, *given: Any) -> int:
        self._set_left()
        return super().recv_into(*given)

    def _set_left(self) -> None:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(left)


def _not_running(data_dir: Path) -> Unavailable:
    error = Unavailable("node", f"no node is running in {data_dir}")
    error.add_note(f"start it with: veil node start --data-dir {data_dir}")
    return error


def _error(status: int, published: bytes) -> VeilError:
    try:
        error_response = json.loads(published)["error"]
        error = _BY_KIND[error_response["kind"]](error_response["what"], error_response["reason"])
        for hint in error_response.get("hints", ()):
            error.add_note(hint)
    except (ValueError, KeyError, TypeError, RecursionError):
        return Malformed("node", f"unexpected answer with HTTP status {status}")
    return error
