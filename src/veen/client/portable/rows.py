"""What a portable set holds beside wire objects that have a name of their own."""

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
    """A hub's routing_key: with it and a stream_id come the stream's labels."""

    hub_id: bytes
    routing_key: bytes

    LAYOUT: ClassVar = Map("routing secret", {1: VersionField(), 2: Bstr("hub_id"), 3: Bstr("routing_key")})


@dataclass(frozen=True, slots=True)
class SyncState(Wire):
    """Whose label it is, and how far it was verified; no state where it only has messages on their way."""

    hub_id: bytes
    label: bytes
    state: LabelState | None = None

    LAYOUT: ClassVar = Map(
        "sync state",
        {1: VersionField(), 2: Bstr("hub_id"), 3: Bstr("label"), 4: Nested("state", LabelState, optional=True)},
    )


@dataclass(frozen=True, slots=True)
class StateRow(Wire):
    """One row of one table, as it is."""

    table: str
    key: bytes
    row: bytes

    LAYOUT: ClassVar = Map(
        "state row",
        {1: VersionField(), 2: Text("table", MAX_TEXT_BYTES), 3: Bytes("key", 511), 4: Bytes("row", MAX_MSG_BYTES)},
    )

    def flaw(self) -> str | None:
        if self.table not in CARRIED:
            return f"rows of {self.table!r} are not carried"
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


# What goes along row by row: the length of a table's keys, and of its rows or what those are.
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
