"""The rows of a portable set that are not wire objects of the protocol."""

from dataclasses import dataclass
from typing import ClassVar

from veen.client.client_state import CaughtRow, LabelState
from veen.client.stream_keys import StreamKey
from veen.client.trust import HubRecord
from veen.client.writer_keys import ClientKeyUse, WriterState
from veen.core import Malformed
from veen.core.cbor import Bstr, Bytes, Map, Nested, Text, VersionField, Wire
from veen.core.limits import MAX_MSG_BYTES, MAX_TEXT_BYTES

CARRIED_EVIDENCE = "evidence.cborseq"


@dataclass(frozen=True, slots=True)
class Routing(Wire):
    """A hub's routing_key, from which the labels of its streams are derived."""

    hub_id: bytes
    routing_key: bytes

    LAYOUT: ClassVar = Map("routing secret", {1: VersionField(), 2: Bstr("hub_id"), 3: Bstr("routing_key")})


@dataclass(frozen=True, slots=True)
class SyncState(Wire):
    """The hub of a label, and how far it was verified; no state if it only has pending messages."""

    hub_id: bytes
    label: bytes
    state: LabelState | None = None

    LAYOUT: ClassVar = Map(
        "sync state",
        {1: VersionField(), 2: Bstr("hub_id"), 3: Bstr("label"), 4: Nested("state", LabelState, optional=True)},
    )


@dataclass(frozen=True, slots=True)
class StateRow(Wire):
    """One row of a table, unchanged."""

    table: str
    key: bytes
    row: bytes

    LAYOUT: ClassVar = Map(
        "state row",
        {1: VersionField(), 2: Text("table", MAX_TEXT_BYTES), 3: Bytes("key", 511), 4: Bytes("row", MAX_MSG_BYTES)},
    )

    def flaw(self) -> str | None:
        if self.table not in CARRIED:
            return f"table {self.table!r} is not part of a portable set"
        size, wire = CARRIED[self.table]
        if size is not None and len(self.key) != size:
            return f"a key of {self.table} has {size} bytes, not {len(self.key)}"
        if isinstance(wire, int):
            return None if len(self.row) == wire else f"a row of {self.table} has {wire} bytes, not {len(self.row)}"
        try:
            wire.decode(self.row)
        except Malformed as error:
            return str(error)
        return None


# The tables that are copied row by row: length of the keys, and length or type of the rows.
CARRIED: dict[str, tuple[int | None, int | type[Wire]]] = {
    "generations": (8, ClientKeyUse),
    "eras": (8 + 32, 8),
    "writers": (3 * 32, WriterState),
    "hubs": (32, HubRecord),
    "caught": (2 * 32, CaughtRow),
    "urls": (None, 32),
    "streams": (32, StreamKey),
    "grants": (2 * 32, 8),
    "marks": (None, 32),
}
