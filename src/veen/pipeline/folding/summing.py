"""A run summed up in one go: entries come in order, so a copy within the run is known as one when it comes."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from veen.overlays import AnyOverlay, At, Entry, Fault, FaultKind, Summary
from veen.overlays.fold import copy_reason

Earlier = Callable[[bytes, bytes], At | None]  # part, key -> where it was met before the run


@dataclass(slots=True)
class Met:
    """What the steps of a run are known by."""

    firsts: dict[tuple[bytes, bytes], At] = field(default_factory=dict)  # (part, key) -> where it is met first
    nameless: list[tuple[bytes, At]] = field(default_factory=list)  # steps without a key


def never(part: bytes, key: bytes) -> At | None:
    """Nothing was met before."""
    return None


def sum_entries(
    overlay: AnyOverlay, log: Iterable[Entry], earlier: Earlier = never, within: Collection[bytes] | None = None
) -> tuple[Summary[Any], Met]:
    """The same as `firsts`, then `summarise` with them. With `within`, of these parts only."""
    parts: dict[bytes, Any] = {}
    faults: list[Fault] = []
    met = Met()
    for entry in log:
        found = overlay.read(entry)
        if isinstance(found, Fault):
            if within is None:
                faults.append(found)
            continue
        at = entry.at
        for step in found:
            part = step.part
            if within is not None and part not in within:
                continue
            keys = overlay.keys(step)
            first = at
            for key in keys:
                known = met.firsts.get((part, key))
                if known is None:
                    known = met.firsts[part, key] = earlier(part, key) or at
                first = min(first, known)
            if not keys:
                met.nameless.append((part, at))
            if first < at:
                faults.append(Fault.at(at, FaultKind.COPY, copy_reason(at, first), part))
            else:
                parts[part] = overlay.merge(parts.get(part, overlay.EMPTY), overlay.lift(step))
    return Summary(parts, tuple(faults)), met
