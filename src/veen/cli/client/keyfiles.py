"""Keys of streams as commands find them: in a file that `veen stream-key export` made."""

from pathlib import Path

from veen.cli.failures import hinted
from veen.client import ReaderKey, StreamKey, durable
from veen.core import DhKey, Malformed

_MOST_BYTES = 1 << 16


def read(file: Path) -> ReaderKey | StreamKey:
    """The key in such a file, whichever half it is."""
    data = durable.read_file(file, _MOST_BYTES)
    try:
        return ReaderKey.decode(data)
    except Malformed:
        pass
    try:
        return StreamKey.decode(data)
    except Malformed as error:
        hint = "veen stream-key export makes such a file"
        raise hinted(Malformed(str(file), f"not the key of a stream: {error.reason}"), hint) from None


def public_half(key: ReaderKey | StreamKey) -> StreamKey:
    """What may be shown of it."""
    return StreamKey(key.name, DhKey(key.secret).public_key) if isinstance(key, ReaderKey) else key
