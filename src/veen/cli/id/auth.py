"""`veen id auth`: authenticate an account by challenge and signature. id-spec §9.2."""

import os
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, command, group
from veen.cli.cap import read
from veen.cli.id import principals
from veen.cli.id.principals import IdReading, Realm
from veen.cli.kit import open_session, output, output_files, read_state
from veen.cli.kit.client_options import PassphraseFile
from veen.cli.kit.common_options import ClientDir, JsonOption
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.read_state import StateAnswer
from veen.cli.kit.state_options import ReadOptions, read_command
from veen.cli.kit.values import moment
from veen.client import local_files
from veen.client.reader import Entry
from veen.core import CapToken, Mmr, Unavailable, Unverified, naming
from veen.overlays import identity, identity_views
from veen.overlays import identity_auth as challenges
from veen.overlays.identity import IDENTITY, IdentityOverlay, State
from veen.overlays.identity_auth import AuthPolicy, Challenge, ChallengeAnswer, IdentityGrant, authenticate
from veen.overlays.identity_events import OrgStream, PrincipalStream, device_id
from veen.overlays.identity_views import States
from veen.state.entry_source import EntrySource, HubSource
from veen.state.state_view import StateView

MAX_FILE_BYTES = 1 << 20
app = group(
    "auth",
    """Make a challenge, answer it with a device's key, and verify the answer.

    There are no stored passwords or sessions. A device with a capability of its principal proves by signing that it
    acts for the principal's account in the realm.
    """,
)

Audience: TypeAlias = Annotated[
    str, typer.Option("--audience", metavar="NAME", help="the public name of the service that asks")
]
OutFile: TypeAlias = Annotated[Path, typer.Option("--out", metavar="FILE", help="the file to write")]
ChallengeFile: TypeAlias = Annotated[Path, typer.Argument(metavar="CHALLENGE", help="file of veen id auth challenge")]


@command(app, "challenge", "veen id auth challenge --realm shop --audience shop.example --out asked")
def challenge(
    realm: Realm,
    audience: Audience,
    out: OutFile,
    lasts: Annotated[
        int, durations.whole_option("--lasts", least=1, most=300, help="how long an answer is accepted")
    ] = 120,
    as_json: JsonOption = False,
) -> None:
    """Make a challenge for one answer and a short time."""

    now = principals.now()
    made = Challenge(audience, principals.realm_of(realm), os.urandom(32), now, now + lasts)
    try:
        data = made.encode()
    except ValueError as error:
        raise Misuse(str(error), "give --audience the public name of your service") from None
    output_files.write_new(out, data)
    rows: dict[str, output.Value] = {"audience": audience, "realm_id": made.realm_id, "nonce": made.nonce}
    ends = {"expires_at": output.moment(made.expires_at)}
    output.facts({**rows, **ends, "file": str(out)}, as_json, {**rows, "expires_at": made.expires_at, "file": str(out)})


@command(app, "answer", "veen id auth answer asked --audience shop.example --cap phone.cap --out answered")
def answer(
    challenge_file: ChallengeFile,
    audience: Audience,
    cap: Annotated[
        Path, typer.Option("--cap", metavar="FILE", help="the capability that the principal granted to this device")
    ],
    out: OutFile,
    client: ClientDir = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a challenge with a device's key, if it names the expected audience.

    The capability must be for the long-term key of the client directory, as veen id device grant makes it.
    """

    output_files.check_new(out)
    found, tokens = _challenge(challenge_file), read(cap)
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
    options: ReadOptions,
    challenge_file: ChallengeFile,
    answer_file: Annotated[Path, typer.Argument(metavar="ANSWER", help="file of veen id auth answer")],
    streams: Annotated[
        list[str],
        typer.Option("--for", metavar="NAME", help="a stream that the capability must cover; can be repeated"),
    ],
    issued_at: Annotated[
        int | None,
        typer.Option(
            "--issued-at",
            metavar="TIME",
            help="when the capability's time to live started, in seconds since 1970 or as a date",
            show_default="from the hub's log",
            parser=moment,
        ),
    ] = None,
    org: Annotated[
        str | None,
        typer.Option("--org", metavar="HEX|PATH", help="the organization of the roles: org_id, directory or card"),
    ] = None,
    scoped: Annotated[bool, typer.Option("--scoped", help="use the organization's twin in the realm")] = False,
    role: Annotated[
        list[str] | None, typer.Option("--role", metavar="ROLE", help="a required role; can be repeated")
    ] = None,
) -> None:
    """Verify an answer to a challenge and show its account.

    The signature, the capability and the device must be valid and not revoked. Reads the principal's stream, and the
    organization's if roles are required. The service must accept only one answer per challenge.
    """

    found, answered = _challenge(challenge_file), _answer(answer_file)
    scope = None
    if org is not None:
        scope = OrgStream(principals.org_of(org, options.client), found.realm_id if scoped else None)
    wanted = frozenset(naming.stream_id(name) for name in streams)
    policy = AuthPolicy(found.realm_id, wanted, None if scope is None else scope.own_id, _roles(role, scope))
    token = answered.token
    overlay, stream = principals.folding(PrincipalStream(token.issuer_pk), options.stream)
    started, org_states = _start_and_org_states(options, token, issued_at, scope)

    def look(reading: IdReading) -> StateAnswer:
        states = identity_views.merge_states(dict(reading.states), org_states)
        session = challenges.verify(found, answered, policy, states, issued_at=started, now=principals.now())
        device = identity.part_key(identity.DEVICE, token.issuer_pk, _device_id(token))
        return principals.shown_session(session, (device,) if device in reading.states else ())

    read_state.show_state(options, overlay, look, stream=stream)


def _start_and_org_states(
    options: ReadOptions, token: CapToken, issued_at: int | None, scope: OrgStream | None
) -> tuple[int, States]:
    """Return the capability's start time and the organization's states, which are on other streams."""

    if issued_at is not None and (scope is None or options.stream is not None):
        return issued_at, {}
    overlay = IDENTITY if scope is None else IdentityOverlay(scope)
    stream = PrincipalStream(token.issuer_pk).stream_id if scope is None else scope.stream_id

    async def gather(view: StateView[State, State], name: str) -> tuple[int, States]:
        started = issued_at
        if started is None:
            started = (await principals.grant_of(view.source, token.auth_ref(), cached=not options.no_cache)).issued_at
        if scope is None or options.stream is not None:
            return started, {}
        async with view.reading() as reading:
            return started, dict(reading.states)

    return read_state.with_view(replace(options, at=None, prove=False, out=None), overlay, gather, stream=stream.hex())


def _roles(given: list[str] | None, scope: OrgStream | None) -> frozenset[str]:
    if given and scope is None:
        raise Misuse("--role needs an organization", "give --org HEX|PATH")
    return frozenset(given or ())


def _own_token(tokens: tuple[CapToken, ...], public_key: bytes) -> CapToken:
    for token in tokens:
        if token.subject_pk == public_key:
            return token
    hint = f"veen cap issue --issuer DIR --subject {public_key.hex()} makes one for this key"
    raise hinted(Unverified("capability", "no capability in the file is for the long-term key of this client"), hint)


def _device_id(token: CapToken) -> bytes:
    return device_id(token.subject_pk)


def _challenge(path: Path) -> Challenge:
    return Challenge.decode(local_files.read_file(path, MAX_FILE_BYTES))


def _answer(path: Path) -> ChallengeAnswer:
    return ChallengeAnswer.decode(local_files.read_file(path, MAX_FILE_BYTES))


@read_command(app, "message", "veen id auth message 12 --stream orders --realm shop --client shop")
def message(
    options: ReadOptions,
    seq: Annotated[str, typer.Argument(metavar="[EPOCH:]SEQ", help="the entry of the stream")],
    realm: Realm,
    people: Annotated[
        str | None,
        typer.Option(
            "--people", metavar="NAME", help="the stream of the principals", show_default="each principal's own stream"
        ),
    ] = None,
) -> None:
    """Show which account sent an entry of a stream.

    The signature, the capability and the device of the entry must be valid. The capability is looked up in the hub's
    own log, and the device on its principal's stream: now, or at --at.
    """

    entry, grant, label, name = _entry_and_grant(options, seq)
    policy = AuthPolicy(principals.realm_of(realm), frozenset({naming.stream_id(name)}))
    overlay, stream = principals.folding(PrincipalStream(grant.token.issuer_pk), people)

    def look(reading: IdReading) -> StateAnswer:
        states = dict(reading.states)
        session = authenticate(entry.msg, grant, policy, states, hub_ts=entry.hub_ts, labels=(label,))
        device = identity.part_key(identity.DEVICE, session.issuer_pk, device_id(session.subject_pk))
        return principals.shown_session(session, (device,) if device in states else ())

    read_state.show_state(replace(options, stream=people), overlay, look, stream=stream)


def _entry_and_grant(options: ReadOptions, seq: str) -> tuple[Entry, IdentityGrant, bytes, str]:
    """Return the entry, its capability, the stream's label in the entry's epoch, and the stream name."""

    async def gather(view: StateView[State, State], name: str) -> tuple[Entry, IdentityGrant, bytes, str]:
        at = read_state.parse_place(seq, view)
        assert at is not None
        entry = await _entry(view.source, view.stream_id, at.epoch, at.stream_seq)
        if entry.msg.auth_ref is None:
            hint = "only messages that are sent with a capability can be attributed"
            raise hinted(Unverified("auth", "the message names no capability"), hint)
        grant = await principals.grant_of(view.source, entry.msg.auth_ref, cached=not options.no_cache)
        return entry, grant, view.source.label(view.stream_id, at.epoch), name

    return read_state.with_view(replace(options, at=None, prove=False, out=None), IDENTITY, gather)


async def _entry(source: EntrySource, stream_id: bytes, epoch: int, stream_seq: int) -> Entry:
    """Read and verify one entry. A hub returns it directly; a data directory is read from the first entry on."""

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
    raise Unavailable(f"the stream has no entry {stream_seq}")
