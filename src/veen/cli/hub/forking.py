"""`veen hub fork`: a new hub that keeps a prefix of another's log."""

import time
from pathlib import Path
from typing import Annotated

import typer

from terminalface.command import Misuse, command
from veen.cli import output, values
from veen.cli.hub.group import app
from veen.cli.options import DataDir, JsonOption


@command(
    app,
    "fork",
    "veen hub fork --data-dir hub --into fork",
    "veen hub fork --data-dir hub --into fork --upto $LABEL:1000",
)
def fork(
    data_dir: DataDir,
    into: Annotated[Path, typer.Option("--into", metavar="DIR", help="the new hub's data directory")],
    upto: Annotated[
        list[values.LabelPlace] | None,
        typer.Option(
            "--upto",
            metavar="LABEL:SEQ",
            help="keep this label up to this entry, and no label that is not named",
            show_default="all, to their ends",
            parser=values.label_place,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new hub that keeps a prefix of another's log and goes on from there.

    Entries keep the receipts they have, and the other hub's signed word on the prefix is kept as the new hub's origin,
    so both verify. Who may write is not taken over: capabilities are for the new hub's operator to accept. No hub may
    run on the directory that is forked.
    """
    from veen.cli.failures import hinted
    from veen.cli.hub import directories
    from veen.core import Unavailable
    from veen.storage import fork as forking
    from veen.storage.durable import Disk

    kept = {place.label: place.stream_seq for place in upto or ()}
    if len(kept) != len(upto or ()):
        raise Misuse("a label is named twice", "give --upto once for each label")
    source = directories.folders(data_dir)
    with output.tally("forking", "entries") as report:
        try:
            papers = forking.fork(
                Disk(), source.root, into, kept or None, int(time.time()), lambda done, _: report(done)
            )
        except Unavailable as error:
            hint = "--data-dir must be of a hub that is stopped, --into a folder not there yet, --upto within the log"
            raise hinted(error, hint) from None
    with directories.reader(into) as log:
        sizes = directories.sizes(log)
    rows: dict[str, output.Value] = {
        "hub_id": papers.identity.hub_id,
        "hub_pk": papers.identity.newest.hub_pk,
        "labels": len(sizes),
        "entries": sum(sizes),
        "data_dir": str(into),
    }
    output.facts(rows, as_json)
