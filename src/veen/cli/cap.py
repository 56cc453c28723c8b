"""`veen cap`: capabilities, the signed permissions to write to streams."""

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, command, group, option, options_command
from veen.cli.kit import context_file, key_files, open_session, output, output_files, pinning, values
from veen.cli.kit.common_options import HubOptions, HubUrl, JsonOption, LocalDir, PassphraseFile
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.key_files import read_capabilities
from veen.cli.kit.output import Formatted
from veen.cli.kit.result import Moment, Result, inside
from veen.cli.kit.sanitize import short_hex
from veen.client import Card, ClientDir, capabilities, cbor_sequence
from veen.client.client import Client
from veen.core import CapPresentation, CapToken, Rate, Refused, SigningKey, cap_token, naming
from veen.core.cap_token import Capability, token_of
from veen.core.envelopes import AuthorizeResponse, RevocationRequest, SubmitResponse

app = group(
    "cap",
    """Issue, renew, show, authorize and revoke capabilities.

    A capability permits one client to write to some streams. A hub accepts capabilities of the issuers it was started
    with: veen hub start --issuer HEX, where HEX is the id_sign that veen keygen printed for the issuer.
    """,
)


_RELATIVE = re.compile(r"\d+[smhd]", re.ASCII)


def hub_id(text: str) -> bytes:
    """Parse a hub id in hex, or read it from a data directory or identity file."""
    found = pinning.pinned_key(text)
    assert found is not None
    return found


def last_moment(text: str) -> int:
    """Parse a time, or a duration from now."""
    if _RELATIVE.fullmatch(text):
        return int(time.time()) + durations.whole_seconds(text, 1)
    return values.moment(text)


HubIds: TypeAlias = Annotated[
    list[bytes] | None,
    option(
        "--hub ID|PATH",
        "a hub that may accept it: its id, data directory or identity file",
        default="the context's hub, if the issuer has used it",
        parser=hub_id,
    ),
]
NotAfter: TypeAlias = Annotated[
    int | None,
    option(
        "--not-after TIME|7d",
        "when it ends even if it was never used: a date, or a time from now",
        default="30 days from now, or --ttl if that is longer",
        parser=last_moment,
    ),
]
Bare: TypeAlias = Annotated[
    bool, option("--bare", "name no hub and no end; only hubs with --accept-bare-tokens and older hubs accept it")
]
Issuer: TypeAlias = Annotated[Path, option("--issuer DIR", "the issuer's client directory")]
RenewHubs: TypeAlias = Annotated[
    list[bytes] | None,
    option("--hub ID|PATH", "a hub that may accept it", default="the hubs of the old file", parser=hub_id),
]
NewFile: TypeAlias = Annotated[Path | None, option("--out FILE", "the file to create")]


@command(
    app,
    "issue",
    "veen cap issue --issuer operator --subject alice.card --stream doors --ttl 86400 --hub hub",
    "veen cap issue --issuer operator --subject alice --stream doors --ttl 3600 --rate 100,500",
    "veen cap issue --issuer operator --subject alice --stream doors --ttl 3600 --not-after 7d",
)
def issue(
    issuer: Issuer,
    subject: Annotated[str, option("--subject DIR|FILE|HEX", "the writer's client directory, card or client_id")],
    stream: Annotated[list[str], option("--stream NAME", "a stream that the subject may write to")],
    ttl: Annotated[
        int, durations.whole_option("--ttl", least=1, help="how long it is valid after it is first authorized at a hub")
    ],
    rate: Annotated[
        values.RateBound | None,
        option(
            "--rate PER_SEC,BURST",
            "maximum messages per second, and maximum burst",
            default="the hub's limits",
            parser=values.rate,
        ),
    ] = None,
    hub: HubIds = None,
    not_after: NotAfter = None,
    bare: Bare = False,
    out: NewFile = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Issue one capability for each client_id that the subject will write with.

    A capability is a token, and a presentation of it for each hub. The presentation is signed by the issuer and says at
    which hub and until when the token can be authorized, so a file that leaks is worth nothing elsewhere or later.

    A client changes its client_id every day. A card lists the next client_ids and gets a token for each of them, in one
    file as a CBOR sequence. A single client_id gets one token. Without --out the capabilities are printed in hex.
    """
    streams = [naming.stream_id(name) for name in stream]
    bound = None if rate is None else Rate(rate.per_sec, rate.burst)
    if out is not None:
        output_files.check_new(out)
    found = _subject(subject)
    with open_session.open_client_dir(issuer, passphrase_file) as folder:
        key = folder.identity.id_sign
        hubs, end = hubs_of(hub, bare, folder), end_of(not_after, ttl)
        made = _minted(key, found, streams, ttl, bound)
        issued = capabilities.present(key, made, hubs, end)
    data = {
        "issuer": key.public_key,
        "subject": found if isinstance(found, bytes) else found.id_sign,
        "tokens": len(made),
        "streams": streams,
        "ttl": ttl,
        "rate": None if rate is None else f"{rate.per_sec}/s, {rate.burst} at once",
    }
    _issued(data, issued, out, {"streams": ", ".join(stream)}).show(as_json)


def _issued(data: dict[str, Any], issued: tuple[Capability, ...], out: Path | None, text: dict[str, str]) -> Result:
    """Write capabilities to a file, or show them in hex. `text` overrides values of `data` in text output."""
    hubs = _hubs_in(issued)
    if hubs:
        ends = {one.not_after for one in issued if isinstance(one, CapPresentation)}
        data |= {"hubs": hubs, "not_after": Moment(max(ends))}
        text = {**text, "hubs": ", ".join(hub.hex() for hub in hubs)}
    if out is None:
        data["cbor"] = cbor_sequence.encode(issued)
    else:
        output_files.write_new(out, cbor_sequence.encode(issued))
        data["file"] = str(out)
    refs = [token.auth_ref() for token in capabilities.tokens_of(issued)]
    return Result({**data, "auth_refs": refs, "_text": {**data, **text}}, facts=inside("_text", data))


def _hubs_in(found: tuple[Capability, ...]) -> list[bytes]:
    return list(dict.fromkeys(one.hub_id for one in found if isinstance(one, CapPresentation)))


def _subject(text: str) -> bytes | Card:
    try:
        return values.public_key(text)
    except ValueError:
        return key_files.read_card(Path(text))


def _minted(
    key: SigningKey, subject: bytes | Card, streams: list[bytes], ttl: int, rate: Rate | None
) -> tuple[CapToken, ...]:
    try:
        if isinstance(subject, bytes):
            return (cap_token.mint(key, subject, streams, ttl, rate),)
        return capabilities.tokens_of(capabilities.issue(key, subject, streams, ttl, rate))
    except ValueError as error:  # a value outside the bounds of a token
        raise Misuse(str(error), "veen cap issue --help shows the options") from None


@command(app, "renew", "veen cap renew alice.cap --issuer operator --out alice-2.cap")
def renew(
    file: Annotated[Path, argument("FILE", "the newest file from veen cap issue or renew")],
    issuer: Issuer,
    hub: RenewHubs = None,
    not_after: NotAfter = None,
    out: NewFile = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Issue expired capabilities again.

    Issuing with the same options gives the same tokens, which a hub keeps rejecting as expired. Renewed tokens have a
    new signature: a hub accepts them as new, and their time starts when they are first authorized. Always renew the
    newest file, not the first one.
    """
    if out is not None:
        output_files.check_new(out)
    known = read_capabilities(file)
    tokens = capabilities.tokens_of(known)
    with open_session.open_client_dir(issuer, passphrase_file) as folder:
        key = folder.identity.id_sign
        if any(token.issuer_pk != key.public_key for token in tokens):
            raise Misuse(
                f"{file} was issued by another issuer", "veen cap show FILE shows the issuer, who can renew it"
            )
        made = [cap_token.renew(token, key) for token in tokens]
        ttl = made[0].allow.ttl
        renewed = capabilities.present(key, made, hub or _hubs_in(known), end_of(not_after, ttl))
    data = {"issuer": key.public_key, "tokens": len(made), "ttl": ttl}
    _issued(data, renewed, out, {}).show(as_json)


@command(app, "show", "veen cap show alice.cap", "veen cap show alice.cap --json")
def show(
    file: Annotated[Path, argument("FILE", "a file from veen cap issue or renew")], as_json: JsonOption = False
) -> None:
    """Verify the capabilities in a file and show what they permit."""
    data = [_shown(one) for one in read_capabilities(file)]
    rate_text = ("rate", lambda row: row["rate"] and f"{row['rate']['per_sec']},{row['rate']['burst']}")
    columns = ("auth_ref", ("client_id", "subject"), ("streams", _stream_ids), "ttl", rate_text, "issuer")
    Result(data, columns=(*columns, ("hub", "hub_id"), "not_after")).show(as_json)


def _shown(capability: Capability) -> dict[str, Any]:
    token, rate = token_of(capability), token_of(capability).allow.rate
    presented = capability if isinstance(capability, CapPresentation) else None
    return {
        "auth_ref": token.auth_ref(),
        "issuer": token.issuer_pk,
        "subject": token.subject_pk,
        "streams": token.allow.stream_ids,
        "ttl": token.allow.ttl,
        "rate": {"per_sec": rate.per_sec, "burst": rate.burst} if rate else None,
        "hub_id": presented and presented.hub_id,
        "not_after": presented and Moment(presented.not_after),
    }


def _stream_ids(row: dict[str, Any]) -> Formatted:
    ids: tuple[bytes, ...] = row["streams"]
    return Formatted(",".join(one.hex() for one in ids), ", ".join(map(short_hex, ids)))


@options_command(
    HubOptions,
    app,
    "authorize",
    "veen cap authorize alice.cap --hub http://127.0.0.1:37411 --client alice",
    "veen cap authorize alice.cap --all",
)
def authorize(
    options: HubOptions,
    file: Annotated[
        Path | None, argument("FILE", "a file from veen cap issue or renew; else the file of the context")
    ] = None,
    every: Annotated[bool, option("--all", "authorize every token of the file, so the time of all starts now")] = False,
) -> None:
    """Authorize a capability at a hub, so the hub admits the client from now on.

    The hub logs the capability, and its time starts. Without --all only the token for the current client_id is
    authorized, or the first one if none is for this client. The client stores the others and authorizes each when it is
    needed. `veen send` does all of this by itself.
    """
    path = context_file.cap_of(file)
    if path is None:
        raise Misuse("missing FILE", "give a file from veen cap issue, or store one in a context")
    given = read_capabilities(path)
    answers = options.call().run(lambda client: _authorize(client, given, every))
    data = [
        {
            "auth_ref": token.auth_ref().hex(),
            "client_id": token.subject_pk.hex(),
            "expires_at": Moment(answer.expires_at),
        }
        for token, answer in answers
    ]
    Result(data, columns=("auth_ref", "client_id", "expires_at")).show(options.as_json)


async def _authorize(
    client: Client, given: tuple[Capability, ...], every: bool
) -> list[tuple[CapToken, AuthorizeResponse]]:
    """Authorize all capabilities for this hub, or the one for the current client_id, or else the first one.

    All capabilities are stored if one of them is for the current client_id.
    """
    own, here = client.dir.writers.current().client_id, capabilities.at_hub(given, client.hub_id)
    current = [one for one in here if token_of(one).subject_pk == own]
    chosen = here if every else current or here[:1]
    answers = [(token_of(one), await client.authorize(one)) for one in chosen]
    now = client.session.clock.now()
    for token, answer in answers:
        if answer.expires_at < now:
            name = f"capability {token.auth_ref().hex()[:12]}…"
            output.remark(f"{name} has expired at this hub: its issuer can renew it with veen cap renew")
    if current:
        client.dir.caps.add_all(cbor_sequence.encode(given))
    return answers


@command(
    app,
    "revoke",
    "veen cap revoke alice.cap --data-dir hub --reason 'laptop lost'",
    "veen cap revoke 9f0c2b71… --hub https://hub.example --ttl 7d",
    "veen cap revoke alice.card --kind client-id",
)
def revoke(
    target: Annotated[str, argument("HEX|FILE", "what to revoke: an id, a file from veen cap issue, or a card")],
    kind: Annotated[
        Literal["auth-ref", "client-id", "cap-token"],
        option("--kind auth-ref|client-id|cap-token", "a capability by its auth_ref, a client key, or a token's hash"),
    ] = "auth-ref",
    ttl: Annotated[
        int | None, durations.whole_option("--ttl", least=1, help="how long", show_default="permanently")
    ] = None,
    reason: Annotated[str | None, option("--reason TEXT", "the reason, readable by anyone")] = None,
    hub: HubUrl = None,
    data_dir: LocalDir = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke capabilities or client keys at one hub, as its operator.

    The hub logs each revocation on its control stream, and from then on rejects what is revoked with
    E.CAP/CAP_INVALID. It must run with --allow-revocation. The operator token is read from VEEN_OPERATOR_TOKEN.
    Entries that were accepted before stay. `veen revoke` revokes for all hubs of a realm instead.
    """
    from veen.cli.hub import hub_process, hub_settings
    from veen.cli.realm import revoke as targets

    token = hub_settings.operator_token()
    found = {"auth-ref": targets.auth_refs, "client-id": targets.client_ids, "cap-token": targets.token_hashes}[kind]
    data = []
    with hub_process.hub(hub, data_dir) as api:
        for one in found(target):
            request = RevocationRequest(kind, one, reason, ttl)
            try:
                receipt = api.post("/tooling/revoke", request, SubmitResponse, token).receipt
            except Refused as refused:
                if refused.code == "E.FORBIDDEN":
                    hinted(refused, "start the hub with --allow-revocation")
                raise
            until = None if ttl is None else Moment(receipt.hub_ts + ttl)
            at = {"from": Moment(receipt.hub_ts), "until": until, "stream_seq": receipt.stream_seq}
            data.append({"kind": kind, "target": one, **at})
    until_text = ("until", lambda row: "permanent" if row["until"] is None else row["until"])
    Result(data, columns=("kind", "target", "from", until_text, ("entry", "stream_seq"))).show(as_json)


def hubs_of(given: Sequence[bytes] | None, bare: bool, issuer: ClientDir) -> tuple[bytes, ...]:
    """The hubs to issue for: those given, or the hub of the context. None with --bare."""
    if bare:
        if given:
            raise Misuse("--bare and --hub contradict each other", "give one of them")
        return ()
    if given:
        return tuple(given)
    url = os.environ.get("VEEN_HUB") or context_file.selected().hub
    known = issuer.state.hub_of(values.url(url)) if url else None
    if known is None:
        raise Misuse(
            "missing --hub: a capability names the hubs that may accept it",
            "give --hub with a hub id or a data directory; veen hub key --hub URL shows the id of a hub",
        )
    return (known,)


def end_of(given: int | None, ttl: int) -> int:
    """The last second of a capability that is issued now."""
    now = int(time.time())
    if given is not None and given <= now:
        raise Misuse("--not-after is in the past", "give a later date, or a time from now like 30d")
    return capabilities.default_end(now, ttl) if given is None else given
