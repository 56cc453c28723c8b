"""A hub in memory: its keys, the tree of one label, and everything that it can sign."""

from dataclasses import dataclass, field, replace

from veen.core import Checkpoint, Mmr, MmrProof, Profile, SigningKey, checkpoint, hub_identity, naming, proof
from veen.core.cosignature import CosignRequest, ResetRequest
from veen.core.handover import LabelSize, ProvedSize, tree_of_labels
from veen.core.hashing import h, ht
from veen.core.hub_identity import HubIdentity
from veen.core.recovery import LabelRecovery, Recovery, RecoveryStatement, root_of

NOW = 1_800_000_000
LABEL = h(b"label")
PROFILE = Profile()


@dataclass
class SmallHub:
    """One label whose entry n is the hash of `story` and n."""

    root: SigningKey = field(default_factory=SigningKey.generate)
    key: SigningKey = field(default_factory=SigningKey.generate)
    story: bytes = b"a"
    leaves: list[bytes] = field(default_factory=list)
    nodes: list[bytes] = field(default_factory=list)
    tree: Mmr = field(default_factory=Mmr)
    roots: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.identity: HubIdentity = hub_identity.create(self.key, NOW - 1000, root=self.root)

    def grow(self, size: int) -> "SmallHub":
        while self.tree.size < size:
            self._append(ht("test", self.story + bytes([self.tree.size % 256])))
        return self

    def _append(self, leaf: bytes) -> None:
        self.leaves.append(leaf)
        self.nodes += self.tree.append(leaf)
        self.roots.append(self.tree.root())

    def forked(self, kept: int) -> "SmallHub":
        """The same hub with another history after `kept` entries."""
        other = SmallHub(self.root, self.key)
        other.identity = self.identity
        for leaf in self.grow(kept).leaves[:kept]:
            other._append(leaf)
        other.story = self.story + b"b"
        return other

    def checkpoint(self, size: int, label: bytes = LABEL) -> Checkpoint:
        self.grow(size)
        root = self.roots[size - 1]
        return checkpoint.sign(self.key, label_prev=label, label_curr=label, upto_seq=size, mmr_root=root, epoch=0)

    def proof(self, old: int, new: int) -> MmrProof:
        return proof.prove(self.nodes.__getitem__, old, new)

    def request(self, size: int, since: int = 0, label: bytes = LABEL) -> CosignRequest:
        signed = self.checkpoint(size, label)
        shown = self.proof(since, size) if since else None
        return CosignRequest(self.identity, hub_identity.sign(self.identity, self.key), PROFILE, signed, shown)

    def rotate(self, valid_from: int = NOW - 500, overlap_sec: int = 0) -> SigningKey:
        """Change to another key. Returns the old one."""
        old, self.key = self.key, SigningKey.generate()
        self.identity = hub_identity.rotate(self.identity, self.root, self.key, valid_from, overlap_sec)
        return old

    def recovered(self, size: int, at: int = NOW - 100) -> tuple["SmallHub", ResetRequest]:
        """The hub after it lost all but `size` entries, and its statement."""
        after = self.forked(size)
        old = after.rotate(at)
        labels = (LabelSize(LABEL, size, self.roots[size - 1]),) if size else ()
        key_ids = naming.key_id(old.public_key), naming.key_id(after.key.public_key)
        said = Recovery(self.identity.hub_id, *key_ids, at, len(labels), root_of(labels))
        made = RecoveryStatement(said, after.key.sign(said.digest()), self.root.sign(said.digest()))
        nodes = tree_of_labels(labels)[1]
        rows = tuple(ProvedSize(one, 1, proof.prove(nodes.__getitem__, 1, 1)) for one in labels)
        signature = hub_identity.sign(after.identity, after.key)
        return after, ResetRequest(after.identity, signature, LABEL, LabelRecovery(made, rows))


def without_proof(asked: CosignRequest) -> CosignRequest:
    return replace(asked, mmr_proof=None)
