"""`veil contact`, `veil group` and `veil policy`: other nodes, shared secrets and trust."""

import io
import sys
from pathlib import Path
from typing import Annotated, TypeAlias

from plumbing.cli import ascii_fallback
from plumbing.cli.command import Misuse, argument, group, option
from plumbing.cli.result_output import Value, document
from veil.cli.options import Namespace, NodeOptions, node_command, remark
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


@node_command(contact_app, "show", "veil contact show", "veil contact show > alice.contact", "veil contact show --qr")
def show(
    node: NodeOptions,
    qr: Annotated[bool, option("--qr", "print a QR code on the terminal")] = False,
    svg: Annotated[Path | None, option("--svg FILE", "write a QR code to an SVG file")] = None,
) -> None:
    """Show the contact of this node, to pass on to others."""
    found = node.client().get("/v1/contacts/self")
    if not found["endpoints"]:
        remark("the contact has no endpoint: others cannot dial this node, but it can dial them")
    if qr or svg is not None:
        if svg is not None:
            write_svg(found["contact"], svg)
        if qr:
            sys.stdout.write(qr_text(found["contact"]))
    elif node.as_json:
        document(found)
    else:
        sys.stdout.write(found["contact"] + "\n")


@node_command(contact_app, "add", "veil contact add @bob.contact", "veil contact add veil:iAFYI… --name bob")
def add(
    node: NodeOptions,
    contact: Annotated[str, argument("CONTACT", "the text of a contact, @FILE, or - for standard input")],
    name: Annotated[str, option("--name NAME", "a local name for it")] = "",
) -> None:
    """Add the contact of another node, and connect to it."""
    text = _text(contact)
    try:
        Contact.from_text(text)
    except Malformed as error:
        invalid = Malformed("contact", f"not a contact, or not complete: {error.reason}")
        invalid.add_note("copy the whole line that veil contact show prints on the other node")
        raise invalid from None
    found = node.client().post("/v1/contacts", contact=text, name=name)
    rows = {"name": found["name"], "pubkey": found["pubkey"], "endpoints": " ".join(found["endpoints"])}
    node.facts(rows, found)


@node_command(contact_app, "list", "veil contact list", "veil contact list --json")
def list_contacts(node: NodeOptions) -> None:
    """List the contacts of this node."""
    found = node.client().get("/v1/contacts")
    rows = [(one["name"], one["pubkey"], " ".join(one["endpoints"])) for one in found]
    node.table(("name", "pubkey", "endpoints"), rows, found)


@node_command(contact_app, "remove", "veil contact remove bob")
def remove(node: NodeOptions, who: Annotated[str, argument("WHO", "its name, or the first digits of its key")]) -> None:
    """Remove a contact. The node no longer dials it."""
    node.facts(node.client().delete("/v1/contacts", contact=who))


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


group_app = group(
    "group",
    """Share a secret with several nodes, and replace it when one leaves.

    A node that receives the secret is a member. A node that does not receive the next secret cannot read later
    messages of the group.
    """,
)

Name: TypeAlias = Annotated[str, argument("GROUP", "its name, or the first digits of its id")]
_COLUMNS = ("name", "group_id", "generation")


@node_command(group_app, "create", "veil group create friends")
def create(node: NodeOptions, name: Annotated[str, argument("NAME", "a local name for the group")]) -> None:
    """Create a group with this node as its first member."""
    _show(node, node.client().post("/v1/groups", name=name))


@node_command(group_app, "list", "veil group list", "veil group list --json")
def list_groups(node: NodeOptions) -> None:
    """List the groups that this node is in."""
    found = node.client().get("/v1/groups")
    node.table(_COLUMNS, [[one[column] for column in _COLUMNS] for one in found], found)


@node_command(group_app, "invite", "veil group invite friends bob")
def invite(node: NodeOptions, group: Name, who: Annotated[str, argument("CONTACT", "the contact to invite")]) -> None:
    """Send a contact the newest secret of a group, by private delivery."""
    node.facts(node.client().post("/v1/groups/invite", group=group, contact=who))


@node_command(group_app, "rotate", "veil group rotate friends --stay bob --stay carol")
def rotate(
    node: NodeOptions,
    group: Name,
    stay: Annotated[list[str] | None, option("--stay CONTACT", "gets the new secret")] = None,
) -> None:
    """Replace the secret of a group, and send the new one to the contacts that stay."""
    _show(node, node.client().post("/v1/groups/rotate", group=group, stay=stay or []))


@node_command(group_app, "leave", "veil group leave friends")
def leave(node: NodeOptions, group: Name) -> None:
    """Leave a group and delete its secrets."""
    _show(node, node.client().post("/v1/groups/leave", group=group))


def _show(node: NodeOptions, found: dict[str, str | int]) -> None:
    node.facts({column: found[column] for column in _COLUMNS}, found)


policy_app = group(
    "policy",
    """Set how far a node is trusted, and explain its tier.

    The tiers are trusted, known, unknown, muted and blocked. A tier that is not set by hand follows from the
    endorsements of trusted nodes.
    """,
)

Who: TypeAlias = Annotated[str, argument("WHO", "a contact, or a key in hex")]


@node_command(policy_app, "list", "veil policy list", "veil policy list --json")
def list_tiers(node: NodeOptions) -> None:
    """List the tiers that were set by hand."""
    found = node.client().get("/v1/policy")
    rows = [(one["name"] or "", one["tier"], one["pubkey"]) for one in found]
    node.table(("name", "tier", "pubkey"), rows, found)


@node_command(policy_app, "set", "veil policy set bob trusted", "veil policy set bob none")
def set_tier(
    node: NodeOptions,
    who: Who,
    tier: Annotated[str, argument("TIER", "trusted, known, unknown, muted, blocked; none removes the setting")],
) -> None:
    """Set the tier of a node."""
    _explanation(node, node.client().post("/v1/policy", pubkey=who, tier=tier))


@node_command(policy_app, "explain", "veil policy explain bob", "veil policy explain --tag 9f2c… --namespace 1")
def explain(
    node: NodeOptions,
    who: Annotated[str | None, argument("WHO", "a contact, or a key in hex", default="none, with --tag")] = None,
    tag: Annotated[str | None, option("--tag HEX", "explain a tag instead")] = None,
    namespace: Namespace = None,
) -> None:
    """Explain the tier of a node, or of the objects under a tag."""
    if (who is None) == (tag is None):
        raise Misuse(
            "missing WHO or --tag: give a node or a tag, not both",
            "veil policy explain bob, or veil policy explain --tag HEX",
        )
    _explanation(node, node.client().get("/v1/policy/explain", pubkey=who, tag=tag, namespace=namespace))


@node_command(policy_app, "endorse", "veil policy endorse bob")
def endorse(node: NodeOptions, who: Who) -> None:
    """Endorse a node publicly. Nodes that trust this one then give it a higher score."""
    node.facts(node.client().post("/v1/policy/endorse", pubkey=who))


def _explanation(node: NodeOptions, found: dict[str, Value]) -> None:
    reasons = found["reasons"]
    joined = "; ".join(reasons) if isinstance(reasons, list) else ""
    node.facts({**found, "reasons": joined}, found)
