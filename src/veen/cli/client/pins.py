"""Whom to believe, as people say it."""

from terminalface.command import Misuse
from veen.cli.failures import hinted
from veen.client.trust import Pin
from veen.core import Malformed, VeenError

WHERE_FROM = (
    "veen hub key, where the hub runs, shows its hub_id; a copy of its hub-identity.json and hub-identity.sig, side by "
    "side, will do, too"
)


def parse(text: str) -> Pin:
    """What --pin names."""
    try:
        return Pin.parse(text)
    except Malformed as error:
        raise Misuse(str(error), WHERE_FROM) from None
    except VeenError as error:
        raise hinted(error, WHERE_FROM) from None


def anchor(text: str | None) -> bytes | None:
    """A hub's id or a key's fingerprint, from what --pin names: what can be held against a hub's own word."""
    if text is None:
        return None
    found = parse(text)
    if found.certificate is not None:
        raise Misuse("a certificate says nothing of what a hub signed", "pin the hub's id or a key's fingerprint")
    return found.key if found.record is None else found.record.hub_id
