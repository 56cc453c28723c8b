"""Whom to believe, as people say it."""

from dataclasses import dataclass
from pathlib import Path

from plumbing.cli.command import Misuse
from veen.cli.kit import key_files
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.output import Marked, Tone
from veen.client.trust import Pin
from veen.core import Malformed, Unverified, VeenError
from veen.core.hpke import KEY_BYTES

PIN_SOURCES = (
    "veen hub key, where the hub runs, shows its hub_id; a copy of its hub-identity.json and hub-identity.sig, side by "
    "side, will do, too"
)


def parse(text: str) -> Pin:
    """What --pin names."""
    try:
        return Pin.parse(text)
    except Malformed as error:
        raise Misuse(str(error), PIN_SOURCES) from None
    except VeenError as error:
        raise hinted(error, PIN_SOURCES) from None


def for_hub(text: str, url: str) -> Pin:
    """What --pin names, for the hub at an address: a certificate is shown over https only."""
    found = parse(text)
    if found.certificate is not None and not url.startswith("https://"):
        raise Misuse(f"--pin {text} is a certificate, and {url} is not https", "pin the hub's id, or give an https URL")
    return found


def pinned_key(text: str | None) -> bytes | None:
    """A hub's id or a key's fingerprint, from what --pin names: what can be held against a hub's own word."""
    if text is None:
        return None
    found = parse(text)
    if found.certificate is not None:
        raise Misuse("a certificate says nothing of what a hub signed", "pin the hub's id or a key's fingerprint")
    return found.key if found.record is None else found.record.hub_id


@dataclass(frozen=True, slots=True)
class Signer:
    """The signer that a file must be from: named by the caller or, with --trust-embedded, taken from the file.

    A file that carries its signer's key proves nothing while nobody names that key: anyone can make a key and sign.
    """

    key: bytes | None
    embedded: bool
    role: str
    identifier: str  # what the file says of the signer
    option: str  # how the caller names the signer

    def verdict(self, held: str, tone: Tone = Tone.GOOD) -> Marked:
        """The verdict on a file in which all signatures and proofs hold; `held` is the verdict for a named signer."""
        if self.key is not None:
            return Marked(held, tone)
        if self.embedded:
            unsure = f"{held}, but {self.identifier} was taken from the file: anyone could have made it"
            return Marked(unsure, Tone.WARN if tone is Tone.GOOD else tone)
        return Marked(f"unverified: no {self.role} was named", Tone.BAD)

    def check_named(self, file: Path) -> None:
        """Raise `Unverified` if there is no signer to hold the file against."""
        if self.key is None and not self.embedded:
            hint = f"--trust-embedded takes {self.identifier} from the file, which anyone could have made"
            named = f"{self.option} names the {self.role} that must have signed it"
            raise hinted(Unverified(str(file), f"no {self.role} was named, and anyone could have made it"), named, hint)


def hub_signer(pin: str | None, trust_embedded: bool) -> Signer:
    """The hub that a file must be from, as --pin and --trust-embedded give it."""
    if pin is not None and trust_embedded:
        raise Misuse("--pin and --trust-embedded contradict each other", "give one of them")
    return Signer(pinned_key(pin), trust_embedded, "hub", "the hub id", "--pin HUB_ID")


def reader_key(text: str | None) -> bytes | None:
    """A stream's public key, from what --reader names."""
    if text is None:
        return None
    try:
        key = bytes.fromhex(text) if text.isalnum() else b""
    except ValueError:
        key = b""
    if len(key) == KEY_BYTES:
        return key
    file = Path(text)
    if not file.is_file():
        hint = "veen stream-key show NAME, where it is read, shows its public_key; a file from export will do, too"
        raise Misuse(f"--reader {text}: neither 64 hex digits nor a file", hint)
    return key_files.public_half(key_files.read_stream_key(file)).public_key
