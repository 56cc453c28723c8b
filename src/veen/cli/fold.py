"""`veen fold`: fold a stream with any installed overlay, ours or one of another distribution."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from plumbing.cli.command import Misuse, option, options_command, single
from veen.cli.evidence import NAMED_HUB, UNNAMED_HUB, disclosed
from veen.cli.kit import context_file, open_session, pinning, values
from veen.cli.kit.common_options import ReaderPin, ReadOptions, TrustEmbedded
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Column, Result, fields_of, fixed
from veen.cli.kit.state_rows import entry_of, fault_data, part_data, part_name, plain_line
from veen.cli.kit.state_session import Answer, ReadSession, StateSession, run_session
from veen.client import local_files
from veen.client.evidence import MAX_EVIDENCE_BYTES
from veen.core import Malformed, Unverified, naming
from veen.overlays import AnyOverlay, EventFault, registry
from veen.state import drop_cache, verify_state
from veen.storage.metadata import read_metadata
from veen.storage.paths import Folders

app = single("fold")

OverlayClass: TypeAlias = Annotated[str, option("--overlay CLASS", "the overlay, such as kv")]
PARTS_COLUMNS: tuple[Column, ...] = (("part", "_name"), ("state", "_line"))


@options_command(
    ReadOptions,
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
    part: Annotated[
        bytes | None,
        option("--part PART", "only this part: text, or hex: and bytes", default="all parts", parser=values.data_of),
    ] = None,
    evidence: Annotated[
        Path | None, option("--evidence FILE", "fold the entries in an evidence file instead, offline")
    ] = None,
    trust_embedded: TrustEmbedded = False,
    reader: ReaderPin = None,
    forget: Annotated[
        bool, option("--forget", "delete the cached state of the stream, so that it is read again")
    ] = False,
) -> None:
    """Fold a stream into state with any installed overlay.

    Shows the state of every part, the faults with their reasons, and the hash of the state. With --evidence no hub is
    contacted: the file is verified, and its entries are folded. --pin names the hub that must have signed them; without
    it the exit status is 4. --reader names the key that must open them.
    """
    kind = of_class(overlay)
    if evidence is not None:
        _reject_log_options(options, forget)
        _fold_evidence(options, kind, evidence, part, trust_embedded, reader)
    elif trust_embedded:
        raise Misuse("--trust-embedded needs --evidence", "leave it out")
    elif reader is not None:
        raise Misuse("--reader needs --evidence", "leave it out: the stream is opened with the client's own key")
    elif forget:
        _delete_cache(options, kind)
    else:
        run_session(StateSession, options, _fold_log, kind=kind, wanted=part)


def of_class(name: str) -> AnyOverlay:
    """Return the installed overlay of a class. Raises `Misuse` if there is none."""
    known = registry()
    found = known.of_class(name)
    if found is None:
        installed = ", ".join(sorted(one.CLASS for one in known))
        raise Misuse(f"there is no overlay {name!r}", f"installed overlays: {installed}")
    return found


def parts_data(kind: AnyOverlay, states: Mapping[bytes, Any]) -> list[dict[str, Any]]:
    """Parts of any overlay's state, as rows for `PARTS_COLUMNS`."""
    found = [part_data(kind, part, state) for part, state in states.items()]
    return [{**one, "_name": part_name(one["part"]), "_line": plain_line(one["part"], one["state"])} for one in found]


def _state_data(kind: AnyOverlay, states: Mapping[bytes, Any], faults: Iterable[EventFault]) -> dict[str, Any]:
    parts, not_applied = parts_data(kind, states), fault_data(faults)
    shown = [{"_name": f"entry {entry_of(one)}", "_line": f"{one['kind']}: {one['reason']}"} for one in not_applied]
    return {"parts": [part_data(kind, *one) for one in states.items()], "faults": not_applied, "_rows": parts + shown}


async def _fold_log(session: ReadSession, kind: AnyOverlay, wanted: bytes | None) -> Answer:
    state = await session.open(kind)
    states = {key: one for key, one in state.states.items() if wanted in (None, key)}
    faults = [one for one in state.faults() if wanted in (None, one.part)]
    data = _state_data(kind, states, faults)
    hashed = state.state_hash(*(() if wanted is None else (wanted,)))
    return Answer(
        {"class": kind.CLASS, "state_hash": hashed, **data},
        facts=("class", "state_hash", ("parts", lambda _: len(states)), ("faults", lambda _: len(faults))),
        rows="_rows",
        columns=PARTS_COLUMNS,
        parts=tuple(states) if wanted is not None else (),
        remarks=() if data["_rows"] else (f"no entry up to {state.at.stream_seq} belongs to {_subject(kind, wanted)}",),
    )


def _subject(kind: AnyOverlay, wanted: bytes | None) -> str:
    return f"overlay {kind.CLASS}" if wanted is None else f"part {part_name(wanted)!s} of {kind.CLASS}"


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
    report, extra = found.report, disclosed(found.report)
    nothing = f"the file has no entries of {_subject(kind, wanted)}, so it proves nothing about it"
    Result(
        {
            "verdict": signer.verdict("it holds"),
            **fields_of(report, "hub_id", "pinned", "reader_pinned", "proved"),
            "class": kind.CLASS,
            "state_hash": found.state_hash,
            "entries": len(report.entries),
            **_state_data(kind, found.states, found.faults),
        },
        facts=(
            "verdict",
            ("whose", lambda data: NAMED_HUB if data["pinned"] else UNNAMED_HUB),
            "hub_id",
            *fixed(tuple(extra), extra),
            "state_hash",
            "entries",
        ),
        rows="_rows",
        columns=PARTS_COLUMNS,
        remarks=() if found.states else (nothing,),
    ).show(options.as_json)
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
    Result({"class": kind.CLASS, "stream": stream, "hub_id": hub_id, "forgotten": existed}).show(options.as_json)
