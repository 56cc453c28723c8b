"""`veil contact`, `veil group` and `veil policy`: other nodes, shared secrets and trust."""

import io
import sys
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from plumbing.cli import ascii_fallback
from plumbing.cli.command import Misuse, command, group
from plumbing.cli.command import group as declare
from plumbing.cli.result_output import Value, document, facts, table
from veil.cli.options import DataDir, JsonOption, Namespace, client, remark
from veil.lanes.lane import library
from veil.runtime.contacts import Contact
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


contact_app = group(
    "contact",
    """Exchange contacts with other nodes, as text or as a QR code.

    A contact has the keys and endpoints of a node, signed by that node. Two nodes that have each other's contact can
    connect and authenticate each other. A contact is public and can travel by any means.
    """,
)


@command(contact_app, "show", "veil contact show", "veil contact show > alice.contact", "veil contact show --qr")
def show(
    given: DataDir = None,
    qr: Annotated[bool, typer.Option("--qr", help="print a QR code on the terminal")] = False,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="write a QR code to an SVG file")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the contact of this node, to pass on to others."""
    found = client(given).get("/v1/contacts/self")
    if not found["endpoints"]:
        remark("the contact has no endpoint: others cannot dial this node, but it can dial them")
    if qr or svg is not None:
        if svg is not None:
            write_svg(found["contact"], svg)
        if qr:
            sys.stdout.write(qr_text(found["contact"]))
    elif as_json:
        document(found)
    else:
        sys.stdout.write(found["contact"] + "\n")


@command(contact_app, "add", "veil contact add @bob.contact", "veil contact add veil:iAFYI… --name bob")
def add(
    contact: Annotated[
        str, typer.Argument(metavar="CONTACT", help="the text of a contact, @FILE, or - for standard input")
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="a local name for it")] = "",
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Add the contact of another node, and connect to it."""
    text = _text(contact)
    try:
        Contact.from_text(text)
    except Malformed as error:
        invalid = Malformed("contact", f"not a contact, or not complete: {error.reason}")
        invalid.add_note("copy the whole line that veil contact show prints on the other node")
        raise invalid from None
    found = client(given).post("/v1/contacts", contact=text, name=name)
    rows = {"name": found["name"], "pubkey": found["pubkey"], "endpoints": " ".join(found["endpoints"])}
    facts(rows, as_json, data=found)


@command(contact_app, "list", "veil contact list", "veil contact list --json")
def list_contacts(given: DataDir = None, as_json: JsonOption = False) -> None:
    """List the contacts of this node."""
    found = client(given).get("/v1/contacts")
    rows = [(one["name"], one["pubkey"], " ".join(one["endpoints"])) for one in found]
    table(("name", "pubkey", "endpoints"), rows, as_json, data=found)


@command(contact_app, "remove", "veil contact remove bob")
def remove(
    who: Annotated[str, typer.Argument(metavar="WHO", help="its name, or the first digits of its key")],
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a contact. The node no longer dials it."""
    facts(client(given).delete("/v1/contacts", contact=who), as_json)


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


group_app = declare(
    "group",
    """Share a secret with several nodes, and replace it when one leaves.

    A node that receives the secret is a member. A node that does not receive the next secret cannot read later
    messages of the group.
    """,
)

Name: TypeAlias = Annotated[str, typer.Argument(metavar="GROUP", help="its name, or the first digits of its id")]
_COLUMNS = ("name", "group_id", "generation")


@command(group_app, "create", "veil group create friends")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a local name for the group")],
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Create a group with this node as its first member."""
    _show(client(given).post("/v1/groups", name=name), as_json)


@command(group_app, "list", "veil group list", "veil group list --json")
def list_groups(given: DataDir = None, as_json: JsonOption = False) -> None:
    """List the groups that this node is in."""
    found = client(given).get("/v1/groups")
    table(_COLUMNS, [[one[column] for column in _COLUMNS] for one in found], as_json, data=found)


@command(group_app, "invite", "veil group invite friends bob")
def invite(
    group: Name,
    who: Annotated[str, typer.Argument(metavar="CONTACT", help="the contact to invite")],
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Send a contact the newest secret of a group, by private delivery."""
    facts(client(given).post("/v1/groups/invite", group=group, contact=who), as_json)


@command(group_app, "rotate", "veil group rotate friends --stay bob --stay carol")
def rotate(
    group: Name,
    stay: Annotated[list[str] | None, typer.Option("--stay", metavar="CONTACT", help="gets the new secret")] = None,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Replace the secret of a group, and send the new one to the contacts that stay."""
    _show(client(given).post("/v1/groups/rotate", group=group, stay=stay or []), as_json)


@command(group_app, "leave", "veil group leave friends")
def leave(group: Name, given: DataDir = None, as_json: JsonOption = False) -> None:
    """Leave a group and delete its secrets."""
    _show(client(given).post("/v1/groups/leave", group=group), as_json)


def _show(found: dict[str, str | int], as_json: bool) -> None:
    facts({column: found[column] for column in _COLUMNS}, as_json, data=found)


policy_app = group(
    "policy",
    """Set how far a node is trusted, and explain its tier.

    The tiers are trusted, known, unknown, muted and blocked. A tier that is not set by hand follows from the
    endorsements of trusted nodes.
    """,
)

Who: TypeAlias = Annotated[str, typer.Argument(metavar="WHO", help="a contact, or a key in hex")]


@command(policy_app, "list", "veil policy list", "veil policy list --json")
def list_tiers(given: DataDir = None, as_json: JsonOption = False) -> None:
    """List the tiers that were set by hand."""
    found = client(given).get("/v1/policy")
    rows = [(one["name"] or "", one["tier"], one["pubkey"]) for one in found]
    table(("name", "tier", "pubkey"), rows, as_json, data=found)


@command(policy_app, "set", "veil policy set bob trusted", "veil policy set bob none")
def set_tier(
    who: Who,
    tier: Annotated[
        str, typer.Argument(metavar="TIER", help="trusted, known, unknown, muted, blocked; none removes the setting")
    ],
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Set the tier of a node."""
    _explanation(client(given).post("/v1/policy", pubkey=who, tier=tier), as_json)


@command(policy_app, "explain", "veil policy explain bob", "veil policy explain --tag 9f2c… --namespace 1")
def explain(
    who: Annotated[
        str | None, typer.Argument(metavar="WHO", help="a contact, or a key in hex", show_default="none, with --tag")
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="HEX", help="explain a tag instead")] = None,
    namespace: Namespace = None,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Explain the tier of a node, or of the objects under a tag."""
    if (who is None) == (tag is None):
        raise Misuse(
            "missing WHO or --tag: give a node or a tag, not both",
            "veil policy explain bob, or veil policy explain --tag HEX",
        )
    _explanation(client(given).get("/v1/policy/explain", pubkey=who, tag=tag, namespace=namespace), as_json)


@command(policy_app, "endorse", "veil policy endorse bob")
def endorse(who: Who, given: DataDir = None, as_json: JsonOption = False) -> None:
    """Endorse a node publicly. Nodes that trust this one then give it a higher score."""
    facts(client(given).post("/v1/policy/endorse", pubkey=who), as_json)


def _explanation(found: dict[str, Value], as_json: bool) -> None:
    reasons = found["reasons"]
    joined = "; ".join(reasons) if isinstance(reasons, list) else ""
    facts({**found, "reasons": joined}, as_json, data=found)
