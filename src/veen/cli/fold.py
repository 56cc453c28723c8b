"""`veen fold`: fold a stream with any installed overlay, ours or one of another distribution."""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from plumbing.cli.command import Misuse, single
from veen.cli.evidence import NAMED_HUB, UNNAMED_HUB, disclosed
from veen.cli.kit import context_file, open_session, output, pinning, read_state, render_state, values
from veen.cli.kit.client_options import ReaderPin, TrustEmbedded
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.state_options import ReadOptions, read_command
from veen.client import local_files
from veen.client.evidence import MAX_EVIDENCE_BYTES
from veen.core import Malformed, Unverified, naming
from veen.overlays import AnyOverlay, registry
from veen.state import drop_cache, verify_state
from veen.state.state_view import StateAt
from veen.storage.metadata import read_metadata
from veen.storage.paths import Folders

app = single("fold")

OverlayClass: TypeAlias = Annotated[
    str, typer.Option("--overlay", metavar="CLASS", help="the overlay, such as kv", show_default=False)
]
Part: TypeAlias = Annotated[
    str | None,
    typer.Option("--part", metavar="PART", help="only this part: text, or hex: and bytes", show_default="all parts"),
]


@read_command(
    app,
    "fold",
    "veen fold --overlay kv --stream settings",
    "veen fold --overlay wallet.ledger --stream ledger --at 120 --data-dir copy --json",
    "veen fold --overlay kv --part door --stream settings --evidence door.evidence --pin 5f1c8a…",
    "veen fold --overlay kv --stream settings --forget",
)
def fold(
    options: ReadOptions,
    overlay: OverlayClass,
    part: Part = None,
    evidence: Annotated[
        Path | None,
        typer.Option("--evidence", metavar="FILE", help="fold the entries in an evidence file instead, offline"),
    ] = None,
    trust_embedded: TrustEmbedded = False,
    reader: ReaderPin = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="delete the cached state of the stream, so that it is read again")
    ] = False,
) -> None:
    """Fold a stream into state with any installed overlay.

    Shows the state of every part, the faults with their reasons, and the hash of the state. With --evidence no hub is
    contacted: the file is verified, and its entries are folded. --pin names the hub that must have signed them; without
    it the exit status is 4. --reader names the key that must open them.
    """

    kind = of_class(overlay)
    wanted = None if part is None else values.data_of(part)
    if evidence is not None:
        _reject_log_options(options, forget)
        _fold_evidence(options, kind, evidence, wanted, trust_embedded, reader)
    elif trust_embedded:
        raise Misuse("--trust-embedded needs --evidence", "leave it out")
    elif reader is not None:
        raise Misuse("--reader needs --evidence", "leave it out: the stream is opened with the client's own key")
    elif forget:
        _delete_cache(options, kind)
    else:
        _fold_log(options, kind, wanted)


def of_class(name: str) -> AnyOverlay:
    """Return the installed overlay of a class. Raises `Misuse` if there is none."""

    known = registry()
    found = known.of_class(name)
    if found is None:
        installed = ", ".join(sorted(one.CLASS for one in known))
        raise Misuse(f"there is no overlay {name!r}", f"installed overlays: {installed}")
    return found


def _fold_log(options: ReadOptions, kind: AnyOverlay, wanted: bytes | None) -> None:
    def look(reading: StateAt[Any, Any]) -> StateAnswer:
        states = dict(reading.states)
        shown = states if wanted is None else {key: one for key, one in states.items() if key == wanted}
        faults = [one for one in reading.faults() if wanted is None or one.part == wanted]
        hashed = reading.state_hash(*(() if wanted is None else (wanted,)))
        data = {
            "class": kind.CLASS,
            "state_hash": hashed,
            "parts": [render_state.part_data(kind, key, one) for key, one in shown.items()],
            "faults": render_state.fault_data(faults),
        }
        facts: dict[str, output.Value] = {
            "class": kind.CLASS,
            "state_hash": hashed,
            "parts": len(shown),
            "faults": len(faults),
        }
        rows = [(render_state.part_name(key), render_state.plain_line(kind, key, one)) for key, one in shown.items()]
        rows += [
            (f"entry {place}", f"{kind_of}: {why!s}") for place, kind_of, _, why in render_state.fault_rows(faults)
        ]
        parts = tuple(shown) if wanted is not None else ()
        remarks = () if rows else (f"no entry up to {reading.at.stream_seq} belongs to {_subject(kind, wanted)}",)
        columns = ("part", "state")
        return read_state.StateAnswer(facts=facts, columns=columns, rows=rows, data=data, parts=parts, remarks=remarks)

    read_state.show_state(options, kind, look)


def _subject(kind: AnyOverlay, wanted: bytes | None) -> str:
    return f"overlay {kind.CLASS}" if wanted is None else f"part {render_state.part_name(wanted)!s} of {kind.CLASS}"


def _reject_log_options(options: ReadOptions, forget: bool) -> None:
    """Raise `Misuse` for options that apply to a stream and not to an evidence file."""
    given = {"--at": options.at, "--prove": options.prove, "--out": options.out, "--data-dir": options.data_dir}
    for name, value in {**given, "--forget": forget}.items():
        if value:
            raise Misuse(f"{name} cannot be combined with --evidence", "leave out one of them")


def _fold_evidence(
    options: ReadOptions, kind: AnyOverlay, file: Path, wanted: bytes | None, trust_embedded: bool, reader: str | None
) -> None:
    stream, signer = context_file.need_stream(options.stream), pinning.hub_signer(options.pin, trust_embedded)
    data = local_files.read_file(file, MAX_EVIDENCE_BYTES)
    parts = () if wanted is None else (wanted,)
    try:
        found = verify_state(data, kind, stream, *parts, pin=signer.key, reader=pinning.reader_key(reader))
    except (Malformed, Unverified) as error:
        raise hinted(type(error)(str(file), str(error)), "the file proves nothing") from None
    verdict = signer.verdict("it holds")
    facts: dict[str, output.Value] = {
        "verdict": verdict,
        "whose": NAMED_HUB if found.report.pinned else UNNAMED_HUB,
        "hub_id": found.report.hub_id,
        **disclosed(found.report),
    }
    rows = [(render_state.part_name(key), render_state.plain_line(kind, key, one)) for key, one in found.states.items()]
    rows += [
        (f"entry {place}", f"{kind_of}: {why!s}") for place, kind_of, _, why in render_state.fault_rows(found.faults)
    ]
    hashed: dict[str, output.Value] = {"state_hash": found.state_hash, "entries": len(found.report.entries)}
    shown = {
        "verdict": verdict.text,
        "hub_id": found.report.hub_id,
        "pinned": found.report.pinned,
        "reader_pinned": found.report.reader_pinned,
        "proved": found.report.proved,
        "class": kind.CLASS,
        **hashed,
        "parts": [render_state.part_data(kind, key, one) for key, one in found.states.items()],
        "faults": render_state.fault_data(found.faults),
    }
    output.facts({**facts, **hashed}, options.as_json, shown)
    if not options.as_json:
        output.table(("part", "state"), rows, False)
    if not found.states:
        output.remark(f"the file has no entries of {_subject(kind, wanted)}, so it proves nothing about it")
    signer.check_named(file)


def _delete_cache(options: ReadOptions, kind: AnyOverlay) -> None:
    stream = context_file.need_stream(options.stream)
    with open_session.open_client_dir(options.client, options.passphrase_file) as folder:
        if options.data_dir is not None:
            hub_id = read_metadata(Folders(options.data_dir)).identity.hub_id
        else:
            call = open_session.HubCall(options.hub, options.client, options.passphrase_file)
            hub_id = open_session.known_hub(folder, call.url()).identity.hub_id
        existed = drop_cache(folder, hub_id, kind, naming.stream_id(stream))
    output.facts({"class": kind.CLASS, "stream": stream, "hub_id": hub_id, "forgotten": existed}, options.as_json)
