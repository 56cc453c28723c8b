"""`veen card`: an identity card."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terminalface.command import Misuse, command, single
from veen.cli import output
from veen.cli.client.options import PassphraseFile
from veen.cli.options import ClientDir, JsonOption

if TYPE_CHECKING:
    from veen.client import Card

app = single("card")


@command(app, "card", "veen card --client alice", "veen card alice.card --json", "veen card --renew --out alice.card")
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
    from veen.cli import contextfile
    from veen.cli.client import calling, cards, files

    if renew and file is not None:
        raise Misuse("only the owner of a card can renew it", "leave out FILE; --client says whose it is")
    if out is not None:
        files.check_new(out)
    if renew:
        with calling.opened(client, passphrase_file) as folder:
            folder.renew_card(int(time.time()))
    found = cards.read(file if file is not None else contextfile.need_client(client))
    if out is not None:
        files.write_new(out, found.encode())
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
