"""One JSON line per submit, if the operator enables it. OBS0.2: prefixes of ids, never a payload.

Every accepted message has a line; accepting it cost a signature, a place and a sync. Lines for rejections are limited.
"""

from veen.core import Msg, Receipt, Refused
from veen.hub import responses
from veen.hub.log import Log
from veen.hub.sequencer import Outcome

_PREFIX = 4
_REFUSED = "refused submit"


class SubmitLog:
    """Logs client, place and durations; the whole label, so that a line can be matched with the log."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def record_rejection(self, refused: Refused, bytes_in: int) -> None:
        """Log a rejection before decoding: only the size is known."""
        if self._log.may_log(_REFUSED):
            self._write(None, bytes_in, refused, 0.0, 0.0)

    def ended(self, message: Msg, encoded: bytes, outcome: Outcome, verify_s: float, whole_s: float) -> None:
        if not isinstance(outcome, Refused) or self._log.may_log(_REFUSED):
            self._write(message, len(encoded), outcome, verify_s, whole_s - verify_s)

    def _write(self, message: Msg | None, bytes_in: int, outcome: Outcome, verify_s: float, commit_s: float) -> None:
        fields: dict[str, object] = {
            "label": message.label.hex() if message else None,
            "client_id_prefix": message.client_id[:_PREFIX].hex() if message else None,
            "stream_seq": None,
            "leaf_hash_prefix": message.leaf_hash()[:_PREFIX].hex() if message else None,
            "bytes_in": bytes_in,
            "verify_ms": round(verify_s * 1e3, 3),
            "commit_ms": round(commit_s * 1e3, 3),
        }
        if isinstance(outcome, Refused):
            size = len(responses.envelope_of(outcome).encode())
            fields |= {"bytes_out": size, "code": outcome.code, "detail_enum": outcome.detail_enum}
        else:
            fields |= {"bytes_out": len(outcome), "stream_seq": Receipt.decode(outcome).stream_seq}
        self._log.event("info", "submit", **fields)
