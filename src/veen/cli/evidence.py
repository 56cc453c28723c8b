"""`veen evidence`: files that prove entries, or a contradiction, to someone offline."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from plumbing.cli.command import Misuse, argument, command, group, option, options_command
from veen.cli.kit import (
    context_file,
    evidence_viewer,
    key_files,
    message_content,
    open_session,
    output,
    output_files,
    pinning,
    sanitize,
    values,
)
from veen.cli.kit.common_options import (
    AnchoredIn,
    EpochOfPlace,
    HubOptions,
    JsonOption,
    Policy,
    Stream,
    TrustedWitness,
    TrustEmbedded,
    TsaRoot,
)
from veen.cli.kit.exit_status import CONTRADICTED_STATUS, hinted
from veen.cli.kit.open_session import HubCall
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.pinning import ExpectedSigner
from veen.cli.kit.sanitize import short, short_hex
from veen.client import Card, evidence, local_files
from veen.client.client import Client
from veen.client.evidence import (
    MAX_EVIDENCE_BYTES,
    RESULT_KIND,
    Evidence,
    EvidenceReport,
    Knowledge,
    ShownEntry,
)
from veen.client.sender import DEFAULT_SCHEMA
from veen.client.trust import read_policy
from veen.core import Checkpoint, Malformed, Receipt, Unverified, canonical_json
from veen.core.canonical_json import Plain
from veen.core.handover import Cover, Coverage
from veen.core.hashing import h

if TYPE_CHECKING:
    from veen.query.result_evidence import ResultReport

app = group(
    "evidence",
    """Make and verify files that prove entries to others.

    An evidence file contains statements that the hub signed, the proofs that connect them, and the hub's keys. Anyone
    who knows the hub id can verify it offline.
    """,
)


@options_command(
    HubOptions,
    app,
    "make",
    "veen evidence make 12 --stream doors --out 12.evidence",
    'veen evidence make 12 13 --stream doors --disclose --claim "the door was open" --out door.evidence',
    "veen evidence make 12 --stream doors --disclose --out 12.evidence --html 12.html",
    "veen evidence make --statement mine.receipt --statement theirs.receipt --out lie.evidence",
)
def make(
    asked: HubOptions,
    out: Annotated[Path, option("--out FILE", "the file to create")],
    seq: Annotated[
        list[values.EntryPlace] | None,
        argument("[EPOCH:]SEQ", "entries to prove", parser=values.entry_place),
    ] = None,
    statement: Annotated[
        list[Path] | None, option("--statement FILE", "instead of entries: a saved receipt or checkpoint")
    ] = None,
    claim: Annotated[
        str, option("--claim TEXT", "what the file shows, in your words; it proves nothing by itself")
    ] = "",
    disclose: Annotated[
        bool, option("--disclose", "include the keys that open these entries (and no others), so anyone can read them")
    ] = False,
    writer: Annotated[
        list[Path] | None, option("--writer CARD", "include the card of a writer, so that verifiers know who wrote it")
    ] = None,
    cosigned: Annotated[
        bool, option("--cosigned", "prove the entries in the newest log that a witness cosigned, not in the newest")
    ] = False,
    html: Annotated[
        Path | None, option("--html FILE", "also create a page that shows the content, without any verdict")
    ] = None,
    stream: Stream = None,
    epoch: EpochOfPlace = None,
) -> None:
    """Make a file that proves entries, or a contradiction of the hub.

    The file contains each entry with its receipt, its message as sent, and the inclusion proof for a root that the hub
    signed. Payloads stay sealed without --disclose. With --statement the hub is not contacted.

    --writer names a card or a client directory. If the identity is your own, the file includes only the client_ids of
    these entries, whatever their age.

    --html makes a page for people who only want to read: it contains the evidence file and says where to get the
    verifier. It gives no verdict, because the sender of a page can make it say anything.
    """
    if bool(seq) == bool(statement):
        raise Misuse("give either entries or statements", "give SEQ, or --statement FILE twice")
    output_files.check_new(out)
    if html is not None:
        output_files.check_new(html)
    call = asked.call()
    if seq:
        cards = tuple(map(key_files.read_confirmed_card, writer or ()))
        wanted = Wanted(seq, claim, disclose, cosigned, epoch, cards)
        made = _of_entries(call, context_file.need_stream(stream), wanted)
    elif writer:
        raise Misuse("--writer cannot be used with --statement", "leave it out: statements have no writer")
    else:
        made = _of_files(call, statement or [], claim)
    data = made.encode()
    own = next((exhibit.opening.reader_pk for exhibit in made.exhibits if exhibit.opening), None)
    found = evidence.verify(data, made.identity.hub_id, () if own is None else (own,))
    output_files.write_new(out, data)
    if html is not None:
        output_files.write_new(html, evidence_viewer.page(found, data, out.name))
    _show(found, out, pinning.hub_signer(made.identity.hub_id.hex(), False), asked.as_json)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requested content of the evidence of entries."""

    places: list[values.EntryPlace]
    claim: str
    disclose: bool
    cosigned: bool
    epoch: int | None
    writers: tuple[Card, ...]


def _of_entries(call: HubCall, name: str, wanted: Wanted) -> Evidence:
    async def fetch(client: Client) -> Evidence:
        newest = await client.newest_epoch(name)
        by_epoch: dict[int, list[int]] = {}
        for place in wanted.places:
            epoch = values.epoch_of(place, wanted.epoch)
            by_epoch.setdefault(newest if epoch is None else epoch, []).append(place.seq)
        made = [await of_epoch(client, epoch, by_epoch[epoch]) for epoch in sorted(by_epoch)]
        return made[0] if len(made) == 1 else evidence.joined(client.session.trust.known, wanted.claim, made)

    async def of_epoch(client: Client, epoch: int, seqs: list[int]) -> Evidence:
        end = await client.follower(name, epoch).end()
        last = max(seqs)
        if last > end:
            where = f"stream {name!r} has {end} entries" + (f" in epoch {epoch}" if epoch else "")
            raise Misuse(f"there is no entry {last}: {where}", "veen stream shows them")
        return await client.evidence(
            name,
            seqs,
            claim=wanted.claim,
            disclose=wanted.disclose,
            cosigned=wanted.cosigned,
            epoch=epoch,
            writers=wanted.writers,
        )

    return call.run(fetch)


def _of_files(call: HubCall, paths: list[Path], claim: str) -> Evidence:
    found = [one for path in paths for one in output_files.read_statements(path)]
    statements = [one for one in found if isinstance(one, Receipt | Checkpoint)]
    covers = [one for one in found if isinstance(one, Cover)]
    url = call.url()
    with open_session.open_client_dir(call.client, call.passphrase_file) as folder:
        return evidence.make_evidence(open_session.known_hub(folder, url), claim, statements, covers=covers)


@command(
    app,
    "verify",
    "veen evidence verify door.evidence --pin 5f1c8a…",
    "veen evidence verify door.evidence --pin hub-identity.json --reader doors.stream-key --json",
    "veen evidence verify door.evidence --pin 5f1c8a… --policy witnesses.toml",
)
def verify(
    file: Annotated[
        Path, argument("FILE", "a file from veen evidence make or veen query export, or one that a client saved")
    ],
    pin: Annotated[
        str | None,
        option(
            "--pin HEX|PATH",
            "the hub that must have signed it: its id, a key's fingerprint, its data directory or identity file",
        ),
    ] = None,
    trust_embedded: TrustEmbedded = False,
    reader: Annotated[
        list[str] | None,
        option("--reader HEX|FILE", "a stream's reader key: its public_key, or a file from veen stream-key export"),
    ] = None,
    writer: Annotated[
        list[Path] | None, option("--writer CARD", "an identity that may have written the entries: its card")
    ] = None,
    witness: TrustedWitness = None,
    policy: Policy = None,
    anchor: Annotated[list[Path] | None, option("--anchor FILE", "an anchor of a checkpoint in the file")] = None,
    anchored_in: AnchoredIn = None,
    tsa_root: TsaRoot = None,
    as_json: JsonOption = False,
) -> None:
    """Verify an evidence file offline.

    No hub is contacted. Without --pin the verdict is `unverified: no hub was named` and the exit status is 4, because
    anyone can make a hub key and sign such a file with it. --trust-embedded accepts the hub id that is in the file, and
    the verdict says so. Without --reader the disclosed content is shown under the reader key in the file, which the
    writer of the message could have made up. The exit status is 11 if the file is valid and proves that the hub
    contradicted itself.

    --writer names who must have written the entries, by card. The client_id of a writer changes daily; a card proves
    which client_ids belong to one identity, and further cards of the same identity may be in the file.

    A file from veen query export contains a query result. Its rows must match the digest that is in the hub's log, and
    the hub must have signed the receipts of the events that the query service verified.

    With --policy every entry must be in a log that enough witnesses of the policy cosigned: make the file with veen
    evidence make --cosigned. A key of the hub itself never counts as a witness.

    Statements of a retired key that conflict convict the hub only if each of them existed before the key was handed
    over: if a proof in the file connects it with a hand-over or a later key, or if --witness or --anchor shows it.
    Otherwise the key may have been stolen, and the verdict says so. Name the hub with --pin PATH of its current
    identity file: the evidence may contain an older record, which does not show that a key was retired.
    """
    signer, readers = pinning.hub_signer(pin, trust_embedded), pinning.reader_keys(reader)
    data = local_files.read_file(file, MAX_EVIDENCE_BYTES)
    cards = {key_files.read_confirmed_card(path): path.name for path in writer or ()}
    try:
        anchored = {}
        if anchor:
            from veen.cli.anchor import verified_anchors  # most files need no anchors, and their package is large

            anchored = verified_anchors(anchor, anchored_in, tsa_root).times
        wanted = read_policy(policy) if policy else None
        trusted = frozenset(witness or ()) | frozenset(wanted.witnesses.values() if wanted else ())
        knowledge = Knowledge(pinning.pinned_record(pin), trusted, (), anchored, tuple(cards), wanted)
        result = None
        if evidence.is_of_kind(data, RESULT_KIND):
            from veen.query import result_evidence  # most files need no queries, and their package is large

            result = result_evidence.verify(data, signer.key, readers, knowledge)
        found = evidence.verify(data, signer.key, readers, knowledge) if result is None else result.evidence
    except Malformed as error:
        raise hinted(Malformed(str(file), str(error)), "the file is damaged or is not evidence") from None
    except Unverified as error:
        raise hinted(Unverified(str(file), str(error)), "the file proves nothing") from None
    _show(found, file, signer, as_json, {card.id_sign: name for card, name in cards.items()}, result)
    signer.check_named(file)
    if found.contradictions or found.retired:
        raise typer.Exit(CONTRADICTED_STATUS)


@command(app, "verifier", "veen evidence verifier --out verify.html")
def verifier(
    out: Annotated[Path, option("--out FILE", "the HTML file to create")], as_json: JsonOption = False
) -> None:
    """Write a page that verifies evidence in a browser.

    The page is one HTML file without network access. Give it to someone without VEEN, together with the hub id from
    a source that they trust. They open it from disk, drop an evidence file on it and enter the hub id. All copies
    of this release have the same SHA-256, so they can compare it with a published one.
    """
    page = resources.files("veen.cli").joinpath("verifier.html").read_bytes()
    output_files.write_new(out, page)
    output.facts({"file": str(out), "size": len(page), "sha256": h(page)}, as_json)


def _show(
    found: EvidenceReport,
    file: Path,
    signer: ExpectedSigner,
    as_json: bool,
    names: Mapping[bytes, str] | None = None,
    result: "ResultReport | None" = None,
) -> None:
    """Print the report. `names` are the names of the expected writers by id_sign."""
    verdict = signer.verdict("it holds")
    if found.contradictions:
        verdict = signer.verdict("it holds, and the hub contradicts itself", Tone.BAD)
    elif found.retired:
        verdict = signer.verdict(found.retired[0], Tone.BAD)
    if as_json:
        shown = {"verdict": verdict.text, **_data(found, file)}
        output.document(shown if result is None else {**shown, "query_result": result.summary()})
        return
    rows: dict[str, output.Value] = {
        "verdict": verdict,
        "signed by": NAMED_HUB if found.pinned else UNNAMED_HUB,
        "hub_id": found.hub_id,
    }
    for number, what in enumerate(found.contradictions, 1):
        rows[f"contradiction {number}"] = Marked(what, Tone.BAD)
    if found.lost:
        places = ", ".join(str(receipt.stream_seq) for receipt in found.lost)
        rows["lost"] = Marked(f"the hub states that it lost the entries {places}", Tone.WARN)
    for number, what in enumerate(found.conflicts, 1):
        rows[f"conflict {number}"] = Marked(what, Tone.BAD)
    uncovered = sum(coverage is Coverage.UNCOVERED for _, coverage in found.coverage)
    if uncovered:
        rows["uncovered"] = Marked(f"{uncovered} statements of retired keys", Tone.WARN)
    if found.claim:
        rows["claim"] = f"{sanitize.printable(found.claim)} (not verified)"
    if found.cosigners:
        rows["cosigned by"] = Marked(", ".join(map(sanitize.printable, found.cosigners)), Tone.GOOD)
    rows |= disclosed(found) | _written_by(found, names or {})
    if result is not None:
        rows |= _of_result(result)
    output.facts({**rows, "file": str(file)}, as_json)
    if result is not None:
        _result_rows(result)
    if sys.stdout.isatty():
        sys.stdout.write("\n")
    output.table(("what", "entry", "in log of", "hub_ts", "client_id", "shows"), list(_contents(found)), as_json)


def disclosed(found: EvidenceReport) -> dict[str, output.Value]:
    """How far disclosed content is proved and for which reader key. Empty if all entries are sealed."""
    opened = [entry for entry in found.entries if entry.opened is not None]
    if not opened:
        return {}
    keys = sorted({entry.reader_pk for entry in opened if entry.reader_pk is not None})
    named = {f"reader_pk {n}" if len(keys) > 1 else "reader_pk": key for n, key in enumerate(keys, 1)}
    check = _READER_UNNAMED if found.proved else _CONTENT_UNPROVED
    return {"content check": _READER_NAMED if found.reader_pinned else check, **named}


def _written_by(found: EvidenceReport, names: Mapping[bytes, str]) -> dict[str, output.Value]:
    """The identities whose cards prove that they wrote the entries."""
    writers = list(dict.fromkeys(entry.writer for entry in found.entries if entry.writer is not None))
    rows: dict[str, output.Value] = {}
    for number, one in enumerate(writers, 1):
        title = f"written by {number}" if len(writers) > 1 else "written by"
        if one in names:
            rows[title] = Marked(f"{sanitize.printable(names[one])}, which was named: id_sign {one.hex()}", Tone.GOOD)
        else:
            rows[title] = Marked(f"id_sign {one.hex()}; name the expected writer with --writer", Tone.WARN)
    return rows


def _of_result(result: "ResultReport") -> dict[str, output.Value]:
    """The claims of a query result about itself."""
    elsewhere = f", {result.elsewhere} more are of other hubs" if result.elsewhere else ""
    return {
        "query": sanitize.printable(str(result.query["query_id"])),
        "asked by": f"{sanitize.printable(result.asked_by)} (recorded by the service)",
        "streams": sanitize.printable(" ".join(result.streams)),
        "rows": len(result.rows),
        "computed": Marked("stated by the service that wrote the digest; veen query replay checks it", Tone.WARN),
        "receipts of events": f"{result.receipts}{elsewhere}",
    }


def _result_rows(result: "ResultReport") -> None:
    """Print the rows of a query result, which nobody but their service vouches for."""
    names = result.columns
    rows = [
        (f"row {number}", *(_cell(row.get(name)) for name in names))
        for number, row in enumerate(result.rows[:_SHOWN_ROWS], 1)
    ]
    if sys.stdout.isatty():
        sys.stdout.write("\n")
    output.table(("row", *map(sanitize.printable, names)), rows, False)
    if len(result.rows) > _SHOWN_ROWS:
        output.remark(f"{len(result.rows) - _SHOWN_ROWS} more rows; --json shows all of them")


def _cell(value: Plain) -> output.Value:
    if value is None or isinstance(value, bool | int | float):
        return value
    return sanitize.printable(value if isinstance(value, str) else canonical_json.encode(value).decode())


_SHOWN_ROWS = 1_000
_READER_NAMED = Marked("proved for the reader key that was named", Tone.GOOD)
_READER_UNNAMED = Marked("proved for reader_pk; name the expected key with --reader", Tone.WARN)
_CONTENT_UNPROVED = Marked("not proved: the file has no proof of what reader_pk opens", Tone.WARN)
NAMED_HUB = Marked("the hub that was named", Tone.GOOD)
UNNAMED_HUB = Marked("an unknown hub; name the expected hub with --pin", Tone.WARN)


def _contents(found: EvidenceReport) -> Iterator[tuple[output.Value, ...]]:
    """One row for each statement that the hub signed."""
    shown = {entry.receipt for entry in found.entries}
    log_sizes = {(tie.label, tie.stream_seq): tie.upto_seq for tie in found.ties}
    for entry in found.entries:
        receipt = entry.receipt
        seq = receipt.stream_seq
        yield (
            "entry",
            seq,
            log_sizes.get((receipt.label, seq)),
            output.moment(receipt.hub_ts),
            short(entry.client_id),
            _content(entry),
        )
    for receipt in found.receipts:
        if receipt not in shown:
            root = f"root {short_hex(receipt.mmr_root)}, leaf {short_hex(receipt.leaf_hash)}"
            yield "receipt", receipt.stream_seq, None, output.moment(receipt.hub_ts), None, root
    for one in found.checkpoints:
        yield "checkpoint", one.upto_seq, None, None, None, f"root {short_hex(one.mmr_root)}"


def _data(found: EvidenceReport, file: Path) -> dict[str, object]:
    """The report as JSON, with entries in the form of `veen stream --json`."""
    shown = found.to_json()
    assert isinstance(shown, dict)
    entries = []
    for entry, fields in zip(found.entries, cast(list[dict[str, object]], shown["entries"]), strict=True):
        if entry.opened is not None:
            schema, body, attached = evidence_viewer.unwrapped(entry.opened)
            files = [{"name": part.name, "size": part.size, "coid": part.coid} for part in attached]
            text = sanitize.text_of(body)
            event = message_content.event_data(schema, body)
            fields = {**fields, "schema": schema, "text": text, "event": event, "body": body, "attachments": files}
        entries.append(fields)
    return {"file": str(file), **shown, "entries": entries}


def _content(entry: ShownEntry) -> output.Value:
    if entry.opened is None:
        return Marked("(sealed)", Tone.QUIET)
    schema, body, attached = evidence_viewer.unwrapped(entry.opened)
    content = message_content.preview(schema, body)
    if schema != DEFAULT_SCHEMA and message_content.event_of(schema, body) is None:
        content += f" schema {short_hex(schema)}"
    files = ", ".join(f"{sanitize.printable(part.name)} ({sanitize.size(part.size)})" for part in attached)
    return f"{content} + {files}" if files else content
