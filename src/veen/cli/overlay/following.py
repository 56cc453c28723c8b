"""Commands that go on: what becomes of entries as they come, a line each, until ctrl-c."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from veen.cli import output
from veen.cli.client import showing
from veen.cli.overlay import asking, telling
from veen.cli.overlay.declaring import Follows
from veen.overlays import Fault, Overlay
from veen.state.view import View, shown
from veen.state.watching import Seen, watch

S = TypeVar("S")
M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Line:
    """What is told of one change: cells for people and pipes, data for JSON."""

    cells: tuple[output.Value, ...]
    data: Mapping[str, object]


def follow(asked: Follows, overlay: Overlay[S, M], told: Callable[[Seen[S]], Iterable[Line]]) -> None:
    """Show what `told` says of each entry. One that changed nothing is told on standard error, with its reason."""

    async def go_on(view: View[S, M], name: str) -> None:
        async with aclosing(watch(view)) as coming:
            async for seen in coming:
                for line in told(seen):
                    _show(seen, line, asked.as_json)
                for fault in seen.outcomes:
                    if isinstance(fault, Fault):
                        output.remark(f"entry {shown(fault.place)} changed nothing: {showing.printable(fault.reason)}")

    asking.viewing(asked, overlay, go_on)


def _show(seen: Seen[S], line: Line, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(dict(line.data), default=telling.json_value) + "\n")
    else:
        place = (shown(seen.entry.at), output.moment(seen.entry.hub_ts))
        output.table(("entry", "hub_ts", *("" for _ in line.cells)), [(*place, *line.cells)], False)
    sys.stdout.flush()
