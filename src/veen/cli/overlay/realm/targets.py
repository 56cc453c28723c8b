"""Keys and capabilities as people name them: in hex, or by the file that has them."""

from pathlib import Path

from terminalface.command import Misuse
from veen.cli.client import cap, cards
from veen.core import CapToken
from veen.overlays.admin.revocation import token_target

_BYTES = 32


def hex_id(text: str) -> bytes | None:
    """32 bytes in hex; None where it is something else."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        return None
    return found if len(found) == _BYTES else None


def client_ids(text: str) -> tuple[bytes, ...]:
    """A client_id, or those that a card lists."""
    named = hex_id(text)
    return (named,) if named else cards.read(_there(text, "a client_id, a client directory or a card")).client_ids


def auth_refs(text: str) -> tuple[bytes, ...]:
    """An auth_ref, or those of the tokens in a file."""
    named = hex_id(text)
    return (named,) if named else tuple(token.auth_ref() for token in tokens(text))


def token_hashes(text: str) -> tuple[bytes, ...]:
    """The hash of a token, or of each in a file."""
    named = hex_id(text)
    return (named,) if named else tuple(token_target(token) for token in tokens(text))


def tokens(text: str) -> tuple[CapToken, ...]:
    return cap.read(_there(text, "64 hex digits or a file of capabilities"))


def _there(text: str, what: str) -> Path:
    path = Path(text)
    if not path.exists():
        raise Misuse(f"{text!r} is not {what}", "give 64 hex digits, or the path of a file")
    return path
