"""Verify one entry against the rules. Needs only the entries of the label before it."""

from collections.abc import Callable
from enum import StrEnum
from typing import Self

from veen.core import HubIdentity, Limits, Malformed, Mmr, Msg, Receipt, VeenError, ciphertext
from veen.core.hashing import HASH_BYTES
from veen.core.receipt import time_fault
from veen.storage.frame import AcceptedEntry, Cursor, LogEntry
from veen.storage.metadata import HubMetadata
from veen.storage.pruned_chunk import PrunedEntry

Taken = tuple[AcceptedEntry, Msg, Receipt]


class EntryCheck(StrEnum):
    """The checks of an entry, in the order of the report."""

    FRAME = "frame"  # it starts where the previous entry ends and is as long as its header says
    HASH = "entry_hash"
    FORM = "form"  # it decodes to a MSG and a RECEIPT
    PLACE = "place"  # header, receipt and log agree on label and stream_seq
    BINDING = "binding"  # the receipt is for this message, and the message for its ciphertext
    CLIENT_SIG = "client_sig"
    HUB_SIG = "hub_sig"
    SIZE = "size"  # it respects the limits and the profile of the hub
    ORDER = "order"  # client_seq, prev_ack, hub_ts
    ROOT = "root"  # mmr_root matches the tree that ends with it
    ANCHOR = "anchor"  # the tree before it is known, so its root can be checked
    MISSING = "missing"  # it is in the log although the data directory shows that it was written


class Failure(str):
    """The description of a fault, with the check that failed."""

    __slots__ = ("check",)
    check: EntryCheck

    def __new__(cls, check: EntryCheck, what: str) -> Self:
        made = super().__new__(cls, what)
        made.check = check
        return made

    def __reduce__(self) -> tuple[type[Self], tuple[EntryCheck, str]]:
        """Failures are sent between processes."""
        return type(self), (self.check, str(self))


class EntryVerifier:
    """Verifies the entries of one label in order."""

    def __init__(
        self,
        hub_metadata: HubMetadata,
        label: bytes,
        tree: Mmr,
        hub_ts: int,
        known: Callable[[bytes], Cursor | None] | None,
        *,
        in_step: bool = True,
        signatures: bool = True,
    ) -> None:
        """`known` returns a client's cursor before the first entry; None if cursors are unknown here.

        With `in_step` False the tree does not belong to the label, and roots are not checked. Callers that continue
        after damage may set all of these again. With `signatures` False those of entries are not verified, which is
        most of the work: entry hashes and roots still find every changed byte.
        """
        self._hub_metadata = hub_metadata
        self._profile_id = hub_metadata.profile.profile_id()
        self._limits = hub_metadata.limit_registry
        self._label = label
        self.hub_ts = hub_ts
        self.known = known
        self.in_step = in_step
        self._signatures = signatures
        self.tree = tree
        self.cursors: dict[bytes, Cursor] = {}

    def judge(self, entry: LogEntry, framed: bytes) -> tuple[Taken | None, list[Failure]]:
        """Decode and check an entry. Returns it for the index (None if it cannot be decoded), and its faults."""
        try:
            message, receipt = Msg.decode(entry.msg), Receipt.decode(entry.receipt)
        except Malformed as error:
            return None, [Failure(EntryCheck.FORM, str(error))]
        faults = [*self._faults_of_place(entry, receipt), *self._faults_of_signatures(message, receipt)]
        faults += [*self._faults_of_size(entry, message, receipt), *self._faults_of_order(message, receipt)]
        # A hub_ts that the hub did not sign sets no lower bound.
        if all(fault.check is not EntryCheck.HUB_SIG for fault in faults):
            self.hub_ts = max(self.hub_ts, receipt.hub_ts)
        made = self.tree.append(message.leaf_hash())
        if self.tree.root() != receipt.mmr_root:
            if self.in_step:  # report only the first: every later root differs, too
                faults.append(Failure(EntryCheck.ROOT, "mmr_root does not match the entries up to here"))
            self.in_step = False
        record = AcceptedEntry.of(message, entry.stream_seq, framed, entry.entry_hash, made, receipt.hub_ts)
        record.label = self._label  # the message may name another, which is a fault
        return (record, message, receipt), faults

    def judge_pruned(self, entry: PrunedEntry) -> tuple[Taken, list[Failure]]:
        """As `judge`, for an entry without payload. Its receipt is verified if it was kept."""
        message = entry.message
        faults = self._faults_of_order(message, entry.receipt(bytes(HASH_BYTES)))
        made = self.tree.append(message.leaf_hash())
        receipt = entry.receipt(self.tree.root())
        if self._signatures and entry.hub_sig and self.in_step:
            faults += _fault(EntryCheck.HUB_SIG, lambda: self._signer(receipt).verify_receipt(receipt))
        self.hub_ts = max(self.hub_ts, receipt.hub_ts)
        if entry.root not in (None, receipt.mmr_root):
            if self.in_step:
                faults.append(Failure(EntryCheck.ROOT, "the root at the end does not match the entries up to here"))
            self.in_step = False
        record = AcceptedEntry.of(message, entry.stream_seq, bytes(entry.size), entry.entry_hash, made, entry.hub_ts)
        record.label = self._label
        return (record, message, receipt), faults

    def _faults_of_place(self, entry: LogEntry, receipt: Receipt) -> list[Failure]:
        faults = []
        if entry.label != self._label:
            faults.append(Failure(EntryCheck.PLACE, f"the header has label {entry.label.hex()[:16]}…"))
        if (receipt.label, receipt.stream_seq) != (entry.label, entry.stream_seq):
            faults.append(Failure(EntryCheck.PLACE, "the receipt is for another place than the header"))
        return faults

    def _faults_of_signatures(self, message: Msg, receipt: Receipt) -> list[Failure]:
        faults = _fault(EntryCheck.BINDING, lambda: receipt.check_binds(message))
        if not self._signatures:
            return faults
        return [
            *faults,
            *_fault(EntryCheck.CLIENT_SIG, message.verify_signature),
            *_fault(EntryCheck.HUB_SIG, lambda: self._signer(receipt).verify_receipt(receipt)),
        ]

    def _signer(self, receipt: Receipt) -> HubIdentity:
        return self._hub_metadata.identity_at(receipt.label, receipt.stream_seq)

    def _faults_of_size(self, entry: LogEntry, message: Msg, receipt: Receipt) -> list[Failure]:
        faults = _above(entry, message, self._limits.at(receipt.hub_ts))
        if faults and self._is_control(receipt.hub_ts):
            faults = _above(entry, message, Limits())
        if message.profile_id != self._profile_id:
            faults.append(Failure(EntryCheck.SIZE, "the profile id does not match profile.json"))
        return faults

    def _is_control(self, hub_ts: int) -> bool:
        """Whether the label is of the control stream. Only the hub writes there, and its limits are for clients."""
        return self._hub_metadata.control_hub(self._label, hub_ts) is not None

    def _faults_of_order(self, message: Msg, receipt: Receipt) -> list[Failure]:
        faults = []
        client = message.client_id
        cursor = self.cursors.get(client) or (self.known(client) if self.known else None)
        if cursor is None:
            # The client's first message here, unless earlier entries could not be read.
            cursor = (0, 0) if self.known else (message.client_seq - 1, 0)
        client_seq, prev_ack = cursor
        if message.client_seq != client_seq + 1:
            faults.append(Failure(EntryCheck.ORDER, f"client_seq {message.client_seq} follows {client_seq}"))
        if not prev_ack <= message.prev_ack <= self.tree.size:
            faults.append(
                Failure(EntryCheck.ORDER, f"prev_ack {message.prev_ack} is not within {prev_ack}..{self.tree.size}")
            )
        fault = time_fault(self.hub_ts, receipt.hub_ts)
        if fault:
            faults.append(Failure(EntryCheck.ORDER, fault))
        self.cursors[client] = message.client_seq, message.prev_ack
        return faults


def _above(entry: LogEntry, message: Msg, limits: Limits) -> list[Failure]:
    faults = _fault(EntryCheck.SIZE, lambda: ciphertext.check_sizes(message.ciphertext, limits))
    if len(entry.msg) > limits.max_msg_bytes:
        faults.append(Failure(EntryCheck.SIZE, f"a message of {len(entry.msg)} bytes, above max_msg_bytes"))
    return faults


def _fault(of: EntryCheck, check: Callable[[], object]) -> list[Failure]:
    try:
        check()
    except VeenError as error:
        return [Failure(of, str(error))]
    return []
