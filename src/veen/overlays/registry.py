"""The overlays that come with VEEN, and those of distributions with the entry point group `veen.overlays`.

An entry point names an `Overlay` object:

    [project.entry-points."veen.overlays"]
    tally = "my_package.tally:TALLY"
"""

from veen.overlays.authority import AUTHORITIES
from veen.overlays.authorization import AUTHORIZATIONS, OPERATOR_REVOCATIONS, REVOCATIONS
from veen.overlays.bridging import EXPORTS, IMPORTS, ORIGINS
from veen.overlays.connect import CONNECT
from veen.overlays.crdt import G_COUNTER, LWW, OR_SET
from veen.overlays.discovery import DISCOVERY
from veen.overlays.identity import IDENTITY
from veen.overlays.kv import KV
from veen.overlays.operations import OPERATION_OVERLAYS
from veen.overlays.overlay import AnyOverlay, Registry, installed_overlays
from veen.overlays.queue import QUEUE
from veen.overlays.record import RECORD_TALLIES, RECORDER_CHANGES
from veen.overlays.rpc import RPC
from veen.overlays.stream_catalog import LABEL_CLASSES, SCHEMAS
from veen.overlays.wallet import WALLETS

BUILTIN: tuple[AnyOverlay, ...] = (
    LWW,
    OR_SET,
    G_COUNTER,
    KV,
    QUEUE,
    RPC,
    WALLETS,
    IDENTITY,
    LABEL_CLASSES,
    SCHEMAS,
    AUTHORITIES,
    REVOCATIONS,
    OPERATOR_REVOCATIONS,
    AUTHORIZATIONS,
    *OPERATION_OVERLAYS,
    DISCOVERY,
    CONNECT,
    RECORD_TALLIES,
    RECORDER_CHANGES,
    EXPORTS,
    IMPORTS,
    ORIGINS,
)


def registry() -> Registry:
    """The built-in overlays and those of installed distributions."""
    return Registry((*BUILTIN, *installed_overlays()))
