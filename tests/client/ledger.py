"""The hub's side of a log, in memory: it accepts messages and signs receipts."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from veen.client import ClientState, LabelState, Pending, WriterKey
from veen.client.trust import HubRecord
from veen.core import Checkpoint, Limits, Mmr, Msg, Profile, Receipt, SigningKey, checkpoint, msg, naming, receipt
from veen.core import hub_identity as identities

NOW = 1_700_000_000
PROFILE = Profile()
STREAM = naming.stream_id("news")


def message(writer: WriterKey, place: int = 0, *, prev_ack: int = 0, body: bytes = b"") -> Pending:
    """The message for the writer's next place, or for the place `place` after it."""
    return Pending.of(
        msg.sign(
            writer.key,
            profile_id=PROFILE.profile_id(),
            label=writer.label,
            client_seq=writer.next_client_seq + place,
            prev_ack=max(prev_ack, writer.used.last_prev_ack),
            auth_ref=writer.cap.auth_ref() if writer.cap else None,
            ciphertext=body or os.urandom(48),
        )
    )


def messages(writer: WriterKey, count: int) -> list[Pending]:
    return [message(writer, place) for place in range(count)]


@dataclass
class Ledger:
    """The log of one label of one hub."""

    stream_id: bytes = STREAM
    key: SigningKey = field(default_factory=SigningKey.generate)
    tree: Mmr = field(default_factory=Mmr)
    receipts: list[Receipt] = field(default_factory=list)
    taken: dict[bytes, int] = field(default_factory=dict)  # the last client_seq of each client_id

    def __post_init__(self) -> None:
        self.record = identities.create(self.key, valid_from=0)
        self.hub_id = self.record.hub_id
        self.label = naming.label(naming.routing_key(self.hub_id), self.stream_id, 0)

    def known(self) -> HubRecord:
        return HubRecord(self.record, identities.sign(self.record, self.key), PROFILE, Limits())

    def take(self, accepted: Msg) -> Receipt:
        """Accept a message. A message that is not the client's next one is an error in the test."""
        assert accepted.client_seq == self.taken.get(accepted.client_id, 0) + 1
        self.taken[accepted.client_id] = accepted.client_seq
        self.tree.append(accepted.leaf_hash())
        self.receipts.append(self.sign(accepted.leaf_hash()))
        return self.receipts[-1]

    def take_all(self, pending: Sequence[Pending]) -> list[Receipt]:
        return [self.take(each.msg) for each in pending]

    def sign(self, leaf_hash: bytes, hub_ts: int = NOW) -> Receipt:
        size, root = self.tree.size, self.tree.root()
        return receipt.sign(
            self.key, label=self.label, stream_seq=size, leaf_hash=leaf_hash, mmr_root=root, hub_ts=hub_ts
        )

    def checkpoint(self) -> Checkpoint:
        return checkpoint.sign(
            self.key,
            label_prev=self.label,
            label_curr=self.label,
            upto_seq=self.tree.size,
            mmr_root=self.tree.root(),
            epoch=0,
        )

    def state(self) -> LabelState:
        """The state of a client that has verified the whole log."""
        peaks = tuple(self.tree.peaks)
        return LabelState(PROFILE.profile_id(), self.tree.size, self.tree.root(), peaks, self.receipts[-1].encode())

    def answer(self, state: ClientState, pending: Sequence[Pending]) -> list[Receipt]:
        """Accept these messages, and store their receipts in the client's state."""
        before = self.state() if self.receipts else None
        given = self.take_all(pending)
        done = [each.leaf_hash for each in pending]
        state.advance(self.hub_id, self.label, self.state(), after=before, receipts=given, done=done)
        return given
