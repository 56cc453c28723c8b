"""`veil contact`: exchange contacts with other nodes."""

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
from veil.veil_errors import Malformed


def qr_text(text: str) -> str:
    """A QR code for a terminal, drawn with block characters, or with colours if the terminal has no such characters."""
    segno = library("segno", "QR code")
    out = io.StringIO()
    segno.make(text, error="l", micro=False).terminal(out, compact=not ascii_fallback.needs_ascii(sys.stdout))
    return out.getvalue()


def write_svg(text: str, path: Path) -> None:
    segno = library("segno", "QR code")
    with path.open("wb") as file:
        segno.make(text, error="l", micro=False).save(file, kind="svg", scale=4)


app = group(
    "contact",
    """Exchange contacts with other nodes, as text or as a QR code.

    A contact has the keys and endpoints of a node, signed by that node. Two nodes that have each other's contact can
    connect and authenticate each other. A contact is public and can travel by any means.
    """,
)


@command(app, "show", "veil contact show", "veil contact show > alice.contact", "veil contact show --qr")
def show(
    given: DataDir = None,
    qr: Annotated[bool, typer.Option("--qr", help="print a QR code on the terminal")] = False,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="write a QR code to an SVG file")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the contact of this node, to pass on to others."""
    with client(given) as api:
        found = api.get("/v1/contacts/self")
    if not found["endpoints"]:
        output.remark("the contact has no endpoint: others cannot dial this node, but it can dial them")
    if qr or svg is not None:
        if svg is not None:
            write_svg(found["contact"], svg)
        if qr:
            sys.stdout.write(qr_text(found["contact"]))
    elif as_json:
        output.document(found)
    else:
        sys.stdout.write(found["contact"] + "\n")


@command(app, "add", "veil contact add @bob.contact", "veil contact add veil:iAFYI… --name bob")
def add(
    contact: Annotated[
        str, typer.Argument(metavar="CONTACT", help="the text of a contact, @FILE, or - for standard input")
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="a local name for it")] = "",
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Add the contact of another node, and connect to it."""
    from veil.runtime.contacts import Contact

    text = _text(contact)
    try:
        Contact.from_text(text)
    except Malformed as error:
        invalid = Malformed("contact", f"not a contact, or not complete: {error.reason}")
        invalid.add_note("copy the whole line that veil contact show prints on the other node")
        raise invalid from None
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
    """Remove a contact. The node no longer dials it."""
    with client(given) as api:
        output.facts(api.delete("/v1/contacts", contact=who), as_json)


def _text(given: str) -> str:
    if given == "-":
        return sys.stdin.read().strip()
    if given.startswith("@"):
        return Path(given[1:]).read_text("utf-8").strip()
    if not given.startswith("veil:"):
        raise Misuse(
            f"{given!r} is not a contact: a contact starts with veil:",
            "give its text, @FILE for a file, or - for standard input",
        )
    return given
