"""What an implementation or a deployment may say it complies with. 001, spec-2 §8. Nothing of it is on the wire."""

from collections.abc import Iterable
from enum import StrEnum


class Profile(StrEnum):
    """A set of rules that is kept as a whole or not at all."""

    CORE = "Core"
    OP0 = "OP0"
    KEX0 = "KEX0"
    RESYNC0 = "RESYNC0"
    FED1 = "FED1"
    AUTH1 = "AUTH1"
    KEX1 = "KEX1+"
    SH1 = "SH1+"
    LCLASS0 = "LCLASS0"
    META0 = "META0+"


class Claim(StrEnum):
    """The levels, each of which has all that the one before it has."""

    CORE = "VEEN v0.0.1+ Core"
    FEDERATED = "VEEN v0.0.1+ Federated"
    HARDENED = "VEEN v0.0.1+ Hardened"
    META = "VEEN v0.0.1+ Federated + Hardened + Meta"


ADDS: dict[Claim, tuple[Profile, ...]] = {
    Claim.CORE: (Profile.CORE, Profile.OP0, Profile.KEX0, Profile.RESYNC0),
    Claim.FEDERATED: (Profile.FED1, Profile.AUTH1),
    Claim.HARDENED: (Profile.KEX1, Profile.SH1),
    Claim.META: (Profile.LCLASS0, Profile.META0),
}


def needs(claim: Claim) -> frozenset[Profile]:
    """All the profiles a claim stands on."""
    levels = list(Claim)[: list(Claim).index(claim) + 1]
    return frozenset(profile for level in levels for profile in ADDS[level])


def claims(kept: Iterable[Profile]) -> tuple[Claim, ...]:
    """The claims that hold for whoever keeps these profiles, the highest last."""
    profiles = frozenset(kept)
    return tuple(claim for claim in Claim if needs(claim) <= profiles)
