"""The client: keys, sending, reading, and verifying all that a hub says.

What talks to a hub is loaded when it is first asked for: who only makes keys need not wait for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from veen.client.caps import CapBox
from veen.client.card import Card
from veen.client.clientdir import ClientDir
from veen.client.durable import Busy
from veen.client.identity import Identity
from veen.client.keystore import Cost, WrongPassphrase
from veen.client.outbox import Outbox, Pending
from veen.client.portable import export_identity, import_identity
from veen.client.prekeys import Prekey
from veen.client.state import LabelState, Moved, State
from veen.client.streamkeys import ReaderKey, StreamKey, StreamKeys
from veen.client.writers import KeyBounds, Writer

if TYPE_CHECKING:
    from veen.client.blocking import BlockingClient
    from veen.client.client import Client
    from veen.client.contradiction import Contradiction, Lie
    from veen.client.draft import Draft, Sent
    from veen.client.entry import Entry
    from veen.client.evidence import Evidence
    from veen.client.lane import Settled, Undecided
    from veen.client.proofs import Proved
    from veen.client.resync import Resynced
    from veen.client.sender import Sender
    from veen.client.status import HubStatus
    from veen.client.transport import Patience
    from veen.client.trust import Pin
    from veen.client.verdict import Report

__all__ = [
    "BlockingClient",
    "Busy",
    "CapBox",
    "Card",
    "Client",
    "ClientDir",
    "Contradiction",
    "Cost",
    "Draft",
    "Entry",
    "Evidence",
    "HubStatus",
    "Identity",
    "KeyBounds",
    "LabelState",
    "Lie",
    "Moved",
    "Outbox",
    "Patience",
    "Pending",
    "Pin",
    "Prekey",
    "Proved",
    "ReaderKey",
    "Report",
    "Resynced",
    "Sender",
    "Sent",
    "Settled",
    "State",
    "StreamKey",
    "StreamKeys",
    "Undecided",
    "Writer",
    "WrongPassphrase",
    "export_identity",
    "import_identity",
]

_LATER = {
    "BlockingClient": "blocking",
    "Client": "client",
    "Contradiction": "contradiction",
    "Draft": "draft",
    "Entry": "entry",
    "Evidence": "evidence",
    "HubStatus": "status",
    "Lie": "contradiction",
    "Patience": "transport",
    "Pin": "trust",
    "Proved": "proofs",
    "Report": "verdict",
    "Resynced": "resync",
    "Sender": "sender",
    "Sent": "draft",
    "Settled": "lane",
    "Undecided": "lane",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'veen.client' has no attribute {name!r}")
    return getattr(import_module(f"veen.client.{_LATER[name]}"), name)
