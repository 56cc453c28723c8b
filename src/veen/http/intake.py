"""A body on its way to the app piece by piece, and who has the last word on it. The same for HTTP/1.1 and HTTP/2."""

from collections.abc import Callable

from veen.http.message import Report, Response, Upload

Answer = Callable[[Response, bool], None]  # the second says that the body is not complete yet


class Intake:
    """Stands between a connection and an upload: each end is told once, and a late word reaches nobody."""

    __slots__ = ("_answer", "_pause", "_paused", "_report", "_silenced", "_upload", "open")

    def __init__(self, upload: Upload, answer: Answer, pause: Callable[[bool], None], report: Report) -> None:
        self.open = True  # the body goes on, and the app wants it
        self._upload = upload
        self._answer = answer
        self._pause = pause
        self._report = report
        self._paused = False
        self._silenced = False

    def begin(self) -> None:
        self._upload.on_start(self._respond, self._set_paused)

    def data(self, piece: bytes) -> None:
        if self.open:
            self._upload.on_data(piece)

    def end(self) -> None:
        """The body is complete."""
        if self.open:
            self._close()
            self._upload.on_end()

    def abandon(self) -> None:
        """The peer has left, or the front answers in the app's place: what the app still says is not heard."""
        self._silenced = True
        if self.open:
            self._close()
            try:
                self._upload.on_abort()
            except Exception as error:  # noqa: BLE001  the connection has its own end to see to
                self._report("upload", error)

    def _respond(self, response: Response) -> None:
        if self._silenced:
            return
        early = self.open
        self._close()
        self._answer(response, early)

    def _set_paused(self, paused: bool) -> None:
        if self.open and paused != self._paused:
            self._paused = paused
            self._pause(paused)

    def _close(self) -> None:
        self.open = False
        if self._paused:
            self._paused = False
            self._pause(False)
