"""The memory of pages that wait for their readers: a reader that does not read must not hold more and more of it."""

from threading import RLock

from veen.core import Refused
from veen.http.message import Request

MOST_BYTES = 1 << 28
# Nobody keeps the others from their pages. Many connections may be one caller's; those of a proxy are nobody's.
CONNECTION_BYTES, CALLER_BYTES = MOST_BYTES // 8, MOST_BYTES // 4
_SMALL_BYTES = 1 << 16
_RETRY_AFTER_S = 1

Owners = tuple[int | bytes, ...]


class PageRoom:
    """Counts the long pages that someone still holds. Safe on any thread."""

    def __init__(self) -> None:
        # A page may be given up while another is counted on the same thread: whenever the collector comes by.
        self._lock = RLock()
        self._held_by: dict[int | bytes, int] = {}  # nobody who holds nothing
        self.held = 0

    def check(self, request: Request | None = None) -> None:
        """Raise where no more pages are made for now. What is being made is not counted yet: one for each thread."""
        if self.held > MOST_BYTES:
            raise Refused("E.UNAVAILABLE", "too many pages wait for their readers", retry_after=_RETRY_AFTER_S)
        if request is not None and self._held_by:
            owners = _owners(request)
            over = [self._held_by.get(owner, 0) > _share(owner) for owner in owners]
            if any(over):
                refused = "too many pages wait to be taken by you: read on, then ask again"
                raise Refused("E.UNAVAILABLE", refused, retry_after=_RETRY_AFTER_S)

    def counted(self, page: bytes, request: Request) -> bytes:
        """The page, counted until the last who holds it lets go."""
        return page if len(page) <= _SMALL_BYTES else _Counted(page, self, _owners(request))

    def add(self, size: int, owners: Owners = ()) -> None:
        with self._lock:
            self.held += size
            for owner in owners:
                left = self._held_by.get(owner, 0) + size
                if left:
                    self._held_by[owner] = left
                else:
                    del self._held_by[owner]


def _owners(request: Request) -> Owners:
    """By number: a page that held its connection would keep both alive."""
    connection = id(request.connection)
    return (connection,) if request.caller is None else (connection, request.caller)


def _share(owner: int | bytes) -> int:
    return CONNECTION_BYTES if isinstance(owner, int) else CALLER_BYTES


class _Counted(bytes):
    """Bytes that are missed when they are gone: sent, or their connection lost."""

    def __new__(cls, page: bytes, room: PageRoom, owners: Owners) -> "_Counted":
        made = super().__new__(cls, page)
        made._room = room
        made._owners = owners
        room.add(len(page), owners)
        return made

    _room: PageRoom
    _owners: Owners

    def __del__(self) -> None:
        self._room.add(-len(self), self._owners)
