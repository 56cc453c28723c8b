"""`veen receipt`, `veen proof` and `veen checkpoint`: fetch and verify statements that a hub signed."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from plumbing.cli.command import Misuse, argument, option, options_command, single
from veen.cli.kit import context_file, key_files, output, output_files, values
from veen.cli.kit.common_options import Cap, EpochOfPlace, HubOptions, OutFile, Stream
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.result import Column, Moment, Result
from veen.client import cbor_sequence
from veen.client.client import Client
from veen.core import Checkpoint, Receipt
from veen.core.handover import Cover
from veen.core.proof import size_of

T = TypeVar("T")
Seq: TypeAlias = Annotated[values.EntryPlace, argument("[EPOCH:]SEQ", "number of the entry", parser=values.entry_place)]

receipt_app = single("receipt")
proof_app = single("proof")
checkpoint_app = single("checkpoint")


@options_command(
    HubOptions,
    receipt_app,
    "receipt",
    "veen receipt 12 --stream doors",
    "veen receipt 12 --stream doors --out 12.receipt",
)
def receipt(
    asked: HubOptions, seq: Seq, stream: Stream = None, out: OutFile = None, epoch: EpochOfPlace = None
) -> None:
    """Fetch and verify the receipt of an entry.

    A hub key that was active at the receipt's time must have signed it, and it must match everything that this client
    has verified before. If the key is retired, the file of --out also has the proof that connects the receipt with the
    hand-over to the next key.
    """

    async def fetch(client: Client, name: str) -> tuple[Receipt, Cover | None]:
        found = await client.receipt(name, seq.seq, epoch=values.epoch_of(seq, epoch))
        return found, None if out is None else await client.session.cover(found)

    found, cover = _fetch(asked, stream, out, fetch)
    encoded = found.encode() + (cover.encode() if cover else b"")
    rows = {
        "label": found.label,
        "stream_seq": found.stream_seq,
        "msg_id": found.leaf_hash,
        "mmr_root": found.mmr_root,
        "hub_ts": Moment(found.hub_ts),
    }
    _show(asked, rows, {"receipt": found.encode()}, "signature and known history", out, encoded)


@options_command(
    HubOptions,
    proof_app,
    "proof",
    "veen proof 12 --stream doors",
    "veen proof 12 --stream doors --upto 1000 --out 12.proof",
)
def proof(
    asked: HubOptions,
    seq: Seq,
    stream: Stream = None,
    upto: Annotated[
        int | None, option("--upto N", "prove inclusion in the log of the first N entries", min=1, show_default="SEQ")
    ] = None,
    out: OutFile = None,
    epoch: EpochOfPlace = None,
) -> None:
    """Fetch and verify the inclusion proof of an entry.

    It proves that the entry is at its place in the log. The file of --out contains the receipt of the entry, the
    receipt that signs the root, and the proof that connects them, one after the other. `veen verify FILE` verifies it
    again without the hub. To prove an entry to others, see `veen evidence`.
    """
    if upto is not None and upto < seq.seq:
        raise Misuse(f"entry {seq.seq} is not in the log of the first {upto} entries", f"give --upto {seq.seq} or more")
    of = values.epoch_of(seq, epoch)
    found = _fetch(asked, stream, out, lambda client, name: client.proof(name, seq.seq, upto, epoch=of))
    rows = {
        "label": found.receipt.label,
        "stream_seq": found.receipt.stream_seq,
        "upto_seq": size_of(found.head),
        "msg_id": found.receipt.leaf_hash,
        "mmr_root": found.head.mmr_root,
        "path": len(found.mmr_proof.path),
        "peaks_after": len(found.mmr_proof.peaks_after),
    }
    parts = {"receipt": found.receipt.encode(), "head": found.head.encode(), "mmr_proof": found.mmr_proof.encode()}
    verified = f"entry {seq.seq} is in the log of {size_of(found.head)}"
    _show(asked, rows, parts, verified, out, b"".join(dict.fromkeys(parts.values())))


@options_command(
    HubOptions,
    checkpoint_app,
    "checkpoint",
    "veen checkpoint --stream doors",
    "veen checkpoint --stream doors --out doors.checkpoint",
    "veen checkpoint --stream doors --cosign --cap write.cap",
)
def checkpoint(
    asked: HubOptions,
    stream: Stream = None,
    upto: Annotated[
        int | None, option("--upto N", "checkpoint of the first N entries", min=1, show_default="all")
    ] = None,
    cosign: Annotated[
        bool, option("--cosign", "let the hub store a checkpoint of all entries, and let its witnesses cosign it")
    ] = False,
    cap: Cap = None,
    out: OutFile = None,
    epoch: EpochOfPlace = None,
) -> None:
    """Fetch and verify the newest checkpoint of a stream.

    On a hub with epochs, it covers the newest epoch with entries. `veen stream --epochs` lists one for each epoch.

    The hub signs the whole stream, and the client compares it with everything that the hub signed before. A hub that
    removed entries or changed its history is caught, and the contradicting statements are saved as evidence.

    With --cosign the hub first logs that it stores a checkpoint of the present epoch, and asks its witnesses. The
    result says how many of them cosigned; veen verify --policy verifies these signatures. Without open admission this
    client needs a capability for the stream, given with --cap or known from before. An operator can use veen hub
    checkpoint --cosign with the operator token.
    """
    if cosign and not (upto is None and epoch is None):
        raise Misuse("--cosign is for all entries of the present epoch", "leave out --upto and --epoch")
    if cap is not None and not cosign:
        raise Misuse("--cap needs --cosign", "leave it out: a checkpoint can be fetched without a capability")
    path = context_file.cap_of(cap) if cosign else None
    given = key_files.read_capabilities(path) if path else ()

    async def fetch(client: Client, name: str) -> Checkpoint:
        if not cosign:
            return await client.checkpoint(name, upto, epoch=epoch)
        if given:
            client.dir.caps.add_all(cbor_sequence.encode(given))
        return await client.order_checkpoint(name)

    found = _fetch(asked, stream, out, fetch)
    if cosign and not found.witness_sigs:
        output.remark("warning: no witness cosigned this checkpoint; veen hub status shows whether the hub has any")
    rows = {
        "label": found.label_curr,
        "upto_seq": found.upto_seq,
        "mmr_root": found.mmr_root,
        "epoch": found.epoch,
        "witnesses": len(found.witness_sigs or ()),
    }
    _show(asked, rows, {"checkpoint": found.encode()}, "signature and known history", out, found.encode())


def _fetch(asked: HubOptions, stream: str | None, out: Path | None, fetch: Callable[[Client, str], Awaitable[T]]) -> T:
    name = context_file.need_stream(stream)
    if out is not None:
        output_files.check_new(out)
    return asked.call().run(lambda client: fetch(client, name))


def _show(
    asked: HubOptions, rows: dict[str, Any], parts: dict[str, bytes], verified: str, out: Path | None, encoded: bytes
) -> None:
    """Write the statements to --out and show them. JSON also has the statements themselves."""
    if out is not None:
        output_files.write_new(out, encoded)
        rows["file"] = str(out)
    facts: list[Column] = [*rows, ("verified", lambda _: Marked(verified, Tone.GOOD))]
    Result({**rows, **parts}, facts=facts).show(asked.as_json)
