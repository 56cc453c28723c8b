"""Regular checkpoints of a log that was read: are their labels a stream's, and their witnesses those who signed?

Whether each is the hub's word on the root at its place is known by then.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from operator import attrgetter

from veen.core import Checkpoint, Unverified, VeenError, naming
from veen.storage import openings, witnesses
from veen.storage.artifacts import BoundCheckpoint
from veen.storage.directory import Papers
from veen.storage.findings import Finding, Report, Severity
from veen.storage.folders import Folders


def check_checkpoints(
    folders: Folders,
    papers: Papers,
    bound: Iterable[BoundCheckpoint],
    streams: Collection[bytes] | None,
    report: Report,
) -> None:
    """Add what is wrong with them. `streams` are those the hub was told of; None where that could not be read."""
    by_epoch = attrgetter("epoch")
    for epoch, rows in groupby(sorted(bound, key=by_epoch), by_epoch):
        # With epochs a label shows its stream only to who tries every one: once for all labels of an epoch.
        explained = _explained(papers, streams, epoch) if papers.profile.epoch_sec and streams is not None else None
        for row in rows:
            for finding in _check(folders, papers, row, explained):
                report.add(finding)


def known_streams(papers: Papers, registered: Iterable[bytes]) -> set[bytes]:
    """The streams that labels can be of: those that were registered, and the control streams of the hubs themselves."""
    return {*registered, *(naming.control_stream(one.hub_id) for one in papers.lineage.identities)}


def _explained(papers: Papers, streams: Iterable[bytes], epoch: int) -> dict[bytes, bytes]:
    return {naming.label(papers.identity.routing_key, stream, epoch): stream for stream in streams}


def _check(
    folders: Folders, papers: Papers, row: BoundCheckpoint, explained: dict[bytes, bytes] | None
) -> Iterator[Finding]:
    path = folders.checkpoint(row.label, row.upto_seq)
    try:
        found = Checkpoint.decode(openings.read(path))
        if explained is not None:
            _check_labels(papers, found, explained)
    except (OSError, VeenError) as error:
        yield Finding(Severity.DAMAGED, f"log/{path.name}", str(error), row.label, row.upto_seq)
        return
    yield from witnesses.check(folders, found)


def _check_labels(papers: Papers, found: Checkpoint, explained: dict[bytes, bytes]) -> None:
    """Raise unless both labels are of one stream, and of the epochs they must be of. Spec §4.4.1."""
    stream = explained.get(found.label_curr)
    if stream is not None:
        found.check_labels(papers.profile, papers.identity.routing_key, stream)
    elif found.upto_seq > papers.lineage.upto(found.label_curr):  # a fork is not told what its origin was told
        raise Unverified("checkpoint", "label_curr is not the label of any stream of the hub in that epoch")
