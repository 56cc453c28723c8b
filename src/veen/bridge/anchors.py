"""Anchors: a checkpoint bound to something that its hub cannot change. 001, ANCHOR0.

A statement is published to a backend (`anchor_backends`), once or periodically. The anchor file stores the backend's
proof with the checkpoint, and anyone can verify it.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Protocol

from veen.bridge.bundle import BundleSource
from veen.client import local_files
from veen.client.client import Client
from veen.client.local_files import DISK
from veen.core import Checkpoint, Malformed, Unavailable, Unverified, naming
from veen.core.cbor import Bstr, Bytes, Constant, Nested, Text, Uint, VersionField, Wire, int_map, text_map
from veen.core.hashing import h
from veen.core.hub_identity import lineage
from veen.core.limits import MAX_MSG_BYTES, MAX_TEXT_BYTES
from veen.overlays.event import Event

KIND = "veen.anchor.v1"
ANCHOR_SUFFIX = ".anchor"
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


class AnchorStore:
    """A folder with one file per anchored checkpoint, named by label, number and backend."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, anchored: Anchored) -> Path:
        """Store an anchor durably. Storing it again gives the same file."""
        data = anchored.encode()
        checkpoint = anchored.checkpoint
        place = f"{checkpoint.label_curr.hex()}-{checkpoint.upto_seq:020}"
        path = self.folder / f"{place}-{anchored.ref.kind}-{h(data).hex()[:16]}{ANCHOR_SUFFIX}"
        DISK.make_folder(self.folder)
        DISK.write_file(path, data)
        DISK.sync_folder(self.folder)
        return path

    def __iter__(self) -> Iterator[tuple[Path, Anchored]]:
        """All anchors, by label and number. Raises `Malformed` for a file that is not an anchor."""
        for path in sorted(self.folder.glob(f"*{ANCHOR_SUFFIX}")):
            yield path, read_anchor(path)

    def last(self, label: bytes, kind: str) -> Anchored | None:
        """The anchor of a label with this kind of backend that covers most entries."""
        paths = sorted(self.folder.glob(f"{label.hex()}-*-{kind}-*{ANCHOR_SUFFIX}"))
        return read_anchor(paths[-1]) if paths else None


def read_anchor(path: Path) -> Anchored:
    try:
        return Anchored.decode(local_files.read_file(path, 2 * MAX_ANCHOR_BYTES))
    except Malformed as error:
        raise Malformed(f"{path} ({KIND})", error.reason) from None


@dataclass(frozen=True, slots=True)
class Cadence:
    """The next anchor is due after `entries` new entries, or after `seconds` if there is any new entry."""

    entries: int | None = None
    seconds: int | None = None

    def __post_init__(self) -> None:
        given = [one for one in (self.entries, self.seconds) if one is not None]
        if not given or any(one < 1 for one in given):
            raise ValueError("a cadence needs entries, seconds or both, each at least 1")

    def due(self, last: tuple[int, int] | None, size: int, now: int) -> bool:
        """`last` is the size and time of the previous anchor, None if there is none."""
        anchored, since = last or (0, 0)
        if size <= anchored:
            return False
        by_count = self.entries is not None and size - anchored >= self.entries
        return by_count or (self.seconds is not None and now - since >= self.seconds)


@dataclass(frozen=True, slots=True)
class PublishedAnchor:
    """A verified anchor and its file."""

    path: Path
    anchored: Anchored


async def publish(
    client: Client, stream: str, backend: Backend, store: AnchorStore, *, upto_seq: int | None = None
) -> PublishedAnchor:
    """Anchor the checkpoint of a stream and store the `anchor_ref` with it."""
    stream_id, epoch = naming.stream_id(stream), client.epoch()
    checkpoint = await client.checkpoint(stream_id, upto_seq, epoch=epoch)
    statement = AnchorStatement.of(checkpoint, max(client.session.clock.now(), 0))
    ref = await anchor_publish(backend, statement.root, statement.epoch, statement.ts, statement.nonce)
    anchored = Anchored(BundleSource.of(client.session.trust.known), stream_id, checkpoint, ref)
    return PublishedAnchor(store.put(anchored), anchored)


async def run(
    client: Client, stream: str, backend: Backend, store: AnchorStore, cadence: Cadence, poll_s: float
) -> AsyncIterator[PublishedAnchor]:
    """Anchor a stream for ever. The store shows what was anchored before."""
    while True:
        found = await once(client, stream, backend, store, cadence)
        if found is not None:
            yield found
        await asyncio.sleep(poll_s)


async def once(
    client: Client, stream: str, backend: Backend, store: AnchorStore, cadence: Cadence
) -> PublishedAnchor | None:
    """Anchor a stream if it is due."""
    await client.status()
    follower = client.follower(stream)
    size, now = await follower.end(), client.session.clock.now()
    before = store.last(follower.label, backend.kind)
    last = None if before is None else (before.checkpoint.upto_seq, before.ref.statement.ts)
    if not cadence.due(last, size, now):
        return None
    return await publish(client, stream, backend, store, upto_seq=size)


async def verify(anchored: Anchored, backend: Backend, pin: bytes) -> int:
    """The time the checkpoint was anchored. Raises if the pinned hub did not sign it or the anchor does not verify."""
    anchored.check_checkpoint(pin)
    try:
        return await anchor_verify(backend, anchored.checkpoint.mmr_root, anchored.anchor_ref)
    except Unavailable as error:
        raise Unavailable(f"the anchor cannot be checked: {error}") from None
