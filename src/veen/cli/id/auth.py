"""`veen id auth`: who someone is, shown by signing. id-spec §9.2."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, command, group
from veen.cli.id.principals import Realm
from veen.cli.kit.client_options import PassphraseFile
from veen.cli.kit.common_options import ClientDir, JsonOption
from veen.cli.kit.state_options import ReadOptions, read_command
from veen.cli.kit.values import moment

if TYPE_CHECKING:
    from veen.cli.id.principals import IdReading
    from veen.cli.kit.read_state import StateAnswer
    from veen.cli.kit.read_state import StateAnswer as Shown
    from veen.client.entry import Entry
    from veen.core import CapToken
    from veen.overlays.identity import Challenge, ChallengeAnswer, IdentityGrant, OrgStream
    from veen.overlays.identity.identity_state import State
    from veen.overlays.identity.views import States
    from veen.state.entry_source import EntrySource
    from veen.state.state_view import StateView


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

    from veen.cli.id import principals
    from veen.cli.kit import output, output_files
    from veen.overlays.identity import Challenge

    now = principals.now()
    made = Challenge(audience, principals.realm_of(realm), os.urandom(32), now, now + lasts)
    try:
        data = made.encode()
    except ValueError as error:
        raise Misuse(str(error), "give --audience the name that people know you by") from None
    output_files.write_new(out, data)
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
    from veen.cli.cap import read
    from veen.cli.id import principals
    from veen.cli.kit import open_session, output, output_files
    from veen.overlays.identity import auth as challenges

    output_files.check_new(out)
    found, tokens = _challenge(asked), read(cap)
    with open_session.open_client_dir(client, passphrase_file) as folder:
        key = folder.identity.id_sign
        token = _own_token(tokens, key.public_key)
        made = challenges.answer(found, key, token, audience=audience, now=principals.now())
    output_files.write_new(out, made.encode())
    rows: dict[str, output.Value] = {"device_pk": key.public_key, "issuer": token.issuer_pk, "file": str(out)}
    output.facts(rows, as_json)


@read_command(
    app,
    "verify",
    "veen id auth verify asked answered --for orders --client shop",
    "veen id auth verify asked answered --for orders --org company.card --role clerk --json",
)
def verify(
    asked: ReadOptions,
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
    from veen.cli.id import principals
    from veen.cli.kit import read_state
    from veen.core import naming
    from veen.overlays.identity import AuthPolicy, OrgStream, PrincipalStream, identity_state, views
    from veen.overlays.identity import auth as challenges

    found, answered = _challenge(challenge_file), _answer(answer_file)
    scope = None
    if org is not None:
        scope = OrgStream(principals.org_of(org, asked.client), found.realm_id if scoped else None)
    wanted = frozenset(naming.stream_id(name) for name in streams)
    policy = AuthPolicy(found.realm_id, wanted, None if scope is None else scope.own_id, _roles(role, scope))
    token = answered.token
    overlay, stream = principals.folding(PrincipalStream(token.issuer_pk), asked.stream)
    began, beside = _gathered(asked, token, issued_at, scope)

    def look(reading: "IdReading") -> "Shown":
        states = views.merge_states(dict(reading.states), beside)
        session = challenges.verify(found, answered, policy, states, issued_at=began, now=principals.now())
        device = identity_state.device(token.issuer_pk, _device_id(token))
        return principals.shown_session(session, (device,) if device in reading.states else ())

    read_state.show_state(asked, overlay, look, stream=stream)


def _gathered(
    asked: ReadOptions, token: "CapToken", issued_at: int | None, scope: "OrgStream | None"
) -> "tuple[int, States]":
    """When the capability's time began, and what the organization says: all that is not on the principal's stream."""
    from veen.cli.id import principals
    from veen.cli.kit import read_state
    from veen.overlays.identity import IDENTITY, IdentityOverlay, PrincipalStream

    if issued_at is not None and (scope is None or asked.stream is not None):
        return issued_at, {}
    overlay = IDENTITY if scope is None else IdentityOverlay(scope)
    stream = PrincipalStream(token.issuer_pk).stream_id if scope is None else scope.stream_id

    async def gather(view: "StateView[State, State]", name: str) -> "tuple[int, States]":
        began = issued_at
        if began is None:
            began = (await principals.grant_of(view.source, token.auth_ref(), cached=not asked.no_cache)).issued_at
        if scope is None or asked.stream is not None:
            return began, {}
        async with view.reading() as reading:
            return began, dict(reading.states)

    return read_state.with_view(replace(asked, at=None, prove=False, out=None), overlay, gather, stream=stream.hex())


def _roles(given: list[str] | None, scope: "OrgStream | None") -> frozenset[str]:
    if given and scope is None:
        raise Misuse("a role is of an organization", "give --org HEX|PATH")
    return frozenset(given or ())


def _own_token(tokens: "tuple[CapToken, ...]", public_key: bytes) -> "CapToken":
    from veen.cli.kit.exit_status import hinted
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


def _answer(path: Path) -> "ChallengeAnswer":
    from veen.client import durable
    from veen.overlays.identity import ChallengeAnswer

    return ChallengeAnswer.decode(durable.read_file(path, MAX_FILE_BYTES))


@read_command(app, "message", "veen id auth message 12 --stream orders --realm shop --client shop")
def message(
    asked: ReadOptions,
    seq: Annotated[str, typer.Argument(metavar="[EPOCH:]SEQ", help="which entry of the stream")],
    realm: Realm,
    people: Annotated[
        str | None,
        typer.Option(
            "--people", metavar="NAME", help="where principals are kept", show_default="each on its own stream"
        ),
    ] = None,
) -> None:
    """Say whose account sent an entry of a stream.

    Its signature, its capability and its device must hold. The capability is looked up in the hub's own log, and
    the device on its principal's stream, as that is now or with --at as it was.
    """
    from veen.cli.id import principals
    from veen.cli.kit import read_state
    from veen.core import naming
    from veen.overlays.identity import AuthPolicy, PrincipalStream, authenticate, device_id, identity_state

    entry, grant, label, name = _gathered_messages(asked, seq)
    policy = AuthPolicy(principals.realm_of(realm), frozenset({naming.stream_id(name)}))
    overlay, stream = principals.folding(PrincipalStream(grant.token.issuer_pk), people)

    def look(reading: "IdReading") -> "StateAnswer":
        states = dict(reading.states)
        session = authenticate(entry.msg, grant, policy, states, hub_ts=entry.hub_ts, labels=(label,))
        device = identity_state.device(session.issuer_pk, device_id(session.subject_pk))
        return principals.shown_session(session, (device,) if device in states else ())

    read_state.show_state(replace(asked, stream=people), overlay, look, stream=stream)


def _gathered_messages(asked: ReadOptions, seq: str) -> "tuple[Entry, IdentityGrant, bytes, str]":
    """The entry, its capability, the label that its stream has then, and the stream."""
    from veen.cli.id import principals
    from veen.cli.kit import read_state
    from veen.cli.kit.exit_status import hinted
    from veen.core import Unverified
    from veen.overlays.identity import IDENTITY

    async def gather(view: "StateView[State, State]", name: str) -> "tuple[Entry, IdentityGrant, bytes, str]":
        at = read_state.parse_place(seq, view)
        assert at is not None
        entry = await _entry(view.source, view.stream_id, at.epoch, at.stream_seq)
        if entry.msg.auth_ref is None:
            hint = "only what is sent under a capability tells whose it is"
            raise hinted(Unverified("auth", "the message names no capability"), hint)
        grant = await principals.grant_of(view.source, entry.msg.auth_ref, cached=not asked.no_cache)
        return entry, grant, view.source.label(view.stream_id, at.epoch), name

    return read_state.with_view(replace(asked, at=None, prove=False, out=None), IDENTITY, gather)


async def _entry(source: "EntrySource", stream_id: bytes, epoch: int, stream_seq: int) -> "Entry":
    """One entry, verified: a hub gives it by itself, a directory in its turn."""
    from contextlib import aclosing

    from veen.core import Mmr, Unavailable
    from veen.state.hub_source import HubSource

    if isinstance(source, HubSource):
        reading = source.client.read(stream_id, stream_seq, stream_seq, epoch=epoch)
        async with aclosing(reading) as entries:
            async for entry in entries:
                return entry
    else:
        async with aclosing(source.read(stream_id, epoch, Mmr())) as pages:
            async for page in pages:
                for entry in page:
                    if entry.stream_seq == stream_seq:
                        return entry
    raise Unavailable(f"the stream has no entry {stream_seq} yet")
