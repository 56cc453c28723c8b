"""The keys of those who witnessed a checkpoint: the checkpoint itself carries their signatures alone. Spec §4.4.

They are kept beside the log, in a file for each checkpoint, and written after the signature they are of is on disk. A
crash in between leaves a signature whose key is not known, which is no damage, and which the same witness can mend by
coming again; a key without its signature is never left, so where there is one the signature was lost.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from veen.core import Checkpoint, Malformed, Unverified, VeenError, signing
from veen.core.cbor import Bstr, ListOf, Map, Uint, Version, Wire
from veen.core.limits import MAX_WITNESS_SIGS
from veen.storage import openings
from veen.storage.durable import Disk
from veen.storage.findings import Finding, Severity
from veen.storage.folders import Folders


@dataclass(frozen=True, slots=True)
class WitnessKeys(Wire):
    """Who signed the regular checkpoint of a label at a place, in the order in which they came."""

    label: bytes
    upto_seq: int
    witness_pks: tuple[bytes, ...]

    LAYOUT: ClassVar = Map(
        "witness keys",
        {
            1: Version(),
            2: Bstr("label"),
            3: Uint("upto_seq", least=1),
            4: ListOf("witness_pks", Bstr("witness_pk"), least=1, most=MAX_WITNESS_SIGS),
        },
    )

    def flaw(self) -> str | None:
        return None if len(set(self.witness_pks)) == len(self.witness_pks) else "a witness stands twice"


def read(folders: Folders, label: bytes, upto_seq: int) -> tuple[bytes, ...]:
    """The keys that are known. Raises where the file is not what a hub wrote."""
    path = folders.witnesses_of(label, upto_seq)
    try:
        data = openings.read(path)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise Malformed("witness keys", f"they cannot be read: {error.strerror}") from None
    found = WitnessKeys.decode(data)
    if (found.label, found.upto_seq) != (label, upto_seq):
        raise Unverified("witness keys", "they are for another place than their name")
    return found.witness_pks


def keep(disk: Disk, folders: Folders, label: bytes, upto_seq: int, witness_pks: tuple[bytes, ...]) -> None:
    """Make them durable. The signatures they are of must be on disk."""
    new = not folders.witnesses.exists()
    disk.make_folder(folders.witnesses)
    disk.write_file(folders.witnesses_of(label, upto_seq), WitnessKeys(label, upto_seq, witness_pks).encode())
    disk.sync_folder(folders.witnesses)
    if new:
        disk.sync_folder(folders.root)


def copy(disk: Disk, source: Folders, target: Folders) -> None:
    """Those of the checkpoints that the target has too, for a copy that is synced as a whole."""
    for path in sorted(source.witnesses.glob("*.cbor")):
        if (target.log / f"checkpoint-{path.name}").exists():
            disk.make_folder(target.witnesses)
            disk.write_file(target.witnesses / path.name, openings.read(path))


def check(folders: Folders, checkpoint: Checkpoint) -> Iterator[Finding]:
    """What is wrong with the witnesses of a checkpoint, or cannot be said of them."""
    label, upto_seq = checkpoint.label_curr, checkpoint.upto_seq
    try:
        known = read(folders, label, upto_seq)
    except VeenError as error:
        artifact = str(folders.witnesses_of(label, upto_seq).relative_to(folders.root))
        yield Finding(Severity.DAMAGED, artifact, str(error), label, upto_seq)
        return
    artifact = str(folders.checkpoint(label, upto_seq).relative_to(folders.root))
    digest, unclaimed, lost = checkpoint.signing_digest(), list(checkpoint.witness_sigs or ()), False
    for witness_pk in known:
        held = next((sig for sig in unclaimed if signing.is_valid(witness_pk, digest, sig)), None)
        if held is None:
            what = f"the signature of witness {witness_pk.hex()[:16]}… is gone, or does not hold"
            yield Finding(Severity.DAMAGED, artifact, what, label, upto_seq)
            lost = True
        else:
            unclaimed.remove(held)
    if unclaimed and not lost:
        what = f"whose are {len(unclaimed)} of its witness signatures is not known, so they cannot be verified"
        yield Finding(Severity.NOTICE, artifact, what, label, upto_seq)
