"""Phases 1 and 2: select a hub, an overlay and a service. 001, spec-5 §7.1, §7.2, §8.3.

Pure functions over directory entries. Each returns the candidates, best first, and the excluded descriptors with the
reason, so that the user sees what was not proposed. Directory entries are hints, not trusted facts.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from veen.overlays.discovery import Advertised, HubAdvertise, OverlayAdvertise, ServiceAdvertise

D = TypeVar("D", HubAdvertise, OverlayAdvertise, ServiceAdvertise)

# A descriptor with one of these tags is proposed only if the client requests the tag.
GUARDED_TAGS = frozenset({"beta", "experimental", "internal", "private", "test"})


@dataclass(frozen=True, slots=True)
class FoundService(Generic[D]):
    """A descriptor, and the last second in which it is valid."""

    descriptor: D
    expires_at: int


def found_in(directory: Iterable[Advertised], kind: type[D]) -> tuple[FoundService[D], ...]:
    """The descriptors of a locally folded directory."""
    listed = ((known.descriptor, known.expires_at) for known in directory)
    return tuple(FoundService(one, expires_at) for one, expires_at in listed if isinstance(one, kind))


@dataclass(frozen=True, slots=True)
class Excluded:
    """A descriptor that is not proposed, and the reason."""

    id: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Choice(Generic[D]):
    """The candidates, best first, and the excluded descriptors."""

    candidates: tuple[FoundService[D], ...]
    left_out: tuple[Excluded, ...]


@dataclass(frozen=True, slots=True)
class HubCriteria:
    """A client's criteria for a hub. `overlays` and `region` are preferences, all others are requirements."""

    profiles: frozenset[bytes]
    region: str | None = None
    tags_any: tuple[str, ...] = ()
    overlays: tuple[bytes, ...] = ()
    hub_pk: bytes | None = None
    max_latency_ms: int | None = None


def choose_hubs(
    found: Iterable[FoundService[HubAdvertise]], wish: HubCriteria, latency_ms: Mapping[bytes, int] | None = None
) -> Choice[HubAdvertise]:
    """Steps 2 to 4 of §7.1: order by region, then by supported overlays, then by measured round trip."""
    measured = latency_ms or {}

    def against(hub: HubAdvertise) -> str | None:
        if hub.profile_id not in wish.profiles:
            return "this client does not support its profile"
        if wish.hub_pk is not None and hub.hub_pk != wish.hub_pk:
            return "its key is not the pinned key"
        if not hub.endpoints:
            return "it lists no endpoint"
        took, most = measured.get(hub.hub_id), wish.max_latency_ms
        if most is not None and (took is None or took > most):
            return f"its round trip takes more than {most} ms" if took is not None else "it did not answer"
        return _tags_against(hub.tags, wish.tags_any)

    def rank(hub: HubAdvertise) -> tuple[bool, int, bool, int]:
        lacks = len(set(wish.overlays) - set(hub.overlays))
        took = measured.get(hub.hub_id)
        return wish.region not in (None, hub.region), lacks, took is None, took or 0

    return _choose(found, against, rank)


def choose_overlays(
    found: Iterable[FoundService[OverlayAdvertise]],
    implemented: Mapping[str, frozenset[bytes]],
    name: str | None = None,
    tags_any: tuple[str, ...] = (),
) -> Choice[OverlayAdvertise]:
    """Step 2 of §7.2: overlays with exactly the schemas that this client's overlay of the same name reads.

    An additional schema may be an event that changes the meaning of all others, so it is as wrong as a missing one.
    """

    def against(one: OverlayAdvertise) -> str | None:
        if name is not None and one.name != name:
            return f"its name is {one.name}, not {name}"
        expected = implemented.get(one.name)
        if expected is None:
            return f"this client has no overlay {one.name}"
        if expected - set(one.schemas):
            return f"it lacks {len(expected - set(one.schemas))} of the schemas that this client expects"
        if set(one.schemas) - expected:
            return f"it has {len(set(one.schemas) - expected)} schemas that this client does not know"
        return _tags_against(one.tags, tags_any)

    return _choose(found, against, lambda one: (one.name,))


@dataclass(frozen=True, slots=True)
class ServiceCriteria:
    """A client's criteria for a service. `region` is a preference, all others are requirements."""

    overlay_ids: frozenset[bytes]
    method: str | None = None
    name_prefix: str | None = None
    region: str | None = None
    tags_any: tuple[str, ...] = ()


def choose_services(found: Iterable[FoundService[ServiceAdvertise]], wish: ServiceCriteria) -> Choice[ServiceAdvertise]:
    """Step 4 of §7.2: order by region, then by name."""

    def against(one: ServiceAdvertise) -> str | None:
        if one.overlay_id not in wish.overlay_ids:
            return "its overlay was not verified"
        if wish.method is not None and wish.method not in one.methods:
            return f"it has no method {wish.method}"
        if not one.name.startswith(wish.name_prefix or ""):
            return f"its name does not start with {wish.name_prefix}"
        if not one.stream_ids:
            return "it lists no stream"
        return _tags_against(one.tags, wish.tags_any)

    return _choose(found, against, lambda one: (wish.region is not None and wish.region not in one.regions, one.name))


def _tags_against(tags: tuple[str, ...], wanted: tuple[str, ...]) -> str | None:
    if wanted and set(wanted).isdisjoint(tags):
        return f"it has none of the tags {', '.join(wanted)}"
    guarded = sorted(GUARDED_TAGS.intersection(tags).difference(wanted))
    return f"it is tagged {guarded[0]}, which was not requested" if guarded else None


def _choose(
    found: Iterable[FoundService[D]], against: Callable[[D], str | None], rank: Callable[[D], tuple[object, ...]]
) -> Choice[D]:
    listed = sorted(found, key=lambda one: one.descriptor.id)
    judged = [(one, against(one.descriptor)) for one in listed]
    fit = [one for one, reason in judged if reason is None]
    left_out = tuple(Excluded(one.descriptor.id, reason) for one, reason in judged if reason is not None)
    return Choice(tuple(sorted(fit, key=lambda one: rank(one.descriptor))), left_out)
