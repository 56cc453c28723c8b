"""The identity card: the public part of a client, signed by its long-term key. Spec 001 §15.

It lists the next client_ids, so that an issuer can issue capabilities for all of them at once and the client can rotate
without asking. Only the card links these client_ids, so give it to issuers and peers only.
"""

from dataclasses import replace
from typing import Annotated

from veen.client import prekeys
from veen.client.client_identity import ClientIdentity
from veen.client.prekeys import Prekey
from veen.core import Unverified, signing
from veen.core.cbor import Bstr, Constant, ListOf, Map, Nested, Uint, VersionField, Wire, int_map
from veen.core.hashing import U64_MAX, ht
from veen.core.signing import SIGNATURE_BYTES

NEXT_CLIENT_IDS = 8
_MOST = 64
MAX_CARD_BYTES = 16_384


@int_map("card", VersionField(), Constant("veen/card", name="kind"))
class Card(Wire):
    """The public half of an identity, as of the creation of its first client_id."""

    id_sign: Annotated[bytes, Bstr()]
    id_dh: Annotated[bytes, Bstr()]
    generation: Annotated[int, Uint()]  # generation of the first client_id; the others follow
    created_at: Annotated[int, Uint()]  # time of the first client_id
    client_ids: Annotated[tuple[bytes, ...], ListOf(Bstr(name="client_id"), most=_MOST, least=1)]
    prekeys: Annotated[tuple[Prekey, ...], ListOf(Nested(Prekey, name="prekey"), most=_MOST, least=1)]
    sig: Annotated[bytes, Bstr(SIGNATURE_BYTES)]

    def flaw(self) -> str | None:
        if len(set(self.client_ids)) != len(self.client_ids):
            return "a client_id is listed twice"
        numbers = [prekey.number for prekey in self.prekeys]
        return None if numbers == sorted(set(numbers)) else "prekeys are not in strictly ascending order"

    def verify(self) -> None:
        """Raise `Unverified` unless the long-term key signed the card and each prekey."""
        signing.verify(self.id_sign, self._digest(), self.sig, "card")
        for prekey in self.prekeys:
            prekey.verify(self.id_sign)

    def seal_to(self, now: int) -> Prekey:
        """The prekey to seal to: the first that has not expired."""
        for prekey in self.prekeys:
            if now <= prekey.expires_at:
                return prekey
        raise Unverified("card", f"its last prekey expired at {self.prekeys[-1].expires_at}: get a new card")

    def _digest(self) -> bytes:
        return ht("veen/card", _UNSIGNED.write(_UNSIGNED.fields_of(self)))


_UNSIGNED = Map("card without sig", dict(zip(range(1, 9), Card.LAYOUT.kinds, strict=False)))


def make(
    identity: ClientIdentity, generation: int, created_at: int, lifetime_sec: int, count: int = NEXT_CLIENT_IDS
) -> Card:
    """The card of an identity at that generation, with `count` client_ids from there on."""
    generations = range(generation, generation + count)
    card = Card(
        identity.id_sign.public_key,
        identity.id_dh.public_key,
        generation,
        created_at,
        tuple(identity.client_key(number).public_key for number in generations),
        # The latest time at which each generation is in use. A later card never extends it.
        tuple(
            prekeys.make(identity, number, min(created_at + lifetime_sec * place, U64_MAX))
            for place, number in enumerate(generations, 1)
        ),
        bytes(SIGNATURE_BYTES),
    )
    return replace(card, sig=identity.id_sign.sign(card._digest()))
