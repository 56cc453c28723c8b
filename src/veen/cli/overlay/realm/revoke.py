"""`veen revoke`: keys and capabilities that are not to be admitted any more."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from terminalface import durations
from terminalface.command import group
from veen.cli.overlay import faults
from veen.cli.overlay.declaring import taking
from veen.cli.overlay.realm.options import From, RealmReads, RealmSays

if TYPE_CHECKING:
    from veen.cli.overlay.asking import Answer, Basis
    from veen.cli.overlay.realm.realm import AdminStream, Look
    from veen.cli.overlay.realm.saying import Saying
    from veen.overlays.admin.records import Record
    from veen.overlays.admin.revocation import Revocation
    from veen.state.source import Source

    Records: TypeAlias = tuple[Record[Revocation], ...]
    Looked: TypeAlias = Look[Records, Records]

app = group(
    "revoke",
    """Revoke client keys and capabilities, for a time or for good.

    A revocation is an entry of the realm's log: anyone may read it, and nobody can take it back. A hub that was made
    with --realm refuses what is revoked there; elsewhere, readers and clients go by it.
    """,
)

Reason: TypeAlias = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="why, for whoever reads it")]
Ttl: TypeAlias = Annotated[
    int | None, durations.whole_option("--ttl", least=1, help="for how long", show_default="for good")
]


@taking(
    RealmSays,
    app,
    "client-id",
    "veen revoke client-id alice.card --reason 'laptop stolen' --cap admin.cap",
    "veen revoke client-id 25fe51b6… --ttl 3600",
)
def client_id(
    asked: RealmSays,
    who: Annotated[
        str, typer.Argument(metavar="HEX|DIR|FILE", help="a client_id, or whose: a client directory or card")
    ],
    reason: Reason = None,
    since: From = None,
    ttl: Ttl = None,
) -> None:
    """Revoke a client key, so that nothing it signs is admitted.

    A client changes its client_id every day. A card lists the next ones, and all of them are revoked.
    """
    from veen.cli.overlay.realm import targets

    _revoke(asked, "client-id", targets.client_ids(who), reason, since, ttl)


@taking(
    RealmSays,
    app,
    "auth-ref",
    "veen revoke auth-ref 9f0c2b71… --reason 'left the company' --cap admin.cap",
    "veen revoke auth-ref alice.cap --from 2030-01-31 --ttl 86400",
)
def auth_ref(
    asked: RealmSays,
    what: Annotated[str, typer.Argument(metavar="HEX|FILE", help="an auth_ref, or a file that veen cap issue made")],
    reason: Reason = None,
    since: From = None,
    ttl: Ttl = None,
) -> None:
    """Revoke a capability by the name that messages refer to it by."""
    from veen.cli.overlay.realm import targets

    _revoke(asked, "auth-ref", targets.auth_refs(what), reason, since, ttl)


@taking(
    RealmSays,
    app,
    "cap-token",
    "veen revoke cap-token alice.cap --reason 'issued by mistake' --cap admin.cap",
    "veen revoke cap-token 77b0e4c1…",
)
def cap_token(
    asked: RealmSays,
    what: Annotated[
        str, typer.Argument(metavar="HEX|FILE", help="a file that veen cap issue made, or the hash of a token")
    ],
    reason: Reason = None,
    since: From = None,
    ttl: Ttl = None,
) -> None:
    """Revoke a capability by the hash of its token: each token in the file."""
    from veen.cli.overlay.realm import targets

    _revoke(asked, "cap-token", targets.token_hashes(what), reason, since, ttl)


def _revoke(
    asked: RealmSays, kind: str, named: Sequence[bytes], reason: str | None, since: int | None, ttl: int | None
) -> None:
    from veen.cli import output
    from veen.cli.overlay.realm import realm, saying
    from veen.overlays.admin import Revocation

    def make(look: "Looked") -> "list[Saying]":
        made = []
        for target in named:
            event = Revocation(kind, target, reason, look.now if since is None else since, ttl)
            shown: dict[str, output.Value] = {
                "kind": kind,
                "target": target,
                "from": output.moment(event.ts),
                "until": "for good" if event.end is None else output.moment(event.end),
            }
            data = {"kind": kind, "target": target, "reason": reason, "ts": event.ts, "ttl": ttl}
            made.append(saying.Saying(event, target, shown, {**data, "realm_id": look.realm_id}))
        return made

    saying.say(asked, realm.REVOKED, make)


@taking(
    RealmReads, app, "list", "veen revoke list", "veen revoke list --when 2030-01-31 --json", "veen revoke list --all"
)
def list_(
    asked: RealmReads,
    every: Annotated[bool, typer.Option("--all", help="also what is over, or is yet to begin")] = False,
) -> None:
    """List what is revoked, now or at any other time."""
    from veen.cli import output
    from veen.cli.client.showing import printable, short
    from veen.cli.overlay import asking
    from veen.cli.overlay.realm import realm
    from veen.overlays.admin import revocation

    def look(here: "Looked") -> "Answer":
        rows, data, parts = [], [], []
        for part, state in sorted(here.reading.states.items()):
            kind, target = revocation.target_of_part(part)
            for record in state:
                said, holds = record.said, record.said.applies_at(here.now)
                if not holds and not every:
                    continue
                parts.append(part)
                until = "for good" if said.end is None else output.moment(said.end)
                reason = None if said.reason is None else printable(said.reason)
                rows.append((str(kind), short(target), output.moment(said.ts), until, reason, record.stream_seq))
                data.append(
                    {
                        "kind": kind,
                        "target": target,
                        "from": said.ts,
                        "until": said.end,
                        "reason": said.reason,
                        "holds": holds,
                        **record.where(),
                    }
                )
        columns = ("kind", "target", "from", "until", "reason", "entry")
        told = {"realm_id": here.realm_id, "when": here.now, "revocations": data}
        return asking.Answer(columns=columns, rows=rows, data=told, parts=tuple(dict.fromkeys(parts)))

    realm.answer(asked, realm.REVOKED, look)


@taking(
    RealmReads,
    app,
    "check",
    "veen revoke check",
    "veen revoke check alice.cap --when 2030-01-31",
    "veen revoke check 9f0c2b71… --data-dir hub --prove",
)
def check(
    asked: RealmReads,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="HEX|FILE",
            help="a client_id, auth_ref or token hash, or a file that veen cap issue made",
            show_default="the keys and capabilities of this client",
        ),
    ] = None,
) -> None:
    """Tell what a key or a capability is worth at a hub, now or at any other time.

    A capability is valid from when the hub was first shown it until its time is over, unless it or its subject is
    revoked. What the hub was shown is in its own log, which anyone may read. With --prove, the entry that decides.
    """
    from veen.cli.client import files
    from veen.cli.overlay import telling
    from veen.cli.overlay.realm import realm, standing

    if asked.out is not None:
        files.check_new(asked.out)

    async def work(source: "Source") -> "tuple[Answer, Basis]":
        return await standing.check(source, asked, what)

    found, basis = realm.visiting(asked, work)
    telling.tell(found, basis, asked)


def _stream() -> "AdminStream[Records, Records]":
    from veen.cli.overlay.realm import realm

    return realm.REVOKED


faults.add_of_realm(app, "veen revoke", _stream)
