"""`veen cap`: leave to write."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbing.cli import durations
from plumbing.cli.command import Misuse, command, group
from veen.cli.kit import output, values
from veen.cli.kit.client_options import HubPin, PassphraseFile, TrustOnFirstUse
from veen.cli.kit.common_options import ClientDir, HubUrl, JsonOption
from veen.cli.kit.output import Formatted

if TYPE_CHECKING:
    from veen.client import Card
    from veen.client.client import Client
    from veen.core import CapToken, Rate, SigningKey
    from veen.core.tooling_messages import AuthorizeResponse

app = group(
    "cap",
    """Issue, show and authorise leave to write.

    A capability lets one client write to some streams. A hub takes those of the issuers it was started with: veen
    hub start --issuer HEX, where HEX is the id_sign that veen keygen printed for the issuer.
    """,
)


@command(
    app,
    "issue",
    "veen cap issue --issuer operator --subject alice.card --stream doors --ttl 86400 --out alice.cap",
    "veen cap issue --issuer operator --subject alice --stream doors --ttl 3600 --rate 100,500",
)
def issue(
    issuer: Annotated[Path, typer.Option("--issuer", metavar="DIR", help="whose word it is: a client directory")],
    subject: Annotated[
        str,
        typer.Option("--subject", metavar="DIR|FILE|HEX", help="who may write: a client directory, card or client_id"),
    ],
    stream: Annotated[list[str], typer.Option("--stream", metavar="NAME", help="a stream they may write to")],
    ttl: Annotated[
        int, durations.whole_option("--ttl", least=1, help="for how long, from when a hub is first shown it")
    ],
    rate: Annotated[
        values.RateBound | None,
        typer.Option(
            "--rate",
            metavar="PER_SEC,BURST",
            help="at most so many messages a second, and so many at once",
            show_default="the hub's own bounds",
            parser=values.rate,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="the file to make")] = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Issue capabilities: one for each client_id that the subject is going to write with.

    A client changes its client_id every day, so a card lists the next ones and gets a token for each, in one file as a
    CBOR sequence. A client_id alone gets one. Without --out the tokens are printed in hex.
    """
    from veen.cli.kit import open_session, output_files
    from veen.client import cbor_sequence
    from veen.core import Rate, naming

    streams = [naming.stream_id(name) for name in stream]
    bound = None if rate is None else Rate(rate.per_sec, rate.burst)
    if out is not None:
        output_files.check_new(out)
    found = _subject(subject)
    with open_session.open_client_dir(issuer, passphrase_file) as folder:
        tokens = _minted(folder.identity.id_sign, found, streams, ttl, bound)
    data = cbor_sequence.encode(tokens)
    rows: dict[str, output.Value] = {
        "issuer": tokens[0].issuer_pk,
        "subject": found if isinstance(found, bytes) else found.id_sign,
        "tokens": len(tokens),
        "streams": ", ".join(stream),
        "ttl": ttl,
        "rate": None if rate is None else f"{rate.per_sec}/s, {rate.burst} at once",
    }
    if out is None:
        rows["cbor"] = data
    else:
        output_files.write_new(out, data)
        rows["file"] = str(out)
    output.facts(rows, as_json, {**rows, "streams": streams, "auth_refs": [token.auth_ref() for token in tokens]})


def _minted(
    key: "SigningKey", subject: "bytes | Card", streams: list[bytes], ttl: int, rate: "Rate | None"
) -> "tuple[CapToken, ...]":
    from veen.client import capabilities
    from veen.core import cap_token

    try:
        if isinstance(subject, bytes):
            return (cap_token.mint(key, subject, streams, ttl, rate),)
        return capabilities.issue(key, subject, streams, ttl, rate)
    except ValueError as error:  # more than a token can say
        raise Misuse(str(error), "veen cap issue --help shows what one can say") from None


@command(
    app,
    "renew",
    "veen cap renew alice.cap --issuer operator --out alice-2.cap",
)
def renew(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="what veen cap issue or renew made last")],
    issuer: Annotated[Path, typer.Option("--issuer", metavar="DIR", help="who issued it: a client directory")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="the file to make")] = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Issue the same capabilities again, for when their time has ended.

    Issuing with the same words gives the same tokens, which a hub remembers and goes on refusing. Renewing signs them
    once more: a hub takes them for new, and their time begins when it is first shown them. Renew what was made last,
    not what was made first, each time.
    """
    from veen.cli.kit import open_session, output_files
    from veen.client import capabilities, cbor_sequence

    if out is not None:
        output_files.check_new(out)
    tokens = read(file)
    with open_session.open_client_dir(issuer, passphrase_file) as folder:
        key = folder.identity.id_sign
        if any(token.issuer_pk != key.public_key for token in tokens):
            raise Misuse(f"{file} was issued by someone else", "veen cap show says by whom; only they can renew it")
        renewed = capabilities.renew(key, tokens)
    data = cbor_sequence.encode(renewed)
    rows: dict[str, output.Value] = {"issuer": key.public_key, "tokens": len(renewed), "ttl": renewed[0].allow.ttl}
    if out is None:
        rows["cbor"] = data
    else:
        output_files.write_new(out, data)
        rows["file"] = str(out)
    output.facts(rows, as_json, {**rows, "auth_refs": [token.auth_ref() for token in renewed]})


@command(app, "show", "veen cap show alice.cap", "veen cap show alice.cap --json")
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="what veen cap issue made")],
    as_json: JsonOption = False,
) -> None:
    """Show what the capabilities in a file allow, after checking their signatures."""
    from veen.cli.kit.sanitize import short, short_hex

    tokens = read(file)
    rows = [
        (
            short(token.auth_ref()),
            short(token.subject_pk),
            Formatted(
                ",".join(one.hex() for one in token.allow.stream_ids), ", ".join(map(short_hex, token.allow.stream_ids))
            ),
            token.allow.ttl,
            f"{token.allow.rate.per_sec},{token.allow.rate.burst}" if token.allow.rate else None,
            short(token.issuer_pk),
        )
        for token in tokens
    ]
    data = [
        {
            "auth_ref": token.auth_ref(),
            "issuer": token.issuer_pk,
            "subject": token.subject_pk,
            "streams": token.allow.stream_ids,
            "ttl": token.allow.ttl,
            "rate": {"per_sec": rate.per_sec, "burst": rate.burst} if (rate := token.allow.rate) else None,
        }
        for token in tokens
    ]
    output.table(("auth_ref", "client_id", "streams", "ttl", "rate", "issuer"), rows, as_json, data)


@command(
    app,
    "authorize",
    "veen cap authorize alice.cap --hub http://127.0.0.1:37411 --client alice",
    "veen cap authorize alice.cap --all",
)
def authorize(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="what veen cap issue made; else that of the context")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="every one in the file, so that the time of all of them begins now")
    ] = False,
    hub: HubUrl = None,
    client: ClientDir = None,
    pin: HubPin = None,
    first_use: TrustOnFirstUse = False,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Show a hub a capability, so that it admits the client from now on.

    The hub logs it, and its time begins. Of several, the one for the client_id in use is shown, or the first where none
    is for this client; the client keeps the others and shows each when its turn comes. Sending does all this by itself.
    """
    from veen.cli.kit import context_file
    from veen.cli.kit.open_session import HubCall

    path = context_file.cap_of(file)
    if path is None:
        raise Misuse("FILE is needed", "name what veen cap issue made, or keep it in a context")
    tokens = read(path)
    call = HubCall(hub, client, passphrase_file, pin, first_use)
    answers = call.run(lambda met: _authorize(met, tokens, every))
    rows = [(token.auth_ref(), token.subject_pk, output.moment(answer.expires_at)) for token, answer in answers]
    data = [
        {"auth_ref": token.auth_ref(), "client_id": token.subject_pk, "expires_at": answer.expires_at}
        for token, answer in answers
    ]
    output.table(("auth_ref", "client_id", "expires_at"), rows, as_json, data)


async def _authorize(
    client: "Client", tokens: "tuple[CapToken, ...]", every: bool
) -> "list[tuple[CapToken, AuthorizeResponse]]":
    """Show the hub what is for the client_id in use, or else the first; keep the rest if they are for this client."""
    from veen.client import cbor_sequence

    own = client.dir.writers.current().client_id
    due = [token for token in tokens if token.subject_pk == own]
    chosen = tokens if every else due or tokens[:1]
    answers = [(token, await client.authorize(token)) for token in chosen]
    now = client.session.clock.now()
    for token, answer in answers:
        if answer.expires_at < now:
            name = f"capability {token.auth_ref().hex()[:12]}…"
            output.remark(f"{name} has expired at this hub: its issuer can renew it with veen cap renew")
    if due:
        client.dir.caps.add_all(cbor_sequence.encode(tokens))
    return answers


def read(file: Path) -> "tuple[CapToken, ...]":
    """The capabilities of a file, each with signatures that hold."""
    from veen.cli.kit.exit_status import hinted
    from veen.client import capabilities
    from veen.core import VeenError

    try:
        return capabilities.read_tokens(file)
    except VeenError as error:
        raise hinted(error, "veen cap issue --out makes such a file") from None


def _subject(text: str) -> "bytes | Card":
    from veen.cli.kit import key_files

    try:
        return values.public_key(text)
    except ValueError:
        return key_files.read_card(Path(text))
