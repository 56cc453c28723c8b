"""`veen quickstart`: a hub, keys, a stream, a capability and a context in one command."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from plumbing.cli.command import Misuse, argument, command, option, single
from veen.cli.demo import Ran, run_here
from veen.cli.kit import output
from veen.cli.kit.common_options import JsonOption
from veen.cli.kit.result import Result

app = single("quickstart")
_TTL_S = 30 * 86_400


@command(app, "quickstart", "veen quickstart try", "veen quickstart try --stream notes --listen 127.0.0.1:4000")
def quickstart(
    folder: Annotated[Path, argument("DIR", "the folder to create")],
    stream: Annotated[str, option("--stream NAME", "the stream to create")] = "doors",
    listen: Annotated[str, option("--listen HOST:PORT", "where the hub listens")] = "127.0.0.1:37411",
    as_json: JsonOption = False,
) -> None:
    """Set up a hub and a writer for a first try.

    Each step is a command that you could type, and is printed. Afterwards `veen send`, `veen stream` and
    `veen evidence` work without further options: the new context names the hub, the client and the stream. The keys
    have no passphrases and the hub has no root key, so use `veen hub init` and `veen keygen` for anything that must
    last.
    """
    if folder.exists():
        raise Misuse(f"{folder} exists", "name a folder that does not exist yet")
    setup = _Setup(folder, quiet=as_json)
    hub, me, cap = folder / "hub", folder / "me", folder / "me.cap"
    setup.run("keygen", "--out", folder / "operator", "--no-passphrase")
    setup.run("keygen", "--out", me, "--no-passphrase")
    hub_id = setup.run("hub", "init", "--data-dir", hub, "--no-root").facts()["hub_id"]
    started = setup.run("hub", "start", "--data-dir", hub, "--listen", listen, "--issuer", folder / "operator")
    url = started.facts()["url"]
    try:
        setup.run("stream-key", "create", stream, "--client", me)
        grant = ("--subject", me, "--stream", stream, "--ttl", _TTL_S, "--hub", hub, "--out", cap)
        setup.run("cap", "issue", "--issuer", folder / "operator", *grant)
        name = folder.resolve().name
        setup.run("context", "add", name, "--hub", url, "--client", me, "--stream", stream, "--cap", cap)
        setup.run("verify", "--pin", hub)  # the client stores the hub's identity: later commands need no pin
    except BaseException:
        run_here(["hub", "stop", "--data-dir", str(hub)], dict(os.environ))
        raise
    hint = f'hint: try veen send --body "hello", veen stream, and at the end veen hub stop --data-dir {hub}'
    data = {"hub_id": hub_id, "url": url, "stream": stream, "context": name, "folder": str(folder)}
    Result({**data, "commands": setup.commands}, facts=list(data), remarks=(hint,)).show(as_json)


class _Setup:
    """Runs commands one after the other, and prints each."""

    def __init__(self, folder: Path, *, quiet: bool) -> None:
        self.commands: list[str] = []
        self._folder = folder
        self._quiet = quiet
        folder.mkdir(parents=True)

    def run(self, *words: object) -> Ran:
        arguments = [str(word) for word in words]
        typed = f"veen {shlex.join(arguments)}"
        self.commands.append(typed)
        if not self._quiet:
            output.remark(f"$ {typed}")
        ran = run_here(arguments, dict(os.environ))
        if ran.status:
            sys.stderr.write(ran.err)
            output.remark(f"hint: remove {self._folder} before you try again")
            raise typer.Exit(ran.status)
        return ran
