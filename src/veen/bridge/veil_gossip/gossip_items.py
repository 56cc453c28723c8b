"""The objects that travel: one item per VEIL object, typed, about one hub, in one encoding.

The content is a checkpoint with the hub metadata that verifies it, an evidence file, or a bundle. Content that is too
long for one item is cut into parts named by their hash, and a manifest lists them. Parts may arrive in any order and
from any sender; assembled content that does not match the manifest is discarded.

Anyone can send anything. Received items are verified offline, from their bytes and the known hub record; one that does
not verify raises `ItemRejected` with a countable reason.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Annotated

from veen.bridge import bundle
from veen.bridge.bundle import BundleFault
from veen.bridge.veil_gossip.veil_node import VeilNode
from veen.client import evidence
from veen.client.contradiction import shown_time
from veen.client.evidence import Evidence, EvidenceReport
from veen.client.trust import HubRecord
from veen.core import Checkpoint, HubIdentity, IdentitySignature, Malformed, Unverified
from veen.core.cbor import Bstr, Bytes, Constant, ListOf, Nested, Uint, VersionField, Wire, int_map
from veen.core.hashing import h, ht
from veen.core.hub_identity import lineage

KIND = "veen.carriage.v1"
# Fills the shards of one VEIL object well and leaves room for the item around it.
PART_BYTES = 88 * 1024
MAX_PAYLOAD_BYTES = PART_BYTES + 128
# A node keeps about twice this much unread data.
MAX_CONTENT_BYTES = 1 << 25
MAX_PARTS = -(-MAX_CONTENT_BYTES // PART_BYTES)


class ItemKind(IntEnum):
    CHECKPOINT = 1
    EVIDENCE = 2
    BUNDLE = 3
    MANIFEST = 4
    PART = 5

    @property
    def word(self) -> str:
        return self.name.lower()


@int_map("carriage item", Constant(KIND, name="kind"), VersionField())
class GossipItem(Wire):
    """One payload. `hub_id` is the hub that the content is about. The receiver verifies the content itself."""

    hub_id: Annotated[bytes, Bstr()]
    what: Annotated[int, Uint(least=ItemKind.CHECKPOINT, most=ItemKind.PART)]
    body: Annotated[bytes, Bytes(PART_BYTES)]


@int_map("carried checkpoint")
class ShownCheckpoint(Wire):
    """A checkpoint with the hub metadata known to its publisher, which may name keys that receivers do not know yet.

    Profile and origin of a hub never change and are known to the receiver, so they are not included.
    """

    identity: Annotated[HubIdentity, Nested(HubIdentity)]
    signature: Annotated[IdentitySignature, Nested(IdentitySignature)]
    checkpoint: Annotated[Checkpoint, Nested(Checkpoint)]


@int_map("carriage manifest")
class PartsManifest(Wire):
    """How long content was cut: every part except the last has PART_BYTES."""

    what: Annotated[int, Uint(least=ItemKind.CHECKPOINT, most=ItemKind.BUNDLE)]
    size: Annotated[int, Uint(least=PART_BYTES + 1, most=MAX_CONTENT_BYTES)]
    digest: Annotated[bytes, Bstr()]
    parts: Annotated[tuple[bytes, ...], ListOf(Bstr(name="part"), least=2, most=MAX_PARTS)]

    def flaw(self) -> str | None:
        wanted = -(-self.size // PART_BYTES)
        return None if len(self.parts) == wanted else f"{len(self.parts)} parts, but its size requires {wanted}"

    def holds(self, content: bytes) -> bool:
        """Whether this is the content that was cut."""
        return len(content) == self.size and digest_of(ItemKind(self.what), content) == self.digest


def part_name(data: bytes) -> bytes:
    return ht("veen/carriage-part", data)


def digest_of(what: ItemKind, content: bytes) -> bytes:
    """Identifies content, whether it came in one item or in parts."""
    return ht("veen/carriage", bytes((what,)) + content)


def items_of(hub_id: bytes, what: ItemKind, content: bytes) -> Iterator[GossipItem]:
    """The items for some content: one item, or a manifest followed by its parts."""
    if len(content) > MAX_CONTENT_BYTES:
        raise ValueError(f"{len(content)} bytes, the maximum is {MAX_CONTENT_BYTES}")
    if len(content) <= PART_BYTES:
        yield GossipItem(hub_id, what, content)
        return
    parts = [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)]
    manifest = PartsManifest(what, len(content), digest_of(what, content), tuple(map(part_name, parts)))
    yield GossipItem(hub_id, ItemKind.MANIFEST, manifest.encode())
    for part in parts:
        yield GossipItem(hub_id, ItemKind.PART, part)


# From the range that VEIL reserves for applications. Items in other namespaces are ignored.
NAMESPACE = 0x5645


def secret_of(hub_id: bytes) -> bytes:
    """The group secret, which anyone who knows the hub id can derive."""
    return ht("veen/carriage-meeting", hub_id)


class GossipGroup:
    """The VEIL group in which the clients of one hub exchange items."""

    def __init__(self, node: VeilNode, hub_id: bytes, group: str) -> None:
        self.node = node
        self.hub_id = hub_id
        self.group = group

    @classmethod
    async def join(cls, node: VeilNode, hub_id: bytes, group: str | None = None) -> "GossipGroup":
        """Join and subscribe to the group of the hub's clients, or subscribe to a group that the node is in."""
        if group is None:
            group = await node.join(f"veen-{hub_id.hex()[:16]}", secret_of(hub_id), NAMESPACE)
        await node.subscribe(group, NAMESPACE)
        return cls(node, hub_id, group)

    async def publish(self, item: GossipItem) -> int:
        return await self.node.publish(item.encode(), self.group, NAMESPACE)


class RejectReason(StrEnum):
    OVERSIZED = "oversized"  # longer than any item
    MALFORMED = "malformed"  # the bytes do not decode as the item or the object it names
    FOREIGN = "foreign"  # belongs to another hub
    AGAIN = "again"  # already received
    PARTS = "parts"  # the parts do not match the manifest
    FORKED = "forked"  # signed by another incarnation of the hub: two copies of it run, or one is out of date
    IDENTITY = "identity"  # the identity record is not the hub's, or does not continue the known one
    SIGNATURE = "signature"  # no hub key that was valid then signed it
    EVIDENCE = "evidence"  # the file proves nothing
    BUNDLE = "bundle"  # the bundle does not verify
    ROOM = "room"  # the inbox is full


class ItemRejected(Exception):
    def __init__(self, reason: RejectReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoint:
    """A checkpoint signed by a hub key, and the record that names the key."""

    checkpoint: Checkpoint
    record: HubRecord


def verify_checkpoint(body: bytes, known: HubRecord) -> VerifiedCheckpoint:
    """Decode and verify a checkpoint of the known hub. Raises `ItemRejected`."""
    try:
        shown = ShownCheckpoint.decode(body)
    except Malformed as error:
        raise ItemRejected(RejectReason.MALFORMED, error.reason) from None
    record = newer(known, shown.identity, shown.signature)
    found = shown.checkpoint
    try:
        # A fork's origin signed the entries that the fork kept.
        signer = lineage(record.identity, record.origin).identity_at(found.label_curr, found.upto_seq)
        signer.verify_checkpoint(found, record.profile)
    except Unverified as error:
        raise ItemRejected(RejectReason.SIGNATURE, error.reason) from None
    return VerifiedCheckpoint(found, record)


def verify_evidence(body: bytes, known: HubRecord) -> tuple[EvidenceReport, bytes]:
    """Verify evidence about the known hub. Also returns the hash of its content without claim and time.

    Raises `ItemRejected`.
    """
    try:
        shown = Evidence.decode(body)
    except Malformed as error:
        raise ItemRejected(RejectReason.MALFORMED, error.reason) from None
    newer(known, shown.identity, shown.signature)
    if shown.profile != known.profile:
        raise ItemRejected(RejectReason.IDENTITY, "the profile differs from the hub's, which never changes")
    try:
        report = evidence.verify(body, known.identity.hub_id)
    except (Malformed, Unverified) as error:
        raise ItemRejected(RejectReason.EVIDENCE, str(error)) from None
    return report, h(replace(shown, claim="", made_at=0).encode())


def verify_bundle(body: bytes, known: HubRecord) -> bundle.Bundle:
    """Verify a bundle of the known hub. Raises `ItemRejected`."""
    try:
        return bundle.verify(body, {known.identity.hub_id}).bundle
    except BundleFault as fault:
        raise ItemRejected(RejectReason.BUNDLE, f"{fault.code}: {fault.reason}") from None


def newer(known: HubRecord, identity: HubIdentity, signature: IdentitySignature) -> HubRecord:
    """The known hub record with any new keys of this identity record. Raises `ItemRejected` if they do not continue it.

    A record with fewer keys is not a contradiction: its sender may not know the newest keys.
    """
    try:
        identity.verify(signature, known.identity.hub_id)
        if identity.is_other_incarnation(known.identity):
            mine, other = (shown_time(one.signing_keys[0].valid_from) for one in (known.identity, identity))
            text = f"the hub's incarnation of {other} signed it; this client knows the one of {mine}"
            raise ItemRejected(RejectReason.FORKED, text)
        if len(identity.hub_keys) <= len(known.identity.hub_keys):
            known.identity.check_follows(identity)
            return known
        identity.check_follows(known.identity)
    except Unverified as error:
        raise ItemRejected(RejectReason.IDENTITY, error.reason) from None
    return replace(known, identity=identity, signature=signature)
