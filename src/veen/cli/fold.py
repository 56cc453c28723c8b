"""`veen fold` and `veen snapshot`: the state of a stream by any installed overlay, ours or another's, and in a file."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from plumbing.cli.command import Misuse, argument, command, group, option, options_command, single
from veen.cli.evidence import NAMED_HUB, UNNAMED_HUB, disclosed
from veen.cli.kit import context_file, open_session, output_files, pinning, values
from veen.cli.kit.common_options import JsonOption, ReaderPin, ReadOptions, TrustEmbedded
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.result import Column, Result, fields_of, fixed
from veen.cli.kit.state_session import (
    Answer,
    ReadSession,
    StateSession,
    entry_of,
    fault_data,
    part_data,
    part_name,
    plain_line,
    read_command,
    run_session,
)
from veen.client import local_files
from veen.client.evidence import MAX_EVIDENCE_BYTES
from veen.core import Malformed, Unverified, naming
from veen.overlays import AnyOverlay, EventFault, registry
from veen.state import drop_cache, state_snapshot, verify_state
from veen.state.state_snapshot import MAX_SNAPSHOT_BYTES, StateSnapshot
from veen.state.state_view import shown
from veen.storage.metadata import read_metadata
from veen.storage.paths import Folders

app = single("fold")
snapshot_app = group(
    "snapshot",
    """Write the state of a stream to a file, and verify such a file against a log.

    The file contains the hub's identity, the last entry, the roots that the hub signed there, the state, and its hash.
    """,
)

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


SnapshotFile: TypeAlias = Annotated[Path, argument("FILE", "a file of veen snapshot make")]
_SNAPSHOT_FACTS = ("class", "stream_id", "hub_id", "label", ("upto_seq", "_upto"), "mmr_root", "state_hash")


@read_command(
    snapshot_app,
    "make",
    "veen snapshot make --overlay kv --stream settings --out settings.snapshot",
    "veen snapshot make --overlay kv --stream settings --at 100 --data-dir copy --out hundred.snapshot",
)
async def make_snapshot(session: ReadSession, overlay: OverlayClass) -> Result:
    """Write the state of a stream, now or after an earlier entry, to the file --out.

    The file contains decrypted data of the stream: protect it like the reader key.
    """
    out = session.options.out
    if out is None:
        raise Misuse("missing --out FILE", "give --out FILE, the file to write")
    state = await session.open(of_class(overlay))
    made = await state_snapshot.make(session.view_of(state), state)
    output_files.write_new(out, made.encode(), output_files.SECRET_MODE)
    return Result({**_snapshot_data(made), "file": str(out)}, facts=(*_SNAPSHOT_FACTS, "file"))


@read_command(
    snapshot_app,
    "verify",
    "veen snapshot verify settings.snapshot --stream settings",
    "veen snapshot verify settings.snapshot --stream settings --data-dir copy --json",
)
async def verify_snapshot(session: ReadSession, file: SnapshotFile) -> Result:
    """Verify that a log has the roots of a file and folds to its state."""
    found = _read_snapshot(file, None)
    view = await session.view(of_class(found.overlay_class), session.stream())
    compared = await state_snapshot.compare(view, found)
    verdict = Marked("the log folds to this state", Tone.GOOD)
    more = {"verdict": verdict, "parts": compared.parts, "file": str(file)}
    return Result({**_snapshot_data(found), **more}, facts=(*_SNAPSHOT_FACTS, *more))


@command(
    snapshot_app,
    "show",
    "veen snapshot show settings.snapshot --pin 5f1c8a…",
    "veen snapshot show settings.snapshot --trust-embedded --json",
)
def show_snapshot(
    file: SnapshotFile,
    pin: Annotated[
        str | None, option("--pin HEX|PATH", "the hub that must have signed it, as for veen evidence verify")
    ] = None,
    trust_embedded: TrustEmbedded = False,
    as_json: JsonOption = False,
) -> None:
    """Verify the signatures and the hash of a file, offline, and show its state.

    Without --pin the verdict is `unverified: no hub was named` and the exit status is 4, as for veen evidence verify.
    This does not prove that the log folds to this state; veen snapshot verify does.
    """
    signer = pinning.hub_signer(pin, trust_embedded)
    found = _read_snapshot(file, signer.key)
    kind = of_class(found.overlay_class)
    more = {
        "verdict": signer.verdict("signatures and hash are valid"),
        "whose": NAMED_HUB if signer.key else UNNAMED_HUB,
        "file": str(file),
    }
    states = parts_data(kind, found.decode_states(kind))
    Result(
        {**_snapshot_data(found), **more, "states": states},
        facts=(*_SNAPSHOT_FACTS, *more),
        rows="states",
        columns=PARTS_COLUMNS,
    ).show(as_json)
    signer.check_named(file)


def _read_snapshot(file: Path, pin: bytes | None) -> StateSnapshot:
    data = local_files.read_file(file, 2 * MAX_SNAPSHOT_BYTES)
    try:
        found = StateSnapshot.decode(data)
        found.verify(pin)
    except (Malformed, Unverified) as error:
        raise hinted(type(error)(str(file), str(error)), "do not rely on the file") from None
    return found


def _snapshot_data(found: StateSnapshot) -> dict[str, Any]:
    end = found.heads[-1]
    return {
        "class": found.overlay_class,
        "stream_id": found.stream_id,
        "hub_id": found.hub.identity.hub_id,
        "label": end.label,
        "upto_seq": found.end().stream_seq,
        "mmr_root": end.mmr_root,
        "state_hash": found.state_hash,
        "epoch": found.end().epoch,
        "_upto": shown(found.end()),
    }
