"""A hub over HTTP, as the operator's commands ask it: status, probes, metrics, checkpoints.

Whatever goes wrong is one of the project's errors: no answer is `Unavailable`, an answer that no hub gives is
`Malformed`, and what the hub refuses is `Refused` as the hub said it.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import httpx

from plumbing.cli.help_text import lowered
from veen.cli.kit.exit_status import hinted
from veen.client.exchange import BlockingExchange, TimedOut, reason_of
from veen.core import HubIdentity, Malformed, Refused, Unavailable, strict_json, wire_json
from veen.core.cbor import Wire
from veen.core.envelopes import ErrorEnvelope, ReceiptRequest, ReceiptResponse

W = TypeVar("W", bound=Wire)
_TIMEOUT_S = 10.0  # for one whole exchange
_MOST_BYTES = 1 << 24
_CBOR = "application/cbor"


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    content_type: str
    body: bytes


class Readiness(NamedTuple):
    """What a hub's /readyz says."""

    ready: bool
    reason: str  # why it does not accept; empty where it does
    bad_states: tuple[str, ...]  # also those in which it accepts


class HubApi:
    """One hub. `local` is of this machine: no proxy leads to it, and its own `cert`, if it has one, is trusted."""

    def __init__(
        self, url: str, cert: Path | None = None, *, local: bool = False, timeout_s: float = _TIMEOUT_S
    ) -> None:
        self.url = url
        self._timeout_s = timeout_s
        headers = {"accept-encoding": "identity"}
        http = httpx.AsyncClient(base_url=url, headers=headers, verify=_trust(cert), trust_env=not local)
        self._http = BlockingExchange(http)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def status(self) -> dict[str, Any]:
        """GET /tooling/status."""
        found = self._json(self._ask("GET", "/tooling/status"))
        if not {"hub_id", "hub_pk", "identity", "labels", "entries"} <= found.keys():
            raise self._no_hub("its status lacks what a hub says of itself")
        return found

    def identity(self) -> HubIdentity:
        """The hub's keys as it tells them, chained to its `hub_id`. Nothing says yet that it is the hub you mean."""
        record = wire_json.decode(HubIdentity, strict_json.encode(self.status()["identity"]))
        record.verify_chain()
        return record

    def readiness(self) -> Readiness:
        """Whether it accepts, and what is wrong with it."""
        self._checked(self._ask("GET", "/healthz"))
        answer = self._ask("GET", "/readyz")
        if answer.status not in (200, 503):
            self._checked(answer)
        found = self._json(answer)
        bad = found.get("bad_states")
        states = tuple(map(str, bad)) if isinstance(bad, list) else ()
        return Readiness(found.get("ready") is True, str(found.get("reason", "")), states)

    def metrics(self) -> str:
        return self._checked(self._ask("GET", "/metrics")).body.decode(errors="replace")

    def post(self, path: str, request: Wire, expected: type[W]) -> W:
        """One request of the data plane, in CBOR."""
        answer = self._checked(self._ask("POST", path, request.encode(), {"content-type": _CBOR}))
        return expected.decode(answer.body)

    def size(self, label: bytes) -> int:
        """How many entries a label has. The data plane does not say, so places are tried: O(log n) questions."""
        low, high = 0, 1
        while self._has(label, high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._has(label, middle) else (low, middle)
        return low

    def _has(self, label: bytes, stream_seq: int) -> bool:
        try:
            self.post("/v1/receipt", ReceiptRequest(label, stream_seq), ReceiptResponse)
        except Refused as refused:
            if refused.code != "E.NOT_FOUND":
                raise
            return False
        return True

    def _ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> "_Answer":
        try:
            found, content = self._http(
                method, path, limit_s=self._timeout_s, most=_MOST_BYTES, content=body, headers=headers
            )
            return _Answer(found.status_code, found.headers.get("content-type", ""), content)
        except TimedOut as error:
            raise hinted(error, "the hub is overloaded, or the network is slow: try again later") from None
        except httpx.TransportError as error:
            raise hinted(
                Unavailable(f"no hub answers at {self.url}: {lowered(reason_of(error))}"),
                "check the address, and that the hub runs: veen hub status --data-dir DIR",
            ) from None

    def _checked(self, answer: "_Answer") -> "_Answer":
        """The answer, if it is not a refusal."""
        if 200 <= answer.status < 300:
            return answer
        try:
            if answer.content_type.startswith("application/json"):
                raise wire_json.decode(ErrorEnvelope, answer.body).refused()
            raise ErrorEnvelope.decode(answer.body).refused()
        except Malformed:
            raise self._no_hub(f"HTTP status {answer.status}") from None

    def _json(self, answer: "_Answer") -> dict[str, Any]:
        if answer.status != 503:
            self._checked(answer)
        try:
            found = strict_json.decode(answer.body, "answer")
        except Malformed:
            found = None
        if not isinstance(found, dict):
            raise self._no_hub("its answer is not JSON")
        return found

    def _no_hub(self, why: str) -> Malformed:
        return hinted(Malformed(self.url, f"it does not answer as a hub does: {why}"), "check the address")


def _trust(cert: Path | None) -> ssl.SSLContext | bool:
    if cert is None:
        return True
    context = ssl.create_default_context()
    context.load_verify_locations(cert)
    context.check_hostname = False  # its name need not be that of the loopback address it is asked at
    return context
