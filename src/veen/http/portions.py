"""A connection that takes what it has read in portions."""

from abc import ABC, abstractmethod

from veen.http.connection import Connection, Service


class Portioned(Connection, ABC):
    """Takes a portion in each turn of the loop, and reads no more until all is taken."""

    __slots__ = ("_at", "_held")

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._held = b""
        self._at = 0  # up to where it is taken

    @abstractmethod
    def take(self, data: bytes, at: int) -> int:
        """Take a portion of `data` from there on; returns where it ends."""

    def data_received(self, data: bytes) -> None:
        if self._held:  # what TLS had decrypted before it was told to pause
            self._held = self._held[self._at :] + data
            self._at = 0
        else:
            self._take_from(data, 0)

    def go_on(self) -> None:
        if self._held and not self.lost and not self.write_paused:
            self._take_from(self._held, self._at)
            if not self._held and not self.write_paused and not self.transport.is_closing():
                self.transport.resume_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        # A peer that asks and does not read fills nobody's memory but its own.
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._held:
            self.service.turns.wait(self)
        elif not self.transport.is_closing():
            self.transport.resume_reading()

    def _take_from(self, data: bytes, at: int) -> None:
        end = self.take(data, at)
        if end < len(data) and not self.lost:
            if not self._held:
                self.transport.pause_reading()
            self._held, self._at = data, end
            self.service.turns.wait(self)
        else:
            self._held, self._at = b"", 0
