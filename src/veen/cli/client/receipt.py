"""`veen receipt`: the hub's word on one entry."""

from typing import Annotated

import typer

from terminalface.command import command, single
from veen.cli import output
from veen.cli.client.options import Epoch, FirstUse, HubPin, OutFile, PassphraseFile
from veen.cli.options import ClientDir, HubUrl, JsonOption, Stream
from veen.cli.output import Marked, Tone

app = single("receipt")


@command(app, "receipt", "veen receipt 12 --stream doors", "veen receipt 12 --stream doors --out 12.receipt")
def receipt(
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="which entry")],
    stream: Stream = None,
    out: OutFile = None,
    epoch: Epoch = None,
    hub: HubUrl = None,
    client: ClientDir = None,
    pin: HubPin = None,
    first_use: FirstUse = False,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch the hub's receipt for an entry, and verify it.

    It must be signed by a key of the hub that was active then, and fit the history that is known here.
    """
    from veen.cli import contextfile
    from veen.cli.client import calling, files

    name = contextfile.need_stream(stream)
    if out is not None:
        files.check_new(out)
    call = calling.Call(hub, client, passphrase_file, pin, first_use)
    found = call.run(lambda met: met.receipt(name, seq, epoch=epoch))
    rows: dict[str, output.Value] = {
        "label": found.label,
        "stream_seq": found.stream_seq,
        "msg_id": found.leaf_hash,
        "mmr_root": found.mmr_root,
        "hub_ts": output.moment(found.hub_ts),
    }
    if out is not None:
        files.write_new(out, found.encode())
        rows["file"] = str(out)
    data = {**rows, "hub_ts": found.hub_ts, "receipt": found.encode()}
    output.facts({**rows, "verified": Marked("signature, and the history known here", Tone.GOOD)}, as_json, data)
