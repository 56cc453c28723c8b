"""`veen evidence`: show others what a hub said."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from plumbing.cli.command import Misuse, command, group
from veen.cli.kit import output
from veen.cli.kit.client_options import Epoch, HubPin, PassphraseFile, ReaderPin, TrustEmbedded, TrustOnFirstUse
from veen.cli.kit.common_options import ClientDir, HubUrl, JsonOption, Stream
from veen.cli.kit.output import Marked, Tone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from veen.cli.kit.open_session import HubCall
    from veen.cli.kit.pinning import Signer
    from veen.client.client import Client
    from veen.client.evidence import Evidence
    from veen.client.evidence_verify import EvidenceReport, ShownEntry
    from veen.client.message_attachments import Attachment
    from veen.core import Opened

app = group(
    "evidence",
    """Show what a hub said to someone who never met it.

    A file holds what the hub signed, the proofs that tie it together, and the hub's keys. Whoever knows the hub's id
    can verify it without asking anyone.
    """,
)


@command(
    app,
    "make",
    "veen evidence make 12 --stream doors --out 12.evidence",
    'veen evidence make 12 13 --stream doors --disclose --claim "the door was open" --out door.evidence',
    "veen evidence make --statement mine.receipt --statement theirs.receipt --out lie.evidence",
)
def make(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="the file to make")],
    seq: Annotated[list[int] | None, typer.Argument(metavar="SEQ", min=1, help="entries to show")] = None,
    statement: Annotated[
        list[Path] | None,
        typer.Option(
            "--statement", metavar="FILE", help="instead of entries: receipts and checkpoints that were saved"
        ),
    ] = None,
    claim: Annotated[
        str, typer.Option("--claim", metavar="TEXT", help="what you say it shows; proves nothing by itself")
    ] = "",
    disclose: Annotated[
        bool, typer.Option("--disclose", help="with what opens these entries, and no others: anyone can read them")
    ] = False,
    stream: Stream = None,
    epoch: Epoch = None,
    hub: HubUrl = None,
    client: ClientDir = None,
    pin: HubPin = None,
    first_use: TrustOnFirstUse = False,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Make a file that proves entries to anyone, or that a hub told two stories.

    Each entry goes in with its receipt, its message as it was sent, and the proof that it is in the log that the hub
    signed for. What it says stays sealed without --disclose. With --statement the hub is not asked.
    """
    from veen.cli.kit import open_session, output_files, pinning
    from veen.client import evidence_verify

    if bool(seq) == bool(statement):
        raise Misuse("entries or statements are needed, one or the other", "give SEQ, or --statement FILE twice")
    output_files.check_new(out)
    call = open_session.HubCall(hub, client, passphrase_file, pin, first_use)
    made = _of_entries(call, stream, seq, claim, disclose, epoch) if seq else _of_files(call, statement or [], claim)
    data = made.encode()
    own = next((exhibit.opening.reader_pk for exhibit in made.exhibits if exhibit.opening), None)
    found = evidence_verify.verify(data, made.identity.hub_id, own)
    output_files.write_new(out, data)
    _show(found, out, pinning.hub_signer(made.identity.hub_id.hex(), False), as_json)


def _of_entries(
    call: "HubCall", stream: str | None, seqs: list[int], claim: str, disclose: bool, epoch: int | None
) -> "Evidence":
    from veen.cli.kit import context_file

    name = context_file.need_stream(stream)

    async def asked(client: "Client") -> "Evidence":
        end = await client.follower(name, epoch).end()
        if max(seqs) > end:
            raise Misuse(f"there is no entry {max(seqs)}: stream {name!r} has {end}", "veen stream shows them")
        return await client.evidence(name, seqs, claim=claim, disclose=disclose, epoch=epoch)

    return call.run(asked)


def _of_files(call: "HubCall", paths: list[Path], claim: str) -> "Evidence":
    from veen.cli.kit import open_session, output_files
    from veen.client import evidence
    from veen.core import MmrProof

    said = [one for path in paths for one in output_files.read_statements(path) if not isinstance(one, MmrProof)]
    url = call.url()
    with open_session.open_client_dir(call.client, call.passphrase_file) as folder:
        return evidence.make(open_session.known_hub(folder, url), claim, said)


@command(
    app,
    "verify",
    "veen evidence verify door.evidence --pin 5f1c8a…",
    "veen evidence verify door.evidence --pin hub-identity.json --reader doors.stream-key --json",
)
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="what veen evidence make made, or a client kept")],
    pin: Annotated[
        str | None,
        typer.Option(
            "--pin",
            metavar="HEX|PATH",
            help="the hub that must have signed it: its id, a key's fingerprint, its data directory or identity file",
        ),
    ] = None,
    trust_embedded: TrustEmbedded = False,
    reader: ReaderPin = None,
    as_json: JsonOption = False,
) -> None:
    """Verify such a file, offline.

    No hub is contacted. Without --pin the verdict is `unverified: no hub was named` and the exit status is 4, because
    anyone can make a hub key and sign such a file with it. --trust-embedded accepts the hub id that is in the file, and
    the verdict says so. Without --reader it shows what messages say under some key: whoever wrote one and disclosed it
    can have made that key up. The exit status is 11 where everything holds and shows that the hub contradicted itself.
    """
    from veen.cli.kit import pinning
    from veen.cli.kit.exit_status import CONTRADICTED_STATUS, hinted
    from veen.client import durable, evidence_verify
    from veen.client.evidence import MAX_EVIDENCE_BYTES
    from veen.core import Malformed, Unverified

    signer, reader_pk = pinning.hub_signer(pin, trust_embedded), pinning.reader_key(reader)
    data = durable.read_file(file, MAX_EVIDENCE_BYTES)
    try:
        found = evidence_verify.verify(data, signer.key, reader_pk)
    except Malformed as error:
        raise hinted(Malformed(str(file), str(error)), "it is damaged, or was never evidence") from None
    except Unverified as error:
        raise hinted(Unverified(str(file), str(error)), "it proves nothing") from None
    _show(found, file, signer, as_json)
    signer.check_named(file)
    if found.contradictions:
        raise typer.Exit(CONTRADICTED_STATUS)


def _show(found: "EvidenceReport", file: Path, signer: "Signer", as_json: bool) -> None:
    from veen.cli.kit import sanitize

    verdict = signer.verdict("it holds")
    if found.contradictions:
        verdict = signer.verdict("it holds, and the hub contradicts itself", Tone.BAD)
    if as_json:
        output.document({"verdict": verdict.text, **_data(found, file)})
        return
    rows: dict[str, output.Value] = {
        "verdict": verdict,
        "whose": NAMED_HUB if found.pinned else UNNAMED_HUB,
        "hub_id": found.hub_id,
    }
    for number, what in enumerate(found.contradictions, 1):
        rows[f"contradiction {number}"] = Marked(what, Tone.BAD)
    if found.claim:
        rows["claim"] = f"{sanitize.printable(found.claim)} (its maker's words)"
    rows |= disclosed(found)
    output.facts({**rows, "file": str(file)}, as_json)
    if sys.stdout.isatty():
        sys.stdout.write("\n")
    output.table(("what", "entry", "in log of", "hub_ts", "client_id", "shows"), list(_contents(found)), as_json)


def disclosed(found: "EvidenceReport") -> dict[str, output.Value]:
    """How far what is disclosed is proved, and whose key it is proved for; nothing where all is sealed."""
    opened = [entry for entry in found.entries if entry.opened is not None]
    if not opened:
        return {}
    keys = sorted({entry.reader_pk for entry in opened if entry.reader_pk is not None})
    named = {f"reader_pk {n}" if len(keys) > 1 else "reader_pk": key for n, key in enumerate(keys, 1)}
    proved = _SOME_READER if found.proved else _MAKER_SAYS
    return {"content": _NAMED_READER if found.reader_pinned else proved, **named}


_NAMED_READER = Marked("proved to be what the reader's key that was named opens", Tone.GOOD)
_SOME_READER = Marked("proved to be what reader_pk opens: --reader says whose key it must be", Tone.WARN)
_MAKER_SAYS = Marked("as the file's maker says: the file has no proof of what reader_pk opens", Tone.WARN)
NAMED_HUB = Marked("the hub's that was named", Tone.GOOD)
UNNAMED_HUB = Marked("some hub's: --pin says whose it must be", Tone.WARN)


def _contents(found: "EvidenceReport") -> "Iterator[tuple[output.Value, ...]]":
    """A row for each thing that the hub signed."""
    from veen.cli.kit.sanitize import short, short_hex

    shown = {entry.receipt for entry in found.entries}
    tied = {tie.stream_seq: tie.upto_seq for tie in found.ties}
    for entry in found.entries:
        receipt = entry.receipt
        seq = receipt.stream_seq
        yield "entry", seq, tied.get(seq), output.moment(receipt.hub_ts), short(entry.client_id), _says(entry)
    for receipt in found.receipts:
        if receipt not in shown:
            root = f"root {short_hex(receipt.mmr_root)}, leaf {short_hex(receipt.leaf_hash)}"
            yield "receipt", receipt.stream_seq, None, output.moment(receipt.hub_ts), None, root
    for one in found.checkpoints:
        yield "checkpoint", one.upto_seq, None, None, None, f"root {short_hex(one.mmr_root)}"


def _data(found: "EvidenceReport", file: Path) -> dict[str, object]:
    """The report, with entries as `veen stream --json` shows them."""
    from veen.cli.kit import sanitize

    shown = found.to_json()
    assert isinstance(shown, dict)
    entries = []
    for entry, told in zip(found.entries, cast(list[dict[str, object]], shown["entries"]), strict=True):
        if entry.opened is not None:
            schema, body, attached = _unwrapped(entry.opened)
            files = [{"name": part.name, "size": part.size, "coid": part.coid} for part in attached]
            text = sanitize.text_of(body)
            told = {**told, "schema": schema, "text": text, "body": body, "attachments": files}
        entries.append(told)
    return {"file": str(file), **shown, "entries": entries}


def _unwrapped(opened: "Opened") -> "tuple[bytes, bytes, tuple[Attachment, ...]]":
    from veen.client import message_attachments
    from veen.core import Limits, Malformed, Unverified

    try:
        return message_attachments.unwrap(opened, Limits())
    except (Malformed, Unverified):  # the hub signed for it all the same
        return opened.header.schema, opened.body, ()


def _says(entry: "ShownEntry") -> output.Value:
    """What was disclosed of an entry."""
    from veen.cli.kit import sanitize

    if entry.opened is None:
        return Marked("(sealed)", Tone.QUIET)
    _, body, attached = _unwrapped(entry.opened)
    files = ", ".join(f"{sanitize.printable(part.name)} ({sanitize.size(part.size)})" for part in attached)
    return f"{sanitize.preview(body)} + {files}" if files else sanitize.preview(body)
