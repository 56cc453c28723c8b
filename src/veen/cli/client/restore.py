"""`veen import-identity`: a client from the folder that another machine made."""

import time
from pathlib import Path
from typing import Annotated

import typer

from terminalface.command import command, single
from veen.cli import output
from veen.cli.client.options import PassphraseFile
from veen.cli.options import JsonOption

app = single("import-identity")


@command(
    app,
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
    from veen.cli.client import passphrase
    from veen.cli.failures import hinted
    from veen.client import WrongPassphrase, keystore
    from veen.client import import_identity as restore
    from veen.core import Malformed, Unavailable, Unverified

    try:
        encrypted = keystore.keystore_file(folder).name == keystore.ENCRYPTED
    except Unavailable as error:
        raise hinted(error, "veen export-identity makes such a folder") from None
    secret = passphrase.for_existing(passphrase_file, str(folder)) if encrypted else None
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
