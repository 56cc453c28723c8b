"""`veen snapshot`: a state in a file, bound to the root of the log it was computed from."""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from plumbing.cli.command import Misuse, command, group
from veen.cli.evidence import NAMED_HUB, UNNAMED_HUB
from veen.cli.fold import OverlayClass, of_class
from veen.cli.kit import output, output_files, pinning, read_state, render_state
from veen.cli.kit.client_options import TrustEmbedded
from veen.cli.kit.common_options import JsonOption
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.state_options import ReadOptions, read_command
from veen.client import local_files
from veen.core import Malformed, Unverified
from veen.state import state_snapshot
from veen.state.state_snapshot import MAX_SNAPSHOT_BYTES, SnapshotMatch, StateSnapshot
from veen.state.state_view import StateView, shown

app = group(
    "snapshot",
    """Write the state of a stream to a file, and verify such a file against a log.

    The file contains the hub's identity, the last entry, the roots that the hub signed there, the state, and its hash.
    """,
)

File: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE", help="a file of veen snapshot make")]


@read_command(
    app,
    "make",
    "veen snapshot make --overlay kv --stream settings --out settings.snapshot",
    "veen snapshot make --overlay kv --stream settings --at 100 --data-dir copy --out hundred.snapshot",
)
def make(options: ReadOptions, overlay: OverlayClass) -> None:
    """Write the state of a stream, now or after an earlier entry, to the file --out.

    The file contains decrypted data of the stream: protect it like the reader key.
    """

    if options.out is None:
        raise Misuse("missing --out FILE", "give --out FILE, the file to write")
    output_files.check_new(options.out)

    async def work(view: StateView[Any, Any], name: str) -> StateSnapshot:
        async with view.reading(read_state.parse_place(options.at, view)) as reading:
            return await state_snapshot.make(view, reading)

    made = read_state.with_view(options, of_class(overlay), work)
    output_files.write_new(options.out, made.encode(), output_files.SECRET_MODE)
    _show(made, {"file": str(options.out)}, options.as_json)


@read_command(
    app,
    "verify",
    "veen snapshot verify settings.snapshot --stream settings",
    "veen snapshot verify settings.snapshot --stream settings --data-dir copy --json",
)
def verify(options: ReadOptions, file: File) -> None:
    """Verify that a log has the roots of a file and folds to its state."""

    found = _read(file, None)

    async def work(view: StateView[Any, Any], name: str) -> SnapshotMatch[Any]:
        return await state_snapshot.compare(view, found)

    compared = read_state.with_view(options, of_class(found.overlay_class), work)
    verdict: dict[str, output.Value] = {"verdict": Marked("the log folds to this state", Tone.GOOD)}
    _show(found, {**verdict, "parts": compared.parts, "file": str(file)}, options.as_json)


@command(
    app,
    "show",
    "veen snapshot show settings.snapshot --pin 5f1c8a…",
    "veen snapshot show settings.snapshot --trust-embedded --json",
)
def show(
    file: File,
    pin: Annotated[
        str | None,
        typer.Option("--pin", metavar="HEX|PATH", help="the hub that must have signed it, as for veen evidence verify"),
    ] = None,
    trust_embedded: TrustEmbedded = False,
    as_json: JsonOption = False,
) -> None:
    """Verify the signatures and the hash of a file, offline, and show its state.

    Without --pin the verdict is `unverified: no hub was named` and the exit status is 4, as for veen evidence verify.
    This does not prove that the log folds to this state; veen snapshot verify does.
    """

    signer = pinning.hub_signer(pin, trust_embedded)
    found = _read(file, signer.key)
    kind = of_class(found.overlay_class)
    states = found.decode_states(kind)
    verdict: dict[str, output.Value] = {
        "verdict": signer.verdict("signatures and hash are valid"),
        "whose": NAMED_HUB if signer.key else UNNAMED_HUB,
    }
    parts = [render_state.part_data(kind, part, state) for part, state in states.items()]
    _show(found, {**verdict, "file": str(file)}, as_json, parts)
    if not as_json:
        rows = [
            (render_state.part_name(part), render_state.plain_line(kind, part, state)) for part, state in states.items()
        ]
        output.table(("part", "state"), rows, False)
    signer.check_named(file)


def _read(file: Path, pin: bytes | None) -> StateSnapshot:
    data = local_files.read_file(file, 2 * MAX_SNAPSHOT_BYTES)
    try:
        found = StateSnapshot.decode(data)
        found.verify(pin)
    except (Malformed, Unverified) as error:
        raise hinted(type(error)(str(file), str(error)), "do not rely on the file") from None
    return found


def _show(
    found: StateSnapshot, more: dict[str, output.Value], as_json: bool, parts: list[dict[str, object]] | None = None
) -> None:
    end = found.heads[-1]
    rows: dict[str, output.Value] = {
        "class": found.overlay_class,
        "stream_id": found.stream_id,
        "hub_id": found.hub.identity.hub_id,
        "label": end.label,
        "upto_seq": shown(found.end()),
        "mmr_root": end.mmr_root,
        "state_hash": found.state_hash,
        **more,
    }
    data = {**rows, "epoch": found.end().epoch, "upto_seq": found.end().stream_seq}
    output.facts(rows, as_json, data if parts is None else {**data, "states": parts})
