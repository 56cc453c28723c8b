"""The audit streams of an air-gap bridge: exports of one zone and imports of the other. 001, AGB0 §4.6.

`bridge_events` defines the events. In `zone_logs`, EXPORTS folds the log of the exporting zone; IMPORTS and ORIGINS
fold the log of the importing zone.
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
