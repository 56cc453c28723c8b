"""Alive, and able to accept: what the probes ask. OBS0.3; the Kubernetes profile of spec 001, §10.1."""

import errno
import os

from veen.core import Receipt, jsontext, mmr
from veen.http.message import Response
from veen.hub import answers
from veen.hub.conditions import Conditions, Reason
from veen.hub.rules import Rules
from veen.hub.sequencer import Group
from veen.storage import frame
from veen.storage.head import Head
from veen.storage.store import Store

# With less, the next group may be the one that has no room. The disk counts as full until twice as much is free.
LEAST_FREE_BYTES = 4 << 20


class Health:
    """Answers from memory, but for one look at the disk."""

    def __init__(
        self,
        rules: Rules,
        store: Store,
        conditions: Conditions,
        newest: Head | None,
    ) -> None:
        """`newest` is the head of the label that the index saw written to last."""
        self._rules = rules
        self._store = store
        self._conditions = conditions
        self._newest = newest
        self._last: bytes | None = None  # the frame of the last entry since
        self.stopping = False
        for tail in store.tails():
            if tail.batch.records and self._last is None:
                self._last = tail.batch.records[-1].frame

    def committed(self, group: Group) -> None:
        """A group is durable."""
        self._last = group.batch.records[-1].frame

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
        self.look()
        reason = "stopping" if self.stopping else self._conditions.blocking
        bad: list[jsontext.Json] = [str(one) for one in self._conditions.active]
        return _json(503 if reason else 200, {"ready": not reason, "reason": reason, "bad_states": bad})

    def look(self) -> bool:
        """Look at the disk. While it is bad, this is repeated."""
        folder, conditions = self._store.folders.journal, self._conditions
        try:
            disk = os.statvfs(folder)
            if disk.f_flag & os.ST_RDONLY or not os.access(folder, os.W_OK | os.X_OK):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(folder))
        except OSError as error:
            conditions.enter(Reason.DATA_DIRECTORY, error, refused=0, recheck=self.look)
            return True
        conditions.leave(Reason.DATA_DIRECTORY)
        free = disk.f_bavail * disk.f_frsize
        if free < LEAST_FREE_BYTES:
            conditions.enter(Reason.DISK_FULL, refused=0, recheck=self.look, free_bytes=free)
        elif free >= 2 * LEAST_FREE_BYTES:
            conditions.leave(Reason.DISK_FULL)
        return True

    def _last_tree(self) -> tuple[int, bytes]:
        if self._last is not None:
            receipt = Receipt.decode(frame.read(self._last)[0].receipt)
            return receipt.stream_seq, receipt.mmr_root
        newest = self._newest or Head()
        return newest.size, mmr.root_of(newest.peaks)


def _json(status: int, shown: dict[str, jsontext.Json]) -> Response:
    return Response(status, jsontext.encode(shown), answers.JSON)
