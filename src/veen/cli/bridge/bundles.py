"""`veen bridge export`, `verify`, `import` and `watch`: bundles out of one zone and into another."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, command
from veen.bridge import bundle, bundle_import, zone_roles
from veen.bridge.bundle import BundleCode, BundleFault, VerifiedBundle
from veen.bridge.bundle_export import BundleSizes, Exporter, ExportRange, build
from veen.bridge.bundle_import import Importer, ImportPolicy, ProcessedFile
from veen.bridge.zone_roles import StreamMapping
from veen.cli.bridge.bridge_options import Every, Map, Operator, Trust, app, need_folder, trusted
from veen.cli.kit import output
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.common_options import JsonOption
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.state_options import options_command
from veen.client import local_files
from veen.client.client import Client
from veen.core import Malformed, Refused, Unverified

_EXPORT_COLUMNS = ("bundle_id", "export_stream", "epoch", "export_seq_from", "export_seq_to", "file")
_DEFAULT_MAX_EVENTS, _DEFAULT_MAX_BYTES = 1_000, 1 << 24
_OPEN_HUB = "the hub has open admission, so it does not enforce that events go one way only"


@options_command(
    HubOptions,
    app,
    "export",
    "veen bridge export export/zone1/doors --out /media/stick",
    "veen bridge export export/zone1/doors --out /media/stick --every 60",
    "veen bridge export export/zone1/doors --from 1001 --to 2000 --out again",
)
def export(
    asked: HubOptions,
    streams: Annotated[list[str], typer.Argument(metavar="STREAM", help="streams to export, by name")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="folder for the bundles")],
    first: Annotated[
        int | None,
        typer.Option("--from", metavar="N", min=1, help="export exactly these entries, even if exported before"),
    ] = None,
    last: Annotated[int | None, typer.Option("--to", metavar="N", min=1, help="the last entry of the range")] = None,
    epoch: Annotated[int, typer.Option("--epoch", metavar="N", min=0, help="the epoch of --from and --to")] = 0,
    profile: Annotated[
        str, typer.Option("--profile", metavar="ID", help="profile id of the streams, such as SDR0")
    ] = "",
    max_events: Annotated[
        int, typer.Option("--max-events", metavar="N", min=1, help="maximum events per bundle")
    ] = _DEFAULT_MAX_EVENTS,
    max_bytes: Annotated[
        int, typer.Option("--max-bytes", metavar="N", min=1, help="approximate maximum bytes per bundle")
    ] = _DEFAULT_MAX_BYTES,
    operator: Operator = None,
    every: Annotated[
        float | None, durations.option("--every", least=0.1, help="run until interrupted, and check this often")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="fail at a hub with open admission, which cannot enforce one way")
    ] = False,
) -> None:
    """Export new events in bundles, and record each bundle in the log.

    The stream bridge/online/log shows what was exported before. Events stay sealed as they are at the hub. The exporter
    needs only the reader key of that log, and must have no capability except one for it.
    """

    if (first is None) != (last is None):
        raise Misuse("--from and --to must be given together", "give both, or neither for all new events")
    if first is not None and (len(streams) != 1 or every is not None):
        raise Misuse("--from and --to need exactly one stream, without --every", "name one STREAM")
    need_folder(out)
    wanted = None if first is None or last is None else ExportRange(epoch, first, last)
    try:
        sizes = BundleSizes(max_events, max_bytes)
    except ValueError as error:
        raise Misuse(str(error), "give a smaller --max-events or --max-bytes") from None
    call = asked.call()

    async def work(client: Client) -> list[VerifiedBundle]:
        _check_strict(client, strict)
        return await _export(client, streams, out, wanted, sizes, operator, profile, every, asked.as_json)

    found = call.run(work)
    if every is None:
        _show_export(found, out, asked.as_json)


def _check_strict(client: Client, strict: bool) -> None:

    if zone_roles.enforces_capabilities(client.session.status.admission):
        return
    if strict:
        raise hinted(Refused(zone_roles.CODE, _OPEN_HUB), "run the hub with --admission capability")
    output.remark(_OPEN_HUB)


async def _export(
    client: Client,
    streams: list[str],
    out: Path,
    wanted: ExportRange | None,
    sizes: BundleSizes,
    operator: str | None,
    profile: str,
    every: float | None,
    as_json: bool,
) -> list[VerifiedBundle]:

    exporter = Exporter(client, out, operator=operator, profile_id=profile)
    if wanted is not None:
        return [await exporter.put(await build(client, streams[0], wanted, profile_id=profile))]
    while True:
        found = [one for stream in streams async for one in exporter.run(stream, sizes)]
        if every is None:
            return found
        _show_export(found, out, as_json)
        await asyncio.sleep(every)


def _show_export(found: list[VerifiedBundle], out: Path, as_json: bool) -> None:
    data = [{**one.to_json(), "file": str(out / one.bundle.name)} for one in found]
    rows = [tuple(_cell(one[name]) for name in _EXPORT_COLUMNS) for one in data]
    output.table(_EXPORT_COLUMNS, rows, as_json, data)


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
    """Verify bundles offline.

    Each bundle is verified completely: its id, the identity record of the source hub, the checkpoint, every receipt and
    signature, the order, and the proof that all entries are in the log that the hub signed. The command stops at the
    first failure and names it. With --json each bundle is one object.
    """
    sources = trusted(trust)
    checks = Marked("id, source, checkpoint, receipts, signatures, order, proof", Tone.GOOD)
    for file in files:
        found = {"file": str(file), **_verify_file(file, sources).to_json()}
        flat: dict[str, output.Value] = {name: value for name, value in found.items() if isinstance(value, str | int)}
        output.facts({**flat, "verified": checks}, as_json, {**found, "verified": True})


def _verify_file(file: Path, sources: frozenset[bytes]) -> VerifiedBundle:

    try:
        return bundle.verify(local_files.read_file(file, bundle.MAX_BUNDLE_BYTES), sources)
    except BundleFault as fault:
        kind = Malformed if fault.code is BundleCode.MALFORMED else Unverified
        raise kind(str(file), str(fault)) from None


_IMPORT_COLUMNS = ("file", "result", "bundle_id", "import_stream", "events", "written", "reason")
_UNVERIFIED_STATUS = 4
_KNOWN = "known"  # the bundle was imported before; the log records it as refused, which is not a failure

Exclude: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude", metavar="sealed|attachment", help="events to leave out; the record names them as excluded"
    ),
]


@options_command(
    HubOptions,
    app,
    "import",
    "veen bridge import /media/stick/9f2c….bundle --trust 5f1c8a…",
    "veen bridge import *.bundle --trust hub-identity.json --json",
)
def import_(
    asked: HubOptions,
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="bundles")],
    trust: Trust,
    mapping: Map = None,
    exclude: Exclude = None,
    operator: Operator = None,
) -> None:
    """Import the events of bundles into streams of this zone, each exactly once.

    Everything is verified before anything is written. Refused bundles are recorded in bridge/offline/log with reason
    and place, and the exit status is 4. A bundle that was imported before counts as known, which is not a failure. An
    interrupted import continues when the same client repeats it.
    """

    async def work(importer: Importer) -> list[ProcessedFile]:

        found = []
        for path in files:
            data = local_files.read_file(path, bundle.MAX_BUNDLE_BYTES)
            found.append(ProcessedFile(path, await importer.take(data)))
        return found

    _import(asked, trust, mapping, exclude, operator, work)


@options_command(
    HubOptions,
    app,
    "watch",
    "veen bridge watch /srv/drop --trust 5f1c8a…",
    "veen bridge watch /srv/drop --trust 5f1c8a… --once",
)
def watch(
    asked: HubOptions,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="the watched folder")],
    trust: Trust,
    mapping: Map = None,
    exclude: Exclude = None,
    operator: Operator = None,
    every: Every = 1.0,
    once: Annotated[bool, typer.Option("--once", help="import the bundles that are there now, then exit")] = False,
) -> None:
    """Import bundles as they arrive in a folder.

    Files that end in .bundle are imported and moved into imported/ or refused/. Write a bundle under another name first
    and rename it when it is complete.
    """

    need_folder(folder)

    async def work(importer: Importer) -> list[ProcessedFile]:
        if once:
            return [one async for one in bundle_import.sweep(importer, folder)]
        while True:
            async for one in bundle_import.sweep(importer, folder):
                _show_import([one], asked.as_json)
            await asyncio.sleep(every)

    _import(asked, trust, mapping, exclude, operator, work)


def _import(
    asked: HubOptions,
    trust: list[str],
    mapping: list[str] | None,
    exclude: list[str] | None,
    operator: str | None,
    work: Callable[[Importer], Awaitable[list[ProcessedFile]]],
) -> None:
    """Run `work` with an importer, show what it did, and exit with 4 if a bundle was refused."""

    sources, rules = trusted(trust), _rules(mapping)
    try:
        policies = [ImportPolicy(one) for one in exclude or ()]
    except ValueError as error:
        raise Misuse(str(error), f"give one of: {', '.join(ImportPolicy)}") from None

    async def run_work(client: Client) -> list[ProcessedFile]:
        if not zone_roles.enforces_capabilities(client.session.status.admission):
            output.remark(_OPEN_HUB)
        return await work(Importer(client, sources, mapping=rules, operator=operator, exclude=policies))

    found = asked.call().run(run_work)
    _show_import(found, asked.as_json)
    if not all(one.outcome.ok for one in found):
        raise typer.Exit(_UNVERIFIED_STATUS)


def _rules(texts: list[str] | None) -> StreamMapping:

    try:
        return zone_roles.parse(texts)
    except ValueError as error:
        raise Misuse(str(error), "give --map export/=import/") from None


def _show_import(found: list[ProcessedFile], as_json: bool) -> None:
    data, rows = [], []
    for one in found:
        outcome, fault = one.outcome, one.outcome.fault
        shown: dict[str, object] = {
            "file": str(one.path),
            "result": str(outcome.result),
            "ok": outcome.ok,
            "bundle_id": outcome.bundle_id.hex(),
            "import_stream": outcome.import_stream,
            "events": outcome.event_count,
            "written": outcome.written,
            "targets": [[at.epoch, at.seq_from, at.seq_to] for at in outcome.targets],
            "excluded": list(outcome.excluded),
            "error_code": None if fault is None else str(fault.code),
            "reason": None if fault is None else str(fault),
            "position": None if fault is None else fault.position,
        }
        data.append(shown)
        result = Marked(_KNOWN if outcome.ok and fault else str(outcome.result), Tone.GOOD if outcome.ok else Tone.BAD)
        reason = "" if fault is None else f"{fault.code}: {fault.reason}"
        counted = (outcome.event_count, outcome.written)
        rows.append((str(one.path), result, outcome.bundle_id, outcome.import_stream, *counted, reason))
    output.table(_IMPORT_COLUMNS, rows, as_json, data)
