"""`veen receipt`, `veen proof` and `veen checkpoint`: fetch and verify statements that a hub signed."""

from typing import Annotated

import typer

from plumbing.cli.command import Misuse, command, single
from veen.cli.kit import context_file, open_session, output, output_files
from veen.cli.kit.client_options import Epoch, HubPin, OutFile, PassphraseFile, TrustOnFirstUse
from veen.cli.kit.common_options import ClientDir, HubUrl, JsonOption, Stream
from veen.cli.kit.output import Marked, Tone
from veen.core.proof import size_of

receipt_app = single("receipt")


@command(receipt_app, "receipt", "veen receipt 12 --stream doors", "veen receipt 12 --stream doors --out 12.receipt")
def receipt(
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="number of the entry")],
    stream: Stream = None,
    out: OutFile = None,
    epoch: Epoch = None,
    hub: HubUrl = None,
    client: ClientDir = None,
    pin: HubPin = None,
    first_use: TrustOnFirstUse = False,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch and verify the receipt of an entry.

    A hub key that was active at the receipt's time must have signed it, and it must match everything that this client
    has verified before.
    """

    name = context_file.need_stream(stream)
    if out is not None:
        output_files.check_new(out)
    call = open_session.HubCall(hub, client, passphrase_file, pin, first_use)
    found = call.run(lambda client: client.receipt(name, seq, epoch=epoch))
    rows: dict[str, output.Value] = {
        "label": found.label,
        "stream_seq": found.stream_seq,
        "msg_id": found.leaf_hash,
        "mmr_root": found.mmr_root,
        "hub_ts": output.moment(found.hub_ts),
    }
    if out is not None:
        output_files.write_new(out, found.encode())
        rows["file"] = str(out)
    data = {**rows, "hub_ts": found.hub_ts, "receipt": found.encode()}
    output.facts({**rows, "verified": Marked("signature and known history", Tone.GOOD)}, as_json, data)


proof_app = single("proof")


@command(proof_app, "proof", "veen proof 12 --stream doors", "veen proof 12 --stream doors --upto 1000 --out 12.proof")
def proof(
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="number of the entry")],
    stream: Stream = None,
    upto: Annotated[
        int | None,
        typer.Option(
            "--upto", metavar="N", min=1, help="prove inclusion in the log of the first N entries", show_default="SEQ"
        ),
    ] = None,
    out: OutFile = None,
    epoch: Epoch = None,
    hub: HubUrl = None,
    client: ClientDir = None,
    pin: HubPin = None,
    first_use: TrustOnFirstUse = False,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch and verify the inclusion proof of an entry.

    It proves that the entry is at its place in the log. The file of --out contains the receipt of the entry, the
    receipt that signs the root, and the proof that connects them, one after the other. `veen verify FILE` verifies it
    again without the hub. To prove an entry to others, see `veen evidence`.
    """

    name = context_file.need_stream(stream)
    if upto is not None and upto < seq:
        raise Misuse(f"entry {seq} is not in the log of the first {upto} entries", f"give --upto {seq} or more")
    if out is not None:
        output_files.check_new(out)
    call = open_session.HubCall(hub, client, passphrase_file, pin, first_use)
    found = call.run(lambda client: client.proof(name, seq, upto, epoch=epoch))
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
        output_files.write_new(out, b"".join(part.encode() for part in parts))
        rows["file"] = str(out)
    data = {
        **rows,
        "receipt": found.receipt.encode(),
        "head": found.head.encode(),
        "mmr_proof": found.mmr_proof.encode(),
    }
    verified = f"entry {seq} is in the log of {size_of(found.head)}"
    output.facts({**rows, "verified": Marked(verified, Tone.GOOD)}, as_json, data)


checkpoint_app = single("checkpoint")


@command(
    checkpoint_app,
    "checkpoint",
    "veen checkpoint --stream doors",
    "veen checkpoint --stream doors --out doors.checkpoint",
)
def checkpoint(
    stream: Stream = None,
    upto: Annotated[
        int | None,
        typer.Option("--upto", metavar="N", min=1, help="checkpoint of the first N entries", show_default="all"),
    ] = None,
    out: OutFile = None,
    epoch: Epoch = None,
    hub: HubUrl = None,
    client: ClientDir = None,
    pin: HubPin = None,
    first_use: TrustOnFirstUse = False,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch and verify the newest checkpoint of a stream.

    The hub signs the whole stream, and the client compares it with everything that the hub signed before. A hub that
    removed entries or changed its history is caught, and the contradicting statements are saved as evidence.
    """

    name = context_file.need_stream(stream)
    if out is not None:
        output_files.check_new(out)
    call = open_session.HubCall(hub, client, passphrase_file, pin, first_use)
    found = call.run(lambda client: client.checkpoint(name, upto, epoch=epoch))
    rows: dict[str, output.Value] = {
        "label": found.label_curr,
        "upto_seq": found.upto_seq,
        "mmr_root": found.mmr_root,
        "epoch": found.epoch,
        "witnesses": len(found.witness_sigs or ()),
    }
    if out is not None:
        output_files.write_new(out, found.encode())
        rows["file"] = str(out)
    verified = Marked("signature and known history", Tone.GOOD)
    output.facts({**rows, "verified": verified}, as_json, {**rows, "checkpoint": found.encode()})
