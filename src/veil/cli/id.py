"""`veil id`: who a node is."""

from typing import Annotated

import typer

from plumbing.cli.command import command, group
from veil.cli import output
from veil.cli.options import DataDir, JsonOption, Namespace, client, data_dir

app = group("id", "Show who this node is, and the tags of its feeds.")


@command(app, "show", "veil id show", "veil id show --json")
def show(given: DataDir = None, as_json: JsonOption = False) -> None:
    """Show the public keys and name of a node, whether it runs or not."""
    from veil.lanes import Certificate
    from veil.runtime import keyring
    from veil.runtime.data_directory import Folder

    folder = Folder(data_dir(given))
    ring = keyring.load(folder)
    rows: dict[str, output.Value] = {
        "name": ring.name,
        "pubkey": ring.signing.public_key,
        "delivery_pubkey": ring.delivery.public_key,
        "pin": Certificate.load_or_make(folder.certificate).pin,
        "groups": len(ring.groups),
    }
    output.facts(rows, as_json)


@command(app, "tag", "veil id tag", "veil id tag bob --namespace 40")
def tag(
    who: Annotated[str, typer.Argument(metavar="WHO", help="a contact or key", show_default="this node")] = "self",
    namespace: Namespace = None,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Show the tag of a feed: whoever has it can read the feed, and nobody needs more."""
    with client(given) as api:
        output.facts(api.get("/v1/tag", publisher=who, namespace=namespace), as_json)
