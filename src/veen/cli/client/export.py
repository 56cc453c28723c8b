"""`veen export-identity`: a client as a folder that another machine can take up."""

import time
from pathlib import Path
from typing import Annotated

import typer

from terminalface.command import command, single
from veen.cli import output
from veen.cli.client.options import PassphraseFile
from veen.cli.options import ClientDir, JsonOption

app = single("export-identity")


@command(
    app,
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
    from veen.cli.client import calling, passphrase
    from veen.cli.failures import hinted
    from veen.client import export_identity as export
    from veen.core import Unavailable

    other = None if new_passphrase_file is None else passphrase.for_existing(new_passphrase_file, "")
    with calling.opened(client, passphrase_file) as folder:
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
