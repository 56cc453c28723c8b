"""`veen stream`: read a stream."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terminalface.command import Misuse, command, single
from veen.cli import output
from veen.cli.client.options import Epoch, FirstUse, HubPin, PassphraseFile
from veen.cli.options import ClientDir, HubUrl, JsonOption, Stream

if TYPE_CHECKING:
    from veen.client.client import Client

app = single("stream")


@command(
    app,
    "stream",
    "veen stream --stream doors",
    "veen stream --stream doors --follow --json",
    "veen stream --stream doors --from 100 --to 200 --with-proof --save-attachments photos",
)
def stream(
    stream: Stream = None,
    first: Annotated[int, typer.Option("--from", metavar="N", min=1, help="the first entry to show")] = 1,
    last: Annotated[
        int | None, typer.Option("--to", metavar="N", min=1, help="the last entry to show", show_default="the end")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="go on as entries come, until ctrl-c")] = False,
    with_proof: Annotated[bool, typer.Option("--with-proof", help="with the proof that each is in the log")] = False,
    save: Annotated[
        Path | None, typer.Option("--save-attachments", metavar="DIR", help="save what they carry, under safe names")
    ] = None,
    epoch: Epoch = None,
    hub: HubUrl = None,
    client: ClientDir = None,
    pin: HubPin = None,
    first_use: FirstUse = False,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Read a stream, each entry verified before it is opened.

    Without the stream's reader key the entries are still verified, and stay sealed. In a pipe each entry is a line:
    number, time, client_id, what it says, files; with --json an object on a line of its own, and nothing is written out
    or shortened.
    """
    from veen.cli import contextfile
    from veen.cli.client import calling, entries, saving
    from veen.core import naming

    name = contextfile.need_stream(stream)
    if follow and last is not None:
        raise Misuse("--follow and --to contradict each other", "to follow is to read without an end")
    if last is not None and last < first:
        raise Misuse(f"--to {last} is before --from {first}", "give the lower number first")
    call = calling.Call(hub, client, passphrase_file, pin, first_use)
    url = call.url()
    printer = entries.Printer(as_json, with_proof)
    with calling.opened(client, passphrase_file) as folder:
        if folder.stream_keys.secret(naming.stream_id(name)) is None:
            printer.sealed = True
            if save is not None:
                raise Misuse(f"there is no reader key of stream {name!r} here", "veen stream-key import takes one in")
            output.remark(f"there is no reader key of stream {name!r} here: entries are verified and stay sealed")
        saver = saving.Saver(save) if save is not None else None

        async def show(met: "Client") -> None:
            if follow:
                met.contact.link.on_pause = entries.Patient()
            entries_of = met.read(name, first, last, follow=follow, with_proof=with_proof, epoch=epoch)
            with entries.counted(follow) as report:
                async for entry in entries_of:
                    printer.show(entry, await saver.save(met, entry) if saver else [])
                    report(printer.count)

        call.run_with(folder, url, show)
    printer.end(name)
