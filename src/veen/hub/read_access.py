"""Read access to a hub. 001, COMP0.3; D17: by default everyone, because payloads are sealed.

`signed` needs a proof by a listed reader, a witness of the hub, or the subject of a capability that is valid now.
`mtls` needs a client certificate of a known authority. The operator token is sufficient for both. Health, metrics,
status and the description of the API are never restricted: they show nothing of the log but its size.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from plumbing.http.message import Request
from veen.core import Malformed, Refused, Unverified
from veen.core.cap_token import CapToken
from veen.core.limits import MAX_READ_PROOF_SEC
from veen.core.read_proof import SCHEME, ReadProof
from veen.hub.config import HubConfig, ReadAccess, need_operator

ATTACHMENTS = "/tooling/attachments/"
SUBSCRIBE = "/tooling/subscribe"
READS = frozenset(
    {
        *(("POST", f"/v1/{name}") for name in ("stream", "receipt", "proof", "checkpoint")),
        *(("POST", f"/tooling/{name}") for name in ("proof", "consistency", "checkpoint")),
        *(("GET", f"/tooling/{name}") for name in ("origin", "handovers", "checkpoints", "equivocation")),
        *(("GET", f"/tooling/{name}") for name in ("recoveries", "cosigned", "retention", "subscribe")),
        *(("GET", f"/tooling/{name}") for name in ("epochs", "time", "checkpoint")),
    }
)
_MAX_SUBSCRIBED = 65_536  # proofs that opened a subscription and have not ended


def is_read(method: str, path: str) -> bool:
    return (method, path) in READS or (method == "GET" and path.startswith(ATTACHMENTS))


@dataclass(eq=False, slots=True)
class ReadGate:
    """Checks every read before it is decoded. Used on the loop's thread."""

    config: HubConfig
    hub_id: bytes
    hub_ts: Callable[[], int]
    authorised: Callable[[bytes], CapToken]  # the valid capability of an auth_ref; raises `Refused`
    _subscribed: dict[bytes, int] = field(default_factory=dict)  # signature and end of a proof

    def check(self, request: Request) -> None:
        """Raise `Refused` unless the request may read."""
        access = self.config.read_access
        if access is ReadAccess.OPEN or not is_read(request.method, request.path):
            return
        given = request.headers.get(b"authorization", b"")
        if given[:7].lower() == b"bearer ":
            need_operator(self.config, request.headers)
        elif access is ReadAccess.MTLS:
            if request.certificate is None:
                raise self._refused("this hub answers only clients with a certificate of its authority")
        else:
            self._check_signed(request, given)

    def _check_signed(self, request: Request, given: bytes) -> None:
        if not given:
            raise self._refused(f"this hub answers only signed requests: Authorization: {SCHEME} PROOF")
        target = f"{request.path}?{request.query}" if request.query else request.path
        try:
            proof = ReadProof.from_header(given.decode("latin-1"))
            proof.check_time(self.hub_ts())
            self._check_reader(proof)
            proof.verify(self.hub_id, request.method, target, request.body)
        except (Malformed, Unverified) as error:
            raise self._refused(str(error)) from None
        if request.path == SUBSCRIBE:
            self._subscribe(proof)

    def _check_reader(self, proof: ReadProof) -> None:
        if proof.auth_ref is not None:
            if self.authorised(proof.auth_ref).subject_pk != proof.reader_pk:
                raise Unverified("read proof", "the capability is for another client")
        elif proof.reader_pk not in self.config.readers and proof.reader_pk not in self.config.witness_keys():
            raise Unverified("read proof", f"{proof.reader_pk.hex()} is not a reader of this hub")

    def _subscribe(self, proof: ReadProof) -> None:
        """A proof opens one subscription: an answer can be repeated, but a subscription goes on for ever."""
        hub_ts = self.hub_ts()
        if len(self._subscribed) >= _MAX_SUBSCRIBED:
            self._subscribed = {sig: end for sig, end in self._subscribed.items() if end >= hub_ts}
        if len(self._subscribed) >= _MAX_SUBSCRIBED:
            raise Refused("E.UNAVAILABLE", "too many subscriptions were opened", retry_after=MAX_READ_PROOF_SEC)
        if proof.sig in self._subscribed:
            raise self._refused("this proof has opened a subscription already")
        self._subscribed[proof.sig] = proof.not_after

    def _refused(self, why: str) -> Refused:
        detail: dict[str, int | str] = {"read_access": str(self.config.read_access), "hub_ts": self.hub_ts()}
        return Refused("E.UNAUTHORIZED", why, detail=detail)
