"""The structured log of a hub. `plumbing.json_log` says how lines are limited and dropped."""

import time
from collections.abc import Callable

from plumbing.json_log import JsonLog, LineWriter


class Log(JsonLog):
    """Structured events of a hub."""

    def __init__(self, out: LineWriter, role: str = "authority", clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(out, "hub", role, clock)

    def started(self, hub_id: bytes, host: str, port: int, replayed: int) -> None:
        self.event("info", "started", hub_id=hub_id.hex(), listen=f"{host}:{port}", replayed=replayed)

    def equivocated(self, label: bytes, stream_seq: int, policy: str) -> None:
        """Log a proof that this hub contradicted itself."""
        self.event("error", "equivocation", label=label.hex(), stream_seq=stream_seq, policy=policy)
