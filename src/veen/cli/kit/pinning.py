"""Pins: the options --pin, --reader and --trust-embedded, which name the signer or reader key to expect."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plumbing.cli.command import Misuse
from veen.cli.kit import key_files
from veen.cli.kit.exit_status import hinted
from veen.cli.kit.output import Marked, Tone
from veen.client.trust import Pin
from veen.core import HubIdentity, Malformed, Unverified, VeenError
from veen.core.hpke import KEY_BYTES

PIN_SOURCES = (
    "veen hub key on the hub's machine shows the hub_id; a copy of hub-identity.json with hub-identity.sig beside it "
    "also works"
)


def parse(text: str) -> Pin:
    """Parse --pin."""
    try:
        return Pin.parse(text)
    except Malformed as error:
        raise Misuse(str(error), PIN_SOURCES) from None
    except VeenError as error:
        raise hinted(error, PIN_SOURCES) from None


def for_hub(text: str, url: str) -> Pin:
    """Parse --pin for the hub at `url`. A certificate pin needs https."""
    found = parse(text)
    if found.certificate is not None and not url.startswith("https://"):
        raise Misuse(f"--pin {text} is a certificate, but {url} is not https", "pin the hub's id, or give an https URL")
    return found


def pinned_key(text: str | None) -> bytes | None:
    """Return the hub id or key fingerprint of --pin, to verify hub signatures with."""
    if text is None:
        return None
    found = parse(text)
    if found.certificate is not None:
        raise Misuse("a certificate cannot verify what a hub signed", "pin the hub's id or a key's fingerprint")
    return found.key if found.record is None else found.record.hub_id


def pinned_record(text: str | None) -> HubIdentity | None:
    """Return the identity record that --pin names, if it is a file."""
    return None if text is None else parse(text).record


@dataclass(frozen=True, slots=True)
class ExpectedSigner:
    """The expected signer of a file: named by the caller or, with --trust-embedded, taken from the file.

    A file that contains its signer's key proves nothing by itself: anyone can make a key and sign with it.
    """

    key: bytes | None
    embedded: bool
    role: str
    identifier: str  # what the file contains of the signer, such as "the hub id"
    option: str  # the option that names the signer

    def verdict(self, held: str, tone: Tone = Tone.GOOD) -> Marked:
        """Return the verdict on a file whose signatures and proofs all verify; `held` is that for a named signer."""
        if self.key is not None:
            return Marked(held, tone)
        if self.embedded:
            unsure = f"{held}, but {self.identifier} was taken from the file: anyone could have made it"
            return Marked(unsure, Tone.WARN if tone is Tone.GOOD else tone)
        return Marked(f"unverified: no {self.role} was named", Tone.BAD)

    def check_named(self, file: Path) -> None:
        """Raise `Unverified` if no signer is named."""
        if self.key is None and not self.embedded:
            hint = f"--trust-embedded takes {self.identifier} from the file, although anyone could have made it"
            named = f"{self.option} names the {self.role} that must have signed it"
            raise hinted(
                Unverified(str(file), f"no {self.role} was named, so anyone could have made the file"), named, hint
            )


def hub_signer(pin: str | None, trust_embedded: bool) -> ExpectedSigner:
    """Return the expected hub from --pin and --trust-embedded."""
    if pin is not None and trust_embedded:
        raise Misuse("--pin and --trust-embedded contradict each other", "give one of them")
    return ExpectedSigner(pinned_key(pin), trust_embedded, "hub", "the hub id", "--pin HUB_ID")


def reader_keys(texts: Sequence[str] | None) -> tuple[bytes, ...]:
    """Return the public keys of several streams from --reader."""
    return tuple(key for key in map(reader_key, texts or ()) if key is not None)


def reader_key(text: str | None) -> bytes | None:
    """Return a stream's public key from --reader: hex digits or a stream key file."""
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
        hint = "veen stream-key show NAME prints a reader's public_key; a file from veen stream-key export also works"
        raise Misuse(f"--reader {text} is neither 64 hex digits nor a file", hint)
    return key_files.public_half(key_files.read_stream_key(file)).public_key
