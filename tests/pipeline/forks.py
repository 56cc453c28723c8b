"""Two copies of one hub that differ, one of which changed its key: the table of verdicts on retired keys."""

from pathlib import Path

from bench.big_log import BigLog
from tests.pipeline.conftest import SMALL
from tests.pipeline.damage import run_audit
from veen.core import Checkpoint, HubIdentity, SigningKey
from veen.core.handover import retired_verdict
from veen.pipeline.audit import KnownDates
from veen.storage import metadata, rotation


class Forks:
    """Two copies of a hub that differ after entry 12 of each label. One of them changed its key, and went on."""

    def __init__(self, place: Path) -> None:
        self.hub = BigLog(place / "hub", streams=2, clients=3, limits=SMALL, per_sec=10)
        self.hub.grow(24)
        self.fork = self.hub.copied(place / "fork")
        self.hub.grow(20)
        self.fork.grow(30)
        self.old = metadata.read_signing_key(self.hub.folders, self.hub.hub_metadata.identity.newest.key_id)
        self.hub.rotate()
        self.hub.grow(10)
        (self.made,) = rotation.read_handovers(self.hub.folders, self.identity)
        self.roots = self.hub.folders.root, self.fork.folders.root

    @property
    def identity(self) -> HubIdentity:
        return self.hub.hub_metadata.identity

    def checkpoint(self, log: BigLog, label: bytes, size: int) -> Checkpoint:
        return Checkpoint.decode(log.folders.checkpoint(label, size).read_bytes())

    def cosign(self, log: BigLog, size: int, witness: SigningKey) -> None:
        """Let a witness sign the checkpoints of a copy."""
        log.folders.requested.mkdir(exist_ok=True)
        for label in log.labels:
            signed = self.checkpoint(log, label, size).witnessed(witness)
            log.folders.newest_cosigned(label).write_bytes(signed.encode())

    def anchors(self, log: BigLog, size: int, at: int) -> KnownDates:
        """What anchors of the checkpoints of a copy show."""
        found = tuple(self.checkpoint(log, label, size) for label in log.labels)
        return KnownDates(
            anchored={(one.label_curr, one.upto_seq, one.mmr_root): at for one in found}, checkpoints=found
        )

    def verdicts(self, dates: KnownDates | None = None) -> set[str | None]:
        """The verdicts on both labels of an audit: None if the hub is convicted."""
        found = run_audit(*self.roots, dates=dates)
        assert {one.stream_seq for one in found.equivocations} == {13}
        assert len(found.equivocations) == 2
        return {one.retired for one in found.equivocations}

    @property
    def unsure(self) -> set[str | None]:
        return {retired_verdict(self.made.hub_ts)}
