"""Commands that maintain a data directory: back up, upgrade."""

import time
from pathlib import Path

from plumbing.durable import Disk
from veen.cli.hub import hub_process
from veen.cli.kit import output
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Moment, Result
from veen.core import Malformed, Unavailable, Unverified
from veen.storage import backup as backups
from veen.storage import metadata, upgrade


def backup(data_dir: Path, to: Path, keep: int, *, with_keys: bool, prune: bool) -> Result:
    """Add a backup to a folder."""
    source = hub_process.folders(data_dir)
    try:
        with output.progress("copying") as report:
            made, counts = backups.backup(
                Disk(), source.root, to, int(time.time()), keys=with_keys, keep=keep, prune=prune, progress=report
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
        **({"pruned": counts.pruned, "removed": counts.removed} if prune else {}),
    }
    return Result(data, remarks=tuple(remarks))


def upgraded(data_dir: Path, *, check: bool) -> Result:
    """Upgrade a data directory, or with `check` only say what that would change."""
    source = hub_process.folders(data_dir)
    try:
        with output.progress("checking") as report:
            done = upgrade.check(source, report) if check else upgrade.upgrade(Disk(), source, report)
    except metadata.NewerFormat:
        raise
    except Unavailable as error:
        raise hinted(error, f"veen hub stop --data-dir {data_dir} stops a hub that runs on it") from None
    except Malformed as error:
        raise hinted(Malformed(str(data_dir), str(error)), f"veen fsck {data_dir} shows the damage") from None
    data: dict[str, object] = {"data_dir": str(data_dir), "format": done.found, "present_format": metadata.FORMAT}
    remarks = []
    if done.steps:
        data |= {"labels": done.labels, "entries": done.entries, "steps": list(done.steps)}
        if check:
            remarks.append(f"hint: veen hub upgrade --data-dir {data_dir} does it")
    return Result(data, remarks=tuple(remarks))
