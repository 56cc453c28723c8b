"""Another VEEN hub as a backend: the statement is an entry of its log, and the proof is evidence for anyone."""

from veen.bridge.anchors.statement import AnchorStatement
from veen.client import evidence_verify
from veen.client.client import Client
from veen.core import Unavailable, Unverified

STREAM = "anchors"


class OtherHub:
    """A stream of another hub. `pin` is that hub's id or a fingerprint: the evidence must be its word."""

    kind = "hub"

    def __init__(self, client: Client | None, pin: bytes, stream: str = STREAM) -> None:
        """Without a client it can only verify, which asks nobody."""
        self._client = client
        self._pin = pin
        self._stream = stream

    @property
    def place(self) -> str:
        return f"{self._client.url if self._client else self._pin.hex()}#{self._stream}"

    async def publish(self, statement: AnchorStatement) -> bytes:
        if self._client is None:
            raise Unavailable("the hub to publish at is not known")
        sent = await self._client.send(self._stream, statement.encode(), schema=statement.SCHEMA)
        claim = f"anchor of {statement.root.hex()}"
        shown = await self._client.evidence(
            self._stream, [sent.stream_seq], claim=claim, disclose=True, epoch=sent.epoch
        )
        return shown.encode()

    async def verify(self, statement: AnchorStatement, proof: bytes) -> int:
        report = evidence_verify.verify(proof, self._pin)
        for entry in report.entries:
            if entry.opened is None or entry.opened.header.schema != statement.SCHEMA:
                continue
            if entry.opened.body == statement.encode():
                return entry.receipt.hub_ts
        raise Unverified("anchor evidence", "it shows no entry that says this")
