"""`veen demo`: a short demo of hub, clients and verification."""

from typing import Annotated

import typer

from plumbing.cli.command import command, single
from veen.cli.kit.common_options import JsonOption

app = single("demo")


@command(app, "demo", "veen demo", "veen demo --keep")
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="keep the folder of the demo")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run hub, client and verification as a short demo.

    The demo works in a temporary folder: a hub starts, three people create keys, one issues a capability to another,
    messages are sent, followed and proved to a stranger, a copy of the log is tampered with, and the hub rotates its
    key. Every line after a $ is a command as you would type it. The folder is removed without --keep, and nothing
    outside it is touched.
    """
    from veen.cli.demo import story
    from veen.cli.demo.stage import DemoStage

    story.run(DemoStage(as_json), keep=keep)
