"""`veen bridge export` and `verify`: bundles out of a zone, and what is in one."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terminalface import durations
from terminalface.command import Misuse, command
from veen.cli import output
from veen.cli.bridge.group import Operator, Trust, app, need_folder, trusted
from veen.cli.client.options import AtHub
from veen.cli.options import JsonOption
from veen.cli.output import Marked, Tone
from veen.cli.overlay.declaring import taking

if TYPE_CHECKING:
    from veen.bridge.exporting import Range, Sizes
    from veen.bridge.verifying import Verified
    from veen.client.client import Client

_COLUMNS = ("bundle_id", "export_stream", "epoch", "export_seq_from", "export_seq_to", "file")
_EVENTS, _BYTES = 1_000, 1 << 24


@taking(
    AtHub,
    app,
    "export",
    "veen bridge export export/zone1/doors --out /media/stick",
    "veen bridge export export/zone1/doors --out /media/stick --every 60",
    "veen bridge export export/zone1/doors --from 1001 --to 2000 --out again",
)
def export(
    asked: AtHub,
    streams: Annotated[list[str], typer.Argument(metavar="STREAM", help="what is to leave, by name")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="where bundles are put down")],
    first: Annotated[
        int | None, typer.Option("--from", metavar="N", min=1, help="exactly these, again: announced or not")
    ] = None,
    last: Annotated[int | None, typer.Option("--to", metavar="N", min=1, help="the last of them")] = None,
    epoch: Annotated[int, typer.Option("--epoch", metavar="N", min=0, help="the epoch of --from and --to")] = 0,
    profile: Annotated[
        str, typer.Option("--profile", metavar="ID", help="the profile that the streams are kept under, like SDR0")
    ] = "",
    max_events: Annotated[int, typer.Option("--max-events", metavar="N", min=1, help="of a bundle")] = _EVENTS,
    max_bytes: Annotated[int, typer.Option("--max-bytes", metavar="N", min=1, help="of a bundle, about")] = _BYTES,
    operator: Operator = None,
    every: Annotated[
        float | None, durations.option("--every", least=0.1, help="go on for ever, looking again after so long")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="refuse a hub that lets anyone write, where one way cannot be enforced")
    ] = False,
) -> None:
    """Put what has not left yet into bundles, and announce each in the log.

    What left is known from bridge/online/log. Events go as they are at the hub, sealed: whoever exports needs no reader
    key but that of the log, and may hold no capability but one for it.
    """
    from veen.bridge.exporting import Range, Sizes

    if (first is None) != (last is None):
        raise Misuse("--from and --to go together", "give both, or neither for all that has not left")
    if first is not None and (len(streams) != 1 or every is not None):
        raise Misuse("a range is of one stream, once", "name one STREAM, without --every")
    need_folder(out)
    wanted = None if first is None or last is None else Range(epoch, first, last)
    try:
        sizes = Sizes(max_events, max_bytes)
    except ValueError as error:
        raise Misuse(str(error), "give less") from None
    call = asked.call()

    async def work(client: "Client") -> "list[Verified]":
        _check_strict(client, strict)
        return await _exported(client, streams, out, wanted, sizes, operator, profile, every, asked.as_json)

    found = call.run(work)
    if every is None:
        _tell(found, out, asked.as_json)


def _check_strict(client: "Client", strict: bool) -> None:
    from veen.bridge import roles
    from veen.cli.failures import hinted
    from veen.core import Refused

    if roles.enforced(client.contact.status.admission):
        return
    if strict:
        refused = Refused(roles.CODE, "the hub lets anyone write, so that one way is not enforced there")
        raise hinted(refused, "run the hub with --admission capability")
    output.remark("the hub lets anyone write: that events go one way only is not enforced there")


async def _exported(
    client: "Client",
    streams: list[str],
    out: Path,
    wanted: "Range | None",
    sizes: "Sizes",
    operator: str | None,
    profile: str,
    every: float | None,
    as_json: bool,
) -> "list[Verified]":
    from veen.bridge.exporting import Exporter, build

    exporter = Exporter(client, out, operator=operator, profile_id=profile)
    if wanted is not None:
        return [await exporter.put(await build(client, streams[0], wanted, profile_id=profile))]
    while True:
        found = [one for stream in streams async for one in exporter.run(stream, sizes)]
        if every is None:
            return found
        _tell(found, out, as_json)
        await asyncio.sleep(every)


def _tell(found: "list[Verified]", out: Path, as_json: bool) -> None:
    data = [{**one.to_json(), "file": str(out / one.bundle.name)} for one in found]
    rows = [tuple(_cell(one[name]) for name in _COLUMNS) for one in data]
    output.table(_COLUMNS, rows, as_json, data)


def _cell(value: object) -> output.Value:
    return value if isinstance(value, str | int) else str(value)


@command(
    app,
    "verify",
    "veen bridge verify 9f2c….bundle --trust 5f1c8a…",
    "veen bridge verify /media/stick/*.bundle --trust 5f1c8a… --json",
)
def verify(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="bundles")],
    trust: Trust,
    as_json: JsonOption = False,
) -> None:
    """Verify bundles by themselves, without asking anyone.

    Of each its id, the source hub's papers, the checkpoint, every receipt and signature, the order, and the proof that
    all of it is in the log that the hub signed for. It ends at the first that does not hold, and names it. With --json
    each is an object of its own.
    """
    sources = trusted(trust)
    held = Marked("id, source, checkpoint, receipts, signatures, order, proof", Tone.GOOD)
    for file in files:
        found = {"file": str(file), **_verified(file, sources).to_json()}
        flat: dict[str, output.Value] = {name: value for name, value in found.items() if isinstance(value, str | int)}
        output.facts({**flat, "verified": held}, as_json, {**found, "verified": True})


def _verified(file: Path, sources: frozenset[bytes]) -> "Verified":
    from veen.bridge import bundle, verifying
    from veen.bridge.faults import BundleFault, Code
    from veen.client import durable
    from veen.core import Malformed, Unverified

    try:
        return verifying.verify(durable.read_file(file, bundle.MAX_BUNDLE_BYTES), sources)
    except BundleFault as fault:
        # What is no bundle at all is evidence of nothing.
        kind = Malformed if fault.code is Code.MALFORMED else Unverified
        raise kind(str(file), str(fault)) from None
