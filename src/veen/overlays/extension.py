"""Taking further entries into a timeline's rows. The caller commits the rows if this returns, and drops them if not."""

from collections.abc import Iterable
from typing import Generic, TypeVar

from veen.core import Mmr, Unverified
from veen.core.hashing import u64be
from veen.overlays.blocks import STRIDE, Head, Tip, first_key, part_key
from veen.overlays.entry import At, Entry
from veen.overlays.event import Fault
from veen.overlays.fold import Applied, meet
from veen.overlays.overlay import Overlay
from veen.overlays.rows import Rows
from veen.overlays.timeline import (
    BIRTH,
    EVENT,
    FAULT,
    FIRST,
    HEAD,
    LIVE,
    META,
    STATE,
    TIP,
    Timeline,
    event_row,
    node_key,
    owner,
)

S = TypeVar("S")
M = TypeVar("M")


def extend(overlay: Overlay[S, M], rows: Rows, entries: Iterable[Entry], mmr_root: bytes) -> At | None:
    """Take in entries that follow on what is there; returns the last place.

    All entries of the stream, in order and without a gap. `mmr_root` is the one the hub signed for the last of them:
    entries under any other root are refused with `Unverified`.
    """
    return _Extension(overlay, rows).take(entries, mmr_root)


class _Extension(Generic[S, M]):
    """One addition. Heads are written once, at its end, however often they change."""

    def __init__(self, overlay: Overlay[S, M], rows: Rows) -> None:
        self._timeline = Timeline(overlay, rows)
        self._overlay = overlay
        self._rows = rows
        self._heads: dict[bytes, Head[S, M]] = {}
        bounds = self._timeline.bounds()
        self._epoch, self._label, self._tree = -1, b"", Mmr()
        if bounds:
            self._epoch, self._label = bounds[-1].epoch, bounds[-1].label
            self._tree = self._tip(self._epoch).tree()

    def take(self, entries: Iterable[Entry], mmr_root: bytes) -> At | None:
        last = None
        for entry in entries:
            self._place(entry)
            self._tree.append(entry.msg_id)
            last, faults = entry.at, 0
            for outcome in meet(self._overlay, entry, self, self._note):
                if isinstance(outcome, Fault):
                    self._rows.put(FAULT + last.key() + u64be(faults), outcome.encode())
                    faults += 1
                else:
                    self._apply(outcome, last.key())
        if last is None:
            return None
        if self._tree.root() != mmr_root:
            raise Unverified("cache", f"the entries up to {last.stream_seq} do not have the root that was signed")
        self._finish()
        return last

    def state(self, part: bytes) -> S:
        return self._head(part).state

    def known(self, part: bytes, key: bytes) -> At | None:
        return self._timeline.known(part, key)

    def _note(self, part: bytes, key: bytes, at: At) -> None:
        self._rows.put(FIRST + first_key(part, key), at.key())

    def _place(self, entry: Entry) -> None:
        """Whether an entry follows on the one before; a new epoch starts a new tree."""
        if entry.epoch > self._epoch and entry.stream_seq == 1:
            if self._tree.size:
                self._rows.put(TIP + u64be(self._epoch), Tip.of(self._label, self._tree).encode())
            self._epoch, self._label, self._tree = entry.epoch, entry.label, Mmr()
        elif entry.epoch < self._epoch:
            raise Unverified("cache", f"epoch {entry.epoch} was taken to be complete, and has another entry")
        elif (entry.label, entry.stream_seq) != (self._label, self._tree.size + 1):
            raise ValueError(f"entry {entry.stream_seq} does not follow on entry {self._tree.size}")

    def _apply(self, outcome: Applied[S], place: bytes) -> None:
        step = outcome.step
        hashed, head = part_key(step.part), self._head(step.part)
        was_live = head.count > 0 and self._overlay.live(head.state)
        if head.count == 0:
            head.birth = place
            self._rows.put(BIRTH + head.birth + hashed, step.part)
        self._rows.put(EVENT + hashed + place, event_row(head.count, step.entry.encode()))
        for height, number, summed in head.take(self._overlay, self._overlay.lift(step), outcome.after):
            self._rows.put(node_key(hashed, height, number), self._overlay.encode_summary(summed))
        if was_live != self._overlay.live(head.state):
            key = LIVE + head.birth + hashed
            self._rows.delete(key) if was_live else self._rows.put(key, step.part)
        if head.count % STRIDE == 0:
            self._rows.put(STATE + hashed + u64be(head.count // STRIDE), self._overlay.encode_state(head.state))

    def _head(self, part: bytes) -> Head[S, M]:
        head = self._heads.get(part)
        if head is None:
            row = self._rows.get(HEAD + part_key(part))
            fresh: Head[S, M] = Head(part, 0, self._overlay.INITIAL)
            head = self._heads[part] = fresh if row is None else Head.decode(self._overlay, row)
        return head

    def _tip(self, epoch: int) -> Tip:
        row = self._rows.get(TIP + u64be(epoch))
        assert row is not None
        return Tip.decode(row)

    def _finish(self) -> None:
        self._rows.put(META, owner(self._overlay))
        self._rows.put(TIP + u64be(self._epoch), Tip.of(self._label, self._tree).encode())
        for part, head in self._heads.items():
            if head.count:
                self._rows.put(HEAD + part_key(part), head.encode(self._overlay))
