"""The root key of a hub and what it endorses. The root works on a machine without a network, with files in and out.

The hub writes a `RootRequest`, which shows in clear what is to be signed. The holder of the root checks it and answers
with a `RootEndorsement`. The digest is computed from the shown fields on both machines, never taken from a file.
"""

from dataclasses import field
from typing import Annotated

from veen.core import naming, signing
from veen.core.cbor import Bstr, Constant, Nested, Uint, VersionField, Wire, int_map, text_map
from veen.core.errors import Malformed, Unverified
from veen.core.handover import HandOver
from veen.core.hub_identity import HubIdentity, endorsement_digest
from veen.core.passphrase import DEFAULT_COST, Cost, PassphraseLock, SealedSecrets
from veen.core.recovery import Recovery
from veen.core.signing import SEED_BYTES, SIGNATURE_BYTES, SigningKey


@int_map("root secret", VersionField(), Constant("veen/root-key", name="kind"))
class RootSecret(Wire):
    """The content of a root key file: the key, and the hub that it belongs to."""

    seed: Annotated[bytes, Bstr(SEED_BYTES)] = field(repr=False)
    hub_id: Annotated[bytes, Bstr()]
    created_at: Annotated[int, Uint()]

    @property
    def key(self) -> SigningKey:
        return SigningKey(self.seed)

    def sealed(self, passphrase: bytes, cost: Cost = DEFAULT_COST) -> bytes:
        """The root key file, encrypted with the passphrase."""
        return PassphraseLock.new(passphrase, cost).seal(self.encode())

    @classmethod
    def unseal(cls, data: bytes, passphrase: bytes, name: str) -> "RootSecret":
        """Read a root key file. `name` is for errors. Raises `WrongPassphrase` or `Malformed`."""
        try:
            file = SealedSecrets.decode(data)
        except Malformed:
            raise Malformed(name, "it is not a root key file") from None
        opened = PassphraseLock.of(file, passphrase).unseal(file, name)
        try:
            return cls.decode(opened)
        except Malformed:
            raise Malformed(name, "it contains other secrets than a root key") from None


@text_map("key request")
class KeyRequest(Wire):
    """A new signing key of the hub."""

    hub_pk: Annotated[bytes, Bstr()]
    valid_from: Annotated[int, Uint()]


@text_map("root request", VersionField(), Constant("veen/root-request", name="kind"))
class RootRequest(Wire):
    """A request of a hub to its root: to endorse a new key, or to sign the hand-over to that key.

    The key of a recovery is endorsed together with the recovery.
    """

    hub_id: Annotated[bytes, Bstr()]
    root_pk: Annotated[bytes, Bstr()]
    key: Annotated[KeyRequest, Nested(KeyRequest)]
    handover: Annotated[HandOver | None, Nested(HandOver, optional=True)] = None  # absent: the root endorses the key
    recovery: Annotated[Recovery | None, Nested(Recovery, optional=True)] = None

    @classmethod
    def of_handover(cls, identity: HubIdentity, handover: HandOver) -> "RootRequest":
        """The request to sign a hand-over of that hub, which has a root."""
        assert identity.root is not None
        new = next(key for key in identity.signing_keys if key.hub_pk == handover.new_pk)
        return cls(identity.hub_id, identity.root.hub_pk, KeyRequest(new.hub_pk, new.valid_from), handover)

    def digest(self) -> bytes:
        """The digest that the root signs."""
        if self.handover is not None:
            return self.handover.signing_digest()
        return endorsement_digest(self.hub_id, self.key.hub_pk, self.key.valid_from)

    def endorse(self, root: RootSecret) -> "RootEndorsement":
        """Sign it. Raises `Unverified` if it is for another hub or another root."""
        if self.hub_id != root.hub_id:
            raise Unverified("root request", f"it is for hub {_short(self.hub_id)}, not {_short(root.hub_id)}")
        if self.root_pk != root.key.public_key:
            raise Unverified("root request", f"it names root key {_short(self.root_pk)}, not this one")
        if self.handover is not None and self.handover.hub_id != self.hub_id:
            raise Unverified("root request", "its hand-over belongs to another hub")
        said = self.recovery
        if said and (said.hub_id, said.new_key_id) != (self.hub_id, naming.key_id(self.key.hub_pk)):
            raise Unverified("root request", "its recovery is of another hub or another key")
        recovery_sig = root.key.sign(said.digest()) if said else None
        return RootEndorsement(self.hub_id, self.digest(), root.key.sign(self.digest()), recovery_sig)


@text_map("root endorsement", VersionField(), Constant("veen/root-endorsement", name="kind"))
class RootEndorsement(Wire):
    """The root's signature over the digest of one request, and over the recovery in it."""

    hub_id: Annotated[bytes, Bstr()]
    digest: Annotated[bytes, Bstr()]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]
    recovery_sig: Annotated[bytes | None, Bstr(SIGNATURE_BYTES, optional=True)] = None

    def verify(self, identity: HubIdentity, digest: bytes) -> None:
        """Raise `Unverified` unless the root of that hub endorsed exactly this digest."""
        if identity.root is None:
            raise Unverified("root endorsement", "the hub has no root key")
        if self.hub_id != identity.hub_id:
            raise Unverified("root endorsement", f"it is for hub {_short(self.hub_id)}, not {_short(identity.hub_id)}")
        if self.digest != digest:
            raise Unverified("root endorsement", "it answers another request")
        signing.verify(identity.root.hub_pk, digest, self.sig, "root endorsement")


def _short(value: bytes) -> str:
    return f"{value.hex()[:16]}…"
