"""The registry of overlays: built-in ones, and those of distributions with the entry point group `veen.overlays`.

An entry point names an `Overlay` object:

    [project.entry-points."veen.overlays"]
    tally = "my_package.tally:TALLY"
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from typing import Any, TypeAlias

from veen.core import Unavailable
from veen.overlays.overlay import Overlay

ENTRY_POINT_GROUP = "veen.overlays"

AnyOverlay: TypeAlias = Overlay[Any, Any]


class Registry:
    """Overlays by class and by schema. Several overlays may read one schema."""

    def __init__(self, overlays: Iterable[AnyOverlay]) -> None:
        self._by_class: dict[str, AnyOverlay] = {}
        by_schema: dict[bytes, list[AnyOverlay]] = defaultdict(list)
        for overlay in overlays:
            if overlay.CLASS in self._by_class:
                raise Unavailable(
                    f"two installed overlays have the class {overlay.CLASS}: uninstall one of their distributions"
                )
            self._by_class[overlay.CLASS] = overlay
            for schema in overlay.schemas:
                by_schema[schema].append(overlay)
        self._by_schema = {schema: tuple(listed) for schema, listed in by_schema.items()}

    def __iter__(self) -> Iterator[AnyOverlay]:
        return iter(self._by_class.values())

    def of_class(self, name: str) -> AnyOverlay | None:
        return self._by_class.get(name)

    def of_schema(self, schema: bytes) -> tuple[AnyOverlay, ...]:
        return self._by_schema.get(schema, ())


def installed_overlays() -> Iterator[AnyOverlay]:
    """The overlays of other distributions, ordered by entry point name."""
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (point.name, point.value)):
        try:
            overlay = point.load()
        except Exception as error:
            raise Unavailable(f"the overlay {point.name} ({point.value}) cannot be loaded: {error}") from error
        if not isinstance(overlay, Overlay):
            raise Unavailable(f"the entry point {point.name} ({point.value}) is not an Overlay object")
        yield overlay
