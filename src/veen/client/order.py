"""The order of each client's messages within a label, as a reader sees it. Invariants I6, I8 and I9."""

from collections import OrderedDict

from veen.client.contradiction import Contradiction, Lie
from veen.core import Msg, Receipt

_CLIENTS = 1 << 16


class ClientOrder:
    """The last message of each client. Of very many clients the ones longest silent are forgotten."""

    def __init__(self) -> None:
        self._last: OrderedDict[bytes, tuple[Msg, Receipt]] = OrderedDict()

    def check(self, message: Msg, receipt: Receipt) -> None:
        """Raise unless the message follows its client's last and acknowledges only what was there before it."""
        if message.prev_ack >= receipt.stream_seq:
            raise Contradiction(
                Lie.REPEATED_MESSAGE,
                f"entry {receipt.stream_seq} acknowledges entry {message.prev_ack}, which came no earlier",
                (receipt,),
                messages=(message,),
            )
        before = self._last.get(message.client_id)
        if before is not None and message.client_seq != before[0].client_seq + 1:
            raise self._out_of_order(message, receipt, *before)
        self._last[message.client_id] = (message, receipt)
        self._last.move_to_end(message.client_id)
        if len(self._last) > _CLIENTS:
            self._last.popitem(last=False)

    @staticmethod
    def _out_of_order(message: Msg, receipt: Receipt, before: Msg, earlier: Receipt) -> Contradiction:
        client = f"client {message.client_id.hex()[:16]}…"
        reason = (
            f"{client} has message {before.client_seq} as entry {earlier.stream_seq} "
            f"and message {message.client_seq} as entry {receipt.stream_seq}"
        )
        lie = Lie.REPEATED_MESSAGE if message.client_seq <= before.client_seq else Lie.SEQ_GAP
        return Contradiction(lie, reason, (earlier, receipt), messages=(before, message))
