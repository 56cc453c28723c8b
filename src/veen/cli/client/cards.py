"""Identity cards as commands find them: in a client directory, or in a file that someone sent."""

from pathlib import Path

from veen.cli.failures import hinted
from veen.client import Card, durable
from veen.client.card import MAX_CARD_BYTES
from veen.client.clientdir import CARD
from veen.core import Malformed, Unavailable, Unverified


def read(path: Path) -> Card:
    """A card whose signatures hold. A client directory has its own, which takes no passphrase to read."""
    file = path / CARD if path.is_dir() else path
    try:
        data = durable.read_file(file, MAX_CARD_BYTES)
    except Unavailable as error:
        raise hinted(error, "a card is the card.cbor of a client directory") from None
    try:
        card = Card.decode(data)
        card.verify()
    except Malformed as error:
        raise hinted(Malformed(str(file), f"not an identity card: {error.reason}"), _ASK_AGAIN) from None
    except Unverified as error:
        raise hinted(Unverified(str(file), error.reason), _ASK_AGAIN) from None
    return card


_ASK_AGAIN = "ask its owner for card.cbor of the client directory"
