"""A data directory with many epochs and streams, made without a server, and the client that can read it."""

from dataclasses import dataclass
from pathlib import Path

from tests.storage.hubs import Clock, Hub, QuickDisk, key, receipts
from veen.client import ClientDir
from veen.core import Limits, Mmr, PayloadHdr, Place, Profile, ciphertext, msg, naming
from veen.core.control_stream import EndedLabel, EpochEnd
from veen.core.limits import MAX_ENDED_LABELS
from veen.overlays import kv
from veen.storage import metadata

EPOCH_SEC = 3600


@dataclass(frozen=True)
class ManyEpochs:
    """Each stream has one entry in every epoch, which sets a key of its own, and a second in every third."""

    root: Path
    epochs: int
    streams: int
    start: int

    def name(self, number: int) -> str:
        return f"stream {number}"

    def in_epoch(self, epoch: int) -> int:
        """The number of entries of a stream in an epoch, counted from 0."""
        return 1 + (epoch % 3 == 0)

    @property
    def entries(self) -> int:
        """The number of entries of a stream."""
        return sum(map(self.in_epoch, range(self.epochs)))

    @property
    def end(self) -> int:
        return self.start + self.epochs * EPOCH_SEC - 1

    def make(self, client: ClientDir) -> None:
        """Write the log. Each epoch ends at the start of the next, as a hub without skew ends it."""
        metadata.create(QuickDisk(), self.root, Profile(epoch_sec=EPOCH_SEC), Limits(max_epoch_skew_sec=0), self.start)
        hub, author = Hub(self.root, clock=Clock(self.start)), key("author")
        readers = [client.stream_keys.create(self.name(one)) for one in range(self.streams)]
        receipts(hub.submit([naming.stream_id(self.name(one)) for one in range(self.streams)]))
        rules, before = hub.rules, list[tuple[bytes, int, Mmr]]()
        for number in range(self.epochs):
            hub.clock.now = self.start + number * EPOCH_SEC
            epoch = rules.profile.epoch(hub.clock.now)
            ended = [EndedLabel(label, of, tree.size, tree.root()) for label, of, tree in before]
            events = [
                EpochEnd(tuple(sorted(ended[at : at + MAX_ENDED_LABELS], key=lambda one: one.label)))
                for at in range(0, len(ended), MAX_ENDED_LABELS)
            ]
            made, before = list[bytes](), []
            for stream, reader in enumerate(readers):
                label = naming.label(rules.routing_key, naming.stream_id(self.name(stream)), epoch)
                before.append((label, epoch, hub.state.tree(label)))
                for seq in range(1, self.in_epoch(number) + 1):
                    place = Place(rules.profile_id, label, author.public_key, seq, 0)
                    event = kv.put({}, b"key %d" % number, b"%d" % seq)
                    header = PayloadHdr(event.SCHEMA)
                    sealed = ciphertext.seal(reader.public_key, place, header, event.encode(), rules.profile.pad_block)
                    made.append(
                        msg.sign(
                            author,
                            profile_id=rules.profile_id,
                            label=label,
                            client_seq=seq,
                            prev_ack=0,
                            auth_ref=None,
                            ciphertext=sealed,
                        ).encode()
                    )
            receipts(hub.submit([*events, *made]))
            control = naming.label(rules.routing_key, rules.control_stream, epoch)
            if hub.state.tree(control).size:
                before.append((control, epoch, hub.state.tree(control)))
            hub.catch_up()
        hub.close()
