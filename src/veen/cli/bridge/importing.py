"""`veen bridge import` and `watch`: bundles into a zone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from terminalface.command import Misuse
from veen.cli import output
from veen.cli.bridge.group import Every, Map, Operator, Trust, app, need_folder, trusted
from veen.cli.client.options import AtHub
from veen.cli.output import Marked, Tone
from veen.cli.overlay.declaring import taking

if TYPE_CHECKING:
    from veen.bridge.dropbox import Dealt
    from veen.bridge.importing import Importer
    from veen.bridge.mapping import Mapping
    from veen.client.client import Client

_COLUMNS = ("file", "result", "bundle_id", "import_stream", "events", "written", "reason")
_UNVERIFIED_STATUS = 4
_KNOWN = "known"  # all of it is here already: on record as refused, and nothing to do about

Exclude: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude", metavar="sealed|attachment", help="events to leave out, and to name in the record as left out"
    ),
]


@taking(
    AtHub,
    app,
    "import",
    "veen bridge import /media/stick/9f2c….bundle --trust 5f1c8a…",
    "veen bridge import *.bundle --trust online-papers --json",
)
def import_(
    asked: AtHub,
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="bundles")],
    trust: Trust,
    mapping: Map = None,
    exclude: Exclude = None,
    operator: Operator = None,
) -> None:
    """Write the events of bundles into this zone's streams, each exactly once.

    Everything is verified before anything is written. What is refused is on record in bridge/offline/log with the
    reason and the place, and the exit status is 4. A bundle that is here already is known, which is no failure. An
    import that was cut short goes on where it was, by the same client.
    """
    from veen.bridge import bundle
    from veen.client import durable

    async def work(importer: "Importer") -> "list[Dealt]":
        from veen.bridge.dropbox import Dealt

        found = []
        for path in files:
            data = durable.read_file(path, bundle.MAX_BUNDLE_BYTES)
            found.append(Dealt(path, await importer.take(data)))
        return found

    found = _importing(asked, trust, mapping, exclude, operator, work)
    _tell(found, asked.as_json)
    if not all(one.outcome.ok for one in found):
        raise typer.Exit(_UNVERIFIED_STATUS)


@taking(
    AtHub,
    app,
    "watch",
    "veen bridge watch /srv/drop --trust 5f1c8a…",
    "veen bridge watch /srv/drop --trust 5f1c8a… --once",
)
def watch(
    asked: AtHub,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="where bundles are put down")],
    trust: Trust,
    mapping: Map = None,
    exclude: Exclude = None,
    operator: Operator = None,
    every: Every = 1.0,
    once: Annotated[bool, typer.Option("--once", help="only what is there now")] = False,
) -> None:
    """Import bundles as they are put down in a folder.

    What was dealt with is moved into imported/ or refused/ beside it. A file counts once it has its name: write it
    under another first.
    """
    need_folder(folder)

    async def work(importer: "Importer") -> "list[Dealt]":
        if once:
            return [one async for one in _swept(importer, folder)]
        while True:
            async for one in _swept(importer, folder):
                _tell([one], asked.as_json)
            await asyncio.sleep(every)

    found = _importing(asked, trust, mapping, exclude, operator, work)
    _tell(found, asked.as_json)
    if not all(one.outcome.ok for one in found):
        raise typer.Exit(_UNVERIFIED_STATUS)


async def _swept(importer: "Importer", folder: Path) -> "AsyncIterator[Dealt]":
    from veen.bridge import dropbox

    async for one in dropbox.sweep(importer, folder):
        yield one


def _importing(
    asked: AtHub,
    trust: list[str],
    mapping: list[str] | None,
    exclude: list[str] | None,
    operator: str | None,
    work: "Callable[[Importer], Awaitable[list[Dealt]]]",
) -> "list[Dealt]":
    from veen.bridge import roles
    from veen.bridge.importing import Importer, Policy

    sources, rules = trusted(trust), _rules(mapping)
    try:
        policies = [Policy(one) for one in exclude or ()]
    except ValueError as error:
        raise Misuse(str(error), f"there are: {', '.join(Policy)}") from None
    call = asked.call()

    async def met(client: "Client") -> "list[Dealt]":
        if not roles.enforced(client.contact.status.admission):
            output.remark("the hub lets anyone write: that events go one way only is not enforced there")
        return await work(Importer(client, sources, mapping=rules, operator=operator, exclude=policies))

    return call.run(met)


def _rules(texts: list[str] | None) -> "Mapping":
    from veen.bridge import mapping

    try:
        return mapping.parse(texts)
    except ValueError as error:
        raise Misuse(str(error), "give --map export/=import/") from None


def _tell(found: "list[Dealt]", as_json: bool) -> None:
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
    output.table(_COLUMNS, rows, as_json, data)
