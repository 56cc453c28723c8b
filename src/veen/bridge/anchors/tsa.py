"""A time-stamping authority as a backend. RFC 3161.

It signs the hash of a statement together with the time. The token holds by itself, under the authority's root
certificate, whenever it is looked at.
"""

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

import httpx

from plumbing.cli.extras import install_hint
from veen.bridge.anchors.statement import MAX_PROOF_BYTES, AnchorStatement
from veen.client.exchange import TimedOut, exchange, reason_of
from veen.core import Malformed, Unavailable, Unverified

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from rfc3161_client import TimeStampResponse

_ASKED, _ANSWERED = "application/timestamp-query", "application/timestamp-reply"
_ANSWER_S = 30.0


class TimeStampingAuthority:
    """One authority, by its address and the root certificates that its own must lead to."""

    kind = "tsa"

    def __init__(self, url: str | None, roots: Path, *, answer_s: float = _ANSWER_S) -> None:
        """Without `url` it can only verify. Raises `Unavailable` where the certificates cannot be read."""
        from cryptography import x509

        self.url = url
        self._answer_s = answer_s
        try:
            self._roots: list[Certificate] = x509.load_pem_x509_certificates(roots.read_bytes())
        except (OSError, ValueError) as error:
            raise Unavailable(f"{roots}: no certificates in PEM can be read from it: {error}") from None

    @property
    def place(self) -> str:
        return self.url or "a time-stamping authority"

    async def publish(self, statement: AnchorStatement) -> bytes:
        rfc3161 = _library()
        if self.url is None:
            raise Unavailable("the address of the time-stamping authority is not known")
        data = statement.encode()
        builder = rfc3161.TimestampRequestBuilder().data(data).hash_algorithm(rfc3161.HashAlgorithm.SHA256)
        request = builder.nonce(nonce=True).cert_request(cert_request=True).build()
        answer = await self._post(request.as_bytes())
        token = _decoded(answer)
        if _refusal(token):
            raise Unavailable(f"{self.url}: it refuses: {_refusal(token)}")
        if token.tst_info.nonce != request.nonce:
            raise Unverified("time stamp", "it answers another request")
        return answer

    async def _post(self, query: bytes) -> bytes:
        assert self.url is not None
        try:
            async with httpx.AsyncClient(follow_redirects=False) as http:
                headers = {"content-type": _ASKED, "accept-encoding": "identity"}
                answer, content = await exchange(
                    http, "POST", self.url, limit_s=self._answer_s, content=query, headers=headers
                )
        except TimedOut as late:
            late.add_note("try again later, or use another time-stamping authority")
            raise
        except httpx.HTTPError as error:
            raise Unavailable(f"{self.url}: {reason_of(error)}") from None
        kind = answer.headers.get("content-type", "").partition(";")[0]
        if answer.status_code != httpx.codes.OK or kind != _ANSWERED or len(content) > MAX_PROOF_BYTES:
            raise Unavailable(f"{self.url}: it answers {answer.status_code} with {kind or 'nothing'}, not a time stamp")
        return content

    async def verify(self, statement: AnchorStatement, proof: bytes) -> int:
        rfc3161 = _library()
        token = _decoded(proof)
        if _refusal(token):
            raise Unverified("time stamp", f"it is a refusal: {_refusal(token)}")
        builder = rfc3161.VerifierBuilder()
        for root in self._roots:
            builder = builder.add_root_certificate(root)
        try:
            builder.build().verify_message(token, statement.encode())
        except (rfc3161.VerificationError, ValueError) as error:
            raise Unverified("time stamp", str(error)) from None
        return int(token.tst_info.gen_time.timestamp())


def _decoded(data: bytes) -> "TimeStampResponse":
    try:
        return cast("TimeStampResponse", _library().decode_timestamp_response(data))
    except ValueError as error:
        raise Malformed("time stamp", str(error)) from None


def _refusal(token: "TimeStampResponse") -> str | None:
    """What a token says that is none."""
    status = _library().PKIStatus
    if status(token.status) is status.GRANTED:
        return None
    return ", ".join(map(str, token.status_string or ())) or str(status(token.status).name).lower()


def _library() -> ModuleType:
    try:
        import rfc3161_client
    except ImportError:
        needed = "rfc3161-client must be installed for time stamps: "
        raise Unavailable(needed + install_hint("anchor")) from None
    return rfc3161_client
