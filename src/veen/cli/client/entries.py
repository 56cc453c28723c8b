"""Entries of a stream as they are shown: to people, to a pipe, or as JSON, one after the other as they come."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from veen.cli import output
from veen.cli.client import showing
from veen.client.draft import DEFAULT_SCHEMA
from veen.client.entry import Entry

_SEQ_WIDTH = 6
AGAIN_S = 60.0


class Printer:
    """Shows entries, and keeps count of what could not be opened."""

    def __init__(self, as_json: bool, with_proof: bool) -> None:
        self.count = 0
        self.sealed = False  # nobody here can open them, which has been said already
        self._faults = 0
        self._with_proof = with_proof
        self._as_json = as_json
        self._console = output.console() if sys.stdout.isatty() and not as_json else None

    def show(self, entry: Entry, saved: list[Path]) -> None:
        self.count += 1
        self._faults += entry.fault is not None and not self.sealed
        if self._as_json:
            output.line(self._data(entry, saved))
        elif self._console is None:
            sys.stdout.write("\t".join(self._fields(entry, saved)) + "\n")
        else:
            self._print(entry, saved)
        sys.stdout.flush()

    def end(self, stream: str) -> None:
        """A last word, where one is needed."""
        if self.count == 0 and not self._as_json:
            output.remark(f"nothing there: stream {stream!r} has no such entries")
        if self._faults:
            output.remark(
                f"{self._faults} of {self.count} entries hold and could not be opened; that is their writers'"
            )

    def _says(self, entry: Entry) -> str:
        if entry.body is None:
            return "(sealed)" if self.sealed else f"(cannot be opened: {showing.printable(entry.fault or '')})"
        return showing.line_of(entry.body) if self._console is None else showing.glance_at(entry.body)

    def _fields(self, entry: Entry, saved: list[Path]) -> Iterator[str]:
        yield str(entry.stream_seq)
        yield str(entry.hub_ts)
        yield entry.client_id.hex()
        yield self._says(entry)
        yield ",".join(map(str, saved) if saved else (showing.printable(part.name) for part in entry.attachments))

    def _print(self, entry: Entry, saved: list[Path]) -> None:
        from rich.text import Text

        assert self._console is not None
        tone = "" if entry.body is not None else "dim" if self.sealed else "yellow"
        line = Text.assemble(
            (f"{entry.stream_seq:>{_SEQ_WIDTH}}", "cyan"),
            (f"  {showing.when(entry.hub_ts)}  {entry.client_id.hex()[:8]}  ", "dim"),
            (self._says(entry), tone),
        )
        lines = [line]
        if entry.schema not in (None, DEFAULT_SCHEMA):
            line.append(f"  schema {showing.brief(entry.schema or b'')}", "dim")
        for at, part in enumerate(entry.attachments):
            where = f"  saved as {saved[at]}" if saved else ""
            text = f"{'':>{_SEQ_WIDTH}}  + {showing.printable(part.name)}, {showing.size(part.size)}{where}"
            lines.append(Text(text, "green" if saved else ""))
        if entry.proof is not None:
            shape = f"path {len(entry.proof.path)}, peaks {len(entry.proof.peaks_after)}"
            root = showing.brief(entry.receipt.mmr_root)
            lines.append(Text(f"{'':>{_SEQ_WIDTH}}  proved up to root {root} ({shape})", "dim"))
        for one in lines:
            self._console.print(one, soft_wrap=True)

    def _data(self, entry: Entry, saved: list[Path]) -> dict[str, Any]:
        data: dict[str, Any] = {
            "epoch": entry.epoch,
            "stream_seq": entry.stream_seq,
            "hub_ts": entry.hub_ts,
            "msg_id": entry.msg_id.hex(),
            "client_id": entry.client_id.hex(),
            "client_seq": entry.msg.client_seq,
            "schema": entry.schema.hex() if entry.schema else None,
            "text": showing.text_of(entry.body) if entry.body is not None else None,
            "body": entry.body.hex() if entry.body is not None else None,
            "parent_id": entry.header.parent_id.hex() if entry.header and entry.header.parent_id else None,
            "attachments": [
                {"name": part.name, "size": part.size, "coid": part.coid.hex()} for part in entry.attachments
            ],
            "fault": entry.fault,
        }
        for at, path in enumerate(saved):
            data["attachments"][at]["saved"] = str(path)
        if self._with_proof:
            data["receipt"] = entry.receipt.encode().hex()
            data["proof"] = entry.proof.encode().hex() if entry.proof else None
        return data


class Patient:
    """Says that a hub is waited for: at once, and again where that lasts."""

    def __init__(self) -> None:
        self._said_at = -AGAIN_S

    def __call__(self, error: Exception) -> None:
        now = time.monotonic()
        if now >= self._said_at + AGAIN_S:
            self._said_at = now
            output.remark(f"{error}; it is tried again")


def counted(follow: bool) -> AbstractContextManager[Callable[[int], None]]:
    """A count beside the entries, where they go into a file: on one screen the two would be in each other's way."""
    if follow or sys.stdout.isatty():
        return nullcontext(lambda done: None)
    return output.tally("reading", "entries")
