"""The VEIL node on this machine, by its local API. What it gives is what anyone sent: bytes, and who signed them."""

import base64
import binascii
import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from veen.client import durable
from veen.client.exchange import TimedOut, exchange, reason_of
from veen.core import Malformed, Unavailable

_MOST_FILE = 1 << 16
# A page of events is never more than this; one event is never more than an object of VEIL.
_PAGE_EVENTS = 32
_MOST_ANSWER = 1 << 26
_ANSWER_S = 90.0  # longer than the node lets an event be waited for
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Delivered:
    """One payload, and the key of the node that signed it; which node that is says nothing about its truth."""

    seq: int
    sender: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class FeedPage:
    """What happened at the node after a number: how far this goes, what is still kept, and what was delivered."""

    first_seq: int
    last_seq: int
    upto_seq: int
    delivered: tuple[Delivered, ...]


class VeilNode:
    """An async context manager."""

    def __init__(self, url: str, token: str, *, answer_s: float = _ANSWER_S) -> None:
        self.url = url
        self._answer_s = answer_s
        self._http = httpx.AsyncClient(
            base_url=url,
            verify=False,  # loopback, in plain: there is no certificate to look at
            headers={"authorization": f"Bearer {token}", "accept-encoding": "identity"},
            trust_env=False,
        )

    @classmethod
    def of(cls, folder: Path) -> "VeilNode":
        """The node of a folder, while it runs: `api.json` says where, `api.token` lets in who can read it."""
        try:
            where = json.loads(durable.read_file(folder / "api.json", _MOST_FILE))["url"]
            return cls(str(where), read_token(folder / "api.token"))
        except (Unavailable, ValueError, KeyError, TypeError):
            away = Unavailable(f"the VEIL node of {folder} is not running")
            away.add_note(f"start it with: veil node start --data-dir {folder}")
            raise away from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def pubkey(self) -> bytes:
        return _key(await self._ask("GET", "/v1/status"), "pubkey")

    async def join(self, name: str, secret: bytes, namespace: int) -> str:
        """Be in the group of all who have a secret. Gives the group's id."""
        asked = {"name": name, "secret": secret.hex(), "namespace": namespace}
        return _text(await self._ask("POST", "/v1/groups", asked), "group_id")

    async def subscribe(self, group: str, namespace: int) -> None:
        await self._ask("POST", "/v1/subscriptions", {"kind": "group", "group": group, "namespace": namespace})

    async def publish(self, payload: bytes, group: str, namespace: int) -> int:
        """Say something to a group: on the node's disk when this returns, and sent when somebody is there."""
        coded = base64.b64encode(payload).decode()
        said = await self._ask("POST", "/v1/publish", {"payload_b64": coded, "group": group, "namespace": namespace})
        return _number(said, "message_id")

    async def page(self, since: int, namespace: int, wait_s: int = 0) -> FeedPage:
        """What was delivered in a namespace, of the events after a number; waits for one where there is none."""
        query = {"since": since, "limit": _PAGE_EVENTS, "wait_s": wait_s}
        found = await self._ask("GET", "/v1/events", query=query)
        events = found.get("events")
        if not isinstance(events, list):
            raise _strange("events that are no list")
        upto, delivered = since, []
        for event in events:
            upto = _number(event, "seq")
            data = event.get("data")
            if event.get("kind") == "delivered" and isinstance(data, dict) and data.get("namespace") == namespace:
                sender = _key(data, "sender") if data.get("sender") else b""
                delivered.append(Delivered(upto, sender, _payload(data)))
        return FeedPage(_number(found, "first_seq"), _number(found, "last_seq"), upto, tuple(delivered))

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, query: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        try:
            content = None if body is None else json.dumps(body).encode()
            headers = None if body is None else {"content-type": "application/json"}
            answer, said = await exchange(
                self._http,
                method,
                path,
                limit_s=self._answer_s,
                most=_MOST_ANSWER,
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
            found = json.loads(said)
        except ValueError:
            raise _strange(f"an answer {answer.status_code} that is not JSON") from None
        if not isinstance(found, dict):
            raise _strange("an answer that is no JSON object")
        if answer.is_error:
            raise _refused(answer.status_code, found)
        return found


def read_token(path: Path) -> str:
    """The token that a node's API asks for, from a file that its owner alone can read."""
    try:
        return durable.read_file(path, _MOST_FILE).decode("ascii").strip()
    except UnicodeDecodeError:
        raise Malformed(str(path), "it is no token") from None


def _refused(status: int, found: dict[str, Any]) -> Unavailable:
    """What a node says no to now, it may take later: its queue empties, its owner lets it join."""
    told = found.get("error")
    told = told if isinstance(told, dict) else {}
    error = Unavailable(f"the VEIL node said no ({status}): {told.get('what', '')}: {told.get('reason', 'no reason')}")
    for hint in told.get("hints") or ():
        error.add_note(str(hint))
    return error


def _strange(reason: str) -> Malformed:
    return Malformed("VEIL node", reason)


def _number(found: Any, name: str) -> int:
    number = found.get(name) if isinstance(found, dict) else None
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise _strange(f"{name} is missing, or no number")
    return number


def _text(found: dict[str, Any], name: str) -> str:
    text = found.get(name)
    if not isinstance(text, str):
        raise _strange(f"{name} is missing, or no text")
    return text


def _key(found: dict[str, Any], name: str) -> bytes:
    try:
        key = bytes.fromhex(_text(found, name))
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise _strange(f"{name} is no key")
    return key


def _payload(found: dict[str, Any]) -> bytes:
    if found.get("invitation"):
        return b""  # of a group, which the node has dealt with and shows to nobody
    try:
        return base64.b64decode(_text(found, "payload_b64"), validate=True)
    except binascii.Error:
        raise _strange("a payload that is not base64") from None
