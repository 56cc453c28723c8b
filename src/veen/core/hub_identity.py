"""A hub's identity: its keys over time, and which of them may have signed what. Spec §8.4.

`hub_id` is the hash of the first key and never changes. Each later key carries the endorsement of the key before
it, so that whoever pinned any one of them can follow the chain to the newest.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

from veen.core import naming, signing, strict_json, wire_json
from veen.core.cbor import Bstr, ListOf, Map, Nested, Text, Uint, Wire
from veen.core.checkpoint import Checkpoint
from veen.core.errors import Unverified
from veen.core.hashing import U64_MAX, h, ht, u64be
from veen.core.limits import MAX_HUB_KEYS, MAX_TEXT_BYTES
from veen.core.profile import Profile
from veen.core.receipt import Receipt
from veen.core.signing import SIGNATURE_BYTES, SigningKey

# How a client comes to trust the first key.
ANCHORINGS = ("data-directory", "fingerprint", "certificate")


@dataclass(frozen=True, slots=True)
class HubKey(Wire):
    """One hub key and the time in which it signs: from `valid_from` until just before `valid_until`."""

    key_id: bytes
    hub_pk: bytes
    valid_from: int
    valid_until: int | None = None
    endorsement: bytes | None = None  # by the key before it; the first has none

    LAYOUT: ClassVar = Map(
        "hub key",
        {
            "key_id": Bstr("key_id"),
            "hub_pk": Bstr("hub_pk"),
            "valid_from": Uint("valid_from"),
            "valid_until": Uint("valid_until", optional=True),
            "endorsement": Bstr("endorsement", SIGNATURE_BYTES, optional=True),
        },
    )

    def flaw(self) -> str | None:
        if self.valid_until is not None and self.valid_until <= self.valid_from:
            return "valid_until is not after valid_from"
        return None if self.key_id == naming.key_id(self.hub_pk) else "key_id is not that of hub_pk"

    def active_between(self, start: int, end: int) -> bool:
        """Whether it signs at any moment from `start` to just before `end`."""
        return self.valid_from < end and (self.valid_until is None or start < self.valid_until)

    def active_at(self, hub_ts: int) -> bool:
        return self.active_between(hub_ts, hub_ts + 1)


@dataclass(frozen=True, slots=True)
class OriginRef(Wire):
    """Where a forked hub comes from: the hub, the routing key it goes on with, and the digest of `origin.cbor`."""

    hub_id: bytes
    routing_key: bytes
    digest: bytes

    LAYOUT: ClassVar = Map(
        "origin", {"hub_id": Bstr("hub_id"), "routing_key": Bstr("routing_key"), "digest": Bstr("digest")}
    )


@dataclass(frozen=True, slots=True)
class HubIdentity(Wire):
    """The identity record, `hub-identity.json`: every key the hub ever had, by `valid_from` and then by key."""

    hub_id: bytes
    hub_keys: tuple[HubKey, ...]
    anchoring: str = ANCHORINGS[0]
    origin: OriginRef | None = None  # of a fork
    realm_id: bytes | None = None  # whose admin streams the hub goes by, if any

    LAYOUT: ClassVar = Map(
        "hub identity",
        {
            "hub_id": Bstr("hub_id"),
            "hub_keys": ListOf("hub_keys", Nested("hub key", HubKey), most=MAX_HUB_KEYS, least=1),
            "anchoring": Text("anchoring", MAX_TEXT_BYTES),
            "origin": Nested("origin", OriginRef, optional=True),
            "realm_id": Bstr("realm_id", optional=True),
        },
    )

    def flaw(self) -> str | None:
        """The chain of endorsements is for `verify_chain` to judge."""
        order = [(key.valid_from, key.hub_pk) for key in self.hub_keys]
        if any(a >= b for a, b in pairwise(order)):
            return "hub_keys are not in order of valid_from and hub_pk"
        if len({key.hub_pk for key in self.hub_keys}) != len(self.hub_keys):
            return "a key stands twice"
        if [key.endorsement is None for key in self.hub_keys] != [True] + [False] * (len(self.hub_keys) - 1):
            return "each key but the first carries an endorsement"
        return None if self.anchoring in ANCHORINGS else f"anchoring is not one of {', '.join(ANCHORINGS)}"

    @property
    def newest(self) -> HubKey:
        return self.hub_keys[-1]

    @property
    def routing_key(self) -> bytes:
        """What its labels are derived with. A fork keeps that of its origin, so that it can go on with its labels."""
        return self.origin.routing_key if self.origin else naming.routing_key(self.hub_id)

    def signing_key_at(self, hub_ts: int) -> HubKey:
        """The key to sign with: of those active, the last in order."""
        active = [key for key in self.hub_keys if key.active_at(hub_ts)]
        if not active:
            raise Unverified("hub identity", f"no key is active at {hub_ts}")
        return active[-1]

    def verify_chain(self) -> None:
        """Raise unless the first key makes `hub_id` and each further one is endorsed by the one before it."""
        if naming.hub_id(self.hub_keys[0].hub_pk) != self.hub_id:
            raise Unverified("hub identity", "hub_id is not that of the first key")
        for before, key in pairwise(self.hub_keys):
            digest = _endorsement_digest(self.hub_id, key.hub_pk, key.valid_from)
            signing.verify(before.hub_pk, digest, key.endorsement or b"", f"hub key {key.key_id.hex()[:16]}")

    def check_pinned(self, pin: bytes) -> None:
        """Raise unless `pin` is this hub's id or the fingerprint `H(hub_pk)` of one of its keys.

        Not enough by itself: anyone can write a record that names the pinned key. Use `verify`.
        """
        if pin != self.hub_id and all(pin != h(key.hub_pk) for key in self.hub_keys):
            raise Unverified("hub identity", "it is not the pinned hub")

    def verify(self, signature: "IdentitySignature", pin: bytes, root_pk: bytes | None = None) -> None:
        """All that makes this record the pinned hub's: its pin, its chain, and the signature over the whole."""
        self.check_pinned(pin)
        self.verify_chain()
        signature.verify(self, root_pk)

    def check_follows(self, known: "HubIdentity") -> None:
        """Raise unless this record continues one already trusted: the same keys, at most closed, and new ones after.

        Without it whoever holds a retired key could write another history that starts with the same first key.
        """
        same = [replace(key, valid_until=None) for key in known.hub_keys]
        mine = [replace(key, valid_until=None) for key in self.hub_keys[: len(same)]]
        if (self.hub_id, self.origin, self.realm_id, mine) != (known.hub_id, known.origin, known.realm_id, same):
            raise Unverified("hub identity", "it does not continue the record known before")
        for before, now in zip(known.hub_keys, self.hub_keys, strict=False):
            if before.valid_until is not None and now.valid_until != before.valid_until:
                raise Unverified("hub identity", "a key that was closed has another end now")

    def verify_receipt(self, receipt: Receipt) -> HubKey:
        """The key that signed the receipt, among those active at its `hub_ts`."""
        digest = receipt.signing_digest()
        return self._signer(digest, receipt.hub_sig, receipt.hub_ts, receipt.hub_ts + 1, "receipt")

    def verify_checkpoint(self, checkpoint: Checkpoint, profile: Profile) -> HubKey:
        """The key that signed the checkpoint, among those active during its epoch; without epochs, among all."""
        start, end = 0, U64_MAX + 1
        if profile.epoch_sec:
            start, end = checkpoint.epoch * profile.epoch_sec, (checkpoint.epoch + 1) * profile.epoch_sec
        return self._signer(checkpoint.signing_digest(), checkpoint.hub_sig, start, end, "checkpoint")

    def _signer(self, digest: bytes, sig: bytes, start: int, end: int, what: str) -> HubKey:
        for key in reversed(self.hub_keys):
            if key.active_between(start, end) and signing.is_valid(key.hub_pk, digest, sig):
                return key
        raise Unverified(what, "no key of the hub that was active then signed it")

    def key_map(self) -> bytes:
        """`hub-key-map.json`: every key_id and its key."""
        return strict_json.encode({key.key_id.hex(): key.hub_pk.hex() for key in self.hub_keys})


@dataclass(frozen=True, slots=True)
class IdentitySignature(Wire):
    """`hub-identity.sig`: the newest hub key's signature over the record, or an offline root key's."""

    key_id: bytes
    sig: bytes

    LAYOUT: ClassVar = Map("hub identity signature", {"key_id": Bstr("key_id"), "sig": Bstr("sig", SIGNATURE_BYTES)})

    def verify(self, identity: HubIdentity, root_pk: bytes | None = None) -> None:
        """Raise unless it is the newest key's word, or the root's where one is configured."""
        signer = identity.newest.hub_pk if root_pk is None else root_pk
        if naming.key_id(signer) != self.key_id:
            raise Unverified("hub identity", "it is signed with another key than the one that must sign it")
        signing.verify(signer, _identity_digest(identity), self.sig, "hub identity")


def create(
    key: SigningKey,
    valid_from: int,
    anchoring: str = ANCHORINGS[0],
    origin: OriginRef | None = None,
    realm_id: bytes | None = None,
) -> HubIdentity:
    """A new hub; with `origin`, one that goes on from where another was; with `realm_id`, one of that realm."""
    first = _key(key.public_key, valid_from)
    made = HubIdentity(naming.hub_id(key.public_key), (first,), anchoring, origin, realm_id)
    made.encode()  # refuses here what no reader would take
    return made


def rotate(
    identity: HubIdentity, old: SigningKey, new: SigningKey, valid_from: int, overlap_sec: int = 0
) -> HubIdentity:
    """The same hub with one more key; the old key stops signing `overlap_sec` after the new one starts."""
    if old.public_key != identity.newest.hub_pk:
        raise ValueError("only the newest key endorses the next")
    if not identity.newest.valid_from < valid_from <= U64_MAX:
        raise ValueError("a new key starts after the one before it")
    endorsement = old.sign(_endorsement_digest(identity.hub_id, new.public_key, valid_from))
    closed = replace(identity.newest, valid_until=valid_from + overlap_sec)
    added = _key(new.public_key, valid_from, endorsement)
    made = replace(identity, hub_keys=(*identity.hub_keys[:-1], closed, added))
    made.encode()
    return made


def sign(identity: HubIdentity, key: SigningKey) -> IdentitySignature:
    return IdentitySignature(naming.key_id(key.public_key), key.sign(_identity_digest(identity)))


def _key(hub_pk: bytes, valid_from: int, endorsement: bytes | None = None) -> HubKey:
    return HubKey(naming.key_id(hub_pk), hub_pk, valid_from, endorsement=endorsement)


def _identity_digest(identity: HubIdentity) -> bytes:
    return ht("veen/hub-identity", wire_json.encode(identity))


def _endorsement_digest(hub_id: bytes, hub_pk: bytes, valid_from: int) -> bytes:
    return ht("veen/hub-key", hub_id + hub_pk + u64be(valid_from))
