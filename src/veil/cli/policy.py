"""`veil policy`: trust tiers of other nodes. Each node decides for itself."""

from typing import Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse, command, group
from veil.cli import output
from veil.cli.options import DataDir, JsonOption, Namespace, client

app = group(
    "policy",
    """Set how far a node is trusted, and explain its tier.

    The tiers are trusted, known, unknown, muted and blocked. A tier that is not set by hand follows from the
    endorsements of trusted nodes.
    """,
)

Who: TypeAlias = Annotated[str, typer.Argument(metavar="WHO", help="a contact, or a key in hex")]


@command(app, "list", "veil policy list", "veil policy list --json")
def list_(given: DataDir = None, as_json: JsonOption = False) -> None:
    """List the tiers that were set by hand."""
    with client(given) as api:
        found = api.get("/v1/policy")
    rows = [(one["name"] or "", one["tier"], one["pubkey"]) for one in found]
    output.table(("name", "tier", "pubkey"), rows, as_json, data=found)


@command(app, "set", "veil policy set bob trusted", "veil policy set bob none")
def set_(
    who: Who,
    tier: Annotated[
        str, typer.Argument(metavar="TIER", help="trusted, known, unknown, muted, blocked; none removes the setting")
    ],
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Set the tier of a node."""
    with client(given) as api:
        _explanation(api.post("/v1/policy", pubkey=who, tier=tier), as_json)


@command(app, "explain", "veil policy explain bob", "veil policy explain --tag 9f2c… --namespace 1")
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
    with client(given) as api:
        _explanation(api.get("/v1/policy/explain", pubkey=who, tag=tag, namespace=namespace), as_json)


@command(app, "endorse", "veil policy endorse bob")
def endorse(who: Who, given: DataDir = None, as_json: JsonOption = False) -> None:
    """Endorse a node publicly. Nodes that trust this one then give it a higher score."""
    with client(given) as api:
        output.facts(api.post("/v1/policy/endorse", pubkey=who), as_json)


def _explanation(found: dict[str, output.Value], as_json: bool) -> None:
    reasons = found["reasons"]
    joined = "; ".join(reasons) if isinstance(reasons, list) else ""
    output.facts({**found, "reasons": joined}, as_json, data=found)
