"""One attachment on its way to disk: written behind the loop, with little of it in memory."""

from collections.abc import Callable

from veen.core import Malformed
from veen.http.message import Respond, Response
from veen.hub import answers
from veen.hub.later import Later
from veen.storage.attachments import AttachmentStore, Draft

# So much goes to the executor at a time; as much again gathers meanwhile, and then the peer has to wait.
BATCH_BYTES = 1 << 18


class Incoming:
    """An upload. The loop gathers pieces; one job at a time writes them."""

    def __init__(
        self,
        later: Later,
        store: AttachmentStore,
        coid: bytes,
        exact: int | None,
        ended: Callable[[int | None], None],
        failed: Callable[[Exception, int], None],
        *,
        as_json: bool,
    ) -> None:
        """`exact` is the size it must have; `ended` hears once that it is over, and the size of what is new.

        `failed` gets the error where the disk refused, and how many bytes there were to write.
        """
        self._later = later
        self._store = store
        self._coid = coid
        self._exact = exact
        self._on_ended = ended
        self._on_failed = failed
        self._as_json = as_json
        self._gathered = bytearray()  # not the pieces: they may be many and tiny
        self._complete = False
        self._over = False
        self._busy = False
        self._draft: Draft | None = None
        self._size = 0

    def on_start(self, respond: Respond, pause: Callable[[bool], None]) -> None:
        self._respond, self._pause = respond, pause

    def on_data(self, data: bytes) -> None:
        self._gathered += data
        self._turn()

    def on_end(self) -> None:
        self._complete = True
        self._turn()

    def on_abort(self) -> None:
        self._finish(None)
        self._turn()

    def _turn(self) -> None:
        """The next job, if none is under way."""
        if self._busy:
            if len(self._gathered) >= BATCH_BYTES:
                self._pause(True)
        elif self._over:
            self._let_go()
        elif self._complete or len(self._gathered) >= BATCH_BYTES:
            gathered, self._gathered = bytes(self._gathered), bytearray()
            complete = self._complete
            self._busy = True
            size = self._size + len(gathered)
            self._later(
                lambda: self._write(gathered, complete),
                self._written,
                lambda error: self._on_failed(error, size),
                as_json=self._as_json,
            )
            self._pause(False)

    def _write(self, gathered: bytes, complete: bool) -> Response | None:
        """On the executor: more of the draft, and the answer where this was all of it."""
        if self._over:
            return None
        if self._draft is None:
            self._draft = Draft(self._store, self._coid)
        if gathered:
            self._draft.write(gathered)
            self._size += len(gathered)
        if not complete:
            return None
        try:
            if self._exact not in (None, self._size):
                raise Malformed("attachment", f"{self._size} bytes came where {self._exact} were announced")
            return Response(201 if self._draft.keep() else 200)
        except Malformed as error:
            raise answers.as_refused(error) from None

    def _written(self, answer: Response | None) -> None:
        """On the loop."""
        self._busy = False
        if answer is not None and not self._over:
            self._finish(self._size if answer.status == 201 else None)
            self._respond(answer)
        self._turn()

    def _finish(self, stored: int | None) -> None:
        if not self._over:
            self._over = True
            self._gathered.clear()
            self._on_ended(stored)

    def _let_go(self) -> None:
        draft, self._draft = self._draft, None
        if draft is not None:
            self._later.quietly(draft.drop)
