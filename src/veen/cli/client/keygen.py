"""`veen keygen`: make an identity."""

import time
from pathlib import Path
from typing import Annotated

import typer

from terminalface.command import command, single
from veen.cli import output
from veen.cli.client.options import NoPassphrase, PassphraseFile
from veen.cli.options import JsonOption

app = single("keygen")


@command(app, "keygen", "veen keygen --out alice", "veen keygen --out sensor --passphrase-file secret.txt")
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
    from veen.cli.client import passphrase
    from veen.cli.failures import hinted
    from veen.client import ClientDir
    from veen.core import Unavailable

    secret = passphrase.for_new(passphrase_file, no_passphrase, str(out))
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
