"""A client's identity: its long-term keys, the seed of the short-lived keys that it writes with, and its public card.

Prekeys are short-lived X25519 keys that peers seal to, signed by the long-term key. Prekey number n belongs to the
client_id of generation n and is replaced with it. Its secret half is derived from the identity, so it can always be
computed again; the expiry limits sealing only. Spec 001 §3, KEX0.2.
"""

import os
from dataclasses import dataclass, field, replace
from typing import Annotated, Self

from veen.core import DhKey, SigningKey, Unverified, signing
from veen.core.cbor import Bstr, Constant, ListOf, Nested, Uint, VersionField, Wire, array, int_map
from veen.core.hashing import HASH_BYTES, U64_MAX, ht, u64be
from veen.core.hpke import hkdf
from veen.core.signing import SIGNATURE_BYTES

SEED_BYTES = 32
_NO_SIG = bytes(SIGNATURE_BYTES)


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """The long-term keys, and the seed from which client_ids are derived.

    A client_id is derived from its generation, so it is not stored, and only the holder of the seed can link two of
    them. Prekeys are derived from the long-term key, so a copy of the identity with another seed can still open what
    was sealed to them.
    """

    id_sign: SigningKey
    id_dh: DhKey
    client_seed: bytes = field(repr=False)
    created_at: int

    @classmethod
    def generate(cls, now: int) -> Self:
        return cls(SigningKey.generate(), DhKey.generate(), os.urandom(SEED_BYTES), now)

    def client_key(self, generation: int) -> SigningKey:
        """The key pair whose public half is the client_id of that generation."""
        return SigningKey(_derived(self.client_seed, b"veen/client-id" + u64be(generation)))

    def prekey(self, number: int) -> DhKey:
        """The key pair of a prekey. Peers seal to its public half until it expires."""
        return DhKey(_derived(self.id_dh.secret, b"veen/prekey" + u64be(number)))

    def state_key(self) -> bytes:
        """The key that seals secrets within the state."""
        return _derived(self.client_seed, b"veen/client-state")

    def first_rk(self, label: bytes) -> bytes:
        """The first key of a label's rekey ladder."""
        return _derived(self.client_seed, b"veen/rk" + label)


def _derived(secret: bytes, info: bytes) -> bytes:
    return hkdf(secret, salt=b"", info=info, length=HASH_BYTES)


@array("prekey", VersionField())
class Prekey(Wire):
    """A prekey as its owner publishes it."""

    number: Annotated[int, Uint()]
    public_key: Annotated[bytes, Bstr()]
    expires_at: Annotated[int, Uint()]  # the last second in which peers may seal to it
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]

    def verify(self, id_sign_pk: bytes) -> None:
        """Raise `Unverified` unless the owner's long-term key signed it. Does not check the expiry."""
        signing.verify(id_sign_pk, self._digest(), self.sig, f"prekey {self.number}")

    def _digest(self) -> bytes:
        return ht("veen/prekey", self.unsigned())


def make_prekey(identity: ClientIdentity, number: int, expires_at: int) -> Prekey:
    prekey = Prekey(number, identity.prekey(number).public_key, expires_at, _NO_SIG)
    return replace(prekey, sig=identity.id_sign.sign(prekey._digest()))


NEXT_CLIENT_IDS = 8
_MOST = 64
MAX_CARD_BYTES = 16_384


@int_map("card", VersionField(), Constant("veen/card", name="kind"))
class Card(Wire):
    """The public half of an identity, as of the creation of its first client_id.

    `sig` says that the identity uses these client_ids. `confirmations` are the signatures of the client_ids, which say
    the same of the identity: without them, a card could claim the client_ids of somebody else. Older cards have none.
    """

    id_sign: Annotated[bytes, Bstr()]
    id_dh: Annotated[bytes, Bstr()]
    generation: Annotated[int, Uint()]  # generation of the first client_id; the others follow
    created_at: Annotated[int, Uint()]  # time of the first client_id
    client_ids: Annotated[tuple[bytes, ...], ListOf(Bstr(name="client_id"), most=_MOST, least=1)]
    prekeys: Annotated[tuple[Prekey, ...], ListOf(Nested(Prekey, name="prekey"), most=_MOST, least=1)]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]
    confirmations: Annotated[
        tuple[bytes, ...] | None,
        ListOf(Bstr(SIGNATURE_BYTES, name="confirmation"), most=_MOST, least=1, optional=True),
    ] = None

    def flaw(self) -> str | None:
        if self.confirmations is not None and len(self.confirmations) != len(self.client_ids):
            return f"{len(self.confirmations)} confirmations for {len(self.client_ids)} client_ids"
        if len(set(self.client_ids)) != len(self.client_ids):
            return "a client_id is listed twice"
        numbers = [prekey.number for prekey in self.prekeys]
        return None if numbers == sorted(set(numbers)) else "prekeys are not in strictly ascending order"

    def verify(self) -> None:
        """Raise `Unverified` unless the long-term key signed the card and each prekey, and each confirmation holds."""
        signing.verify(self.id_sign, self._digest(), self.sig, "card")
        for client_id, confirmation in zip(self.client_ids, self.confirmations or (), strict=False):
            signing.verify(client_id, _confirmed(self.id_sign), confirmation, "confirmation")
        for prekey in self.prekeys:
            prekey.verify(self.id_sign)

    def seal_to(self, now: int) -> Prekey:
        """The prekey to seal to: the first that has not expired."""
        for prekey in self.prekeys:
            if now <= prekey.expires_at:
                return prekey
        raise Unverified("card", f"its last prekey expired at {self.prekeys[-1].expires_at}: get a new card")

    def _digest(self) -> bytes:
        return ht("veen/card", self.unsigned(without_last=2))


def _confirmed(id_sign: bytes) -> bytes:
    """The digest that a client_id signs to confirm that it belongs to an identity."""
    return ht("veen/card-client", id_sign)


def make_card(
    identity: ClientIdentity, generation: int, created_at: int, lifetime_sec: int, count: int = NEXT_CLIENT_IDS
) -> Card:
    """The card of an identity at that generation, with `count` client_ids from there on."""
    generations = range(generation, generation + count)
    keys = [identity.client_key(number) for number in generations]
    card = Card(
        identity.id_sign.public_key,
        identity.id_dh.public_key,
        generation,
        created_at,
        tuple(key.public_key for key in keys),
        # The latest time at which each generation is in use. A later card never extends it.
        tuple(
            make_prekey(identity, number, min(created_at + lifetime_sec * place, U64_MAX))
            for place, number in enumerate(generations, 1)
        ),
        _NO_SIG,
        tuple(key.sign(_confirmed(identity.id_sign.public_key)) for key in keys),
    )
    return replace(card, sig=identity.id_sign.sign(card._digest()))
