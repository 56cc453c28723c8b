"""`veen bridge`: bundles across an air gap, online mirrors, and comparison of checkpoints over VEIL."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from plumbing import service_process
from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, command, group, misuse, option, options_command
from veen.bridge import bundle, bundle_import, qr, reconciliation, zone_roles
from veen.bridge import mirror as mirrors
from veen.bridge.bundle import BundleCode, BundleFault, VerifiedBundle
from veen.bridge.bundle_export import BundleSizes, Exporter, ExportRange, build
from veen.bridge.bundle_import import Importer, ImportPolicy, ProcessedFile
from veen.bridge.mirror import Comparison, MirroredMessage, Mirrorer, MirrorRoute
from veen.bridge.reconciliation import ReconcileReport
from veen.bridge.zone_roles import StreamMapping
from veen.cli.bridge import bridge_veil
from veen.cli.kit import open_session, output, output_files, pinning, values
from veen.cli.kit.common_options import FromDirectory, HubOptions, JsonOption
from veen.cli.kit.exit_status import FAILED_STATUS, hinted
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.result import Result
from veen.cli.stream import remark_pruned
from veen.client import local_files
from veen.client.client import Client
from veen.client.trust import FIRST_USE, Pin
from veen.core import Malformed, Refused, Unverified
from veen.core.retention import Tombstone
from veen.overlays.bridge_logs import BundleExported
from veen.state import DirectorySource, HubSource

app = group(
    "bridge",
    """Copy events between hubs together with their proofs.

    Across an air gap, bundles carry events in one direction, and both zones keep a record. Between hubs that can reach
    each other, streams are mirrored.
    """,
)

app.add_typer(bridge_veil.app)

Trust: TypeAlias = Annotated[
    list[str], option("--trust HEX|PATH", "a trusted source hub: its id, or any value of --pin")
]
Map: TypeAlias = Annotated[
    list[str] | None,
    option(
        "--map FROM=TO",
        "prefix of source streams, and the prefix of their streams in this zone",
        show_default="export/=import/",
    ),
]
Operator: TypeAlias = Annotated[
    str | None, option("--operator TEXT", "name of the operator, for the record", show_default="the client's id")
]
Every: TypeAlias = Annotated[float, durations.option("--every", least=0.1, help="how long to wait between checks")]

SourceHub: TypeAlias = Annotated[str, option("--source-hub URL", "the source hub", parser=values.url)]
SourcePin: TypeAlias = Annotated[str | None, option("--source-pin HEX|PATH", "pin of the source hub, like --pin")]


def trusted(texts: list[str]) -> frozenset[bytes]:
    """The hub ids of the trusted sources."""
    found = set()
    for text in texts:
        pin: Pin = pinning.parse(text)
        hub_id = pin.record.hub_id if pin.record else pin.key
        if hub_id is None:
            raise Misuse(f"--trust {text} is a certificate, which signs no bundles", "give the hub id or identity file")
        found.add(hub_id)
    return frozenset(found)


def need_folder(path: Path) -> Path:
    if not path.is_dir():
        raise Misuse(f"there is no folder {path}", "create it first")
    return path


def routes(texts: list[str], records: str | None, *, copies: bool) -> list[MirrorRoute]:
    """Parse routes of the form STREAM or STREAM=TARGET."""
    found = []
    for text in texts:
        source, given, target = text.partition("=")
        if not source or (given and not target):
            raise Misuse(f"{text!r} is not STREAM or STREAM=TARGET", "name a stream of the source hub")
        found.append(MirrorRoute(source, target or source, records, copies))
    return found


@asynccontextmanager
async def source_client(target: Client, url: str, pin: str | None, first_use: bool) -> AsyncIterator[Client]:
    """A client of the source hub with the keys of the target's client."""
    trust = pinning.for_hub(pin, url) if pin is not None else None
    if trust is None and first_use and target.dir.state.hub_of(url) is None:
        trust = FIRST_USE
    if trust is None and target.dir.state.hub_of(url) is None:
        raise Misuse(
            f"the hub at {url} is not known to this client yet",
            f"pin it with --source-pin HEX|PATH: {pinning.PIN_SOURCES}",
        )
    async with Client(url, target.dir, pin=trust) as source:
        if source.hub_id == target.hub_id:
            raise Misuse("source and target are the same hub", "name two different hubs")
        yield source


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
    streams: Annotated[list[str], argument("STREAM", "streams to export, by name")],
    out: Annotated[Path, option("--out DIR", "folder for the bundles")],
    first: Annotated[
        int | None, option("--from N", "export exactly these entries, even if exported before", min=1)
    ] = None,
    last: Annotated[int | None, option("--to N", "the last entry of the range", min=1)] = None,
    epoch: Annotated[int, option("--epoch N", "the epoch of --from and --to", min=0)] = 0,
    profile: Annotated[str, option("--profile ID", "profile id of the streams, such as SDR0")] = "",
    max_events: Annotated[int, option("--max-events N", "maximum events per bundle", min=1)] = _DEFAULT_MAX_EVENTS,
    max_bytes: Annotated[
        int, option("--max-bytes N", "approximate maximum bytes per bundle", min=1)
    ] = _DEFAULT_MAX_BYTES,
    operator: Operator = None,
    every: Annotated[
        float | None, durations.option("--every", least=0.1, help="run until interrupted, and check this often")
    ] = None,
    strict: Annotated[
        bool, option("--strict", "fail at a hub with open admission, which cannot enforce one way")
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
    with misuse("give a smaller --max-events or --max-bytes"):
        sizes = BundleSizes(max_events, max_bytes)

    async def work(client: Client) -> None:
        _check_strict(client, strict)
        remark = _once(remark_pruned)
        exporter = Exporter(client, out, operator=operator, profile_id=profile)
        if wanted is not None:
            made = await exporter.put(await build(client, streams[0], wanted, profile_id=profile))
            _show_export([made], out, asked.as_json)
            return
        while True:
            found = [one for stream in streams async for one in exporter.run(stream, sizes, on_pruned=remark)]
            _show_export(found, out, asked.as_json)
            if every is None:
                return
            await asyncio.sleep(every)

    asked.call().run(work)


def _once(remark: Callable[[Tombstone], None]) -> Callable[[Tombstone], None]:
    """Remark on each pruned range once, however often the command reads the stream."""
    known: set[tuple[bytes, int]] = set()

    def first_time(tombstone: Tombstone) -> None:
        place = tombstone.label, tombstone.segment.start_seq
        if place not in known:
            known.add(place)
            remark(tombstone)

    return first_time


def _check_strict(client: Client, strict: bool) -> None:
    if zone_roles.enforces_capabilities(client.session.status.admission):
        return
    if strict:
        raise hinted(Refused(zone_roles.CODE, _OPEN_HUB), "run the hub with --admission capability")
    output.remark(_OPEN_HUB)


def _show_export(found: list[VerifiedBundle], out: Path, as_json: bool) -> None:
    data = [{**one.to_json(), "file": str(out / one.bundle.name)} for one in found]
    Result(data, columns=_EXPORT_COLUMNS).show(as_json)


@command(
    app,
    "verify",
    "veen bridge verify 9f2c….bundle --trust 5f1c8a…",
    "veen bridge verify /media/stick/*.bundle --trust 5f1c8a… --json",
)
def verify(
    files: Annotated[list[Path], argument("FILE", "bundles")],
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
        flat = [name for name, value in found.items() if isinstance(value, str | int)]
        Result({**found, "verified": True}, facts=[*flat, ("verified", lambda _: checks)]).show(as_json)


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
    list[str] | None, option("--exclude sealed|attachment", "events to leave out; the record names them as excluded")
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
    files: Annotated[list[Path], argument("FILE", "bundles")],
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
    folder: Annotated[Path, argument("DIR", "the watched folder")],
    trust: Trust,
    mapping: Map = None,
    exclude: Exclude = None,
    operator: Operator = None,
    every: Every = 1.0,
    once: Annotated[bool, option("--once", "import the bundles that are there now, then exit")] = False,
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
    with misuse(f"give one of: {', '.join(ImportPolicy)}"):
        policies = [ImportPolicy(one) for one in exclude or ()]

    async def run_work(client: Client) -> list[ProcessedFile]:
        if not zone_roles.enforces_capabilities(client.session.status.admission):
            output.remark(_OPEN_HUB)
        return await work(Importer(client, sources, mapping=rules, operator=operator, exclude=policies))

    found = asked.call().run(run_work)
    _show_import(found, asked.as_json)
    if not all(one.outcome.ok for one in found):
        raise typer.Exit(_UNVERIFIED_STATUS)


def _rules(texts: list[str] | None) -> StreamMapping:
    with misuse("give --map export/=import/"):
        return zone_roles.parse(texts)


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


MirroredStreams: TypeAlias = Annotated[
    list[str], argument("STREAM[=TARGET]", "a stream of the source, and its name at the target")
]
_MIRROR_COLUMNS = ("stream", "stream_seq", "msg_id", "copy_seq", "record_seq", "remark")


@options_command(
    HubOptions,
    app,
    "mirror",
    "veen bridge mirror wallets --source-hub https://a.example --hub https://b.example",
    "veen bridge mirror doors=from-a/doors --source-hub https://a.example --follow",
)
def mirror(
    asked: HubOptions,
    streams: MirroredStreams,
    source_hub: SourceHub,
    source_pin: SourcePin = None,
    records: Annotated[
        str | None, option("--records STREAM", "stream for the records", show_default="the stream of the copies")
    ] = None,
    records_only: Annotated[bool, option("--records-only", "write no copies, if you cannot read the source")] = False,
    follow: Annotated[bool, option("--follow", "wait for new entries; for one stream")] = False,
) -> None:
    """Copy streams of one hub to another, each message once, with its origin.

    The signatures of hub and client and the inclusion proof of every message are verified first. The target's log shows
    which messages are mirrored already, so the command can be stopped and repeated by any client that can read and
    write there.
    """
    wanted = routes(streams, records, copies=not records_only)
    if follow and len(wanted) != 1:
        raise Misuse("--follow needs exactly one stream", "run veen bridge mirror once for each stream")

    async def work(target: Client) -> list[tuple[MirrorRoute, MirroredMessage]]:
        async with source_client(target, source_hub, source_pin, asked.first_use) as source:
            if not follow:
                return [
                    (route, one)
                    for route in wanted
                    async for one in Mirrorer(source, target, route).run(on_pruned=remark_pruned)
                ]
            following = asyncio.ensure_future(follow_on(Mirrorer(source, target, wanted[0])))
            service_process.stop_on_signals(following.cancel)
            service_process.ready(f"mirroring {wanted[0].source} from {source_hub}")
            with suppress(asyncio.CancelledError):  # a message that is not finished is mirrored next time
                await following
            return []

    async def follow_on(mirrorer: Mirrorer) -> None:
        async for one in mirrorer.run(follow=True, on_pruned=remark_pruned):
            _show_mirrored([(mirrorer.route, one)], asked.as_json)

    found = asked.call().run(work)
    if not follow:
        _show_mirrored(found, asked.as_json)


def _show_mirrored(found: list[tuple[MirrorRoute, MirroredMessage]], as_json: bool) -> None:
    rows: list[tuple[output.Value, ...]] = [
        (
            route.source,
            one.entry.stream_seq,
            one.entry.msg_id,
            None if one.copy is None else one.copy.stream_seq,
            one.record.stream_seq,
            one.unopened or "",
        )
        for route, one in found
    ]
    output.table(_MIRROR_COLUMNS, rows, as_json)


_DIFFERENCE_COLUMNS = ("what", "stream", "stream_seq", "reason")


@options_command(
    HubOptions,
    app,
    "compare",
    "veen bridge compare wallets --source-hub https://a.example --hub https://b.example",
)
def compare(
    asked: HubOptions,
    streams: MirroredStreams,
    source_hub: SourceHub,
    source_pin: SourcePin = None,
    records: Annotated[
        str | None, option("--records STREAM", "stream of the records", show_default="the stream of the copies")
    ] = None,
    records_only: Annotated[bool, option("--records-only", "there are no copies")] = False,
) -> None:
    """Compare a mirror with its source, message by message.

    Every record is compared with the source's receipt, every copy with the original. The exit status is 10 if they
    differ.
    """
    wanted = routes(streams, records, copies=not records_only)

    async def work(target: Client) -> list[Comparison]:
        async with source_client(target, source_hub, source_pin, asked.first_use) as source:
            return [await mirrors.compare(source, target, route) for route in wanted]

    found = asked.call().run(work)
    names = [route.source for route in wanted]
    if asked.as_json:
        output.document([{"stream": name, **one.to_json()} for name, one in zip(names, found, strict=True)])
    else:
        rows: list[tuple[output.Value, ...]] = []
        for name, one in zip(names, found, strict=True):
            rows += [(Marked(d.what, Tone.BAD), name, d.stream_seq, d.reason) for d in one.differences]
            if one.clean:
                rows.append((Marked("same", Tone.GOOD), name, one.source_entries, f"{one.copies} copies"))
            rows += [
                ("pruned", name, first, f"entries {first} to {last} were not compared") for _, first, last in one.pruned
            ]
        output.table(_DIFFERENCE_COLUMNS, rows, False)
    if not all(one.clean for one in found):
        raise typer.Exit(FAILED_STATUS)


_RECONCILE_COLUMNS = ("what", "stream", "which", "reason")


@options_command(
    HubOptions,
    app,
    "reconcile",
    "veen bridge reconcile --bundles /media/stick --trust 5f1c8a… --client auditor",
    "veen bridge reconcile --source-data-dir online --data-dir offline --client auditor --json",
    "veen bridge reconcile --source-hub http://127.0.0.1:37411 --hub http://127.0.0.1:37412",
)
def reconcile(
    asked: HubOptions,
    bundles: Annotated[list[Path] | None, option("--bundles DIR", "take exports from these bundles")] = None,
    trust: Annotated[
        list[str] | None, option("--trust HEX|PATH", "the hub that must have signed these bundles")
    ] = None,
    source_hub: Annotated[
        str | None, option("--source-hub URL", "take exports from that hub's audit log", parser=values.url)
    ] = None,
    source_data_dir: Annotated[
        Path | None, option("--source-data-dir DIR", "take exports from a copy of its data directory")
    ] = None,
    source_pin: Annotated[str | None, option("--source-pin HEX|PATH", "pin of the source hub")] = None,
    data_dir: FromDirectory = None,
) -> None:
    """Find missing, partial and duplicate imports, and show how far the zones agree.

    The command needs the reader keys of bridge/offline/log and of the import streams. To read the source's log it also
    needs the reader key of bridge/online/log. The exit status is 10 if anything is found.
    """
    given = [one for one in (bundles, source_hub, source_data_dir) if one]
    if len(given) != 1:
        raise Misuse(
            "give exactly one source of exports", "give --bundles DIR, --source-hub URL or --source-data-dir DIR"
        )
    if bundles and not trust:
        raise Misuse("--bundles needs a trusted hub", "give --trust HEX|PATH")
    call = asked.call()
    url = call.url() if data_dir is None else ""
    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        exports: list[BundleExported] = []
        for one in bundles or ():
            exports += reconciliation.exports_in(need_folder(one), trusted(trust or []))
        if source_data_dir is not None:
            copy = DirectorySource(source_data_dir, folder, pinning.pinned_key(source_pin))
            exports = asyncio.run(reconciliation.exports_of(copy))
        if source_hub is not None:
            there = open_session.HubCall(source_hub, asked.client, asked.passphrase_file, source_pin, asked.first_use)
            exports = there.run_with(folder, source_hub, lambda client: reconciliation.exports_of(HubSource(client)))
        if data_dir is None:
            found = call.run_with(folder, url, lambda client: reconciliation.read_input(HubSource(client), exports))
        else:
            here = DirectorySource(data_dir, folder, pinning.pinned_key(asked.pin))
            found = asyncio.run(reconciliation.read_input(here, exports))
    report = reconciliation.reconcile(found)
    _show_reconciled(report, asked.as_json)
    if not report.clean:
        raise typer.Exit(FAILED_STATUS)


def _show_reconciled(report: ReconcileReport, as_json: bool) -> None:
    if as_json:
        output.document(report.to_json())
        return
    rows: list[tuple[output.Value, ...]] = []
    for what, found in (("missing", report.missing), ("partial", report.partial)):
        for one in found:
            which = f"{one.bundle_id.hex()} ({one.export_seq_from} to {one.export_seq_to})"
            rows.append((Marked(what, Tone.BAD), one.export_stream, which, one.reason))
    for twice in report.duplicates:
        places = ", ".join(str(place.stream_seq) for place in twice.places)
        rows.append((Marked("duplicate", Tone.BAD), twice.import_stream, twice.origin_msg_id.hex(), f"at {places}"))
    for alone in report.unexplained:
        reason = "no import record names its original"
        rows.append((Marked("unexplained", Tone.BAD), alone.stream, alone.at.stream_seq, reason))
    for unknown in report.unannounced:
        rows.append((Marked("unannounced", Tone.BAD), "", unknown.hex(), "the source has no record of this export"))
    for region in report.regions:
        gaps = ", ".join(f"{first} to {last}" for first, last in region.gaps)
        state = Marked("consistent" if not gaps else "gaps", Tone.GOOD if not gaps else Tone.BAD)
        reason = f"missing {gaps}" if gaps else ""
        rows.append((state, region.export_stream, f"epoch {region.epoch}, up to {region.consistent_upto_seq}", reason))
    output.table(_RECONCILE_COLUMNS, rows, False)


@command(
    app,
    "print",
    "veen bridge print 9f2c….bundle --out codes",
    "veen bridge print 9f2c….bundle --out codes --svg --part-bytes 300",
)
def print_(
    file: Annotated[Path, argument("FILE", "a bundle")],
    out: Annotated[Path, option("--out DIR", "folder for the images")],
    svg: Annotated[bool, option("--svg", "write SVG instead of PNG")] = False,
    part_bytes: Annotated[int, option("--part-bytes N", "bytes per code", min=1)] = 600,
    scale: Annotated[int, option("--scale N", "pixels per module of a code", min=1)] = 4,
    as_json: JsonOption = False,
) -> None:
    """Write a bundle as numbered QR images, each with a digest.

    Use it for air gaps that only paper or a screen may cross.
    """
    data = local_files.read_file(file, bundle.MAX_BUNDLE_BYTES)
    bundle.decode(data)
    with misuse("export smaller bundles with --max-events"):
        texts = qr.split(data, part_bytes)
    paths = qr.write(texts, need_folder(out), "svg" if svg else "png", scale)
    output.table(("image",), [(str(path),) for path in paths], as_json)


@command(app, "scan", "veen bridge scan codes/1-of-3.png codes/2-of-3.png codes/3-of-3.png --out again.bundle")
def scan(
    images: Annotated[list[Path], argument("IMAGE", "photographs or scans of the codes")],
    out: Annotated[Path, option("--out FILE", "the bundle to create")],
    as_json: JsonOption = False,
) -> None:
    """Read a bundle from QR images in any order.

    The command names parts that are missing, damaged or from another bundle. Verify the bundle with veen bridge verify.
    """
    output_files.check_new(out)
    texts = qr.scan(images)
    try:
        data = qr.join(texts)
    except Malformed as error:
        hint = "scan the named parts again and give the images of all parts, in any order; duplicates are fine"
        raise hinted(error, hint) from None
    found = bundle.decode(data)
    output_files.write_new(out, data)
    rows: dict[str, output.Value] = {"bundle_id": found.bundle_id, "codes": len(set(texts)), "file": str(out)}
    output.facts(rows, as_json)
