"""`veen checkpoint`: the hub's word on a whole stream."""

from typing import Annotated

import typer

from terminalface.command import command, single
from veen.cli import output
from veen.cli.client.options import Epoch, FirstUse, HubPin, OutFile, PassphraseFile
from veen.cli.options import ClientDir, HubUrl, JsonOption, Stream
from veen.cli.output import Marked, Tone

app = single("checkpoint")


@command(app, "checkpoint", "veen checkpoint --stream doors", "veen checkpoint --stream doors --out doors.checkpoint")
def checkpoint(
    stream: Stream = None,
    upto: Annotated[
        int | None, typer.Option("--upto", metavar="N", min=1, help="of the first N entries", show_default="all")
    ] = None,
    out: OutFile = None,
    epoch: Epoch = None,
    hub: HubUrl = None,
    client: ClientDir = None,
    pin: HubPin = None,
    first_use: FirstUse = False,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch the hub's checkpoint of a stream, and verify it.

    It is the hub's word on the stream as a whole, held against everything that it said before. A hub that went back
    behind what it signed, or tells another history now, is caught here, and what shows it is kept.
    """
    from veen.cli import contextfile
    from veen.cli.client import calling, files

    name = contextfile.need_stream(stream)
    if out is not None:
        files.check_new(out)
    call = calling.Call(hub, client, passphrase_file, pin, first_use)
    found = call.run(lambda met: met.checkpoint(name, upto, epoch=epoch))
    rows: dict[str, output.Value] = {
        "label": found.label_curr,
        "upto_seq": found.upto_seq,
        "mmr_root": found.mmr_root,
        "epoch": found.epoch,
        "witnesses": len(found.witness_sigs or ()),
    }
    if out is not None:
        files.write_new(out, found.encode())
        rows["file"] = str(out)
    held = Marked("signature, and the history known here", Tone.GOOD)
    output.facts({**rows, "verified": held}, as_json, {**rows, "checkpoint": found.encode()})
