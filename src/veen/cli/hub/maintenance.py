"""`veen hub key|rotate-key|checkpoint|verify`: a hub's keys and what it signs."""

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
    """Show a hub's keys, with the fingerprints that clients pin.

    A data directory is read as it is, whether a hub serves it or not. An address is asked, and the chain of keys it
    tells is verified; that it is the hub you mean, only a fingerprint from elsewhere can say.
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
        int, durations.whole_option("--overlap-sec", least=0, help="how long the old key counts beside the new")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Give a hub that is not running a new key; its hub_id stays.

    The old key vouches for the new one, so whoever pinned the hub goes on trusting it. Everything that was signed stays
    valid: the new key starts after the last entry of the log.
    """
    from veen.cli.hub import hub_process
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable
    from veen.storage import key_rotation, safe_open
    from veen.storage.durable import Disk
    from veen.storage.lock import lock_directory
    from veen.storage.metadata import read_metadata

    folders = hub_process.folders(data_dir)
    try:
        held = lock_directory(folders.lock)
    except Unavailable as error:
        raise hinted(error, f"veen hub stop --data-dir {data_dir} ends it; start it again after the rotation") from None
    with held:
        safe_open.check_folders(folders)
        key_rotation.finish(Disk(), folders)  # what a crash may have cut short decides which key is the last
        last = max(read_metadata(folders).identity.newest.valid_from, hub_process.last_hub_ts(data_dir))
        rotated = key_rotation.rotate(Disk(), folders, max(int(time.time()), last + 1), overlap_sec)
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
        int | None, typer.Option("--upto", metavar="SEQ", min=1, help="the last entry it covers", show_default="all")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="write its bytes there as well")] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a hub for a signed checkpoint of a log, verify it, and show it.

    With --data-dir it is verified under the keys of the directory; else under those that the hub tells itself. It must
    have the root of the hub's receipt at its place, and the stream's labels; where labels change, --label alone does
    not say whose they are, and --label with --stream does.
    """
    from veen.cli.hub import hub_process
    from veen.cli.kit import context_file
    from veen.core.hashing import h

    with hub_process.hub(hub, data_dir) as api:
        asked = label if label is not None else _label_of(api, stream)
        found = _fetched(api, data_dir, asked, upto, stream if label is not None else context_file.need_stream(stream))
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
    # Keys that the hub tells itself prove only that it agrees with itself.
    pinned = Marked("by the keys of the data directory", Tone.GOOD)
    by = pinned if data_dir else Marked("by the keys that the hub tells", Tone.WARN)
    output.facts({**rows, "verified": by}, as_json, {**rows, "checkpoint": encoded, "verified": by})


def _label_of(api: "HubApi", stream: str | None) -> bytes:
    from veen.cli.kit import context_file
    from veen.core import naming

    name, epoch = context_file.need_stream(stream), int(api.status()["epoch"])
    return naming.label(api.identity().routing_key, naming.stream_id(name), epoch)


def _fetched(api: "HubApi", data_dir: Path | None, label: bytes, upto: int | None, stream: str | None) -> "Checkpoint":
    """The checkpoint, which is what was asked for and holds."""
    from veen.core import Profile, Unverified, strict_json, wire_json
    from veen.core.envelopes import CheckpointRequest, CheckpointResponse, ReceiptRequest, ReceiptResponse
    from veen.storage.metadata import read_metadata
    from veen.storage.paths import Folders

    upto = upto or api.size(label)
    if not upto:
        raise Misuse("nothing is logged under that label", "check --stream or --label")
    made = api.post("/v1/checkpoint", CheckpointRequest(label, upto), CheckpointResponse).checkpoint
    if (made.label_curr, made.upto_seq) != (label, upto):
        raise Unverified("checkpoint", "it is for another place than was asked for")
    if data_dir is not None:
        hub_metadata = read_metadata(Folders(data_dir))
        identity, profile = hub_metadata.identity_at(label, upto), hub_metadata.profile
    else:
        identity, profile = api.identity(), wire_json.decode(Profile, strict_json.encode(api.status()["profile"]))
    identity.verify_checkpoint(made, profile)
    receipt = api.post("/v1/receipt", ReceiptRequest(label, upto), ReceiptResponse).receipt
    identity.verify_receipt(receipt)
    if (receipt.label, receipt.stream_seq, receipt.mmr_root) != (label, upto, made.mmr_root):
        raise Unverified("checkpoint", "its mmr_root is not that of the hub's receipt there")
    _check_labels(made, profile, identity.routing_key, stream)
    return made


def _check_labels(made: "Checkpoint", profile: "Profile", routing_key: bytes, stream: str | None) -> None:
    """Spec §4.4.1. Where there are no epochs, every checkpoint is of one label and of epoch 0, whatever its stream."""
    from veen.core import Unverified, naming

    if stream is not None:
        made.check_labels(profile, routing_key, naming.stream_id(stream))
    elif profile.epoch_sec:
        output.remark("hint: its labels were not checked: --stream NAME beside --label says whose they are")
    if not profile.epoch_sec and (made.epoch or made.label_prev != made.label_curr):
        raise Unverified("checkpoint", "it speaks of an epoch where there are none")


@command(app, "verify", "veen hub verify --data-dir hub")
def verify(data_dir: DataDir, as_json: JsonOption = False) -> None:
    """Check a data directory, trusting nothing in it, and change nothing: `veen fsck DIR`."""
    from veen.cli.fsck import check

    check(data_dir, mend=False, as_json=as_json)


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
    from veen.cli.hub import hub_process
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unavailable
    from veen.storage import fork as forking
    from veen.storage.durable import Disk

    kept = {place.label: place.stream_seq for place in upto or ()}
    if len(kept) != len(upto or ()):
        raise Misuse("a label is named twice", "give --upto once for each label")
    source = hub_process.folders(data_dir)
    with output.tally("forking", "entries") as report:
        try:
            hub_metadata = forking.fork(
                Disk(), source.root, into, kept or None, int(time.time()), lambda done, _: report(done)
            )
        except Unavailable as error:
            hint = "--data-dir must be of a hub that is stopped, --into a folder not there yet, --upto within the log"
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
