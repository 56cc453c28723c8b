"""What an implementation or a deployment may say it complies with. 001, spec-2 §8. Nothing of it is on the wire."""

from collections.abc import Iterable
from enum import StrEnum


class ComplianceProfile(StrEnum):
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


class ComplianceClaim(StrEnum):
    """The levels, each of which has all that the one before it has."""

    CORE = "VEEN v0.0.1+ Core"
    FEDERATED = "VEEN v0.0.1+ Federated"
    HARDENED = "VEEN v0.0.1+ Hardened"
    META = "VEEN v0.0.1+ Federated + Hardened + Meta"


ADDS: dict[ComplianceClaim, tuple[ComplianceProfile, ...]] = {
    ComplianceClaim.CORE: (
        ComplianceProfile.CORE,
        ComplianceProfile.OP0,
        ComplianceProfile.KEX0,
        ComplianceProfile.RESYNC0,
    ),
    ComplianceClaim.FEDERATED: (ComplianceProfile.FED1, ComplianceProfile.AUTH1),
    ComplianceClaim.HARDENED: (ComplianceProfile.KEX1, ComplianceProfile.SH1),
    ComplianceClaim.META: (ComplianceProfile.LCLASS0, ComplianceProfile.META0),
}


def needs(claim: ComplianceClaim) -> frozenset[ComplianceProfile]:
    """All the profiles a claim stands on."""
    levels = list(ComplianceClaim)[: list(ComplianceClaim).index(claim) + 1]
    return frozenset(profile for level in levels for profile in ADDS[level])


def claims(kept: Iterable[ComplianceProfile]) -> tuple[ComplianceClaim, ...]:
    """The claims that hold for whoever keeps these profiles, the highest last."""
    profiles = frozenset(kept)
    return tuple(claim for claim in ComplianceClaim if needs(claim) <= profiles)
