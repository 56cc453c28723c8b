"""Is this entry what the rules say comes next? Every check of one entry that needs nothing but the log before it."""

from collections.abc import Callable

from veen.core import Malformed, Mmr, Msg, Receipt, VeenError, ciphertext
from veen.storage.directory import Papers
from veen.storage.frame import Entry
from veen.storage.record import Cursor, Record

Taken = tuple[Record, Msg, Receipt]


class Judge:
    """Judges the entries of one label, one after the other."""

    def __init__(
        self,
        papers: Papers,
        label: bytes,
        tree: Mmr,
        hub_ts: int,
        known: Callable[[bytes], Cursor | None] | None,
        *,
        in_step: bool = True,
    ) -> None:
        """`known` finds a client's cursor before the first entry judged here; None where that cannot be known.

        Without `in_step` the tree is not the label's, and roots are not judged.
        """
        self._papers = papers
        self._profile_id = papers.profile.profile_id()
        self._label = label
        self._hub_ts = hub_ts
        self._known = known
        self._in_step = in_step
        self.tree = tree
        self.cursors: dict[bytes, Cursor] = {}

    def judge(self, entry: Entry, framed: bytes) -> tuple[Taken | None, list[str]]:
        """The entry as an index takes it, and its faults. None where it cannot be read at all."""
        try:
            message, receipt = Msg.decode(entry.msg), Receipt.decode(entry.receipt)
        except Malformed as error:
            return None, [str(error)]
        faults = [*self._faults_of_place(entry, receipt), *self._faults_of_signatures(message, receipt)]
        faults += [*self._faults_of_size(entry, message), *self._faults_of_order(message, receipt)]
        made = self.tree.append(message.leaf_hash())
        if self.tree.root() != receipt.mmr_root:
            if self._in_step:  # once it is off, every root after it is
                faults.append("mmr_root is not that of the entries up to here")
            self._in_step = False
        record = Record(
            self._label,
            entry.stream_seq,
            framed,
            entry.entry_hash,
            made,
            message.client_id,
            message.client_seq,
            message.prev_ack,
            receipt.hub_ts,
        )
        return (record, message, receipt), faults

    def _faults_of_place(self, entry: Entry, receipt: Receipt) -> list[str]:
        faults = []
        if entry.label != self._label:
            faults.append(f"its header has the label {entry.label.hex()[:16]}…")
        if (receipt.label, receipt.stream_seq) != (entry.label, entry.stream_seq):
            faults.append("its receipt is for another place than its header")
        return faults

    def _faults_of_signatures(self, message: Msg, receipt: Receipt) -> list[str]:
        return [
            *_fault(lambda: receipt.check_binds(message)),
            *_fault(message.verify_signature),
            *_fault(lambda: self._papers.identity_at(receipt.label, receipt.stream_seq).verify_receipt(receipt)),
        ]

    def _faults_of_size(self, entry: Entry, message: Msg) -> list[str]:
        limits = self._papers.limits
        faults = _fault(lambda: ciphertext.check_sizes(message.ciphertext, limits))
        if len(entry.msg) > limits.max_msg_bytes:
            faults.append(f"a message of {len(entry.msg)} bytes, above max_msg_bytes")
        if message.profile_id != self._profile_id:
            faults.append("its profile is not that of profile.json")
        return faults

    def _faults_of_order(self, message: Msg, receipt: Receipt) -> list[str]:
        faults = []
        client = message.client_id
        cursor = self.cursors.get(client) or (self._known(client) if self._known else None)
        if cursor is None:
            # A client's first message here, unless what came before could not be read.
            cursor = (0, 0) if self._known else (message.client_seq - 1, 0)
        client_seq, prev_ack = cursor
        if message.client_seq != client_seq + 1:
            faults.append(f"client_seq {message.client_seq} follows {client_seq}")
        if not prev_ack <= message.prev_ack <= self.tree.size:
            faults.append(f"prev_ack {message.prev_ack} is not within {prev_ack}..{self.tree.size}")
        if receipt.hub_ts < self._hub_ts:
            faults.append(f"hub_ts goes back from {self._hub_ts} to {receipt.hub_ts}")
        self.cursors[client] = message.client_seq, message.prev_ack
        self._hub_ts = max(self._hub_ts, receipt.hub_ts)
        return faults


def _fault(check: Callable[[], object]) -> list[str]:
    try:
        check()
    except VeenError as error:
        return [str(error)]
    return []
