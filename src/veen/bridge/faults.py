"""What can be wrong with a bundle, by the code that an audit entry carries."""

from enum import StrEnum

from veen.core import Unverified


class Code(StrEnum):
    """Which check a bundle failed, in the order in which they are made."""

    MALFORMED = "malformed"  # the bytes are no bundle
    BUNDLE_ID = "bundle_id"  # the contents are not those that the id is the hash of
    SOURCE = "source"  # the hub is not trusted, or its papers do not hold
    HEADER = "header"  # the header says otherwise than what is in the bundle
    CHECKPOINT = "checkpoint"  # the checkpoint is not the hub's, or not of this stream
    RECEIPT = "receipt"  # a receipt is not the hub's, or not for its message
    SIGNATURE = "signature"  # a message is not signed by its client
    ORDER = "order"  # events are missing, repeated or out of order
    PROOF = "proof"  # the events are not in the log of the checkpoint
    MAPPING = "mapping"  # no import stream stands for the export stream
    SEALED = "sealed"  # an event does not open
    ATTACHMENT = "attachment"  # an event has attachments, which a bundle does not carry
    DUPLICATE = "duplicate"  # it was imported before
    OVERLAP = "overlap"  # some of its events came with another bundle
    PARTIAL = "partial"  # another importer began with it and has not ended
    REFUSED = "refused"  # the hub of this zone did not take an event


class BundleFault(Unverified):
    """A bundle that is refused: by which check, and at which of its events, counted from 1."""

    def __init__(self, code: Code, reason: str, position: int | None = None) -> None:
        super().__init__("bundle", reason if position is None else f"event {position}: {reason}")
        self.code = code
        self.position = position
