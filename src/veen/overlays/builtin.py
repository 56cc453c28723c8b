"""The overlays that come with VEEN."""

from veen.overlays.admin import ADMIN
from veen.overlays.bridging import BRIDGING_OVERLAYS
from veen.overlays.connect import CONNECT
from veen.overlays.crdt import G_COUNTER, LWW, OR_SET
from veen.overlays.discovery import DISCOVERY
from veen.overlays.identity import IDENTITY
from veen.overlays.kv import KV
from veen.overlays.operations import OPERATION_OVERLAYS
from veen.overlays.queue import QUEUE
from veen.overlays.record import RECORD
from veen.overlays.registry import AnyOverlay, Registry, installed_overlays
from veen.overlays.rpc import RPC
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
    *ADMIN,
    *OPERATION_OVERLAYS,
    DISCOVERY,
    CONNECT,
    *RECORD,
    *BRIDGING_OVERLAYS,
)


def registry() -> Registry:
    """The built-in overlays and those of installed distributions."""
    return Registry((*BUILTIN, *installed_overlays()))
