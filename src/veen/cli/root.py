"""`veen root`: the root key of a hub, which endorses its other keys."""

import time
from pathlib import Path
from typing import Annotated

from plumbing.cli.command import argument, command, group, option
from plumbing.durable import Disk
from veen.cli.hub import hub_process
from veen.cli.kit import key_files, output_files
from veen.cli.kit.common_options import DataDir, JsonOption, PassphraseFile
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.key_files import RootFile
from veen.cli.kit.result import Moment, Result, fields_of
from veen.core import SigningKey, Unavailable, Unverified, wire_json
from veen.core.hashing import h
from veen.core.root_key import RootRequest, RootSecret
from veen.storage import metadata, rotation, safe_open
from veen.storage.lock import lock_directory

app = group(
    "root",
    """Keep and use the root key of a hub.

    The root endorses every other key of the hub and signs nothing else, so it is used only when a key changes. Keep its
    file on a machine without a network: `endorse` needs nothing but files.
    """,
)


@command(app, "show", "veen root show --root hub.root")
def show(root: RootFile, passphrase_file: PassphraseFile = None, as_json: JsonOption = False) -> None:
    """Show which hub a root key belongs to."""
    secret = key_files.read_root(root, passphrase_file)
    public_key = secret.key.public_key
    data = {
        "hub_id": secret.hub_id,
        "root_pk": public_key,
        "fingerprint": h(public_key),
        "created_at": Moment(secret.created_at),
        "file": str(root),
    }
    Result(data).show(as_json)


@command(app, "endorse", "veen root endorse rotate.request --root hub.root --out rotate.endorsement")
def endorse(
    request: Annotated[Path, argument("REQUEST", "a request that the hub's command wrote")],
    root: RootFile,
    out: Annotated[Path, option("--out FILE", "the endorsement to create")],
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Endorse a request of the hub, without a network.

    The command shows what it signs. Compare the new key with the one that the hub's command printed. Otherwise an
    attacker who replaces the request on its way gets the attacker's own key endorsed for the hub.
    """
    output_files.check_new(out)
    found = key_files.read_request(request)
    secret = key_files.read_root(root, passphrase_file)
    try:
        made = found.endorse(secret)
    except Unverified as error:
        raise hinted(error, "veen root show prints the hub of a root key; nothing was signed") from None
    output_files.write_new(out, wire_json.encode(made) + b"\n")
    taken = "handover" if found.handover else "recover" if found.recovery else "rotate-key"
    hint = f"hint: take {out} to the hub, and run veen hub {taken} --data-dir DIR --endorsement {out.name}"
    Result({"hub_id": found.hub_id, **_shown(found), "out": str(out)}, remarks=(hint,)).show(as_json)


def _shown(request: RootRequest) -> dict[str, object]:
    """The content of the signature, for the person who signs."""
    made = request.handover
    if request.recovery is not None:
        return {
            "endorsed": "a new signing key, and a recovery",
            "new_hub_pk": request.key.hub_pk,
            "recovered_at": Moment(request.recovery.recovered_at),
            **fields_of(request.recovery, "labels", "labels_root"),
        }
    if made is None:
        valid_from = Moment(request.key.valid_from)
        return {"endorsed": "a new signing key", "new_hub_pk": request.key.hub_pk, "valid_from": valid_from}
    return {
        "endorsed": "a hand-over",
        "old_hub_pk": made.old_pk,
        "new_hub_pk": made.new_pk,
        "hub_ts": Moment(made.hub_ts),
        **fields_of(made, "labels", "rows_root"),
    }


@command(app, "adopt", "veen root adopt --data-dir hub --root hub.root")
def adopt(
    data_dir: DataDir,
    root: Annotated[
        Path | None, option("--root FILE", "the root key file to create", default="DIR.root beside the directory")
    ] = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Give a stopped hub without a root key one; its hub_id stays.

    The first key of the hub endorses the root, once. From then on only the root can endorse a key. Do this while you
    are sure that nobody copied the hub's keys: a thief of the first key could adopt another root.
    """
    folders = hub_process.folders(data_dir)
    file = root or key_files.default_root_file(data_dir)
    key_files.check_new_root(file, data_dir)
    try:
        held = lock_directory(folders.lock)
    except Unavailable as error:
        raise hinted(error, f"veen hub stop --data-dir {data_dir} stops it") from None
    with held:
        safe_open.check_folders(folders)
        identity = metadata.read_metadata(folders).identity
        if identity.root is not None:
            raise hinted(
                Unavailable(f"{data_dir} already has a root key, {identity.root.hub_pk.hex()[:16]}…"),
                "a hub keeps its first root key for ever",
            )
        secret = RootSecret(SigningKey.generate().seed, identity.hub_id, int(time.time()))
        key_files.write_root(file, secret, key_files.new_root_passphrase(passphrase_file, file))
        try:
            rotation.adopt_root(Disk(), folders, secret.key.public_key, secret.created_at)
        except Unavailable as error:
            file.unlink()
            raise hinted(error, "the first and the newest key must be in the keys folder") from None
    data = {"hub_id": identity.hub_id, "root_pk": secret.key.public_key, "root_file": str(file)}
    Result(data, remarks=(key_files.ROOT_ADVICE.format(file=file),)).show(as_json)
