"""`veen fold`: what any overlay makes of a stream, ours or another distribution's."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from plumbing.cli.command import Misuse, single
from veen.cli.kit import output
from veen.cli.kit.client_options import ReaderPin, TrustEmbedded
from veen.cli.kit.state_options import ReadOptions, read_command

if TYPE_CHECKING:
    from veen.cli.kit.read_state import StateAnswer
    from veen.overlays import AnyOverlay
    from veen.state.state_at import StateAt

app = single("fold")

OverlayClass: TypeAlias = Annotated[
    str, typer.Option("--overlay", metavar="CLASS", help="which overlay, like kv", show_default=False)
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
    asked: ReadOptions,
    overlay: OverlayClass,
    part: Part = None,
    evidence: Annotated[
        Path | None,
        typer.Option("--evidence", metavar="FILE", help="fold what a file of evidence discloses instead, offline"),
    ] = None,
    trust_embedded: TrustEmbedded = False,
    reader: ReaderPin = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="drop what was kept of the stream, so that it is read again")
    ] = False,
) -> None:
    """Fold a stream into state with any overlay that is installed.

    Shows the state of every part, the entries that changed nothing with their reasons, and the hash of it all. With
    --evidence nobody is asked: the file is verified, and the state worked out again from the entries in it. --pin names
    the hub that must have signed them; without it the exit status is 4. --reader says which key must open them.
    """
    from veen.cli.kit import values

    kind = of_class(overlay)
    wanted = None if part is None else values.data_of(part)
    if evidence is not None:
        _check_alone(asked, forget)
        _of_evidence(asked, kind, evidence, wanted, trust_embedded, reader)
    elif trust_embedded:
        raise Misuse("--trust-embedded goes with --evidence", "leave it out: no file is read")
    elif reader is not None:
        raise Misuse("--reader goes with --evidence", "leave it out: a stream is read with the key that is here")
    elif forget:
        _forget(asked, kind)
    else:
        _of_log(asked, kind, wanted)


def of_class(name: str) -> "AnyOverlay":
    """The overlay of a class."""
    from veen.overlays import registry

    known = registry()
    found = known.of_class(name)
    if found is None:
        raise Misuse(f"there is no overlay {name!r}", f"there are: {', '.join(sorted(one.CLASS for one in known))}")
    return found


def _of_log(asked: ReadOptions, kind: "AnyOverlay", wanted: bytes | None) -> None:
    from veen.cli.kit import read_state, render_state

    def look(reading: "StateAt[Any, Any]") -> "StateAnswer":
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
        remarks = () if rows else (f"up to entry {reading.at.stream_seq} there is nothing of {_what(kind, wanted)}",)
        columns = ("part", "state")
        return read_state.StateAnswer(facts=facts, columns=columns, rows=rows, data=data, parts=parts, remarks=remarks)

    read_state.show_state(asked, kind, look)


def _what(kind: "AnyOverlay", wanted: bytes | None) -> str:
    from veen.cli.kit import render_state

    return f"overlay {kind.CLASS}" if wanted is None else f"part {render_state.part_name(wanted)!s} of {kind.CLASS}"


def _check_alone(asked: ReadOptions, forget: bool) -> None:
    """Refuse what a file of evidence has no answer to, rather than answer something else."""
    given = {"--at": asked.at, "--prove": asked.prove, "--out": asked.out, "--data-dir": asked.data_dir}
    for name, value in {**given, "--forget": forget}.items():
        if value:
            raise Misuse(f"{name} does not go with --evidence", "the file is folded as it is: leave one of them out")


def _of_evidence(
    asked: ReadOptions, kind: "AnyOverlay", file: Path, wanted: bytes | None, trust_embedded: bool, reader: str | None
) -> None:
    from veen.cli.evidence import NAMED_HUB, UNNAMED_HUB, disclosed
    from veen.cli.kit import context_file, pinning, render_state
    from veen.cli.kit.exit_status import hinted
    from veen.client import durable
    from veen.client.evidence import MAX_EVIDENCE_BYTES
    from veen.core import Malformed, Unverified
    from veen.state import verify_state

    stream, signer = context_file.need_stream(asked.stream), pinning.hub_signer(asked.pin, trust_embedded)
    data = durable.read_file(file, MAX_EVIDENCE_BYTES)
    parts = () if wanted is None else (wanted,)
    try:
        found = verify_state(data, kind, stream, *parts, pin=signer.key, reader=pinning.reader_key(reader))
    except (Malformed, Unverified) as error:
        raise hinted(type(error)(str(file), str(error)), "it proves nothing") from None
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
    output.facts({**facts, **hashed}, asked.as_json, shown)
    if not asked.as_json:
        output.table(("part", "state"), rows, False)
    if not found.states:
        output.remark(f"the file says nothing of {_what(kind, wanted)}: neither that it is there nor that it is not")
    signer.check_named(file)


def _forget(asked: ReadOptions, kind: "AnyOverlay") -> None:
    from veen.cli.kit import context_file, open_session
    from veen.core import naming
    from veen.state import drop_cache
    from veen.storage.metadata import read_metadata
    from veen.storage.paths import Folders

    stream = context_file.need_stream(asked.stream)
    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        if asked.data_dir is not None:
            hub_id = read_metadata(Folders(asked.data_dir)).identity.hub_id
        else:
            call = open_session.HubCall(asked.hub, asked.client, asked.passphrase_file)
            hub_id = open_session.known_hub(folder, call.url()).identity.hub_id
        there = drop_cache(folder, hub_id, kind, naming.stream_id(stream))
    output.facts({"class": kind.CLASS, "stream": stream, "hub_id": hub_id, "forgotten": there}, asked.as_json)
