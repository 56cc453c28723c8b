"""`veen snapshot`: a state in a file, bound to the log it is of."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from terminalface.command import command, group
from veen.cli import output
from veen.cli.client.options import TrustEmbedded
from veen.cli.options import JsonOption
from veen.cli.output import Marked, Tone
from veen.cli.overlay.declaring import Reads, reads
from veen.cli.overlay.fold import OverlayClass

if TYPE_CHECKING:
    from veen.state import Snapshot
    from veen.state.snapshots import Compared
    from veen.state.view import View

app = group(
    "snapshot",
    """Write the state of a stream into a file, and check such a file against a log.

    The file says whose log it is of, where that ends, the roots the hub signed there, the state, and its hash.
    """,
)

File: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE", help="what veen snapshot make made")]


@reads(
    app,
    "make",
    "veen snapshot make --overlay kv --stream settings --out settings.snapshot",
    "veen snapshot make --overlay kv --stream settings --at 100 --data-dir copy --out hundred.snapshot",
)
def make(asked: Reads, overlay: OverlayClass) -> None:
    """Write the state of a stream, now or at any moment before, into a file.

    --out names the file. It holds what the stream says: keep it as you keep the reader key.
    """
    from terminalface.command import Misuse
    from veen.cli.client import files
    from veen.cli.overlay import asking
    from veen.cli.overlay.fold import of_class
    from veen.state import snapshots

    if asked.out is None:
        raise Misuse("--out is needed", "give --out FILE, the file to make")
    files.check_new(asked.out)

    async def work(view: "View[Any, Any]", name: str) -> "Snapshot":
        async with view.reading(asking.place(asked.at, view)) as reading:
            return await snapshots.make(view, reading)

    made = asking.viewing(asked, of_class(overlay), work)
    files.write_new(asked.out, made.encode(), files.SECRET)
    _show(made, {"file": str(asked.out)}, asked.as_json)


@reads(
    app,
    "verify",
    "veen snapshot verify settings.snapshot --stream settings",
    "veen snapshot verify settings.snapshot --stream settings --data-dir copy --json",
)
def verify(asked: Reads, file: File) -> None:
    """Check that a log has the roots of a file, and comes to its state."""
    from veen.cli.overlay import asking
    from veen.cli.overlay.fold import of_class
    from veen.state import snapshots

    found = _read(file, None)

    async def work(view: "View[Any, Any]", name: str) -> "Compared[Any]":
        return await snapshots.compare(view, found)

    compared = asking.viewing(asked, of_class(found.overlay_class), work)
    verdict: dict[str, output.Value] = {"verdict": Marked("the log comes to this state", Tone.GOOD)}
    _show(found, {**verdict, "parts": compared.parts, "file": str(file)}, asked.as_json)


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
        typer.Option("--pin", metavar="HEX|PATH", help="whose log it must be of, as for veen evidence verify"),
    ] = None,
    trust_embedded: TrustEmbedded = False,
    as_json: JsonOption = False,
) -> None:
    """Check the signatures and the hash of a file, offline, and show its state.

    Without --pin the verdict is `unverified: no hub was named` and the exit status is 4, as for veen evidence verify.
    That the log comes to this state it does not show: `veen snapshot verify` does.
    """
    from veen.cli.client import pins
    from veen.cli.client.evidence import NAMED_HUB, UNNAMED_HUB
    from veen.cli.overlay import telling
    from veen.cli.overlay.fold import of_class

    signer = pins.hub_signer(pin, trust_embedded)
    found = _read(file, signer.key)
    kind = of_class(found.overlay_class)
    states = found.decode_states(kind)
    verdict: dict[str, output.Value] = {
        "verdict": signer.verdict("its signatures and its hash hold"),
        "whose": NAMED_HUB if signer.key else UNNAMED_HUB,
    }
    parts = [telling.part_data(kind, part, state) for part, state in states.items()]
    _show(found, {**verdict, "file": str(file)}, as_json, parts)
    if not as_json:
        rows = [(telling.name_of(part), telling.plain_line(kind, part, state)) for part, state in states.items()]
        output.table(("part", "state"), rows, False)
    signer.check_named(file)


def _read(file: Path, pin: bytes | None) -> "Snapshot":
    from veen.cli.failures import hinted
    from veen.client import durable
    from veen.core import Malformed, Unverified
    from veen.state.snapshots import MAX_SNAPSHOT_BYTES, Snapshot

    data = durable.read_file(file, 2 * MAX_SNAPSHOT_BYTES)
    try:
        found = Snapshot.decode(data)
        found.verify(pin)
    except (Malformed, Unverified) as error:
        raise hinted(type(error)(str(file), str(error)), "it shows nothing") from None
    return found


def _show(
    found: "Snapshot", more: dict[str, output.Value], as_json: bool, parts: "list[dict[str, object]] | None" = None
) -> None:
    from veen.state.view import shown

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
