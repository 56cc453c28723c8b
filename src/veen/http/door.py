"""The first moments of a connection: which protocol will it be?"""

import asyncio
import ssl
from typing import cast

from veen.http.connection import Connection, Service
from veen.http.frames import PREFACE
from veen.http.http1 import Http1
from veen.http.http2 import Http2


class Door(Connection):
    """Takes HTTP/2 from ALPN, or in clear from its preface (RFC 9113 3.3), and HTTP/1.1 otherwise."""

    __slots__ = ("_first", "_since")

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._first = b""
        self._since = service.sweep.now

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        chosen = cast(asyncio.Transport, transport)
        self.service.roster.arriving.discard(self)
        high = self.service.settings.write_high_bytes
        chosen.set_write_buffer_limits(high=high, low=high // 4)
        self.take_over(chosen)
        self._since = self.service.sweep.now
        tls: ssl.SSLObject | None = chosen.get_extra_info("ssl_object")
        if tls is not None:
            spoken = Http2 if tls.selected_alpn_protocol() == "h2" else Http1
            spoken(self.service).take_over(chosen, self)

    def data_received(self, data: bytes) -> None:
        self._first += data
        if len(self._first) < len(PREFACE) and PREFACE.startswith(self._first):
            return
        spoken = Http2 if self._first.startswith(PREFACE) else Http1
        successor = spoken(self.service)
        successor.take_over(self.transport, self)
        successor.data_received(self._first)

    def look(self) -> None:
        if self.service.sweep.overdue(self._since, self.service.settings.header_timeout_s):
            self.leave()
