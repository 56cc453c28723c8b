"""`veen verify`: check again what a hub said."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbing.cli.command import Misuse, command, single
from veen.cli.kit import output
from veen.cli.kit.client_options import Epoch, HubPin, PassphraseFile, TrustOnFirstUse
from veen.cli.kit.common_options import ClientDir, HubUrl, JsonOption, Stream
from veen.cli.kit.output import Marked, Tone

if TYPE_CHECKING:
    from veen.cli.kit.open_session import HubCall
    from veen.cli.kit.output_files import Statement
    from veen.client.client import Client
    from veen.client.resync import Resynced
    from veen.client.trust import HubRecord
    from veen.core import MmrProof

app = single("verify")


@command(
    app,
    "verify",
    "veen verify --stream doors",
    "veen verify 12.receipt 12.proof doors.checkpoint",
    "veen verify --stream doors --start-over",
)
def verify(
    file: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="receipts, proofs and checkpoints that were saved")
    ] = None,
    stream: Stream = None,
    start_over: Annotated[
        bool,
        typer.Option(
            "--start-over", help="forget what was verified of the stream, and rely on a hub that was caught again"
        ),
    ] = False,
    epoch: Epoch = None,
    hub: HubUrl = None,
    client: ClientDir = None,
    pin: HubPin = None,
    first_use: TrustOnFirstUse = False,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Check saved files again, or a whole stream.

    Files are checked with the keys of the hub that this client has verified before; the hub is not asked. A stream is
    gone through from its first entry to its last, against its newest checkpoint and all that is known here.

    A hub that contradicted itself stays caught: every command that relies on it fails until --start-over, which
    releases the hub for all its streams. What the hub signed before is kept as evidence.
    """
    from veen.cli.kit import context_file, open_session

    call = open_session.HubCall(hub, client, passphrase_file, pin, first_use, allow_caught=start_over)
    if file:
        if start_over or stream is not None:
            raise Misuse("files are checked without their stream", "give FILE or --stream, not both")
        _verify_files(call, file, as_json)
        return
    name = context_file.need_stream(stream)
    done, count, opened = call.run(lambda met: _verify_stream(met, name, epoch, start_over))
    rows: dict[str, output.Value] = {
        "stream": name,
        "label": done.label,
        "entries": count,
        "opened": opened,
        "mmr_root": done.checkpoint.mmr_root if done.checkpoint else None,
    }
    held = Marked("every signature, place and root, and the checkpoint", Tone.GOOD)
    output.facts({**rows, "verified": held} if count else rows, as_json, rows)


async def _verify_stream(
    client: "Client", stream: str, epoch: int | None, start_over: bool
) -> "tuple[Resynced, int, int]":
    if start_over:
        caught = client.session.contradictions()
        await client.forget(stream, epoch=epoch)
        if caught:
            output.remark(f"this client relies on the hub again; the evidence stays in {client.dir.evidence}")
    done = await client.resync(stream, epoch=epoch)
    count = opened = 0
    if done.size:
        with output.tally("verifying", "entries", done.size) as report:
            async for entry in client.read(stream, 1, done.size, epoch=epoch):
                count += 1
                opened += entry.body is not None
                report(count)
    return done, count, opened


def _verify_files(call: "HubCall", paths: list[Path], as_json: bool) -> None:
    from veen.cli.kit import open_session, output_files

    found = [(path, output_files.read_statements(path)) for path in paths]
    url = call.url()
    with open_session.open_client_dir(call.client, call.passphrase_file) as folder:
        known = open_session.known_hub(folder, url)
    rows = [row for path, said in found for row in _checked(path, said, known)]
    columns = ("file", "what", "stream_seq", "hub_ts", "held_by")
    data = [dict(zip(columns, (*row[:3], _number(row[3]), row[4]), strict=True)) for row in rows]
    output.table(columns, rows, as_json, data)


def _number(at: output.Value) -> int | None:
    return None if at is None else int(str(at))


def _checked(path: Path, said: "list[Statement]", known: "HubRecord") -> list[tuple[output.Value, ...]]:
    """A row for each statement. Raises at the first that does not hold."""
    from veen.cli.kit.exit_status import hinted
    from veen.client.local_tree import size_of
    from veen.core import MmrProof, Receipt, Unverified
    from veen.core.origin import lineage

    line = lineage(known.identity, known.origin)
    rows: list[tuple[output.Value, ...]] = []
    try:
        for at, one in enumerate(said):
            if isinstance(one, MmrProof):
                rows.append(_checked_proof(path, one, said[:at]))
                continue
            label = one.label if isinstance(one, Receipt) else one.label_curr
            signer = line.identity_at(label, size_of(one))
            if isinstance(one, Receipt):
                key, what, at_ts = signer.verify_receipt(one), "receipt", output.moment(one.hub_ts)
            else:
                key, what, at_ts = signer.verify_checkpoint(one, known.profile), "checkpoint", None
            number = signer.hub_keys.index(key) + 1
            rows.append((str(path), what, size_of(one), at_ts, Marked(f"key {number} of the hub", Tone.GOOD)))
    except Unverified as error:
        raise hinted(Unverified(str(path), str(error)), "do not rely on it; is it of another hub than --hub?") from None
    return rows


def _checked_proof(path: Path, found: "MmrProof", before: "list[Statement]") -> tuple[output.Value, ...]:
    """A proof ties the receipt of its leaf to the last root that was signed before it in the file."""
    from veen.client.local_tree import size_of
    from veen.core import Leaf, MmrProof, Receipt, Unverified, proof

    heads = [one for one in before if not isinstance(one, MmrProof)]
    leaves = [one for one in heads if isinstance(one, Receipt) and one.leaf_hash == found.leaf_hash]
    if not leaves:
        raise Unverified("proof", "no receipt before it in the file is for its leaf")
    proof.verify_inclusion(found, Leaf.of(leaves[-1]), heads[-1])
    tied = Marked(f"in the log of {size_of(heads[-1])}", Tone.GOOD)
    return str(path), "proof", leaves[-1].stream_seq, None, tied
