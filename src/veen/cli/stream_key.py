"""`veen stream-key`: the keys that seal and open the entries of a stream."""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

from plumbing.cli.command import argument, group, option, options_command
from veen.cli.kit import key_files, output_files
from veen.cli.kit.common_options import ClientOptions
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.result import Result
from veen.client import ReaderKey, StreamKey
from veen.core import DhKey, Unavailable, naming

app = group(
    "stream-key",
    """Create, show, export and import the keys of streams.

    A stream has one key pair. The secret half opens entries; the public half seals messages for the readers. Several
    readers share the secret half by exporting and importing it.
    """,
)

Name: TypeAlias = Annotated[str, argument("NAME", "the stream, by name or 64 hex digits")]


@options_command(
    ClientOptions, app, "create", "veen stream-key create doors", "veen stream-key create doors --client alice"
)
def create(options: ClientOptions, name: Name) -> None:
    """Create the key of a new stream and store both halves."""
    with options.open() as folder:
        try:
            key = folder.stream_keys.create(name)
        except Unavailable as error:
            raise hinted(error, f"veen stream-key show {name} shows it") from None
    Result(_data(StreamKey(name, key.public_key), True)).show(options.as_json)


@options_command(ClientOptions, app, "show", "veen stream-key show", "veen stream-key show doors --json")
def show(
    options: ClientOptions,
    name: Annotated[str | None, argument("NAME", "the stream; without it, all are listed")] = None,
) -> None:
    """Show the public keys of streams, and which streams this client can read."""
    with options.open() as folder:
        known = folder.stream_keys.all()
    if name is None:
        columns = ("stream", "reads", "public_key", "stream_id")
        remark = "this client has no stream keys yet: veen stream-key create NAME"
        rows = [_data(key, reads) for key, reads in known]
        remarks = () if rows or options.as_json else (remark,)
        Result(rows, columns=columns, remarks=remarks).show(options.as_json)
        return
    found = [(key, reads) for key, reads in known if key.stream_id == naming.stream_id(name)]
    if not found:
        raise hinted(Unavailable(f"this client has no key of stream {name!r}"), *stream_key_hints(name))
    Result(_data(*found[0])).show(options.as_json)


@options_command(
    ClientOptions,
    app,
    "export",
    "veen stream-key export doors --out doors.reader-key",
    "veen stream-key export doors --public --out doors.stream-key",
)
def export(
    options: ClientOptions,
    name: Name,
    out: Annotated[Path, option("--out FILE", "the file to create")],
    public: Annotated[
        bool, option("--public", "export the public half, for writers, instead of the secret half, for readers")
    ] = False,
) -> None:
    """Write the key of a stream into a file for another reader or a writer.

    Without --public the file contains the secret half: anyone who gets it can read the whole stream, past and future.
    """
    output_files.check_new(out)
    with options.open() as folder:
        known = folder.stream_keys.public(naming.stream_id(name))
        if known is None:
            raise hinted(Unavailable(f"this client has no key of stream {name!r}"), *stream_key_hints(name))
        if public:
            output_files.write_new(out, StreamKey(name, known).encode())
        else:
            try:
                secret = folder.stream_keys.export(name)
            except Unavailable as error:
                raise hinted(error, "this client has only the public half; --public exports that") from None
            output_files.write_new(out, secret.encode(), output_files.SECRET_MODE)
    half = "public" if public else "secret"
    Result({"stream": name, "half": half, "public_key": known, "file": str(out)}).show(options.as_json)


@options_command(
    ClientOptions,
    app,
    "import",
    "veen stream-key import doors.reader-key",
    "veen stream-key import doors.stream-key",
)
def import_(
    options: ClientOptions, file: Annotated[Path, argument("FILE", "a file from veen stream-key export")]
) -> None:
    """Import the key of a stream: secret half to read, public half to write.

    The file names the stream. If the client already has a different key of the stream, the import is rejected, because
    readers with the other key could not open the messages.
    """
    key = key_files.read_stream_key(file)
    with options.open() as folder:
        try:
            if isinstance(key, ReaderKey):
                folder.stream_keys.import_secret(key.name, DhKey(key.secret))
            else:
                folder.stream_keys.add_public(key.name, key.public_key)
        except Unavailable as error:
            raise hinted(error, "ask the readers of the stream which key they use; nothing was changed") from None
    Result(_data(key_files.public_half(key), isinstance(key, ReaderKey))).show(options.as_json)


def stream_key_hints(name: str) -> tuple[str, str]:
    """Hints for a client that has no key of a stream."""
    return (
        f"veen stream-key import FILE imports the key that the readers of {name} use",
        f"veen stream-key create {name} creates it for a new stream",
    )


def _data(key: StreamKey, reads: bool) -> dict[str, Any]:
    return {"stream": key.name, "reads": reads, "public_key": key.public_key, "stream_id": key.stream_id}
