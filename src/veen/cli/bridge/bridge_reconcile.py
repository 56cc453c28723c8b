"""`veen bridge reconcile`: compare the exports of one zone with the imports of the other."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from plumbing.cli.command import Misuse
from veen.bridge import reconciliation
from veen.bridge.reconciliation import ReconcileReport
from veen.cli.bridge.bridge_options import app, need_folder, trusted
from veen.cli.kit import open_session, output, pinning, values
from veen.cli.kit.client_options import HubOptions
from veen.cli.kit.exit_status import FAILED_STATUS
from veen.cli.kit.output import Marked, Tone
from veen.cli.kit.state_options import FromDirectory, options_command
from veen.client.client import Client
from veen.overlays.bridging import BundleExported
from veen.state import DirectorySource, HubSource

_COLUMNS = ("what", "stream", "which", "reason")


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
    bundles: Annotated[
        list[Path] | None, typer.Option("--bundles", metavar="DIR", help="take exports from these bundles")
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option("--trust", metavar="HEX|PATH", help="the hub that must have signed these bundles"),
    ] = None,
    source_hub: Annotated[
        str | None,
        typer.Option("--source-hub", metavar="URL", help="take exports from that hub's audit log", parser=values.url),
    ] = None,
    source_data_dir: Annotated[
        Path | None,
        typer.Option("--source-data-dir", metavar="DIR", help="take exports from a copy of its data directory"),
    ] = None,
    source_pin: Annotated[
        str | None, typer.Option("--source-pin", metavar="HEX|PATH", help="pin of the source hub")
    ] = None,
    data_dir: FromDirectory = None,
) -> None:
    """Find missing, partial and duplicate imports, and show how far the zones agree.

    The command needs the reader keys of bridge/offline/log and of the import streams. To read the source's log it also
    needs that of bridge/online/log. The exit status is 10 if anything is found.
    """

    given = [one for one in (bundles, source_hub, source_data_dir) if one]
    if len(given) != 1:
        raise Misuse(
            "give exactly one source of exports", "give --bundles DIR, --source-hub URL or --source-data-dir DIR"
        )
    if bundles and not trust:
        raise Misuse("--bundles needs a trusted hub", "give --trust HEX|PATH")
    report = _reconcile(asked, bundles or [], trust or [], source_hub, source_data_dir, source_pin, data_dir)
    _show(report, asked.as_json)
    if not report.clean:
        raise typer.Exit(FAILED_STATUS)


def _reconcile(
    asked: HubOptions,
    bundles: list[Path],
    trust: list[str],
    source_hub: str | None,
    source_data_dir: Path | None,
    source_pin: str | None,
    data_dir: Path | None,
) -> ReconcileReport:

    call = asked.call()
    url = call.url() if data_dir is None else ""
    with open_session.open_client_dir(asked.client, asked.passphrase_file) as folder:
        exports: list[BundleExported] = []
        for one in bundles:
            exports += reconciliation.exports_in(need_folder(one), trusted(trust))
        if source_data_dir is not None:
            copy = DirectorySource(source_data_dir, folder, pinning.pinned_key(source_pin))
            exports = asyncio.run(reconciliation.exports_of(copy))
        if source_hub is not None:
            there = open_session.HubCall(source_hub, asked.client, asked.passphrase_file, source_pin, asked.first_use)
            exports = there.run_with(folder, source_hub, lambda client: reconciliation.exports_of(HubSource(client)))

        async def reconcile_at_hub(client: Client) -> ReconcileReport:
            return reconciliation.reconcile(await reconciliation.read_input(HubSource(client), exports))

        if data_dir is None:
            return call.run_with(folder, url, reconcile_at_hub)
        here = DirectorySource(data_dir, folder, pinning.pinned_key(asked.pin))
        return reconciliation.reconcile(asyncio.run(reconciliation.read_input(here, exports)))


def _show(report: ReconcileReport, as_json: bool) -> None:
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
    output.table(_COLUMNS, rows, False)
