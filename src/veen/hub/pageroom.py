"""The memory of pages that wait for their readers: a reader that does not read must not hold more and more of it."""

from threading import Lock

from veen.core import Refused

MOST_BYTES = 1 << 28
_SMALL_BYTES = 1 << 16


class PageRoom:
    """Counts the long pages that someone still holds. Safe on any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.held = 0

    def check(self) -> None:
        """Raise where no more pages are made for now. What is being made is not counted yet: one for each thread."""
        if self.held > MOST_BYTES:
            raise Refused("E.UNAVAILABLE", "too many pages wait for their readers", retry_after=1)

    def counted(self, page: bytes) -> bytes:
        """The page, counted until the last who holds it lets go."""
        return page if len(page) <= _SMALL_BYTES else _Counted(page, self)

    def add(self, size: int) -> None:
        with self._lock:
            self.held += size


class _Counted(bytes):
    """Bytes that are missed when they are gone: sent, or their connection lost."""

    def __new__(cls, page: bytes, room: PageRoom) -> "_Counted":
        made = super().__new__(cls, page)
        made._room = room
        room.add(len(page))
        return made

    _room: PageRoom

    def __del__(self) -> None:
        self._room.add(-len(self))
