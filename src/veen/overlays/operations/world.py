"""What is known beside the log: a domain's policy, and what services say they did. Plain values, all optional.

A rule whose answer depends on something that is not known is open, never guessed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, NamedTuple, TypeAlias

from veen.core import CapToken, Receipt
from veen.core.cbor import Bool, Bstr, Uint, Wire
from veen.overlays.fields import body
from veen.overlays.operations.operation import text


class Survivorship(StrEnum):
    """Which of several versions a consumer takes. §6.4."""

    LATEST = "latest"  # in stream order
    HIGHEST = "highest"  # by its name, numbers compared as numbers


@dataclass(frozen=True, slots=True)
class Place(Wire):
    """An entry of a log, by its label."""

    label: bytes
    stream_seq: int

    LAYOUT: ClassVar = body("place", Bstr("label"), Uint("stream_seq"))


@dataclass(frozen=True, slots=True)
class Effect(Wire):
    """A side effect that a service performed; `key` is what it would know it by if it met it again. §2.5."""

    operation_id: bytes
    idempotent: bool
    key: bytes | None = None

    LAYOUT: ClassVar = body("effect", Bstr("operation_id"), Bool("idempotent"), Bstr("key", optional=True))


@dataclass(frozen=True, slots=True)
class Decision(Wire):
    """What a consumer takes for the decision of a party. §5.4."""

    agreement_id: bytes
    version: int
    party_identity: bytes
    decision: str

    LAYOUT: ClassVar = body("decision", Bstr("agreement_id"), Uint("version"), Bstr("party_identity"), text("decision"))


@dataclass(frozen=True, slots=True)
class Taken(Wire):
    """The version that a consumer uses. §6.4."""

    publication_id: bytes
    version: str

    LAYOUT: ClassVar = body("taken", Bstr("publication_id"), text("version"))


@dataclass(frozen=True, slots=True)
class Access(Wire):
    """A read that a data access service has served. §9.3."""

    requester_identity: bytes
    resource_identifier: str
    resource_class: str
    result_digest: bytes | None = None

    LAYOUT: ClassVar = body(
        "access",
        Bstr("requester_identity"),
        text("resource_identifier"),
        text("resource_class"),
        Bstr("result_digest", optional=True),
    )


class Source(NamedTuple):
    """A message of another hub. §10.2."""

    hub_identifier: str
    label: bytes
    stream_seq: int


@dataclass(frozen=True, slots=True)
class Capability:
    """A capability, and since when its hub knows it: without that, nobody can tell when it ends."""

    token: CapToken
    issued_at: int | None = None
    revoked_at: int | None = None  # from that second on it holds no more


@dataclass(frozen=True, slots=True)
class Guardians:
    """Who approves a recovery, and how many of them it takes; anyone where none are named. §8.3."""

    identities: frozenset[bytes] | None = None
    threshold: int = 1


RootAt: TypeAlias = Callable[[Place], bytes | None]
StateAt: TypeAlias = Callable[[str, bytes, Place], bytes | None]  # class, state_id, place -> state_hash
Speakers: TypeAlias = Mapping[bytes, frozenset[bytes]]  # the clients that speak for an identity


def speaks(speakers: Speakers | None, identity: bytes, client_id: bytes) -> bool:
    """Whether a client speaks for an identity: its own, or one the domain says; unchecked where it says nothing."""
    return speakers is None or client_id == identity or client_id in speakers.get(identity, frozenset())


def spoken_for(speakers: Speakers | None, client_id: bytes) -> tuple[bytes, ...]:
    """The identities that a client speaks for, itself first."""
    return (client_id, *(identity for identity, clients in (speakers or {}).items() if client_id in clients))


@dataclass(frozen=True, slots=True)
class World:
    """Everything a validator may be told. None stands for what is not known."""

    stream_id: bytes | None = None  # of the log that is checked
    speakers: Speakers | None = None
    processed: tuple[Place, ...] | None = None  # places for which a wallet service moved money
    effects: tuple[Effect, ...] | None = None
    granters: frozenset[bytes] | None = None  # clients and capabilities that may change permissions
    bootstrapped: frozenset[bytes] | None = None  # capabilities that stand without a grant
    capabilities: Mapping[bytes, Capability] = field(default_factory=dict)  # by auth_ref
    decisions: tuple[Decision, ...] | None = None
    survivorship: Survivorship = Survivorship.LATEST
    taken: tuple[Taken, ...] | None = None
    root_at: RootAt | None = None
    state_at: StateAt | None = None
    executors: frozenset[bytes] | None = None  # clients that may execute a recovery; anyone where not set
    accesses: tuple[Access, ...] | None = None
    regulated: frozenset[str] | None = None  # classes of resource; all where not set
    sources: Mapping[Source, Receipt] = field(default_factory=dict)  # verified receipts of other hubs
