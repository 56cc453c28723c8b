"""A data directory with sealed events that a reader key can open; nothing is synced."""

import os
from collections import deque
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from bench.big_log import BigLog
from veen.client.keystore import ReaderKey
from veen.core import DhKey, Limits, Mmr, PayloadHdr, Place, Sealer, msg, receipt
from veen.overlays import Event
from veen.storage import frame
from veen.storage.frame import AcceptedEntry

StreamPayload = tuple[str, PayloadHdr, bytes]  # the stream, a header and a body


class SealedLog(BigLog):
    """A log over some named streams. The key file of a stream opens it."""

    def __init__(
        self, root: Path, names: Iterable[str], *, clients: int = 3, limits: Limits | None = None, per_sec: int = 50
    ) -> None:
        super().__init__(root, streams=0, clients=clients, limits=limits, per_sec=per_sec)
        self.names = tuple(names)
        self.keys = {name: DhKey(sha256(b"reader of " + name.encode()).digest()) for name in self.names}
        self._begin({name: self.label(name) for name in self.names})
        self._pending: deque[StreamPayload] = deque()

    def _begin(self, labels: dict[str, bytes]) -> None:
        self._label_of = labels
        self.labels = list(labels.values())
        self._trees = {label: Mmr() for label in self.labels}

    def key_file(self, name: str, folder: Path) -> Path:
        """Write the reader key of a stream to a file, in the export format."""
        path = folder / f"{sha256(name.encode()).hexdigest()[:16]}.key"
        with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
            file.write(ReaderKey(name, self.keys[name].secret).encode())
        return path

    def say(self, events: Iterable[tuple[str, Event]]) -> int:
        """Add events, each to its stream."""
        return self.put((name, *event.payload()) for name, event in events)

    def put(self, payloads: Iterable[StreamPayload]) -> int:
        """Add payloads that need not be events."""
        self._pending.extend(payloads)
        count = len(self._pending)
        self.grow(count)
        return count

    def _record(self, body: int) -> AcceptedEntry:
        stream, header, payload = self._pending.popleft()
        client, label = self._made % len(self._keys), self._label_of[stream]
        hub_ts = self._born + self._made // self._per_sec
        self._made += 1
        seq = self._seqs[client, label] = self._seqs.get((client, label), 0) + 1
        key, profile = self._keys[client], self.hub_metadata.profile
        place = Place(profile.profile_id(), label, key.public_key, seq, 0, None)
        sealed = Sealer(self.keys[stream].public_key, place).seal(header, payload, profile.pad_block)
        message = msg.sign(
            key,
            profile_id=place.profile_id,
            label=label,
            client_seq=seq,
            prev_ack=0,
            auth_ref=None,
            ciphertext=sealed,
        )
        tree, leaf = self._trees[label], message.leaf_hash()
        made = tree.append(leaf)
        signed = receipt.sign_encoded(self._hub, label, tree.size, leaf, tree.root(), hub_ts)
        framed, digest = frame.write(label, tree.size, message.encode(), signed)
        return AcceptedEntry(label, tree.size, framed, digest, made, message.client_id, seq, 0, hub_ts)
