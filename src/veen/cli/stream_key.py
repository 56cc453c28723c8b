"""`veen stream-key`: who can read a stream, and who can write for its readers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from plumbing.cli.command import command, group
from veen.cli.kit import output
from veen.cli.kit.client_options import PassphraseFile
from veen.cli.kit.common_options import ClientDir, JsonOption

if TYPE_CHECKING:
    from veen.client import StreamKey

app = group(
    "stream-key",
    """Make, show, hand out and take in the keys of streams.

    A stream has one key. Whoever has its secret half can read; whoever has its public half can write for the readers.
    Several readers share the secret half by exporting and importing it.
    """,
)

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="the stream, by name or 64 hex digits")]


@command(app, "create", "veen stream-key create doors", "veen stream-key create doors --client alice")
def create(
    name: Name, client: ClientDir = None, passphrase_file: PassphraseFile = None, as_json: JsonOption = False
) -> None:
    """Make the key of a stream that has none, and keep both halves."""
    from veen.cli.kit import open_session
    from veen.cli.kit.exit_status import hinted
    from veen.client import StreamKey
    from veen.core import Unavailable

    with open_session.open_client_dir(client, passphrase_file) as folder:
        try:
            key = folder.stream_keys.create(name)
        except Unavailable as error:
            raise hinted(error, f"veen stream-key show {name} shows it") from None
    _show(StreamKey(name, key.public_key), True, as_json)


@command(app, "show", "veen stream-key show", "veen stream-key show doors --json")
def show(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="which stream; else all are listed")] = None,
    client: ClientDir = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Show the public keys of streams, and which of them can be read here."""
    from veen.cli.kit import open_session
    from veen.cli.kit.exit_status import hinted
    from veen.cli.kit.sanitize import printable, short
    from veen.core import Unavailable, naming

    with open_session.open_client_dir(client, passphrase_file) as folder:
        known = folder.stream_keys.all()
    if name is None:
        rows = [(printable(key.name), reads, short(key.public_key), short(key.stream_id)) for key, reads in known]
        output.table(("stream", "reads", "public_key", "stream_id"), rows, as_json)
        if not rows and not as_json:
            output.remark("no stream has a key here yet: veen stream-key create NAME")
        return
    found = [(key, reads) for key, reads in known if key.stream_id == naming.stream_id(name)]
    if not found:
        raise hinted(Unavailable(f"no key of stream {name!r} is known here"), *_hints(name))
    _show(*found[0], as_json)


@command(
    app,
    "export",
    "veen stream-key export doors --out doors.reader-key",
    "veen stream-key export doors --public --out doors.stream-key",
)
def export(
    name: Name,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="the file to make")],
    public: Annotated[
        bool, typer.Option("--public", help="the public half, for writers; else the secret half, for readers")
    ] = False,
    client: ClientDir = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Write the key of a stream into a file, for another reader or a writer.

    Without --public it is the secret half: whoever gets hold of the file can read the stream, all of it, for ever.
    """
    from veen.cli.kit import open_session, output_files
    from veen.cli.kit.exit_status import hinted
    from veen.client import StreamKey
    from veen.core import Unavailable, naming

    output_files.check_new(out)
    with open_session.open_client_dir(client, passphrase_file) as folder:
        known = folder.stream_keys.public(naming.stream_id(name))
        if known is None:
            raise hinted(Unavailable(f"no key of stream {name!r} is known here"), *_hints(name))
        if public:
            output_files.write_new(out, StreamKey(name, known).encode())
        else:
            try:
                secret = folder.stream_keys.export(name)
            except Unavailable as error:
                raise hinted(error, "only the public half is known; --public exports that") from None
            output_files.write_new(out, secret.encode(), output_files.SECRET_MODE)
    half = "public" if public else "secret"
    output.facts({"stream": name, "half": half, "public_key": known, "file": str(out)}, as_json)


@command(app, "import", "veen stream-key import doors.reader-key", "veen stream-key import doors.stream-key")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="what veen stream-key export made")],
    client: ClientDir = None,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Take in the key of a stream: to read it, or to write for those who do.

    The file says which stream it is for. Another key than the one that is known is refused: readers would be left out.
    """
    from veen.cli.kit import key_files, open_session
    from veen.cli.kit.exit_status import hinted
    from veen.client import ReaderKey
    from veen.core import DhKey, Unavailable

    key = key_files.read_stream_key(file)
    with open_session.open_client_dir(client, passphrase_file) as folder:
        try:
            if isinstance(key, ReaderKey):
                folder.stream_keys.import_secret(key.name, DhKey(key.secret))
            else:
                folder.stream_keys.add_public(key.name, key.public_key)
        except Unavailable as error:
            raise hinted(error, "ask those who read the stream which key is theirs; nothing was changed") from None
    _show(key_files.public_half(key), isinstance(key, ReaderKey), as_json)


def _hints(name: str) -> tuple[str, str]:
    return (
        f"veen stream-key import FILE takes in the one that readers of {name} have",
        f"veen stream-key create {name} makes it, where nobody has one yet",
    )


def _show(key: "StreamKey", reads: bool, as_json: bool) -> None:
    from veen.cli.kit.sanitize import printable

    rows: dict[str, output.Value] = {
        "stream": printable(key.name),
        "reads": reads,
        "public_key": key.public_key,
        "stream_id": key.stream_id,
    }
    output.facts(rows, as_json, {**rows, "stream": key.name})
