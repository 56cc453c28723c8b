"""`veen top`: watch a hub."""

from typing import Annotated

import typer

from plumbing.cli import durations
from plumbing.cli.command import command, single
from veen.cli.hub.hub_status import LocalDir
from veen.cli.kit.common_options import HubUrl, JsonOption

app = single("top")


@command(app, "top", "veen top", "veen top --data-dir hub --interval 5", "veen top --once --json")
def top(
    hub: HubUrl = None,
    data_dir: LocalDir = None,
    interval: Annotated[float, durations.option("--interval", least=0.05, help="time between two samples")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="print one interval and exit")] = False,
    as_json: JsonOption = False,
) -> None:
    """Watch a hub: rate, latency, refusals, queue, disk.

    All numbers are for the interval between two samples. In a pipe, and with --json, one sample is printed after the
    other. Quit with q or ctrl-c.
    """
    from veen.cli.hub import hub_process
    from veen.cli.top import watch

    with hub_process.hub(hub, data_dir) as api:
        watch.watch(api, interval, once=once, as_json=as_json)
