"""`veil contact`: what nodes know of each other."""

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from plumbing.cli import ascii_fallback
from plumbing.cli.command import Misuse, command, group
from veil.cli import output
from veil.cli.options import DataDir, JsonOption, client
from veil.lanes.lane import library


def for_terminal(text: str) -> str:
    segno = library("segno", "QR code")
    out = io.StringIO()
    # The compact form is drawn with blocks, the other with colours.
    segno.make(text, error="l", micro=False).terminal(out, compact=not ascii_fallback.needs_ascii(sys.stdout))
    return out.getvalue()


def write_svg(text: str, path: Path) -> None:
    segno = library("segno", "QR code")
    with path.open("wb") as file:
        segno.make(text, error="l", micro=False).save(file, kind="svg", scale=4)


app = group(
    "contact",
    """Exchange contacts with other nodes, as text or as a QR code.

    A contact is signed by the node it is about. It tells how to seal for it and where it is reached, so two nodes that
    have each other's, by whatever way, find and know each other.
    """,
)


@command(app, "show", "veil contact show", "veil contact show > alice.contact", "veil contact show --qr")
def show(
    given: DataDir = None,
    qr: Annotated[bool, typer.Option("--qr", help="as a QR code, on the terminal")] = False,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="as a QR code, into an SVG file")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the contact of this node, to be given to others."""
    import sys

    with client(given) as api:
        found = api.get("/v1/contacts/self")
    if not found["endpoints"]:
        output.remark("it names no endpoint: others cannot dial this node, but it can dial them")
    if qr or svg is not None:
        if svg is not None:
            write_svg(found["contact"], svg)
        if qr:
            sys.stdout.write(for_terminal(found["contact"]))
    elif as_json:
        output.document(found)
    else:
        sys.stdout.write(found["contact"] + "\n")


@command(app, "add", "veil contact add @bob.contact", "veil contact add veil:iAFYI… --name bob")
def add(
    contact: Annotated[str, typer.Argument(metavar="CONTACT", help="its text, @FILE, or - for standard input")],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="what to call it here")] = "",
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Take in the contact of another node, and keep a way open to it."""
    from veil.runtime.contacts import Contact
    from veil.veil_errors import Malformed

    text = _text(contact)
    try:
        Contact.from_text(text)
    except Malformed as error:
        wrong = Malformed("contact", f"this is none, or not all of one: {error.reason}")
        wrong.add_note("copy it whole, as veil contact show prints it on the node that it is of")
        raise wrong from None
    with client(given) as api:
        found = api.post("/v1/contacts", contact=text, name=name)
    rows = {"name": found["name"], "pubkey": found["pubkey"], "endpoints": " ".join(found["endpoints"])}
    output.facts(rows, as_json, data=found)


@command(app, "list", "veil contact list", "veil contact list --json")
def list_(given: DataDir = None, as_json: JsonOption = False) -> None:
    """List the contacts of this node."""
    with client(given) as api:
        found = api.get("/v1/contacts")
    rows = [(one["name"], one["pubkey"], " ".join(one["endpoints"])) for one in found]
    output.table(("name", "pubkey", "endpoints"), rows, as_json, data=found)


@command(app, "remove", "veil contact remove bob")
def remove(
    who: Annotated[str, typer.Argument(metavar="WHO", help="its name, or the first digits of its key")],
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Forget a contact; it is not dialled any more."""
    with client(given) as api:
        output.facts(api.delete("/v1/contacts", contact=who), as_json)


def _text(given: str) -> str:
    import sys

    if given == "-":
        return sys.stdin.read().strip()
    if given.startswith("@"):
        return Path(given[1:]).read_text("utf-8").strip()
    if not given.startswith("veil:"):
        raise Misuse("a contact starts with veil:", "give its text, @FILE for a file, or - for standard input")
    return given
