"""`veen id auth`: who someone is, shown by signing. id-spec §9.2."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from terminalface import durations
from terminalface.command import Misuse, command, group
from veen.cli.client.options import PassphraseFile
from veen.cli.options import ClientDir, JsonOption
from veen.cli.overlay.declaring import Reads, reads
from veen.cli.overlay.identity.whom import Realm
from veen.cli.values import moment

if TYPE_CHECKING:
    from veen.cli.overlay.asking import Answer as Shown
    from veen.cli.overlay.identity.whom import IdReading
    from veen.core import CapToken
    from veen.overlays.identity import Answer, Challenge, OrgStream
    from veen.overlays.identity.state import State
    from veen.overlays.identity.views import States
    from veen.state.view import View

MAX_FILE_BYTES = 1 << 20
app = group(
    "auth",
    """Ask who someone is, answer with a device's key, and check the answer.

    No password and no session is kept anywhere: a device that its principal gave leave, and that can sign, is that
    principal's account in the realm.
    """,
)

Audience: TypeAlias = Annotated[
    str, typer.Option("--audience", metavar="NAME", help="who asks, by the name that people know")
]
OutFile: TypeAlias = Annotated[Path, typer.Option("--out", metavar="FILE", help="the file to make")]
ChallengeFile: TypeAlias = Annotated[Path, typer.Argument(metavar="CHALLENGE", help="what veen id auth challenge made")]


@command(app, "challenge", "veen id auth challenge --realm shop --audience shop.example --out asked")
def challenge(
    realm: Realm,
    audience: Audience,
    out: OutFile,
    lasts: Annotated[
        int, durations.whole_option("--lasts", least=1, most=300, help="for how long an answer is taken")
    ] = 120,
    as_json: JsonOption = False,
) -> None:
    """Make a challenge, for one answer and a short time."""
    import os

    from veen.cli import output
    from veen.cli.client import files
    from veen.cli.overlay.identity import whom
    from veen.overlays.identity import Challenge

    now = whom.now()
    made = Challenge(audience, whom.realm_of(realm), os.urandom(32), now, now + lasts)
    try:
        data = made.encode()
    except ValueError as error:
        raise Misuse(str(error), "give --audience the name that people know you by") from None
    files.write_new(out, data)
    rows: dict[str, output.Value] = {"audience": audience, "realm_id": made.realm_id, "nonce": made.nonce}
    ends = {"expires_at": output.moment(made.expires_at)}
    output.facts({**rows, **ends, "file": str(out)}, as_json, {**rows, "expires_at": made.expires_at, "file": str(out)})


@command(app, "answer", "veen id auth answer asked --audience shop.example --cap phone.cap --out answered")
def answer(
    asked: ChallengeFile,
    audience: Audience,
    cap: Annotated[
        Path, typer.Option("--cap", metavar="FILE", help="leave that the principal gave to this device's key")
    ],
    out: OutFile,
    client: ClientDir = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a challenge with a device's key, after looking who asks.

    The capability is one for the long-term key of the client directory: veen id device grant makes it.
    """
    from veen.cli import output
    from veen.cli.client import calling, files
    from veen.cli.client.cap import read
    from veen.cli.overlay.identity import whom
    from veen.overlays.identity import challenge as challenges

    files.check_new(out)
    found, tokens = _challenge(asked), read(cap)
    with calling.opened(client, passphrase_file) as folder:
        key = folder.identity.id_sign
        token = _own_token(tokens, key.public_key)
        made = challenges.answer(found, key, token, audience=audience, now=whom.now())
    files.write_new(out, made.encode())
    rows: dict[str, output.Value] = {"device_pk": key.public_key, "issuer": token.issuer_pk, "file": str(out)}
    output.facts(rows, as_json)


@reads(
    app,
    "verify",
    "veen id auth verify asked answered --for orders --client shop",
    "veen id auth verify asked answered --for orders --org company.card --role clerk --json",
)
def verify(
    asked: Reads,
    challenge_file: ChallengeFile,
    answer_file: Annotated[Path, typer.Argument(metavar="ANSWER", help="what veen id auth answer made")],
    streams: Annotated[
        list[str],
        typer.Option("--for", metavar="NAME", help="a stream that the capability must cover; can be repeated"),
    ],
    issued_at: Annotated[
        int | None,
        typer.Option(
            "--issued-at",
            metavar="TIME",
            help="when the capability's time began, in seconds since 1970 or as a date",
            show_default="as the hub says",
            parser=moment,
        ),
    ] = None,
    org: Annotated[
        str | None, typer.Option("--org", metavar="HEX|PATH", help="whose roles are meant: org_id, directory or card")
    ] = None,
    scoped: Annotated[bool, typer.Option("--scoped", help="the organization's twin in the realm is meant")] = False,
    role: Annotated[
        list[str] | None, typer.Option("--role", metavar="ROLE", help="a role that is needed; can be repeated")
    ] = None,
) -> None:
    """Check an answer to a challenge, and say whose account it is.

    The signature, the capability and the device must hold, and nothing of them may be revoked. The principal's
    stream is read, and the organization's where roles are asked for. Take one answer to a challenge.
    """
    from veen.cli.overlay import asking
    from veen.cli.overlay.identity import grants, whom
    from veen.core import naming
    from veen.overlays.identity import OrgStream, Policy, PrincipalStream, parts, views
    from veen.overlays.identity import challenge as challenges

    found, answered = _challenge(challenge_file), _answer(answer_file)
    scope = None
    if org is not None:
        scope = OrgStream(whom.org_of(org, asked.client), found.realm_id if scoped else None)
    wanted = frozenset(naming.stream_id(name) for name in streams)
    policy = Policy(found.realm_id, wanted, None if scope is None else scope.own_id, _roles(role, scope))
    token = answered.token
    overlay, stream = whom.folding(PrincipalStream(token.issuer_pk), asked.stream)
    began, beside = _gathered(asked, token, issued_at, scope)

    def look(reading: "IdReading") -> "Shown":
        states = views.together(dict(reading.states), beside)
        session = challenges.verify(found, answered, policy, states, issued_at=began, now=whom.now())
        device = parts.device(token.issuer_pk, _device_id(token))
        return grants.shown(session, (device,) if device in reading.states else ())

    asking.answer(asked, overlay, look, stream=stream)


def _gathered(
    asked: Reads, token: "CapToken", issued_at: int | None, scope: "OrgStream | None"
) -> "tuple[int, States]":
    """When the capability's time began, and what the organization says: all that is not on the principal's stream."""
    from veen.cli.overlay import asking
    from veen.cli.overlay.identity import grants
    from veen.overlays.identity import IDENTITY, Identity, PrincipalStream

    if issued_at is not None and (scope is None or asked.stream is not None):
        return issued_at, {}
    overlay = IDENTITY if scope is None else Identity(scope)
    stream = PrincipalStream(token.issuer_pk).stream_id if scope is None else scope.stream_id

    async def gather(view: "View[State, State]", name: str) -> "tuple[int, States]":
        began = issued_at
        if began is None:
            began = (await grants.grant_of(view.source, token.auth_ref(), cached=not asked.no_cache)).issued_at
        if scope is None or asked.stream is not None:
            return began, {}
        async with view.reading() as reading:
            return began, dict(reading.states)

    return asking.viewing(replace(asked, at=None, prove=False, out=None), overlay, gather, stream=stream.hex())


def _roles(given: list[str] | None, scope: "OrgStream | None") -> frozenset[str]:
    if given and scope is None:
        raise Misuse("a role is of an organization", "give --org HEX|PATH")
    return frozenset(given or ())


def _own_token(tokens: "tuple[CapToken, ...]", public_key: bytes) -> "CapToken":
    from veen.cli.failures import hinted
    from veen.core import Unverified

    for token in tokens:
        if token.subject_pk == public_key:
            return token
    hint = f"veen cap issue --issuer DIR --subject {public_key.hex()} makes one for it"
    raise hinted(Unverified("capability", "none of these is for the long-term key of this client"), hint)


def _device_id(token: "CapToken") -> bytes:
    from veen.overlays.identity import device_id

    return device_id(token.subject_pk)


def _challenge(path: Path) -> "Challenge":
    from veen.client import durable
    from veen.overlays.identity import Challenge

    return Challenge.decode(durable.read_file(path, MAX_FILE_BYTES))


def _answer(path: Path) -> "Answer":
    from veen.client import durable
    from veen.overlays.identity import Answer

    return Answer.decode(durable.read_file(path, MAX_FILE_BYTES))
