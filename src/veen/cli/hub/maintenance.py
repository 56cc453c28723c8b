"""`veen hub key|rotate-key|checkpoint|verify|fork`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, command
from veen.cli.hub.hub_group import app
from veen.cli.hub.hub_status import LocalDir
from veen.cli.kit import output, values
from veen.cli.kit.common_options import DataDir, HubUrl, JsonOption, Stream
from veen.cli.kit.output import Marked, Tone

if TYPE_CHECKING:
    from veen.cli.kit.hub_api import HubApi
    from veen.core import Checkpoint, HubIdentity, Profile


@command(app, "key", "veen hub key --data-dir hub", "veen hub key --hub https://hub.example --json")
def key(hub: HubUrl = None, data_dir: LocalDir = None, as_json: JsonOption = False) -> None:
    """Show the keys of a hub with the fingerprints that clients pin.

    A data directory is read directly, whether a hub runs on it or not. With a URL, the hub sends its key chain, which
    is verified. To know that it is the right hub, compare a fingerprint from another source.
    """
    from veen.cli.hub import hub_process
    from veen.storage.metadata import read_metadata

    if data_dir is not None:
        identity = read_metadata(hub_process.folders(data_dir)).identity
    else:
        with hub_process.hub(hub, None) as api:
            identity = api.identity()
    _show_keys(identity, as_json)


def _show_keys(identity: "HubIdentity", as_json: bool) -> None:
    from veen.core.hashing import h

    if as_json:
        keys = [
            {
                "key_id": one.key_id,
                "hub_pk": one.hub_pk,
                "fingerprint": h(one.hub_pk),
                "valid_from": one.valid_from,
                "valid_until": one.valid_until,
            }
            for one in identity.hub_keys
        ]
        output.document({"hub_id": identity.hub_id, "keys": keys})
        return
    rows: dict[str, output.Value] = {"hub_id": identity.hub_id}
    for number, one in enumerate(identity.hub_keys, 1):
        rows |= {
            f"key {number}": one.hub_pk,
            f"key {number} id": one.key_id,
            f"key {number} fingerprint": h(one.hub_pk),
            f"key {number} signs from": output.moment(one.valid_from),
            f"key {number} signs until": output.moment(one.valid_until),
        }
    output.facts(rows, as_json)


@command(app, "rotate-key", "veen hub rotate-key --data-dir hub", "veen hub rotate-key --data-dir hub --overlap-sec 60")
def rotate_key(
    data_dir: DataDir,
    overlap_sec: Annotated[
        int,
        durations.whole_option("--overlap-sec", least=0, help="how long the old key stays valid beside the new one"),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Give a stopped hub a new key; its hub_id stays.

    The old key signs the new one, so clients that pinned the hub continue to trust it. Existing signatures stay valid:
    the new key becomes valid after the last entry of the log.
    """
    from plumbing.durable import Disk
    from veen.cli.hub import hub_process
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable
    from veen.storage import metadata, safe_open
    from veen.storage.lock import lock_directory
    from veen.storage.metadata import read_metadata

    folders = hub_process.folders(data_dir)
    try:
        held = lock_directory(folders.lock)
    except Unavailable as error:
        raise hinted(
            error, f"veen hub stop --data-dir {data_dir} stops it; start it again after the rotation"
        ) from None
    with held:
        safe_open.check_folders(folders)
        metadata.finish_rotation(Disk(), folders)  # a rotation that a crash interrupted may have added the newest key
        last = max(read_metadata(folders).identity.newest.valid_from, hub_process.last_hub_ts(data_dir))
        rotated = metadata.rotate_key(Disk(), folders, max(int(time.time()), last + 1), overlap_sec)
    old, new = rotated.hub_keys[-2:]
    rows: dict[str, output.Value] = {
        "hub_id": rotated.hub_id,
        "old_key_id": old.key_id,
        "old_valid_until": output.moment(old.valid_until),
        "new_key_id": new.key_id,
        "new_hub_pk": new.hub_pk,
        "valid_from": output.moment(new.valid_from),
    }
    exact: dict[str, output.Value] = {**rows, "old_valid_until": old.valid_until, "valid_from": new.valid_from}
    output.facts(rows, as_json, exact)


@command(
    app,
    "checkpoint",
    "veen hub checkpoint --data-dir hub --stream doors",
    "veen hub checkpoint --hub https://hub.example --label 5f1c… --upto 1000 --out doors.checkpoint",
)
def checkpoint(
    hub: HubUrl = None,
    data_dir: LocalDir = None,
    stream: Stream = None,
    label: Annotated[
        bytes | None, typer.Option("--label", metavar="HEX", help="the label, instead of --stream", parser=values.label)
    ] = None,
    upto: Annotated[
        int | None, typer.Option("--upto", metavar="SEQ", min=1, help="the last entry to cover", show_default="all")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="also write the checkpoint to this file")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a checkpoint from a hub, verify and show it.

    With --data-dir the checkpoint is verified with the keys of the directory, otherwise with the keys that the hub
    sends. Its root must be that of the receipt at the same place, and its labels must belong to the stream. If the hub
    uses epochs, --label needs --stream for the check of the labels.
    """
    from veen.cli.hub import hub_process
    from veen.cli.kit import context_file
    from veen.core.hashing import h

    with hub_process.hub(hub, data_dir) as api:
        wanted = label if label is not None else _label_of(api, stream)
        name = stream if label is not None else context_file.need_stream(stream)
        found = _fetch_checkpoint(api, data_dir, wanted, upto, name)
    encoded = found.encode()
    if out is not None:
        out.write_bytes(encoded)
    rows: dict[str, output.Value] = {
        "label": found.label_curr,
        "upto_seq": found.upto_seq,
        "mmr_root": found.mmr_root,
        "epoch": found.epoch,
        "label_prev": found.label_prev,
        "witnesses": len(found.witness_sigs or ()),
        "checkpoint_hash": h(encoded),
    }
    # Keys that the hub sends prove only that its statements agree with each other.
    pinned = Marked("with the keys of the data directory", Tone.GOOD)
    by = pinned if data_dir else Marked("with the keys that the hub sent", Tone.WARN)
    output.facts({**rows, "verified": by}, as_json, {**rows, "checkpoint": encoded, "verified": by})


def _label_of(api: "HubApi", stream: str | None) -> bytes:
    from veen.cli.kit import context_file
    from veen.core import naming

    name, epoch = context_file.need_stream(stream), int(api.status()["epoch"])
    return naming.label(api.identity().routing_key, naming.stream_id(name), epoch)


def _fetch_checkpoint(
    api: "HubApi", data_dir: Path | None, label: bytes, upto: int | None, stream: str | None
) -> "Checkpoint":
    """Fetch a checkpoint and verify it against the request, the hub's keys and its receipt."""
    from veen.core import Profile, Unverified, strict_json, wire_json
    from veen.core.envelopes import CheckpointRequest, CheckpointResponse, ReceiptRequest, ReceiptResponse
    from veen.storage.metadata import read_metadata
    from veen.storage.paths import Folders

    upto = upto or api.size(label)
    if not upto:
        raise Misuse("the label has no entries", "check --stream or --label")
    made = api.post("/v1/checkpoint", CheckpointRequest(label, upto), CheckpointResponse).checkpoint
    if (made.label_curr, made.upto_seq) != (label, upto):
        raise Unverified("checkpoint", "it is for another place than requested")
    if data_dir is not None:
        hub_metadata = read_metadata(Folders(data_dir))
        identity, profile = hub_metadata.identity_at(label, upto), hub_metadata.profile
    else:
        identity, profile = api.identity(), wire_json.decode(Profile, strict_json.encode(api.status()["profile"]))
    identity.verify_checkpoint(made, profile)
    receipt = api.post("/v1/receipt", ReceiptRequest(label, upto), ReceiptResponse).receipt
    identity.verify_receipt(receipt)
    if (receipt.label, receipt.stream_seq, receipt.mmr_root) != (label, upto, made.mmr_root):
        raise Unverified("checkpoint", "its mmr_root differs from the receipt at the same place")
    _check_labels(made, profile, identity.routing_key, stream)
    return made


def _check_labels(made: "Checkpoint", profile: "Profile", routing_key: bytes, stream: str | None) -> None:
    """Spec §4.4.1. Without epochs, every checkpoint has one label and epoch 0."""
    from veen.core import Unverified, naming

    if stream is not None:
        made.check_labels(profile, routing_key, naming.stream_id(stream))
    elif profile.epoch_sec:
        output.remark("hint: the labels were not checked against a stream; give --stream NAME with --label")
    if not profile.epoch_sec and (made.epoch or made.label_prev != made.label_curr):
        raise Unverified("checkpoint", "it names an epoch, but the hub has no epochs")


@command(app, "verify", "veen hub verify --data-dir hub")
def verify(data_dir: DataDir, as_json: JsonOption = False) -> None:
    """Verify a data directory and change nothing; same as `veen fsck DIR`."""
    from veen.cli.fsck import check

    check(data_dir, repair=False, as_json=as_json)


@command(
    app,
    "fork",
    "veen hub fork --data-dir hub --into fork",
    "veen hub fork --data-dir hub --into fork --upto $LABEL:1000",
)
def fork(
    data_dir: DataDir,
    into: Annotated[Path, typer.Option("--into", metavar="DIR", help="data directory of the new hub")],
    upto: Annotated[
        list[values.LabelPlace] | None,
        typer.Option(
            "--upto",
            metavar="LABEL:SEQ",
            help="keep this label up to this entry; labels that are not named are left out",
            show_default="all entries of all labels",
            parser=values.label_place,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a new hub that starts with a prefix of another hub's log.

    Entries keep their receipts. The other hub's signed statement on the prefix is stored as the origin of the new hub,
    so both parts can be verified. Authorized capabilities are not copied: the operator of the new hub decides which to
    accept. No hub may run on the forked directory.
    """
    from plumbing.durable import Disk
    from veen.cli.hub import hub_process
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable
    from veen.storage import fork as forking

    kept = {place.label: place.stream_seq for place in upto or ()}
    if len(kept) != len(upto or ()):
        raise Misuse("--upto names a label twice", "give --upto once for each label")
    source = hub_process.folders(data_dir)
    with output.tally("forking", "entries") as report:
        try:
            hub_metadata = forking.fork(
                Disk(), source.root, into, kept or None, int(time.time()), lambda done, _: report(done)
            )
        except Unavailable as error:
            hint = "the hub of --data-dir must be stopped, --into must not exist yet, and --upto must be in the log"
            raise hinted(error, hint) from None
    with hub_process.reader(into) as log:
        sizes = hub_process.sizes(log)
    rows: dict[str, output.Value] = {
        "hub_id": hub_metadata.identity.hub_id,
        "hub_pk": hub_metadata.identity.newest.hub_pk,
        "labels": len(sizes),
        "entries": sum(sizes),
        "data_dir": str(into),
    }
    output.facts(rows, as_json)
