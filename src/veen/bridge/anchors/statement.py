"""The published statement, the proof of a backend, and the anchor file that stores both with the checkpoint."""

import secrets
from typing import Annotated, ClassVar, Protocol

from veen.bridge.bundle import BundleSource
from veen.core import Checkpoint, Unverified, naming
from veen.core.cbor import Bstr, Bytes, Constant, Nested, Text, Uint, VersionField, Wire, int_map, text_map
from veen.core.limits import MAX_MSG_BYTES, MAX_TEXT_BYTES
from veen.core.origin import lineage
from veen.overlays.event import Event

KIND = "veen.anchor.v1"
NONCE_BYTES = 16
MAX_PROOF_BYTES = 4 * MAX_MSG_BYTES
MAX_ANCHOR_BYTES = 2 * MAX_PROOF_BYTES


@text_map("anchor.v1")
class AnchorStatement(Event):
    """`anchor.v1`: a root at a time. The nonce distinguishes two publications of one root."""

    root: Annotated[bytes, Bstr()]
    epoch: Annotated[int, Uint()]
    ts: Annotated[int, Uint()]
    nonce: Annotated[bytes, Bstr(NONCE_BYTES)]

    NAME: ClassVar = "anchor.v1"
    SCHEMA: ClassVar = naming.schema_id(NAME)

    @classmethod
    def of(cls, checkpoint: Checkpoint, ts: int) -> "AnchorStatement":
        return cls(checkpoint.mmr_root, checkpoint.epoch, ts, secrets.token_bytes(NONCE_BYTES))


@int_map("anchor_ref")
class AnchorRef(Wire):
    """`anchor_ref`: the published statement, the backend, and its proof."""

    kind: Annotated[str, Text(MAX_TEXT_BYTES)]
    place: Annotated[str, Text(MAX_TEXT_BYTES)]  # display only; not verified
    statement: Annotated[AnchorStatement, Nested(AnchorStatement)]
    proof: Annotated[bytes, Bytes(MAX_PROOF_BYTES)]


class Backend(Protocol):
    """A system outside the hub that stores statements unchanged."""

    kind: str

    @property
    def place(self) -> str:
        """The location, for display."""
        ...

    async def publish(self, statement: AnchorStatement) -> bytes:
        """Publish and return the proof. Raises `Unavailable` if it was not accepted."""
        ...

    async def verify(self, statement: AnchorStatement, proof: bytes) -> int:
        """The time of publication according to the backend. Raises `Unverified` if it was never published."""
        ...


async def anchor_publish(backend: Backend, root: bytes, epoch: int, ts: int, nonce: bytes) -> bytes:
    """ANCHOR0.1: publish a root and return its `anchor_ref`."""
    statement = AnchorStatement(root, epoch, ts, nonce)
    proof = await backend.publish(statement)
    await backend.verify(statement, proof)  # never return a proof that does not verify
    return AnchorRef(backend.kind, backend.place[:MAX_TEXT_BYTES], statement, proof).encode()


async def anchor_verify(backend: Backend, root: bytes, anchor_ref: bytes) -> int:
    """ANCHOR0.1: the time the root was anchored. Raises `Malformed` or `Unverified` if it was not."""
    ref = AnchorRef.decode(anchor_ref)
    if ref.kind != backend.kind:
        raise Unverified("anchor", f"made with backend {ref.kind!r}, not {backend.kind!r}")
    if ref.statement.root != root:
        raise Unverified("anchor", "belongs to another root")
    return await backend.verify(ref.statement, ref.proof)


@int_map("anchored checkpoint", Constant(KIND, name="kind"), VersionField())
class Anchored(Wire):
    """A checkpoint, its `anchor_ref`, and the metadata of the hub that signed it."""

    source: Annotated[BundleSource, Nested(BundleSource)]
    stream_id: Annotated[bytes, Bstr()]
    checkpoint: Annotated[Checkpoint, Nested(Checkpoint)]
    anchor_ref: Annotated[bytes, Bytes(MAX_ANCHOR_BYTES)]

    @property
    def ref(self) -> AnchorRef:
        return AnchorRef.decode(self.anchor_ref)

    def check_checkpoint(self, pin: bytes) -> None:
        """Raise unless the pinned hub signed the checkpoint for this stream."""
        source, checkpoint = self.source, self.checkpoint
        source.identity.verify(source.signature, pin)
        line = lineage(source.identity, source.origin)
        hub = line.identity_at(checkpoint.label_curr, checkpoint.upto_seq)
        hub.verify_checkpoint(checkpoint, source.profile)
        checkpoint.check_labels(source.profile, source.identity.routing_key, self.stream_id)
        if self.ref.statement.epoch != checkpoint.epoch:
            raise Unverified("anchor", "its epoch differs from the checkpoint")
