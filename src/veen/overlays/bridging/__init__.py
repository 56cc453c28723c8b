"""The audit streams of an air-gap bridge: what left one zone, and what became of it in the other. 001, AGB0 §4.6.

`events` has the bodies; `exports` folds the log of the zone that events leave, `imports` and `origins` that of the zone
they come to.
"""

from veen.overlays.bridging.events import (
    OFFLINE_LOG,
    ONLINE_LOG,
    Exported,
    Imported,
    Intake,
    Origin,
    Result,
    TargetRange,
)
from veen.overlays.bridging.exports import EXPORTS, ExportStates, exported_ranges
from veen.overlays.bridging.imports import IMPORTS, ImportStates, Standing, imported_ranges
from veen.overlays.bridging.origins import ORIGINS, OriginStates, Traced, origin_of

__all__ = [
    "BRIDGING_OVERLAYS",
    "EXPORTS",
    "ExportStates",
    "Exported",
    "IMPORTS",
    "ImportStates",
    "Imported",
    "Intake",
    "OFFLINE_LOG",
    "ONLINE_LOG",
    "ORIGINS",
    "Origin",
    "OriginStates",
    "Result",
    "Standing",
    "TargetRange",
    "Traced",
    "exported_ranges",
    "imported_ranges",
    "origin_of",
]

BRIDGING_OVERLAYS = (EXPORTS, IMPORTS, ORIGINS)
