"""Entries that this hub signed and no longer has, shown by a receipt that a client holds.

A journal or a whole directory that was replaced by an older copy looks complete. A receipt beyond the end of the log
proves that it is not. The hub then accepts nothing more on that label, because it would sign a second receipt for a
place. The receipt is stored, so the label stays stopped after a restart, until the operator recovers the directory.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

from plumbing.durable import Disk
from veen.core import HubIdentity, Malformed, Receipt, Refused, Unverified
from veen.core.envelopes import Equivocation, ReceiptCheck
from veen.core.recovery import RecoveryList
from veen.storage import safe_open
from veen.storage.paths import Folders
from veen.storage.recovery import RecoveredLabels
from veen.storage.store import Lookup

RETRY_AFTER_S = 60
_STOPPED = "this hub signed entries of the label that it no longer has; its operator must run `veen hub recover`"


@dataclass(eq=False)
class LostEntries:
    """The receipts that show lost entries, one per label. Checks run on the thread pool.

    `found` is called with each receipt that stops a label, `contradicted` with each proof of an equivocation.
    """

    _disk: Disk
    _folders: Folders
    _identity: HubIdentity
    _lookup: Lookup
    _recovered: RecoveredLabels
    _found: Callable[[Receipt], object]
    _contradicted: Callable[[Equivocation], object]
    _lock: Lock = field(default_factory=Lock)

    def follow(self, identity: HubIdentity) -> None:
        """Use a record that continues the known one."""
        self._identity = identity

    def stored(self) -> list[Receipt]:
        """The receipts of earlier runs whose entries the log still lacks."""
        found = []
        for path in sorted(self._folders.evidence.glob("lost-*.cbor")):
            try:
                receipt = Receipt.decode(safe_open.read(path))
                key = self._identity.verify_receipt(receipt)
            except (Malformed, Unverified):
                continue  # fsck reports it
            if self._lookup.size(receipt.label) < receipt.stream_seq and not self._recovered.has_lost(
                receipt, self._identity, key
            ):
                found.append(receipt)
        return found

    def check(self, receipt: Receipt) -> ReceiptCheck:
        """Compare a receipt with the log. One beyond the end of the log stops the label."""
        try:
            key = self._identity.verify_receipt(receipt)
        except Unverified as error:
            raise Refused("E.FORBIDDEN", f"this hub did not sign the receipt: {error.reason}") from None
        _, known = self._lookup.headers(receipt.label, receipt.stream_seq)
        same = known is not None and (known.leaf_hash, known.mmr_root) == (receipt.leaf_hash, receipt.mmr_root)
        if same or self._recovered.has_lost(receipt, self._identity, key):
            pass
        elif known is None:
            self._store(receipt)
            self._found(receipt)
        else:
            self._contradicted(Equivocation(known, receipt))
        return ReceiptCheck(receipt.label, receipt.stream_seq, self._lookup.size(receipt.label), same)

    def recoveries(self, label: bytes) -> RecoveryList:
        """The recoveries of this hub, for a client that holds receipts of the label."""
        return self._recovered.of(label)

    def _store(self, receipt: Receipt) -> None:
        """Keep the receipt of each label that is furthest beyond the log."""
        path = self._folders.lost_receipt(receipt.label)
        with self._lock:
            kept = Receipt.decode(safe_open.read(path)) if path.exists() else None
            if kept is None or kept.stream_seq < receipt.stream_seq:
                self._disk.write_file(path, receipt.encode())
            self._disk.sync_folder(self._folders.evidence)


def stopped() -> Refused:
    """The answer to a message for a label with lost entries."""
    return Refused("E.UNAVAILABLE", _STOPPED, retry_after=RETRY_AFTER_S)
