"""The client: keys, sending, reading, and verification of everything that a hub returns.

Modules that connect to a hub are imported on first use, so that programs which only handle keys start faster.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from veen.client.capabilities import CapabilityStore
from veen.client.client_dir import ClientDir
from veen.client.client_identity import Card, ClientIdentity, Prekey
from veen.client.client_state import ClientState, LabelState, StateConflict
from veen.client.keystore import ReaderKey, StreamKey, StreamKeys
from veen.client.local_files import Busy
from veen.client.portable import export_identity, import_identity
from veen.client.writer_keys import KeyBounds, Outbox, Pending, WriterKey
from veen.core.passphrase import Cost, WrongPassphrase

if TYPE_CHECKING:
    from veen.client.blocking_client import BlockingClient
    from veen.client.client import Client
    from veen.client.contradiction import Contradiction, Lie
    from veen.client.evidence import Evidence, EvidenceReport
    from veen.client.proofs import Proved, Resynced
    from veen.client.reader import Entry
    from veen.client.sender import Draft, Sender, Sent, Settled, Undecided
    from veen.client.transport import RetryPolicy
    from veen.client.trust import HubStatus, Pin

__all__ = [
    "BlockingClient",
    "Busy",
    "CapabilityStore",
    "Card",
    "Client",
    "ClientDir",
    "ClientIdentity",
    "ClientState",
    "Contradiction",
    "Cost",
    "Draft",
    "Entry",
    "Evidence",
    "EvidenceReport",
    "HubStatus",
    "KeyBounds",
    "LabelState",
    "Lie",
    "Outbox",
    "Pending",
    "Pin",
    "Prekey",
    "Proved",
    "ReaderKey",
    "Resynced",
    "RetryPolicy",
    "Sender",
    "Sent",
    "Settled",
    "StateConflict",
    "StreamKey",
    "StreamKeys",
    "Undecided",
    "WriterKey",
    "WrongPassphrase",
    "export_identity",
    "import_identity",
]

# The names of each module that is imported on first use.
_LAZY_MODULES = {
    "blocking_client": ("BlockingClient",),
    "client": ("Client",),
    "contradiction": ("Contradiction", "Lie"),
    "evidence": ("Evidence", "EvidenceReport"),
    "proofs": ("Proved", "Resynced"),
    "reader": ("Entry",),
    "sender": ("Draft", "Sender", "Sent", "Settled", "Undecided"),
    "transport": ("RetryPolicy",),
    "trust": ("HubStatus", "Pin"),
}


def __getattr__(name: str) -> object:
    for module, names in _LAZY_MODULES.items():
        if name in names:
            return getattr(import_module(f"veen.client.{module}"), name)
    raise AttributeError(f"module 'veen.client' has no attribute {name!r}")
