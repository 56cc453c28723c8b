"""Client of the local API of the VEIL node on this machine. Anyone may have sent the payloads it delivers."""

import base64
import binascii
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from veen.client import local_files
from veen.client.exchange import TimedOut, exchange, reason_of
from veen.core import Malformed, Unavailable
from veen.core.wire_json import Fields

_MAX_FILE_BYTES = 1 << 16
# One page of events is at most this long; one event is at most one VEIL object.
_PAGE_EVENTS = 32
_MAX_ANSWER_BYTES = 1 << 26
_ANSWER_TIMEOUT_S = 90.0  # longer than the node's own long poll
_WHAT = "VEIL node"


@dataclass(frozen=True, slots=True)
class Delivered:
    """One payload and the key of the node that signed it. The sender says nothing about the payload's truth."""

    seq: int
    sender: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class FeedPage:
    """A page of node events: the first and last number that the node stores, the last one read, and the payloads."""

    first_seq: int
    last_seq: int
    upto_seq: int
    delivered: tuple[Delivered, ...]


class VeilNode:
    """The local node. Use as an async context manager."""

    def __init__(self, url: str, token: str, *, answer_s: float = _ANSWER_TIMEOUT_S) -> None:
        self.url = url
        self._answer_s = answer_s
        self._http = httpx.AsyncClient(
            base_url=url,
            verify=False,  # plain HTTP on loopback: there is no certificate
            headers={"authorization": f"Bearer {token}", "accept-encoding": "identity"},
            trust_env=False,
        )

    @classmethod
    def of(cls, folder: Path) -> "VeilNode":
        """The running node of a folder. `api.json` has its address, `api.token` its access token."""
        try:
            where = json.loads(local_files.read_file(folder / "api.json", _MAX_FILE_BYTES))["url"]
            return cls(str(where), read_token(folder / "api.token"))
        except (Unavailable, ValueError, KeyError, TypeError, RecursionError):
            away = Unavailable(f"the VEIL node of {folder} is not running")
            away.add_note(f"start it with: veil node start --data-dir {folder}")
            raise away from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def pubkey(self) -> bytes:
        return (await self._request("GET", "/v1/status")).hash("pubkey")

    async def join(self, name: str, secret: bytes, namespace: int) -> str:
        """Join the group of all holders of a secret. Returns the group id."""
        asked = {"name": name, "secret": secret.hex(), "namespace": namespace}
        return (await self._request("POST", "/v1/groups", asked)).text("group_id")

    async def subscribe(self, group: str, namespace: int) -> None:
        await self._request("POST", "/v1/subscriptions", {"kind": "group", "group": group, "namespace": namespace})

    async def publish(self, payload: bytes, group: str, namespace: int) -> int:
        """Publish to a group. The payload is on the node's disk when this returns; it is sent when peers connect."""
        coded = base64.b64encode(payload).decode()
        asked = {"payload_b64": coded, "group": group, "namespace": namespace}
        return (await self._request("POST", "/v1/publish", asked)).number("message_id")

    async def page(self, since: int, namespace: int, wait_s: int = 0) -> FeedPage:
        """Payloads delivered in a namespace after event `since`; waits up to `wait_s` if there are no events."""
        query = {"since": since, "limit": _PAGE_EVENTS, "wait_s": wait_s}
        found = await self._request("GET", "/v1/events", query=query)
        events = found.field("events")
        if not isinstance(events, list):
            raise Malformed(_WHAT, "events is not a list")
        upto, delivered = since, []
        for event in (Fields.of(_WHAT, one) for one in events):
            upto = event.number("seq")
            data = event.found.get("data")
            if event.found.get("kind") == "delivered" and isinstance(data, dict) and data.get("namespace") == namespace:
                content = Fields(_WHAT, data)
                sender = content.hash("sender") if data.get("sender") else b""
                delivered.append(Delivered(upto, sender, _payload(content)))
        return FeedPage(found.number("first_seq"), found.number("last_seq"), upto, tuple(delivered))

    async def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, query: dict[str, Any] | None = None
    ) -> Fields:
        try:
            content = None if body is None else json.dumps(body).encode()
            headers = None if body is None else {"content-type": "application/json"}
            answer, received = await exchange(
                self._http,
                method,
                path,
                limit_s=self._answer_s,
                most=_MAX_ANSWER_BYTES,
                content=content,
                headers=headers,
                params=query,
            )
        except TimedOut as late:
            late.add_note("veil node status shows whether the VEIL node works")
            raise
        except httpx.HTTPError as error:
            away = Unavailable(f"the VEIL node at {self.url} does not answer: {reason_of(error)}")
            away.add_note("veil node status shows whether it runs")
            raise away from None
        try:
            found = json.loads(received)
        except (ValueError, RecursionError):
            raise Malformed(_WHAT, f"answer {answer.status_code} is not JSON") from None
        fields = Fields.of(_WHAT, found)
        if answer.is_error:
            raise _refused(answer.status_code, fields.found)
        return fields


def read_token(path: Path) -> str:
    """Read the API token from a file that only its owner can read."""
    try:
        return local_files.read_file(path, _MAX_FILE_BYTES).decode("ascii").strip()
    except UnicodeDecodeError:
        raise Malformed(str(path), "not a token") from None


def _refused(status: int, found: dict[str, Any]) -> Unavailable:
    """A refusal may be temporary: a full queue empties, the owner may permit a group."""
    details = found.get("error")
    details = details if isinstance(details, dict) else {}
    what, reason = details.get("what", ""), details.get("reason", "no reason")
    error = Unavailable(f"the VEIL node rejected the request ({status}): {what}: {reason}")
    for hint in details.get("hints") or ():
        error.add_note(str(hint))
    return error


def _payload(content: Fields) -> bytes:
    if content.found.get("invitation"):
        return b""  # a group invitation, which the node has processed itself
    try:
        return base64.b64decode(content.text("payload_b64"), validate=True)
    except binascii.Error:
        raise Malformed(_WHAT, "payload_b64 is not base64") from None
