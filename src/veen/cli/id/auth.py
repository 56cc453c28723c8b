"""`veen id auth`: authenticate an account by challenge and signature. id-spec §9.2."""

import os
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, TypeAlias

from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, command, group, misuse, option, options_command
from veen.cli.id import principals
from veen.cli.id.principals import Realm
from veen.cli.kit import key_files, output_files
from veen.cli.kit.common_options import ClientOptions, JsonOption
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Moment, Result
from veen.cli.kit.state_session import Answer, ReadSession, parse_place, read_command
from veen.cli.kit.values import moment
from veen.client import local_files
from veen.client.capabilities import tokens_of
from veen.client.reader import Entry
from veen.core import CapToken, Mmr, Unavailable, Unverified, naming
from veen.overlays import identity, identity_views
from veen.overlays import identity_auth as challenges
from veen.overlays.identity import IDENTITY, IdentityOverlay
from veen.overlays.identity_auth import AuthPolicy, Challenge, ChallengeAnswer, IdentityGrant, authenticate
from veen.overlays.identity_events import OrgStream, PrincipalStream, device_id
from veen.state.entry_source import EntrySource, HubSource

MAX_FILE_BYTES = 1 << 20
app = group(
    "auth",
    """Make a challenge, answer it with a device's key, and verify the answer.

    There are no stored passwords or sessions. A device with a capability of its principal proves by signing that it
    acts for the principal's account in the realm.
    """,
)

Audience: TypeAlias = Annotated[str, option("--audience NAME", "the public name of the service that asks")]
OutFile: TypeAlias = Annotated[Path, option("--out FILE", "the file to write")]
ChallengeFile: TypeAlias = Annotated[Path, argument("CHALLENGE", "file of veen id auth challenge")]


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
    made = Challenge(audience, realm, os.urandom(32), now, now + lasts)
    with misuse("give --audience the public name of your service"):
        data = made.encode()
    output_files.write_new(out, data)
    shown = {"audience": audience, "realm_id": realm, "nonce": made.nonce, "expires_at": Moment(made.expires_at)}
    Result({**shown, "file": str(out)}).show(as_json)


@options_command(
    ClientOptions, app, "answer", "veen id auth answer asked --audience shop.example --cap phone.cap --out answered"
)
def answer(
    options: ClientOptions,
    challenge_file: ChallengeFile,
    audience: Audience,
    cap: Annotated[Path, option("--cap FILE", "the capability that the principal granted to this device")],
    out: OutFile,
) -> None:
    """Answer a challenge with a device's key, if it names the expected audience.

    The capability must be for the long-term key of the client directory, as veen id device grant makes it.
    """
    output_files.check_new(out)
    found, tokens = _challenge(challenge_file), tokens_of(key_files.read_capabilities(cap))
    with options.open() as folder:
        key = folder.identity.id_sign
        token = _own_token(tokens, key.public_key)
        made = challenges.answer(found, key, token, audience=audience, now=principals.now())
    output_files.write_new(out, made.encode())
    Result({"device_pk": key.public_key, "issuer": token.issuer_pk, "file": str(out)}).show(options.as_json)


@read_command(
    app,
    "verify",
    "veen id auth verify asked answered --for orders --client shop",
    "veen id auth verify asked answered --for orders --org company.card --role clerk --json",
)
async def verify(
    session: ReadSession,
    challenge_file: ChallengeFile,
    answer_file: Annotated[Path, argument("ANSWER", "file of veen id auth answer")],
    streams: Annotated[list[str], option("--for NAME", "a stream that the capability must cover; can be repeated")],
    issued_at: Annotated[
        int | None,
        option(
            "--issued-at TIME",
            "when the capability's time to live started, in seconds since 1970 or as a date",
            default="from the hub's log",
            parser=moment,
        ),
    ] = None,
    org: Annotated[
        bytes | None,
        option(
            "--org HEX|PATH",
            "the organization of the roles: org_id, directory or card",
            parser=principals.org_id_of,
        ),
    ] = None,
    scoped: Annotated[bool, option("--scoped", "use the organization's twin in the realm")] = False,
    role: Annotated[list[str] | None, option("--role ROLE", "a required role; can be repeated")] = None,
) -> Answer:
    """Verify an answer to a challenge and show its account.

    The signature, the capability and the device must be valid and not revoked. Reads the principal's stream, and the
    organization's if roles are required. The service must accept only one answer per challenge.
    """
    if role and org is None:
        raise Misuse("--role needs an organization", "give --org HEX|PATH")
    found = _challenge(challenge_file)
    answered = ChallengeAnswer.decode(local_files.read_file(answer_file, MAX_FILE_BYTES))
    token, org_states = answered.token, {}
    if org is not None and session.options.stream is None:  # else the organization is on the same stream
        scope = OrgStream(org, found.realm_id if scoped else None)
        org_states = dict((await session.open_other(IdentityOverlay(scope), scope.stream_id.hex())).states)
    if issued_at is None:
        grant = await principals.grant_of(session, token.auth_ref())
    else:
        grant = IdentityGrant(token, issued_at)
    state = await principals.open_scope(session, PrincipalStream(token.issuer_pk))
    states = identity_views.merge_states(dict(state.states), org_states)
    wanted = frozenset(naming.stream_id(name) for name in streams)
    org_id = None if org is None else OrgStream(org, found.realm_id if scoped else None).own_id
    policy = AuthPolicy(found.realm_id, wanted, org_id, frozenset(role or ()))
    validity = {"issued_at": grant.issued_at, "not_after": grant.not_after}
    proven = challenges.verify(found, answered, policy, states, **validity, now=principals.now())
    device = identity.part_key(identity.DEVICE, token.issuer_pk, device_id(token.subject_pk))
    return principals.shown_session(proven, (device,) if device in state.states else ())


@read_command(app, "message", "veen id auth message 12 --stream orders --realm shop --client shop")
async def message(
    session: ReadSession,
    seq: Annotated[str, argument("[EPOCH:]SEQ", "the entry of the stream")],
    realm: Realm,
    people: Annotated[
        str | None,
        option("--people NAME", "the stream of the principals", default="each principal's own stream"),
    ] = None,
) -> Answer:
    """Show which account sent an entry of a stream.

    The signature, the capability and the device of the entry must be valid. The capability is looked up in the hub's
    own log, and the device on its principal's stream: now, or at --at.
    """
    view = await session.view(IDENTITY, session.stream())
    at = parse_place(seq, view)
    assert at is not None
    entry = await _entry(view.source, view.stream_id, at.epoch, at.stream_seq)
    if entry.msg.auth_ref is None:
        hint = "only messages that are sent with a capability can be attributed"
        raise hinted(Unverified("auth", "the message names no capability"), hint)
    grant = await principals.grant_of(session, entry.msg.auth_ref)
    label = view.source.label(view.stream_id, at.epoch)
    overlay, stream = principals.folding(PrincipalStream(grant.token.issuer_pk), people)
    state = await session.open_at(overlay, people or stream or "")
    policy = AuthPolicy(realm, frozenset({view.stream_id}))
    proven = authenticate(entry.msg, grant, policy, dict(state.states), hub_ts=entry.hub_ts, labels=(label,))
    device = identity.part_key(identity.DEVICE, proven.issuer_pk, device_id(proven.subject_pk))
    return principals.shown_session(proven, (device,) if device in state.states else ())


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


def _own_token(tokens: tuple[CapToken, ...], public_key: bytes) -> CapToken:
    for token in tokens:
        if token.subject_pk == public_key:
            return token
    hint = f"veen cap issue --issuer DIR --subject {public_key.hex()} --hub ID makes one for this key"
    raise hinted(Unverified("capability", "no capability in the file is for the long-term key of this client"), hint)


def _challenge(path: Path) -> Challenge:
    return Challenge.decode(local_files.read_file(path, MAX_FILE_BYTES))
