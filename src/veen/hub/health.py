"""Alive, and able to accept: what the probes ask. OBS0.3; the Kubernetes profile of spec 001, §10.1."""

import os
import time
from collections.abc import Callable

from veen.core import Receipt, jsontext, mmr
from veen.http.message import Response
from veen.hub import answers
from veen.hub.committer import Committer
from veen.hub.rules import Rules
from veen.hub.sequencer import Group
from veen.storage import frame
from veen.storage.head import Head
from veen.storage.store import Store

# With less, the next group may be the one that has no room.
LEAST_FREE_BYTES = 4 << 20
# A disk that refused is asked again by those who write; a hub nobody writes to would never learn that it has room.
DOUBT_S = 1.0


class Health:
    """Answers from memory, but for one look at the disk."""

    def __init__(
        self,
        rules: Rules,
        store: Store,
        committer: Committer,
        newest: Head | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`newest` is the head of the label that the index saw written to last."""
        self._rules = rules
        self._store = store
        self._committer = committer
        self._clock = clock
        self._newest = newest
        self._last: bytes | None = None  # the frame of the last entry since
        self._refused = ""
        self._refused_at = 0.0
        self.stopping = False
        for tail in store.tails():
            if tail.batch.records and self._last is None:
                self._last = tail.batch.records[-1].frame

    def committed(self, group: Group) -> None:
        """A group is durable."""
        self._last = group.batch.records[-1].frame
        self._refused = ""

    def refused(self, reason: str) -> None:
        """The disk said no to a group."""
        self._refused, self._refused_at = reason, self._clock()

    def alive(self) -> Response:
        """GET /healthz: the last entry's tree, whichever label it is of; whose it is, is nobody's business here."""
        stream_seq, root = self._last_tree()
        return _json(
            200,
            {
                "ok": True,
                "profile_id": self._rules.profile_id.hex(),
                "peaks_count": stream_seq.bit_count(),
                "last_stream_seq": stream_seq,
                "last_mmr_root": root.hex(),
            },
        )

    def ready(self) -> Response:
        """GET /readyz: the data directory can be written and nothing is wrong. Nothing is served without an index."""
        reason = self._trouble()
        return _json(503 if reason else 200, {"ready": not reason, "reason": reason})

    def _last_tree(self) -> tuple[int, bytes]:
        if self._last is not None:
            receipt = Receipt.decode(frame.read(self._last)[0].receipt)
            return receipt.stream_seq, receipt.mmr_root
        newest = self._newest or Head()
        return newest.size, mmr.root_of(newest.peaks)

    def _trouble(self) -> str:
        """Why nothing can be accepted; empty where it can."""
        if self.stopping:
            return "stopping"
        if self._committer.trouble is not None:
            return self._committer.trouble
        trouble = self._disk_trouble()
        if self._refused and not trouble and self._clock() - self._refused_at > DOUBT_S:
            self._refused = ""
        return trouble or self._refused

    def _disk_trouble(self) -> str:
        folder = self._store.folders.journal
        try:
            disk = os.statvfs(folder)
        except OSError as error:
            return f"the data directory cannot be reached: {error.strerror}"
        if disk.f_flag & os.ST_RDONLY or not os.access(folder, os.W_OK | os.X_OK):
            return "the data directory cannot be written"
        return "the disk is full" if disk.f_bavail * disk.f_frsize < LEAST_FREE_BYTES else ""


def _json(status: int, shown: dict[str, jsontext.Json]) -> Response:
    return Response(status, jsontext.encode(shown), answers.JSON)
