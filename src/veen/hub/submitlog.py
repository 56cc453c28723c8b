"""One JSON line per submit, where the operator asks for it. OBS0.2: prefixes of names, never a payload."""

from veen.core import Msg, Receipt, Refused
from veen.hub.log import Log
from veen.hub.sequencer import Outcome

_PREFIX = 4


class SubmitLog:
    """Writes who, where and how long; the whole label, so that a line can be matched with the log."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def ended(self, message: Msg, encoded: bytes, outcome: Outcome, verify_s: float, whole_s: float) -> None:
        fields: dict[str, object] = {
            "label": message.label.hex(),
            "client_id_prefix": message.client_id[:_PREFIX].hex(),
            "leaf_hash_prefix": message.leaf_hash()[:_PREFIX].hex(),
            "bytes_in": len(encoded),
            "verify_ms": round(verify_s * 1e3, 3),
            "commit_ms": round((whole_s - verify_s) * 1e3, 3),
        }
        if isinstance(outcome, Refused):
            self._log.event("info", "submit", **fields, code=outcome.code, detail_enum=outcome.detail_enum, bytes_out=0)
        else:
            seq = Receipt.decode(outcome).stream_seq
            self._log.event("info", "submit", **fields, stream_seq=seq, bytes_out=len(outcome))
