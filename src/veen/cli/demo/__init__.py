"""`veen demo`: see all of it work."""

from typing import Annotated

import typer

from plumbing.cli.command import command, single
from veen.cli.kit.common_options import JsonOption

app = single("demo")


@command(app, "demo", "veen demo", "veen demo --keep")
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="leave the folder, to look around in")] = False,
    as_json: JsonOption = False,
) -> None:
    """See all of it work, in a few seconds.

    In a temporary folder a hub starts, three people make keys, one lets another write, messages are sent, followed and
    proved to a stranger, a copy of the log is tampered with, and the hub changes its key. Every line after a $ is a
    command as you would type it. Nothing is left behind without --keep, and nothing outside the folder is touched.
    """
    from veen.cli.demo import story
    from veen.cli.demo.stage import DemoStage

    story.tell(DemoStage(as_json), keep=keep)
