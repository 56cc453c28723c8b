"""`veen keygen`, `veen card`, `veen export-identity` and `veen import-identity`: a client's own identity."""

import time
from pathlib import Path
from typing import Annotated, TypeAlias

from plumbing.cli.command import Misuse, argument, command, option, single
from veen.cli.kit import context_file, key_files, open_session, output_files
from veen.cli.kit.common_options import ClientDir, JsonOption, NoPassphrase, PassphraseFile
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Column, Moment, Result, fields_of, fixed
from veen.client import Card, WrongPassphrase, keystore
from veen.client import ClientDir as ClientFolder
from veen.client import export_identity as export
from veen.client import import_identity as restore
from veen.core import Malformed, Unavailable, Unverified

_NEW_FOLDER_HINT = "name a folder that does not exist yet, in a folder that you can write to"
NewClientDir: TypeAlias = Annotated[Path, option("--out DIR", "the client directory to create")]
keygen_app = single("keygen")


@command(keygen_app, "keygen", "veen keygen --out alice", "veen keygen --out sensor --passphrase-file secret.txt")
def keygen(
    out: NewClientDir,
    passphrase_file: PassphraseFile = None,
    no_passphrase: NoPassphrase = False,
    as_json: JsonOption = False,
) -> None:
    """Create an identity in a client directory.

    The keys are encrypted with a passphrase from --passphrase-file, VEEN_PASSPHRASE or the prompt. The directory also
    stores what the client has verified, so back it up: see `veen export-identity`.
    """
    secret = key_files.passphrase_for_new(passphrase_file, no_passphrase, str(out))
    try:
        folder = ClientFolder.create(out, secret, int(time.time()))
    except Unavailable as error:
        raise hinted(error, _NEW_FOLDER_HINT) from None
    with folder:
        keys = {**fields_of(folder.card, "id_sign", "id_dh"), "client_id": folder.card.client_ids[0]}
    hint = f"hint: give {out / 'card.cbor'} to an issuer of capabilities; veen card --client {out} shows it"
    Result({**keys, "encrypted": secret is not None, "client": str(out)}, remarks=(hint,)).show(as_json)


card_app = single("card")


@command(
    card_app, "card", "veen card --client alice", "veen card alice.card --json", "veen card --renew --out alice.card"
)
def card(
    file: Annotated[Path | None, argument("FILE", "a card or a client directory; else your own card")] = None,
    client: ClientDir = None,
    renew: Annotated[bool, option("--renew", "first renew your own card with current client_ids and prekeys")] = False,
    passphrase_file: PassphraseFile = None,
    out: Annotated[Path | None, option("--out FILE", "write a copy for issuers and peers")] = None,
    as_json: JsonOption = False,
) -> None:
    """Verify and show an identity card.

    A card is the public part of a client: its identity, the client_ids it will write with, and the prekeys to seal to.
    Its signatures prove that they belong together. Give it to issuers of capabilities and to peers.
    """
    if renew and file is not None:
        raise Misuse("--renew cannot be used with FILE", "only the owner can renew a card; --client names the owner")
    if out is not None:
        output_files.check_new(out)
    if renew:
        with open_session.open_client_dir(client, passphrase_file) as folder:
            folder.renew_card(int(time.time()))
    found = key_files.read_card(file if file is not None else context_file.need_client(client))
    if out is not None:
        output_files.write_new(out, found.encode())
    _show(found, out, as_json)


def _show(found: Card, out: Path | None, as_json: bool) -> None:
    last = found.prekeys[-1].expires_at
    data = {
        **fields_of(found, "id_sign", "id_dh"),
        "created_at": Moment(found.created_at),
        **({} if out is None else {"file": str(out)}),
        "generation": found.generation,
        "client_ids": found.client_ids,
        "prekeys": [fields_of(one, "number", "public_key", "expires_at") for one in found.prekeys],
    }
    numbered = {f"client_id {number}": client_id for number, client_id in enumerate(found.client_ids, 1)}
    facts: list[Column] = [
        *(name for name in data if name not in ("generation", "client_ids", "prekeys")),
        ("client_ids", lambda _: len(numbered)),
        ("prekeys until", lambda _: Moment(last)),
        *fixed(tuple(numbered), numbered),
    ]
    expired = "hint: the last prekey has expired; the owner can renew the card with veen card --renew"
    Result(data, facts=facts, remarks=(expired,) if last < time.time() else ()).show(as_json)


export_app = single("export-identity")


@command(
    export_app,
    "export-identity",
    "veen export-identity --client alice --out alice.export",
    "veen export-identity --out backup --new-passphrase-file other.txt",
)
def export_identity(
    out: Annotated[Path, option("--out DIR", "the folder to create")],
    client: ClientDir = None,
    passphrase_file: PassphraseFile = None,
    new_passphrase_file: Annotated[
        Path | None, option("--new-passphrase-file FILE", "encrypt the exported keys with this passphrase instead")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Export a whole client into a folder.

    The export contains keys, capabilities, verified state and the outbox. Keys stay encrypted as they are; the rest is
    in CBOR sequences, listed in a signed manifest. `veen import-identity` imports it on this machine or another; until
    then it is a backup.
    """
    other = None if new_passphrase_file is None else key_files.passphrase_for_existing(new_passphrase_file, "")
    with open_session.open_client_dir(client, passphrase_file) as folder:
        encrypted = other is not None or folder.keystore.is_encrypted
        try:
            made = export(folder, out, int(time.time()), passphrase=other)
        except Unavailable as error:
            raise hinted(error, _NEW_FOLDER_HINT) from None
    hint = f"hint: the keys in {out} are not encrypted; anyone who can read the folder can use them"
    data = {"id_sign": made.id_sign, "files": len(made.files), "encrypted": encrypted, "folder": str(out)}
    Result(data, remarks=() if encrypted else (hint,)).show(as_json)


import_app = single("import-identity")


@command(
    import_app,
    "import-identity",
    "veen import-identity alice.export --out alice",
    "veen import-identity alice.export --out alice --moved",
)
def import_identity(
    folder: Annotated[Path, argument("DIR", "a folder from veen export-identity")],
    out: NewClientDir,
    moved: Annotated[
        bool, option("--moved", "keep the client_ids; the original directory must never send again")
    ] = False,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Create a client directory from an export.

    Every signature in the export is verified first. The original client may still send, and two clients with the same
    client_ids would contradict each other. So the copy gets new client_ids and needs new capabilities. With --moved it
    keeps the old ones and continues where the original stopped.
    """
    try:
        encrypted = keystore.keystore_file(folder).name == keystore.ENCRYPTED
    except Unavailable as error:
        raise hinted(error, "veen export-identity creates such a folder") from None
    secret = key_files.passphrase_for_existing(passphrase_file, str(folder)) if encrypted else None
    try:
        made = restore(folder, out, secret, int(time.time()), moved=moved)
    except WrongPassphrase as error:
        raise hinted(error, "give the passphrase that the keys were exported with") from None
    except Unavailable as error:
        raise hinted(error, "DIR must be an exported folder, and --out must not exist yet") from None
    except (Malformed, Unverified) as error:
        raise hinted(error, "the folder was damaged or altered after the export; nothing was created") from None
    with made:
        data = {
            "id_sign": made.card.id_sign,
            "client_id": made.card.client_ids[0],
            "capabilities": len(list(made.caps)),
            "encrypted": encrypted,
            "moved": moved,
            "client": str(out),
        }
    hint = f"hint: the capabilities are for the original's client_ids; request new ones for {out / 'card.cbor'}"
    Result(data, remarks=() if moved or not data["capabilities"] else (hint,)).show(as_json)
