"""The audit streams of an air-gap bridge: what left one zone, and what became of it in the other. 001, AGB0 §4.6.

`events` has the bodies; `exports` folds the log of the zone that events leave, `imports` and `origins` that of the zone
they come to.
"""

from veen.overlays.bridging.bridge_events import (
    OFFLINE_LOG,
    ONLINE_LOG,
    BridgeResult,
    BundleExported,
    BundleImported,
    BundleIntake,
    EventOrigin,
    TargetRange,
)
from veen.overlays.bridging.zone_logs import (
    EXPORTS,
    IMPORTS,
    ORIGINS,
    ExportStates,
    ImportStates,
    ImportStatus,
    OriginStates,
    Traced,
    exported_ranges,
    imported_ranges,
    origin_of,
)

__all__ = [
    "BRIDGING_OVERLAYS",
    "BridgeResult",
    "BundleExported",
    "BundleImported",
    "BundleIntake",
    "EXPORTS",
    "EventOrigin",
    "ExportStates",
    "IMPORTS",
    "ImportStates",
    "ImportStatus",
    "OFFLINE_LOG",
    "ONLINE_LOG",
    "ORIGINS",
    "OriginStates",
    "TargetRange",
    "Traced",
    "exported_ranges",
    "imported_ranges",
    "origin_of",
]

BRIDGING_OVERLAYS = (EXPORTS, IMPORTS, ORIGINS)
