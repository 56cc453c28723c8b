"""`veen keygen`: make an identity."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbing.cli.command import Misuse, command, single
from veen.cli.kit import output
from veen.cli.kit.client_options import NoPassphrase, PassphraseFile
from veen.cli.kit.common_options import ClientDir, JsonOption

if TYPE_CHECKING:
    from veen.client import Card


keygen_app = single("keygen")


@command(keygen_app, "keygen", "veen keygen --out alice", "veen keygen --out sensor --passphrase-file secret.txt")
def keygen(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="the client directory to make")],
    passphrase_file: PassphraseFile = None,
    no_passphrase: NoPassphrase = False,
    as_json: JsonOption = False,
) -> None:
    """Make an identity: keys of your own, in a folder.

    The keys are encrypted with a passphrase, which is asked for unless a file or VEEN_PASSPHRASE has it. The directory
    also keeps what its owner has verified, so it is worth a backup: see `veen export-identity`.
    """
    from veen.cli.kit import key_files
    from veen.cli.kit.exit_status import hinted
    from veen.client import ClientDir
    from veen.core import Unavailable

    secret = key_files.passphrase_for_new(passphrase_file, no_passphrase, str(out))
    try:
        folder = ClientDir.create(out, secret, int(time.time()))
    except Unavailable as error:
        raise hinted(error, "name a folder that does not exist yet, where you may make one") from None
    with folder:
        rows: dict[str, output.Value] = {
            "id_sign": folder.card.id_sign,
            "id_dh": folder.card.id_dh,
            "client_id": folder.card.client_ids[0],
            "encrypted": secret is not None,
            "client": str(out),
        }
    output.facts(rows, as_json)
    output.remark(f"hint: whoever lets this client write needs {out / 'card.cbor'}; veen card --client {out} shows it")


card_app = single("card")


@command(
    card_app, "card", "veen card --client alice", "veen card alice.card --json", "veen card --renew --out alice.card"
)
def card(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="a card, or the client directory it is in; else your own")
    ] = None,
    client: ClientDir = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="first make your own anew, with the client_ids and prekeys of today")
    ] = False,
    passphrase_file: PassphraseFile = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="write a copy there, for issuers and peers")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show an identity card, after checking its signatures.

    A card is all that others need to know of a client: who it is, the keys it will write with, the prekeys to seal to.
    Whoever has it can tell that these belong together, so it goes to those who let the client write, and to peers.
    """
    from veen.cli.kit import context_file, key_files, open_session, output_files

    if renew and file is not None:
        raise Misuse("only the owner of a card can renew it", "leave out FILE; --client says whose it is")
    if out is not None:
        output_files.check_new(out)
    if renew:
        with open_session.open_client_dir(client, passphrase_file) as folder:
            folder.renew_card(int(time.time()))
    found = key_files.read_card(file if file is not None else context_file.need_client(client))
    if out is not None:
        output_files.write_new(out, found.encode())
    _show(found, out, as_json)


def _show(found: "Card", out: Path | None, as_json: bool) -> None:
    rows: dict[str, output.Value] = {
        "id_sign": found.id_sign,
        "id_dh": found.id_dh,
        "created_at": output.moment(found.created_at),
    }
    if out is not None:
        rows["file"] = str(out)
    last = found.prekeys[-1].expires_at
    shown = {**rows, "client_ids": len(found.client_ids), "prekeys until": output.moment(last)}
    for number, client_id in enumerate(found.client_ids, 1):
        shown[f"client_id {number}"] = client_id
    data = {
        **rows,
        "created_at": found.created_at,
        "generation": found.generation,
        "client_ids": found.client_ids,
        "prekeys": [
            {"number": one.number, "public_key": one.public_key, "expires_at": one.expires_at} for one in found.prekeys
        ],
    }
    output.facts(shown, as_json, data)
    if last < time.time():
        output.remark("hint: its last prekey has expired; its owner makes a new card with veen card --renew")


export_app = single("export-identity")


@command(
    export_app,
    "export-identity",
    "veen export-identity --client alice --out alice.export",
    "veen export-identity --out backup --new-passphrase-file other.txt",
)
def export_identity(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="the folder to make")],
    client: ClientDir = None,
    passphrase_file: PassphraseFile = None,
    new_passphrase_file: Annotated[
        Path | None,
        typer.Option("--new-passphrase-file", metavar="FILE", help="encrypt the copied keys under this one instead"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write all that a client is into a folder.

    That is its keys, capabilities, what it has verified and what waits to be sent. The keys stay encrypted as they are;
    the rest is in CBOR sequences, listed in a signed manifest. `veen import-identity` takes it up, on this machine or
    another; until then it is a backup.
    """
    from veen.cli.kit import key_files, open_session
    from veen.cli.kit.exit_status import hinted
    from veen.client import export_identity as export
    from veen.core import Unavailable

    other = None if new_passphrase_file is None else key_files.passphrase_for_existing(new_passphrase_file, "")
    with open_session.open_client_dir(client, passphrase_file) as folder:
        encrypted = other is not None or folder.keystore.is_encrypted
        try:
            made = export(folder, out, int(time.time()), passphrase=other)
        except Unavailable as error:
            raise hinted(error, "name a folder that does not exist yet, where you may make one") from None
    rows: dict[str, output.Value] = {
        "id_sign": made.id_sign,
        "files": len(made.files),
        "encrypted": encrypted,
        "folder": str(out),
    }
    output.facts(rows, as_json)
    if not encrypted:
        output.remark(f"hint: the keys in {out} are not encrypted: whoever reads it has them")


import_app = single("import-identity")


@command(
    import_app,
    "import-identity",
    "veen import-identity alice.export --out alice",
    "veen import-identity alice.export --out alice --moved",
)
def import_identity(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="what veen export-identity made")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="the client directory to make")],
    moved: Annotated[
        bool,
        typer.Option("--moved", help="go on with the same client_ids: the directory it came from never sends again"),
    ] = False,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Make a client directory from an exported one.

    Every signature in it is verified first. The original may still send, and two that write with the same
    client_ids would contradict each other. So the copy draws new ones, and capabilities have to be issued for them;
    with --moved it goes on where the original stopped.
    """
    from veen.cli.kit import key_files
    from veen.cli.kit.exit_status import hinted
    from veen.client import WrongPassphrase, keystore
    from veen.client import import_identity as restore
    from veen.core import Malformed, Unavailable, Unverified

    try:
        encrypted = keystore.keystore_file(folder).name == keystore.ENCRYPTED
    except Unavailable as error:
        raise hinted(error, "veen export-identity makes such a folder") from None
    secret = key_files.passphrase_for_existing(passphrase_file, str(folder)) if encrypted else None
    try:
        made = restore(folder, out, secret, int(time.time()), moved=moved)
    except WrongPassphrase as error:
        raise hinted(error, "it is the one the keys were exported under") from None
    except Unavailable as error:
        raise hinted(error, "DIR must be an exported folder, --out one that does not exist yet") from None
    except (Malformed, Unverified) as error:
        raise hinted(error, "the folder was damaged or altered since it was exported; nothing was made") from None
    with made:
        rows: dict[str, output.Value] = {
            "id_sign": made.card.id_sign,
            "client_id": made.card.client_ids[0],
            "capabilities": len(list(made.caps)),
            "encrypted": encrypted,
            "moved": moved,
            "client": str(out),
        }
    output.facts(rows, as_json)
    if not moved and rows["capabilities"]:
        output.remark(
            f"hint: the capabilities are for the other's client_ids; ask for new ones with {out / 'card.cbor'}"
        )
