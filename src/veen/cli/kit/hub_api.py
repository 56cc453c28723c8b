"""HTTP client of the operator's commands: status, probes, metrics, checkpoints.

Errors: `Unavailable` if there is no response, `Malformed` if the response is not from a hub, and `Refused` with the
hub's code if the hub rejects the request.
"""

import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import httpx

from plumbing.cli.command import Misuse
from veen.cli.kit.exit_status import hinted
from veen.client.exchange import BlockingExchange, TimedOut, no_answer
from veen.client.read_access import ReadSigner, certified, signer_from_environment, trusting
from veen.core import (
    HubIdentity,
    Limits,
    Malformed,
    Profile,
    Receipt,
    Refused,
    Unavailable,
    naming,
    strict_json,
    wire_json,
)
from veen.core.cbor import Wire
from veen.core.envelopes import (
    ClockAcceptance,
    EpochList,
    ErrorEnvelope,
    ReceiptRequest,
    ReceiptResponse,
    SubmitResponse,
)
from veen.core.retention import PRUNED

W = TypeVar("W", bound=Wire)
_TIMEOUT_S = 10.0  # for a request and its whole response
_MAX_RESPONSE_BYTES = 1 << 24
_CBOR = "application/cbor"
_UNAUTHORIZED = 401
_OPERATOR_TOKEN = "VEEN_OPERATOR_TOKEN"


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    content_type: str
    body: bytes


class Readiness(NamedTuple):
    """The response of a hub's /readyz."""

    ready: bool
    reason: str  # why the hub does not accept messages; empty if it does
    bad_states: tuple[str, ...]  # including those in which it still accepts messages


class HubApi:
    """One hub. A `local` hub runs on this machine: proxies are bypassed, and its own `cert`, if given, is trusted."""

    def __init__(
        self, url: str, cert: Path | None = None, *, local: bool = False, timeout_s: float = _TIMEOUT_S
    ) -> None:
        self.url = url
        self.timeout_s = timeout_s  # for a request and its whole response
        headers = {"accept-encoding": "identity"}
        http = httpx.AsyncClient(base_url=url, headers=headers, verify=_trust(url, cert), trust_env=not local)
        self._http = BlockingExchange(http)
        self.reads: ReadSigner | None = None  # signs what the hub answers only to known readers
        self._token = os.environ.get(_OPERATOR_TOKEN) if local else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def status(self) -> dict[str, Any]:
        """GET /tooling/status."""
        found = self._json(self._ask("GET", "/tooling/status"))
        if not {"hub_id", "hub_pk", "identity", "labels", "entries"} <= found.keys():
            raise self._no_hub("fields are missing from its status")
        return found

    def identity(self) -> HubIdentity:
        """Return the hub's identity record, its chain verified. The caller must still compare its `hub_id` to a pin."""
        record = wire_json.decode(HubIdentity, strict_json.encode(self.status()["identity"]))
        record.verify_chain()
        return record

    def readiness(self) -> Readiness:
        """Ask whether the hub accepts messages, and for its bad states."""
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

    def post(self, path: str, request: Wire, expected: type[W], token: str | None = None) -> W:
        """Send one request in CBOR, with the operator's token if it needs one."""
        headers = {"content-type": _CBOR} | ({"authorization": f"Bearer {token}"} if token else {})
        answer = self._checked(self._ask("POST", path, request.encode(), headers))
        return expected.decode(answer.body)

    def get(self, path: str, expected: type[W], token: str | None = None) -> W:
        """Read one object in CBOR, with the operator's token if it needs one."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return expected.decode(self._checked(self._ask("GET", path, headers=headers)).body)

    def accept_clock(self, wall_ts: int, operator_token: str) -> dict[str, Any]:
        """Let the hub follow its wall clock, which shows about `wall_ts`. Returns the clock of its status."""
        headers = {"content-type": _CBOR, "authorization": f"Bearer {operator_token}"}
        return self._json(self._ask("POST", "/tooling/clock", ClockAcceptance(wall_ts).encode(), headers))

    def lower_limits(self, wanted: Limits, operator_token: str) -> Receipt:
        """Let the hub log lower limits. Returns the receipt of that entry."""
        headers = {"content-type": _CBOR, "authorization": f"Bearer {operator_token}"}
        answer = self._checked(self._ask("POST", "/tooling/limits", wanted.encode(), headers))
        return SubmitResponse.decode(answer.body).receipt

    def epochs(self, stream_id: bytes, token: str | None = None) -> list[int]:
        """Return the epochs in which the hub says that a stream has entries, ascending.

        Raises `Malformed` if the list does not ascend, or continues behind the epochs that the hub may accept.
        """
        last = self._last_epoch()
        found: list[int] = []
        following: int | None = 0
        while following is not None:
            page = self.get(f"/tooling/epochs?stream={stream_id.hex()}&epoch_min={following}", EpochList, token)
            listed = [row.epoch for row in page.epochs]
            places = [following - 1, *listed]
            if any(after <= before for before, after in pairwise(places)) or places[-1] > last:
                raise Malformed("epochs", f"the hub lists {listed} from epoch {following} on, and {last} is the last")
            if page.next_epoch is not None and not max(following, places[-1]) < page.next_epoch <= last:
                raise Malformed("epochs", f"the list goes on at epoch {page.next_epoch} after {places[-1]}")
            found += listed
            following = page.next_epoch
        return found

    def _last_epoch(self) -> int:
        """The last epoch in which the hub may accept messages: the present one, and its allowed skew."""
        status = self.status()
        profile = wire_json.decode(Profile, strict_json.encode(status["profile"]))
        if not profile.epoch_sec:
            return 0
        skew = int(status["limits"]["max_epoch_skew_sec"])
        # Its own time counts only as far as ours allows it: otherwise a list could continue for ever.
        now = min(int(status["hub_ts"]), int(time.time()) + profile.epoch_sec)
        return profile.epochs_around(now, skew).stop  # one more, as an epoch may begin between two requests

    def labels(self, stream_id: bytes, token: str | None = None) -> set[bytes]:
        """Return the labels of a stream in the present epoch and in those in which it has entries."""
        routing_key, present = self.identity().routing_key, int(self.status()["epoch"])
        return {naming.label(routing_key, stream_id, epoch) for epoch in {present, *self.epochs(stream_id, token)}}

    def newest_label(self, stream_id: bytes) -> bytes:
        """Return the label of a stream in the newest epoch in which it has entries."""
        profile = wire_json.decode(Profile, strict_json.encode(self.status()["profile"]))
        found = self.epochs(stream_id) if profile.epoch_sec else [0]
        if not found:
            raise Misuse("the stream has no entries", "check --stream or --label")
        return naming.label(self.identity().routing_key, stream_id, found[-1])

    def size(self, label: bytes) -> int:
        """Return the number of entries of a label by binary search over receipts: the data plane has no such query."""
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
            return refused.detail_enum == PRUNED
        return True

    def _ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> "_Answer":
        """Send a request; again with credentials if the hub answers only known readers."""
        found = self._once(method, path, body, headers)
        if "authorization" in (headers or {}) or not self._wants_reader(found):
            return found
        if self._token:
            return self._once(method, path, body, {**(headers or {}), "authorization": f"Bearer {self._token}"})
        status = self.status()
        if self.reads is None and status.get("read_access") == "signed":
            self.reads = signer_from_environment(self.identity().hub_id, int(status["hub_ts"]))
        while self.reads is not None:
            signed = self.reads.headers(method, path, body)
            found = self._once(method, path, body, {**(headers or {}), **signed})
            try:
                self._checked(found)
            except Refused as refused:
                if self.reads.again(refused):
                    continue
            break
        return found

    def _wants_reader(self, answer: "_Answer") -> bool:
        """Whether the hub refused because it answers only known readers."""
        if answer.status != _UNAUTHORIZED:
            return False
        try:
            self._checked(answer)
        except Refused as refused:
            return "read_access" in refused.detail
        except Malformed:
            return False
        return False

    def _once(self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None) -> "_Answer":
        try:
            found, content = self._http(
                method, path, limit_s=self.timeout_s, most=_MAX_RESPONSE_BYTES, content=body, headers=headers
            )
            return _Answer(found.status_code, found.headers.get("content-type", ""), content)
        except TimedOut as error:
            raise hinted(error, "the hub is overloaded, or the network is slow: try again later") from None
        except httpx.TransportError as error:
            failed = no_answer(self.url, f"no hub answers at {self.url}", error)
            if isinstance(failed, Unavailable):
                hinted(failed, "check the address, and whether the hub runs: veen hub status --data-dir DIR")
            raise failed from None

    def _checked(self, answer: "_Answer") -> "_Answer":
        """Return a successful response. Raises `Refused` with the hub's error otherwise."""
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
            raise self._no_hub("its response is not a JSON object")
        return found

    def _no_hub(self, why: str) -> Malformed:
        return hinted(Malformed(self.url, f"the response is not from a hub: {why}"), "check the address")


def _trust(url: str, cert: Path | None) -> ssl.SSLContext | bool:
    if not url.startswith("https:"):
        return False
    if cert is None:
        return certified(url, partial(trusting, url))()
    context = ssl.create_default_context()
    context.load_verify_locations(cert)
    context.check_hostname = False  # the certificate need not name the loopback address
    return certified(url, lambda: context)()
