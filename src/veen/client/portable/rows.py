"""The rows of a portable set that are not wire objects of the protocol."""

from typing import Annotated

from veen.client.client_state import CaughtRow, LabelState
from veen.client.stream_keys import StreamKey
from veen.client.trust import HubRecord
from veen.client.writer_keys import ClientKeyUse, WriterState
from veen.core import Malformed
from veen.core.cbor import Bstr, Bytes, Nested, Text, VersionField, Wire, int_map
from veen.core.limits import MAX_MSG_BYTES, MAX_TEXT_BYTES

CARRIED_EVIDENCE = "evidence.cborseq"


@int_map("routing secret", VersionField())
class Routing(Wire):
    """A hub's routing_key, from which the labels of its streams are derived."""

    hub_id: Annotated[bytes, Bstr()]
    routing_key: Annotated[bytes, Bstr()]


@int_map("sync state", VersionField())
class SyncState(Wire):
    """The hub of a label, and how far it was verified; no state if it only has pending messages."""

    hub_id: Annotated[bytes, Bstr()]
    label: Annotated[bytes, Bstr()]
    state: Annotated[LabelState | None, Nested(LabelState, optional=True)] = None


@int_map("state row", VersionField())
class StateRow(Wire):
    """One row of a table, unchanged."""

    table: Annotated[str, Text(MAX_TEXT_BYTES)]
    key: Annotated[bytes, Bytes(511)]
    row: Annotated[bytes, Bytes(MAX_MSG_BYTES)]

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
