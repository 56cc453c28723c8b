"""`veen cap`: capabilities, the signed permissions to write to streams."""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

from plumbing.cli import durations
from plumbing.cli.command import Misuse, argument, command, group, option
from veen.cli.kit import context_file, key_files, open_session, output, output_files, values
from veen.cli.kit.client_options import HubOptions, PassphraseFile
from veen.cli.kit.common_options import JsonOption
from veen.cli.kit.key_files import read_capabilities
from veen.cli.kit.output import Formatted
from veen.cli.kit.result import Moment, Result, inside
from veen.cli.kit.sanitize import short_hex
from veen.cli.kit.state_options import options_command
from veen.client import Card, capabilities, cbor_sequence
from veen.client.client import Client
from veen.core import CapToken, Rate, SigningKey, cap_token, naming
from veen.core.envelopes import AuthorizeResponse

app = group(
    "cap",
    """Issue, renew, show and authorize capabilities.

    A capability permits one client to write to some streams. A hub accepts capabilities of the issuers it was started
    with: veen hub start --issuer HEX, where HEX is the id_sign that veen keygen printed for the issuer.
    """,
)


Issuer: TypeAlias = Annotated[Path, option("--issuer DIR", "the issuer's client directory")]
NewFile: TypeAlias = Annotated[Path | None, option("--out FILE", "the file to create")]


@command(
    app,
    "issue",
    "veen cap issue --issuer operator --subject alice.card --stream doors --ttl 86400 --out alice.cap",
    "veen cap issue --issuer operator --subject alice --stream doors --ttl 3600 --rate 100,500",
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
    out: NewFile = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Issue one capability for each client_id that the subject will write with.

    A client changes its client_id every day. A card lists the next client_ids and gets a token for each of them, in one
    file as a CBOR sequence. A single client_id gets one token. Without --out the tokens are printed in hex.
    """
    streams = [naming.stream_id(name) for name in stream]
    bound = None if rate is None else Rate(rate.per_sec, rate.burst)
    if out is not None:
        output_files.check_new(out)
    found = _subject(subject)
    with open_session.open_client_dir(issuer, passphrase_file) as folder:
        tokens = _minted(folder.identity.id_sign, found, streams, ttl, bound)
    data = {
        "issuer": tokens[0].issuer_pk,
        "subject": found if isinstance(found, bytes) else found.id_sign,
        "tokens": len(tokens),
        "streams": streams,
        "ttl": ttl,
        "rate": None if rate is None else f"{rate.per_sec}/s, {rate.burst} at once",
    }
    _issued(data, tokens, out, {"streams": ", ".join(stream)}).show(as_json)


def _issued(data: dict[str, Any], tokens: tuple[CapToken, ...], out: Path | None, text: dict[str, str]) -> Result:
    """Write tokens to a file, or show them in hex. `text` has values that text shows instead of those in `data`."""
    if out is None:
        data["cbor"] = cbor_sequence.encode(tokens)
    else:
        output_files.write_new(out, cbor_sequence.encode(tokens))
        data["file"] = str(out)
    refs = [token.auth_ref() for token in tokens]
    return Result({**data, "auth_refs": refs, "_text": {**data, **text}}, facts=inside("_text", data))


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
        return capabilities.issue(key, subject, streams, ttl, rate)
    except ValueError as error:  # a value outside the bounds of a token
        raise Misuse(str(error), "veen cap issue --help shows the options") from None


@command(app, "renew", "veen cap renew alice.cap --issuer operator --out alice-2.cap")
def renew(
    file: Annotated[Path, argument("FILE", "the newest file from veen cap issue or renew")],
    issuer: Issuer,
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
    tokens = read_capabilities(file)
    with open_session.open_client_dir(issuer, passphrase_file) as folder:
        key = folder.identity.id_sign
        if any(token.issuer_pk != key.public_key for token in tokens):
            raise Misuse(
                f"{file} was issued by another issuer", "veen cap show FILE shows the issuer, who can renew it"
            )
        renewed = capabilities.renew(key, tokens)
    data = {"issuer": key.public_key, "tokens": len(renewed), "ttl": renewed[0].allow.ttl}
    _issued(data, renewed, out, {}).show(as_json)


@command(app, "show", "veen cap show alice.cap", "veen cap show alice.cap --json")
def show(
    file: Annotated[Path, argument("FILE", "a file from veen cap issue or renew")], as_json: JsonOption = False
) -> None:
    """Verify the capabilities in a file and show what they permit."""
    data = [
        {
            "auth_ref": token.auth_ref(),
            "issuer": token.issuer_pk,
            "subject": token.subject_pk,
            "streams": token.allow.stream_ids,
            "ttl": token.allow.ttl,
            "rate": {"per_sec": rate.per_sec, "burst": rate.burst} if (rate := token.allow.rate) else None,
        }
        for token in read_capabilities(file)
    ]
    rate_text = ("rate", lambda row: row["rate"] and f"{row['rate']['per_sec']},{row['rate']['burst']}")
    columns = ("auth_ref", ("client_id", "subject"), ("streams", _stream_ids), "ttl", rate_text, "issuer")
    Result(data, columns=columns).show(as_json)


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
    tokens = read_capabilities(path)
    answers = options.call().run(lambda client: _authorize(client, tokens, every))
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
    client: Client, tokens: tuple[CapToken, ...], every: bool
) -> list[tuple[CapToken, AuthorizeResponse]]:
    """Authorize all tokens, or the one for the current client_id, or else the first one.

    All tokens are stored if one of them is for the current client_id.
    """
    own = client.dir.writers.current().client_id
    current = [token for token in tokens if token.subject_pk == own]
    chosen = tokens if every else current or tokens[:1]
    answers = [(token, await client.authorize(token)) for token in chosen]
    now = client.session.clock.now()
    for token, answer in answers:
        if answer.expires_at < now:
            name = f"capability {token.auth_ref().hex()[:12]}…"
            output.remark(f"{name} has expired at this hub: its issuer can renew it with veen cap renew")
    if current:
        client.dir.caps.add_all(cbor_sequence.encode(tokens))
    return answers
