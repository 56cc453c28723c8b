"""Commands that maintain a data directory: back up."""

import time
from pathlib import Path

from plumbing.durable import Disk
from veen.cli.hub import hub_process
from veen.cli.kit import output
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Moment, Result
from veen.core import Malformed, Unverified
from veen.storage import backup as backups
from veen.storage import metadata


def backup(data_dir: Path, to: Path, keep: int, *, with_keys: bool) -> Result:
    """Add a backup to a folder."""
    source = hub_process.folders(data_dir)
    try:
        with output.progress("copying") as report:
            made, counts = backups.backup(
                Disk(), source.root, to, int(time.time()), keys=with_keys, keep=keep, progress=report
            )
    except (Malformed, Unverified) as error:
        kind = Malformed if isinstance(error, Malformed) else Unverified
        hint = f"veen fsck {data_dir} shows the damage; earlier backups in {to} are unchanged"
        raise hinted(kind(str(data_dir), str(error)), hint) from None
    remarks = []
    if not with_keys and metadata.read_metadata(source).identity.root is None:
        remarks.append("this hub has no root key: without --with-keys no hub can continue with the backup")
    data = {
        "backup": str(made.path),
        "hub_id": made.hub_id,
        "made_at": Moment(made.made_at),
        "labels": len(made.sizes),
        "entries": made.entries,
        "chunks_read": counts.read_chunks,
        "chunks_shared": counts.linked_chunks,
        "bytes_read": counts.read_bytes,
    }
    return Result(data, remarks=tuple(remarks))
