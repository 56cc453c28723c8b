"""A hub's identity: its keys over time, and which key may sign what. Spec §8.4.

`hub_id` is the hash of the first key and never changes. Each later key carries an endorsement, so a client that pinned
any key can follow the chain to the newest one. In a record with a root key only the root endorses. It signs no receipts
and no checkpoints, so it can be kept away from the hub, and a stolen signing key cannot continue the record. Without a
root each key is endorsed by the key before it.

A hub that loses its data directory can begin again with its root alone: a new *incarnation*, without entries.
Its record has none of the earlier signing keys, and the role of its first one says so.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated

from veen.core import naming, signing, strict_json, wire_json
from veen.core.cbor import Bstr, ListOf, Nested, Text, Uint, VersionField, Wire, int_map, text_map
from veen.core.checkpoint import Checkpoint
from veen.core.errors import Unverified
from veen.core.hashing import U64_MAX, h, ht, u64be
from veen.core.limits import MAX_HUB_KEYS, MAX_ORIGIN_LABELS, MAX_ORIGINS, MAX_TEXT_BYTES
from veen.core.profile import Profile
from veen.core.receipt import Receipt
from veen.core.signing import SIGNATURE_BYTES, DigestSigner

# How clients establish trust in the first key.
ANCHORINGS = ("data-directory", "fingerprint", "certificate")
ROOT = "root"
INCARNATION = "incarnation"


@text_map("hub key")
class HubKey(Wire):
    """One hub key and the time in which it signs: from `valid_from` until just before `valid_until`."""

    key_id: Annotated[bytes, Bstr()]
    hub_pk: Annotated[bytes, Bstr()]
    valid_from: Annotated[int, Uint()]
    valid_until: Annotated[int | None, Uint(optional=True)] = None
    endorsement: Annotated[bytes | None, Bstr(SIGNATURE_BYTES, optional=True)] = (
        None  # by the root, or else by the previous key; the first key has none
    )
    # "root", or "incarnation" for the first signing key of a hub that began again
    role: Annotated[str | None, Text(MAX_TEXT_BYTES, optional=True)] = None

    def flaw(self) -> str | None:
        if self.role not in (None, ROOT, INCARNATION):
            return f"role is neither {ROOT!r} nor {INCARNATION!r}"
        if self.valid_until is not None and self.valid_until <= self.valid_from:
            return "valid_until is not after valid_from"
        return None if self.key_id == naming.key_id(self.hub_pk) else "key_id is not that of hub_pk"

    def active_between(self, start: int, end: int) -> bool:
        """Whether the key signs at any time from `start` until just before `end`."""
        return self.valid_from < end and (self.valid_until is None or start < self.valid_until)

    def active_at(self, hub_ts: int) -> bool:
        return self.active_between(hub_ts, hub_ts + 1)


@text_map("origin")
class OriginRef(Wire):
    """The origin of a forked hub: its id, the routing key that the fork keeps, and the digest of `origin.cbor`."""

    hub_id: Annotated[bytes, Bstr()]
    routing_key: Annotated[bytes, Bstr()]
    digest: Annotated[bytes, Bstr()]


@text_map("hub identity")
class HubIdentity(Wire):
    """The identity record, `hub-identity.json`: every key the hub ever had, by `valid_from` and then by key."""

    hub_id: Annotated[bytes, Bstr()]
    hub_keys: Annotated[tuple[HubKey, ...], ListOf(Nested(HubKey, name="hub key"), most=MAX_HUB_KEYS, least=1)]
    anchoring: Annotated[str, Text(MAX_TEXT_BYTES)] = ANCHORINGS[0]
    origin: Annotated[OriginRef | None, Nested(OriginRef, optional=True)] = None  # only in a fork
    realm_id: Annotated[bytes | None, Bstr(optional=True)] = None  # the realm whose admin streams bind this hub

    def flaw(self) -> str | None:
        """Does not check the endorsements; see `verify_chain`."""
        order = [(key.valid_from, key.hub_pk) for key in self.hub_keys]
        if any(a >= b for a, b in pairwise(order)):
            return "hub_keys are not in order of valid_from and hub_pk"
        if len({key.hub_pk for key in self.hub_keys}) != len(self.hub_keys):
            return "a key occurs twice"
        if [key.endorsement is None for key in self.hub_keys] != [True] + [False] * (len(self.hub_keys) - 1):
            return "every key except the first must have an endorsement, and the first must have none"
        if not self.signing_keys:
            return "there is no signing key"
        if len(self.hub_keys) - len(self.signing_keys) > 1:
            return "there are two root keys"
        if self.root is not None and self.root.valid_until is not None:
            return "a root key has no valid_until"
        if INCARNATION in (key.role for key in (self.hub_keys[0], *self.hub_keys[2:])):
            return "only the key after the root can begin an incarnation"
        return None if self.anchoring in ANCHORINGS else f"anchoring is not one of {', '.join(ANCHORINGS)}"

    @property
    def root(self) -> HubKey | None:
        """The key that endorses the others, if the hub has one."""
        return next((key for key in self.hub_keys if key.role == ROOT), None)

    @property
    def signing_keys(self) -> tuple[HubKey, ...]:
        """The keys that sign receipts and checkpoints, oldest first."""
        return tuple(key for key in self.hub_keys if key.role != ROOT)

    @property
    def newest(self) -> HubKey:
        """The newest signing key."""
        return self.signing_keys[-1]

    @property
    def routing_key(self) -> bytes:
        """The key from which labels are derived. A fork keeps its origin's, so that it can continue its labels."""
        return self.origin.routing_key if self.origin else naming.routing_key(self.hub_id)

    def signing_key_at(self, hub_ts: int) -> HubKey:
        """The key that signs at `hub_ts`: the newest of the active ones."""
        active = [key for key in self.signing_keys if key.active_at(hub_ts)]
        if not active:
            raise Unverified("hub identity", f"no key is active at {hub_ts}")
        return active[-1]

    def verify_chain(self) -> None:
        """Raise `Unverified` unless `hub_id` matches the first key and each later key is properly endorsed.

        The root endorses; before there is one, the previous key does. A root that was adopted later is endorsed by the
        first key, from which hub_id is derived.
        """
        first = self.hub_keys[0]
        if naming.hub_id(first.hub_pk) != self.hub_id:
            raise Unverified("hub identity", "hub_id is not derived from the first key")
        has_root = first.role == ROOT
        endorser = first
        for key in self.hub_keys[1:]:
            by = first if key.role == ROOT else endorser
            digest = _endorsement_digest(self.hub_id, key.hub_pk, key.valid_from, key.role)
            signing.verify(by.hub_pk, digest, key.endorsement or b"", f"hub key {key.key_id.hex()[:16]}")
            if not has_root:
                endorser, has_root = key, key.role == ROOT

    def check_pinned(self, pin: bytes) -> None:
        """Raise `Unverified` unless `pin` is this hub's id or the fingerprint `H(hub_pk)` of one of its keys.

        This check alone proves nothing, because anyone can write a record that contains the pinned key. Use `verify`.
        """
        if pin != self.hub_id and all(pin != h(key.hub_pk) for key in self.hub_keys):
            raise Unverified("hub identity", "it is not the hub that was entered")

    def verify(self, signature: "IdentitySignature", pin: bytes, root_pk: bytes | None = None) -> None:
        """Verify that this record belongs to the pinned hub: the pin, the chain of keys and the signature."""
        self.check_pinned(pin)
        self.verify_chain()
        signature.verify(self, root_pk)

    def check_follows(self, known: "HubIdentity") -> None:
        """Raise `Unverified` unless this record continues a trusted one: same keys, possibly closed, then new keys.

        Without this check the holder of a retired key could sign another history that starts with the same first key.
        """
        same = [replace(key, valid_until=None) for key in known.hub_keys]
        mine = [replace(key, valid_until=None) for key in self.hub_keys[: len(same)]]
        if (self.hub_id, self.origin, self.realm_id, mine) != (known.hub_id, known.origin, known.realm_id, same):
            raise Unverified("hub identity", "it does not continue the record that was trusted before")
        for before, now in zip(known.hub_keys, self.hub_keys, strict=False):
            if before.valid_until is not None and now.valid_until != before.valid_until:
                raise Unverified("hub identity", "the valid_until of a closed key has changed")

    def is_other_incarnation(self, known: "HubIdentity") -> bool:
        """Whether both are records of one hub that began again with one of them. The caller verifies both."""
        mine, other = self.signing_keys[0], known.signing_keys[0]
        return self.hub_id == known.hub_id and mine.hub_pk != other.hub_pk and INCARNATION in (mine.role, other.role)

    def begins_after(self, known: "HubIdentity") -> bool:
        """Whether the hub of the known record began again with this one, after all keys that are known."""
        first = self.signing_keys[0]
        is_later = first.role == INCARNATION and first.valid_from > known.newest.valid_from
        return is_later and self.is_other_incarnation(known)

    def verify_receipt(self, receipt: Receipt) -> HubKey:
        """Verify a receipt. Returns its signing key, which must be active at its `hub_ts`."""
        digest = receipt.signing_digest()
        return self._signer(digest, receipt.hub_sig, receipt.hub_ts, receipt.hub_ts + 1, "receipt")

    def verify_checkpoint(self, checkpoint: Checkpoint, profile: Profile) -> HubKey:
        """Verify a checkpoint. Returns its signing key, which must be active in its epoch, if there are epochs."""
        start, end = 0, U64_MAX + 1
        if profile.epoch_sec:
            start, end = checkpoint.epoch * profile.epoch_sec, (checkpoint.epoch + 1) * profile.epoch_sec
        return self._signer(checkpoint.signing_digest(), checkpoint.hub_sig, start, end, "checkpoint")

    def verify_statement(self, digest: bytes, sig: bytes, hub_ts: int, what: str) -> HubKey:
        """Verify the signature of another statement. Returns its key, which must be active at `hub_ts`."""
        return self._signer(digest, sig, hub_ts, hub_ts + 1, what)

    def _signer(self, digest: bytes, sig: bytes, start: int, end: int, what: str) -> HubKey:
        for key in reversed(self.hub_keys):
            if key.role != ROOT and key.active_between(start, end) and signing.is_valid(key.hub_pk, digest, sig):
                return key
        raise Unverified(what, "no key of the hub that was active at that time signed it")

    def key_map(self) -> bytes:
        """`hub-key-map.json`: each key_id with its key. The root is not in it, because it signs nothing of the log."""
        return strict_json.encode({key.key_id.hex(): key.hub_pk.hex() for key in self.signing_keys})


@text_map("hub identity signature")
class IdentitySignature(Wire):
    """`hub-identity.sig`: the signature over the identity record by the newest hub key or by an offline root key."""

    key_id: Annotated[bytes, Bstr()]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]

    def verify(self, identity: HubIdentity, root_pk: bytes | None = None) -> None:
        """Raise `Unverified` unless the newest key signed the record, or the root key if one is given."""
        signer = identity.newest.hub_pk if root_pk is None else root_pk
        if naming.key_id(signer) != self.key_id:
            raise Unverified("hub identity", "it is signed by another key than the newest key or the root key")
        signing.verify(signer, _identity_digest(identity), self.sig, "hub identity")


def create(
    key: DigestSigner,
    valid_from: int,
    anchoring: str = ANCHORINGS[0],
    origin: OriginRef | None = None,
    realm_id: bytes | None = None,
    root: DigestSigner | None = None,
    *,
    incarnates: bool = False,
) -> HubIdentity:
    """The identity record of a new hub, optionally as a fork of `origin` or as a member of a realm.

    With a root key, `hub_id` is derived from the root and the root endorses `key`. If the hub `incarnates`, it may have
    had other keys before.
    """
    keys: tuple[HubKey, ...]
    if root is None:
        hub_id, keys = naming.hub_id(key.public_key), (_key(key.public_key, valid_from),)
    else:
        hub_id = naming.hub_id(root.public_key)
        role = INCARNATION if incarnates else None
        endorsement = root.sign(_endorsement_digest(hub_id, key.public_key, valid_from, role))
        first = replace(_key(root.public_key, 0), role=ROOT)
        keys = (first, replace(_key(key.public_key, valid_from, endorsement), role=role))
    made = HubIdentity(hub_id, keys, anchoring, origin, realm_id)
    made.encode()  # raises ValueError if the record is invalid
    return made


def rotate(
    identity: HubIdentity, endorser: DigestSigner, new: DigestSigner, valid_from: int, overlap_sec: int = 0
) -> HubIdentity:
    """Add a key to the record. The old key stops signing `overlap_sec` after the new one starts.

    `endorser` is the root, or without a root the newest key.
    """
    if endorser.public_key != (identity.root or identity.newest).hub_pk:
        raise ValueError(f"only the {'root' if identity.root else 'newest'} key can endorse the next one")
    if not 0 <= valid_from <= U64_MAX:
        raise ValueError("valid_from must be after that of the newest key")
    endorsement = endorser.sign(endorsement_digest(identity.hub_id, new.public_key, valid_from))
    return add_key(identity, new.public_key, valid_from, endorsement, valid_from + overlap_sec)


def add_key(
    identity: HubIdentity, hub_pk: bytes, valid_from: int, endorsement: bytes, old_valid_until: int
) -> HubIdentity:
    """Add a key that was endorsed elsewhere. The key before it stops signing at `old_valid_until`.

    `old_valid_until` may be long after `valid_from`: an endorsement by an offline root fixes `valid_from` before the
    hub starts to use the key.
    """
    if not identity.hub_keys[-1].valid_from < valid_from <= U64_MAX:
        raise ValueError("valid_from must be after that of the newest key")
    old = identity.newest
    keys = (replace(key, valid_until=old_valid_until) if key is old else key for key in identity.hub_keys)
    made = replace(identity, hub_keys=(*keys, _key(hub_pk, valid_from, endorsement)))
    made.encode()
    return made


def adopt_root(identity: HubIdentity, first: DigestSigner, root_pk: bytes, valid_from: int) -> HubIdentity:
    """Add a root key to a record without one. From then on only the root endorses."""
    if identity.root is not None:
        raise ValueError("the hub already has a root key")
    if first.public_key != identity.hub_keys[0].hub_pk:
        raise ValueError("only the first key can endorse a root key")
    endorsement = first.sign(_endorsement_digest(identity.hub_id, root_pk, valid_from, ROOT))
    adopted = replace(_key(root_pk, valid_from, endorsement), role=ROOT)
    made = replace(identity, hub_keys=(*identity.hub_keys, adopted))
    made.encode()
    return made


def sign(identity: HubIdentity, key: DigestSigner) -> IdentitySignature:
    return IdentitySignature(naming.key_id(key.public_key), key.sign(_identity_digest(identity)))


def _key(hub_pk: bytes, valid_from: int, endorsement: bytes | None = None) -> HubKey:
    return HubKey(naming.key_id(hub_pk), hub_pk, valid_from, endorsement=endorsement)


def _identity_digest(identity: HubIdentity) -> bytes:
    return ht("veen/hub-identity", wire_json.encode(identity))


def endorsement_digest(hub_id: bytes, hub_pk: bytes, valid_from: int) -> bytes:
    """The digest that endorses a signing key."""
    return _endorsement_digest(hub_id, hub_pk, valid_from, None)


_ENDORSEMENT_TAGS = {None: "veen/hub-key", ROOT: "veen/hub-root", INCARNATION: "veen/hub-incarnation"}


def _endorsement_digest(hub_id: bytes, hub_pk: bytes, valid_from: int, role: str | None) -> bytes:
    return ht(_ENDORSEMENT_TAGS[role], hub_id + hub_pk + u64be(valid_from))


@int_map("origin hub")
class OriginHub(Wire):
    """A hub that was forked, and its checkpoint of each prefix that the fork kept, by label."""

    identity: Annotated[HubIdentity, Nested(HubIdentity)]
    signature: Annotated[IdentitySignature, Nested(IdentitySignature)]
    checkpoints: Annotated[
        tuple[Checkpoint, ...], ListOf(Nested(Checkpoint, name="checkpoint"), most=MAX_ORIGIN_LABELS)
    ]

    def flaw(self) -> str | None:
        ascending = all(a.label_curr < b.label_curr for a, b in pairwise(self.checkpoints))
        return None if ascending else "checkpoints are not in strictly ascending order of label"


@int_map("origin of a fork", VersionField())
class ForkOrigin(Wire):
    """`origin.cbor` of a fork: the hub that was forked, then the hub which that one was forked from, and so on."""

    hubs: Annotated[tuple[OriginHub, ...], ListOf(Nested(OriginHub, name="hub"), least=1, most=MAX_ORIGINS)]

    def ref(self) -> OriginRef:
        """The reference to this file for the fork's identity record."""
        first = self.hubs[0].identity
        return OriginRef(first.hub_id, first.routing_key, ht("veen/origin", self.encode()))


@dataclass(frozen=True, slots=True)
class Lineage:
    """The hubs that signed a log, newest first, and the prefix of each label that an older hub signed."""

    identities: tuple[HubIdentity, ...]
    kept: tuple[dict[bytes, Checkpoint], ...] = ()

    def identity_at(self, label: bytes, stream_seq: int) -> HubIdentity:
        """The hub that signed the entry, or a checkpoint that ends with it."""
        at = 0
        while at < len(self.kept) and stream_seq <= _upto(self.kept[at].get(label)):
            at += 1
        return self.identities[at]

    def verify_head(self, head: Receipt | Checkpoint, profile: Profile) -> HubKey:
        """Verify a receipt or a checkpoint of this log. Returns its signing key."""
        if isinstance(head, Receipt):
            return self.identity_at(head.label, head.stream_seq).verify_receipt(head)
        return self.identity_at(head.label_curr, head.upto_seq).verify_checkpoint(head, profile)

    def checkpoint(self, label: bytes) -> Checkpoint | None:
        """The origin's checkpoint of the kept prefix of a label; None if no prefix was kept."""
        return self.kept[0].get(label) if self.kept else None

    def labels(self) -> set[bytes]:
        """The labels with a prefix from the origin."""
        return set(self.kept[0]) if self.kept else set()

    def upto(self, label: bytes) -> int:
        """The length of the label's prefix from the origin."""
        return _upto(self.checkpoint(label))

    def verify(self, profile: Profile) -> None:
        """Raise `Unverified` unless each checkpoint was signed by the hub that owned the end of its prefix."""
        for at, checkpoints in enumerate(self.kept):
            older = Lineage(self.identities[at + 1 :], self.kept[at + 1 :])
            for label, checkpoint in checkpoints.items():
                older.identity_at(label, checkpoint.upto_seq).verify_checkpoint(checkpoint, profile)


def lineage(identity: HubIdentity, origin: ForkOrigin | None) -> Lineage:
    """The hubs behind a log, from the newest hub's verified identity record and its origin.

    Raises `Unverified` unless each record names the digest of the origin that follows it.
    """
    hubs = origin.hubs if origin else ()
    identities = (identity, *(hub.identity for hub in hubs))
    for at, hub in enumerate(hubs):
        if identities[at].origin != ForkOrigin(hubs[at:]).ref():
            raise Unverified("origin", "its digest is not the one in the identity record")
        hub.identity.verify(hub.signature, hub.identity.hub_id)
    if identities[-1].origin is not None:
        raise Unverified("origin", "the identity record names an origin, but it is missing")
    kept = tuple({checkpoint.label_curr: checkpoint for checkpoint in hub.checkpoints} for hub in hubs)
    return Lineage(identities, kept)


def _upto(checkpoint: Checkpoint | None) -> int:
    return checkpoint.upto_seq if checkpoint else 0
