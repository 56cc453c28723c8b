"""`veen proof`: that an entry is in the log."""

from typing import Annotated

import typer

from terminalface.command import Misuse, command, single
from veen.cli import output
from veen.cli.client.options import Epoch, FirstUse, HubPin, OutFile, PassphraseFile
from veen.cli.options import ClientDir, HubUrl, JsonOption, Stream
from veen.cli.output import Marked, Tone

app = single("proof")


@command(app, "proof", "veen proof 12 --stream doors", "veen proof 12 --stream doors --upto 1000 --out 12.proof")
def proof(
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="which entry")],
    stream: Stream = None,
    upto: Annotated[
        int | None,
        typer.Option("--upto", metavar="N", min=1, help="in the log of the first N entries", show_default="SEQ"),
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
    """Fetch the proof of an entry, and verify it.

    It shows that the entry is in the log, at its place. The file of --out holds the entry's receipt, the receipt
    that signs the root, and the proof that ties them, one after the other; `veen verify FILE` checks it again,
    without the hub. To show it to others, see `veen evidence`.
    """
    from veen.cli import contextfile
    from veen.cli.client import calling, files
    from veen.client.tree import size_of

    name = contextfile.need_stream(stream)
    if upto is not None and upto < seq:
        raise Misuse(f"entry {seq} is not in the log of the first {upto} entries", f"--upto is {seq} or more")
    if out is not None:
        files.check_new(out)
    call = calling.Call(hub, client, passphrase_file, pin, first_use)
    found = call.run(lambda met: met.proof(name, seq, upto, epoch=epoch))
    rows: dict[str, output.Value] = {
        "label": found.receipt.label,
        "stream_seq": found.receipt.stream_seq,
        "upto_seq": size_of(found.head),
        "msg_id": found.receipt.leaf_hash,
        "mmr_root": found.head.mmr_root,
        "path": len(found.mmr_proof.path),
        "peaks_after": len(found.mmr_proof.peaks_after),
    }
    parts = [found.receipt, *([found.head] if found.head != found.receipt else []), found.mmr_proof]
    if out is not None:
        files.write_new(out, b"".join(part.encode() for part in parts))
        rows["file"] = str(out)
    data = {
        **rows,
        "receipt": found.receipt.encode(),
        "head": found.head.encode(),
        "mmr_proof": found.mmr_proof.encode(),
    }
    held = f"entry {seq} is in the log of {size_of(found.head)}"
    output.facts({**rows, "verified": Marked(held, Tone.GOOD)}, as_json, data)
