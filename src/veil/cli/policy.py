"""`veil policy`: how far others are trusted, which is for each node to say for itself."""

from typing import Annotated, TypeAlias

import typer

from plumbing.cli.command import Misuse, command, group
from veil.cli import output
from veil.cli.options import DataDir, JsonOption, Namespace, client

app = group(
    "policy",
    """Say how far a node is trusted, and see why it is treated as it is.

    The tiers are trusted, known, unknown, muted and blocked. What is not set by hand follows from the endorsements of
    those who are trusted.
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
        str, typer.Argument(metavar="TIER", help="trusted, known, unknown, muted, blocked; none leaves it open")
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
    tag: Annotated[str | None, typer.Option("--tag", metavar="HEX", help="what comes under a tag, instead")] = None,
    namespace: Namespace = None,
    given: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a node, or what comes under a tag, is treated as it is."""
    if (who is None) == (tag is None):
        raise Misuse("give a node or a tag", "veil policy explain bob, or veil policy explain --tag HEX")
    with client(given) as api:
        _explanation(api.get("/v1/policy/explain", pubkey=who, tag=tag, namespace=namespace), as_json)


@command(app, "endorse", "veil policy endorse bob")
def endorse(who: Who, given: DataDir = None, as_json: JsonOption = False) -> None:
    """Vouch for a node, publicly: others who trust this one then know it better."""
    with client(given) as api:
        output.facts(api.post("/v1/policy/endorse", pubkey=who), as_json)


def _explanation(found: dict[str, output.Value], as_json: bool) -> None:
    reasons = found["reasons"]
    told = "; ".join(reasons) if isinstance(reasons, list) else ""
    output.facts({**found, "reasons": told}, as_json, data=found)
