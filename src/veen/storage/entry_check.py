"""Is this entry what the rules say comes next? Every check of one entry that needs nothing but the log before it."""

from collections.abc import Callable
from enum import StrEnum
from typing import Self

from veen.core import HubIdentity, Malformed, Mmr, Msg, Receipt, VeenError, ciphertext
from veen.core.receipt import time_fault
from veen.storage.accepted_entry import AcceptedEntry, Cursor
from veen.storage.frame import LogEntry
from veen.storage.metadata import HubMetadata

Taken = tuple[AcceptedEntry, Msg, Receipt]


class EntryCheck(StrEnum):
    """What an entry is held to."""

    FRAME = "frame"  # it begins and ends where the one before and its header say
    HASH = "entry_hash"
    FORM = "form"  # a MSG and a RECEIPT, nothing else
    PLACE = "place"  # header, receipt and log agree where it is
    BINDING = "binding"  # the receipt is for this message, and the message for its ciphertext
    CLIENT_SIG = "client_sig"
    HUB_SIG = "hub_sig"
    SIZE = "size"  # the limits and the profile of the hub
    ORDER = "order"  # client_seq, prev_ack, hub_ts
    ROOT = "root"  # of the tree that ends with it
    ANCHOR = "anchor"  # the tree before it is known, so that its root can be judged
    MISSING = "missing"  # it is in the log, if the data directory shows that it was written


class Failure(str):
    """What is wrong with an entry, in words, and the check that it failed."""

    __slots__ = ("check",)
    check: EntryCheck

    def __new__(cls, check: EntryCheck, what: str) -> Self:
        made = super().__new__(cls, what)
        made.check = check
        return made

    def __reduce__(self) -> tuple[type[Self], tuple[EntryCheck, str]]:
        """Failures travel between processes."""
        return type(self), (self.check, str(self))


class Judge:
    """Judges the entries of one label, one after the other."""

    def __init__(
        self,
        hub_metadata: HubMetadata,
        label: bytes,
        tree: Mmr,
        hub_ts: int,
        known: Callable[[bytes], Cursor | None] | None,
        *,
        in_step: bool = True,
    ) -> None:
        """`known` finds a client's cursor before the first entry judged here; None where that cannot be known.

        Without `in_step` the tree is not the label's, and roots are not judged. All of this can be set again, by who
        goes on behind damage.
        """
        self._hub_metadata = hub_metadata
        self._profile_id = hub_metadata.profile.profile_id()
        self._label = label
        self.hub_ts = hub_ts
        self.known = known
        self.in_step = in_step
        self.tree = tree
        self.cursors: dict[bytes, Cursor] = {}

    def judge(self, entry: LogEntry, framed: bytes) -> tuple[Taken | None, list[Failure]]:
        """The entry as an index takes it, and its faults. None where it cannot be read at all."""
        try:
            message, receipt = Msg.decode(entry.msg), Receipt.decode(entry.receipt)
        except Malformed as error:
            return None, [Failure(EntryCheck.FORM, str(error))]
        faults = [*self._faults_of_place(entry, receipt), *self._faults_of_signatures(message, receipt)]
        faults += [*self._faults_of_size(entry, message), *self._faults_of_order(message, receipt)]
        if all(
            fault.check is not EntryCheck.HUB_SIG for fault in faults
        ):  # a time that the hub did not sign sets no bound
            self.hub_ts = max(self.hub_ts, receipt.hub_ts)
        made = self.tree.append(message.leaf_hash())
        if self.tree.root() != receipt.mmr_root:
            if self.in_step:  # once it is off, every root after it is
                faults.append(Failure(EntryCheck.ROOT, "mmr_root is not that of the entries up to here"))
            self.in_step = False
        record = AcceptedEntry(
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

    def _faults_of_place(self, entry: LogEntry, receipt: Receipt) -> list[Failure]:
        faults = []
        if entry.label != self._label:
            faults.append(Failure(EntryCheck.PLACE, f"its header has the label {entry.label.hex()[:16]}…"))
        if (receipt.label, receipt.stream_seq) != (entry.label, entry.stream_seq):
            faults.append(Failure(EntryCheck.PLACE, "its receipt is for another place than its header"))
        return faults

    def _faults_of_signatures(self, message: Msg, receipt: Receipt) -> list[Failure]:
        return [
            *_fault(EntryCheck.BINDING, lambda: receipt.check_binds(message)),
            *_fault(EntryCheck.CLIENT_SIG, message.verify_signature),
            *_fault(EntryCheck.HUB_SIG, lambda: self._signer(receipt).verify_receipt(receipt)),
        ]

    def _signer(self, receipt: Receipt) -> HubIdentity:
        return self._hub_metadata.identity_at(receipt.label, receipt.stream_seq)

    def _faults_of_size(self, entry: LogEntry, message: Msg) -> list[Failure]:
        limits = self._hub_metadata.limits
        faults = _fault(EntryCheck.SIZE, lambda: ciphertext.check_sizes(message.ciphertext, limits))
        if len(entry.msg) > limits.max_msg_bytes:
            faults.append(Failure(EntryCheck.SIZE, f"a message of {len(entry.msg)} bytes, above max_msg_bytes"))
        if message.profile_id != self._profile_id:
            faults.append(Failure(EntryCheck.SIZE, "its profile is not that of profile.json"))
        return faults

    def _faults_of_order(self, message: Msg, receipt: Receipt) -> list[Failure]:
        faults = []
        client = message.client_id
        cursor = self.cursors.get(client) or (self.known(client) if self.known else None)
        if cursor is None:
            # A client's first message here, unless what came before could not be read.
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


def _fault(of: EntryCheck, check: Callable[[], object]) -> list[Failure]:
    try:
        check()
    except VeenError as error:
        return [Failure(of, str(error))]
    return []
