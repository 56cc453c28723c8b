"""A hub without server, and clients with messages to send: drives the storage in tests."""

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import count
from pathlib import Path

from plumbing.durable import Disk
from veen.core import (
    CapToken,
    Checkpoint,
    HubIdentity,
    Limits,
    Msg,
    Profile,
    Rate,
    Receipt,
    Refused,
    SigningKey,
    Unavailable,
    cap_token,
    checkpoint,
    control_stream,
    msg,
    naming,
    receipt,
)
from veen.core.control_stream import RegisteredStream
from veen.core.signing import DigestSigner
from veen.hub.admission_rules import Admission, Rules, parse
from veen.hub.admission_state import AdmissionState, ControlEvent, Group, Item, Outcome, Placed, Submission
from veen.hub.sequencer import ControlLog, Sequencer
from veen.hub.signer import Signer
from veen.storage import metadata, secret_keys
from veen.storage.index import TABLES
from veen.storage.paths import Folders
from veen.storage.store import Lookup, Store

NOW = 1_700_000_000
SMALL = Limits(max_msg_bytes=4096, max_chunk_bytes=5120, max_checkpoint_interval=7)
PACKED = replace(SMALL, chunk_zstd_level=3)
SCRATCH = Path("/dev/shm")


class QuickDisk(Disk):
    """The real disk without syncs: these tests end processes, not machines."""

    def sync(self, fd: int) -> None:
        os.fstat(fd)

    def sync_folder(self, folder: Path) -> None:
        folder.stat()

    def sync_filesystem(self, folder: Path) -> None:
        folder.stat()


def key(name: str) -> SigningKey:
    return SigningKey(sha256(name.encode()).digest())


class Clock:
    """A clock that the test sets."""

    def __init__(self, now: int = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return float(self.now)


def create(root: Path, limits: Limits = SMALL, profile: Profile | None = None) -> Path:
    metadata.create(QuickDisk(), root, profile or Profile(), limits, NOW)
    return root


class LocalSigner:
    """The keys of a data directory in this process, for tests that start hundreds of hubs."""

    def __init__(self, folders: Folders, identity: HubIdentity) -> None:
        self._folders = folders
        self._identity = identity

    def at(self, hub_ts: int) -> DigestSigner:
        return metadata.read_signing_key(self._folders, self._identity.signing_key_at(hub_ts).key_id)


class Hub:
    """One run of a hub on a data directory."""

    def __init__(self, root: Path, disk: Disk | None = None, clock: Clock | None = None) -> None:
        self.folders = Folders(root)
        self.hub_metadata = metadata.read_metadata(self.folders)
        self.clock = clock or Clock()
        self._signer = LocalSigner(self.folders, self.hub_metadata.identity)
        metadata.check_key(secret_keys.key_path(self.folders.keys, metadata.CONTROL_KEY), None)
        control_key = secret_keys.load(self.folders.keys, metadata.CONTROL_KEY)
        self.rules = Rules.of(
            self.hub_metadata.identity.hub_id,
            self.hub_metadata.profile,
            self.hub_metadata.limits,
            Admission.OPEN,
            control_key.public_key,
            self.hub_metadata.identity.routing_key,
        )
        self.store = Store(disk or QuickDisk(), self.folders, self.hub_metadata.limits, self.sign)
        try:
            self.state = AdmissionState(self.store, self.rules)
            self.replayed = self.state.replay()
        except BaseException:
            self.abandon()
            raise
        control_log = ControlLog(self.store, self.state, self.rules, control_key)
        self.sequencer = Sequencer(self.state, self.rules, control_log, self.clock)
        self.lookup = Lookup(self.store)

    def sign(self, label: bytes, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        kept = self.hub_metadata.lineage.checkpoint(label)
        if kept and kept.upto_seq == upto_seq:
            return kept
        epoch = self.hub_metadata.profile.epoch(hub_ts)
        return checkpoint.sign(
            self._signer.at(hub_ts),
            label_prev=label,
            label_curr=label,
            upto_seq=upto_seq,
            mmr_root=mmr_root,
            epoch=epoch,
        )

    def submit(self, items: Iterable[bytes | control_stream.Event]) -> list[Outcome]:
        """Commit one group; returns the answers once it is durable."""
        given = [
            Submission(parse(item, self.rules), item, _nobody)
            if isinstance(item, bytes) and len(item) != 32
            else ControlEvent(RegisteredStream(item) if isinstance(item, bytes) else item, _nobody)
            for item in items
        ]
        group = decided(self.sequencer, self._signer, given)
        if group.records:
            try:
                number = self.store.commit(group)
            except Unavailable as error:
                return [Refused("E.UNAVAILABLE", str(error), retry_after=1) for _ in self.state.undo()]
            self.store.pending.add_group(group, number)
        self.state.keep()
        return outcomes(group)

    def catch_up(self) -> None:
        tail = self.store.begin_catching_up()
        if tail:
            self.store.catch_up(tail)
            self.store.end_catching_up()

    def close(self) -> None:
        self.store.close()

    def abandon(self) -> None:
        """Simulate the end of a process: close all descriptors, do nothing else."""
        if self.store._journal:
            self.store._journal.close()
        self.store.index.close()
        self.store._lock.close()

    def entries(self, label: bytes) -> list[tuple[bytes, bytes]]:
        return [(entry.msg, entry.receipt) for entry in self.lookup.entries(label, 1, self.lookup.size(label))]


def decided(sequencer: Sequencer, signer: "Signer | LocalSigner", items: list[Item]) -> Group:
    """A group, decided, signed and taken for commit."""
    hub_ts = sequencer.hub_ts
    group = sequencer.decide(items, hub_ts)
    made = [
        receipt.unsigned(one.message.label, one.stream_seq, one.leaf_hash, one.mmr_root, hub_ts) for one in group.placed
    ]
    signatures = signer.at(hub_ts).sign_many([digest for _, digest in made])
    for placed, (encoded, _), sig in zip(group.placed, made, signatures, strict=True):
        group.seal(placed, encoded + sig)
    taken = sequencer.state.take()
    assert taken is not None
    return taken


def outcomes(group: Group) -> list[Outcome]:
    """The answers to the items of a signed group."""
    return [outcome.receipt if isinstance(outcome, Placed) else outcome for _, outcome in group.outcomes]


def _nobody(outcome: Outcome) -> None:
    """Answers are read from the group instead."""


@dataclass
class Client:
    """A client that signs messages for the labels of one hub."""

    name: str
    rules: Rules
    key: SigningKey = field(init=False)
    _seqs: dict[bytes, "count[int]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.key = key(self.name)

    def message(self, label: bytes, body: int = 40, auth_ref: bytes | None = None, prev_ack: int = 0) -> bytes:
        seq = next(self._seqs.setdefault(label, count(1)))
        filler = sha256(f"{self.name} {seq}".encode() + label).digest() * (body // 32 + 1)
        ciphertext = filler[:32] + (16).to_bytes(4, "big") + body.to_bytes(4, "big") + filler[:16] + filler[:body]
        pad = self.rules.profile.pad_block
        return msg.sign(
            self.key,
            profile_id=self.rules.profile_id,
            label=label,
            client_seq=seq,
            prev_ack=prev_ack,
            auth_ref=auth_ref,
            ciphertext=ciphertext + bytes(-len(ciphertext) % pad if pad else 0),
        ).encode()

    def cap(self, streams: Iterable[bytes], rate: Rate | None = None) -> CapToken:
        return cap_token.mint(key("issuer"), self.key.public_key, streams, 1_000_000, rate)


def label_of(rules: Rules, stream: str, epoch: int = 0) -> bytes:
    return naming.label(rules.routing_key, naming.stream_id(stream), epoch)


@dataclass(frozen=True)
class History:
    """Groups of messages, and a data directory for them."""

    template: Path
    groups: tuple[tuple[bytes | control_stream.Event, ...], ...]

    def fresh(self, root: Path) -> Path:
        """A copy of the directory before the first message."""
        if root.exists():
            shutil.rmtree(root)
        shutil.copytree(self.template, root)
        return root


def small_history(template: Path, messages: int = 40, streams: int = 3, limits: Limits = SMALL) -> History:
    """A few clients on a few streams in groups of several sizes, with a capability and a registered stream."""
    create(template, limits)
    hub = Hub(template)
    rules = hub.rules
    hub.close()
    shutil.rmtree(template / "index")
    (template / "index" / "nodes").mkdir(parents=True)
    clients = [Client(name, rules) for name in ("ann", "ben", "cyd")]
    labels = [label_of(rules, f"stream {number}") for number in range(streams)]
    token = clients[0].cap([naming.stream_id("stream 0")], Rate(5, 50))
    groups: list[tuple[bytes | control_stream.Event, ...]] = [(token, naming.stream_id("stream 1"))]
    made: list[bytes | control_stream.Event] = []
    for number in range(messages):
        label = labels[number * 5 // 3 % streams]
        client = clients[number % 3]
        capped = client is clients[0] and label == labels[0]
        body = 700 if number % 11 == 5 else 40
        made.append(client.message(label, body, auth_ref=token.auth_ref() if capped else None))
        if number % 5 in (1, 4) or number == messages - 1:
            groups.append(tuple(made))
            made = []
    return History(template, tuple(groups))


def receipts(outcomes: Sequence[Outcome]) -> list[bytes]:
    """The receipts; fails if a message was rejected."""
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    assert not refused, refused[0]
    return [outcome for outcome in outcomes if isinstance(outcome, bytes)]


def place_of(receipt: bytes) -> tuple[bytes, int]:
    opened = Receipt.decode(receipt)
    return opened.label, opened.stream_seq


def leaf_of(encoded: bytes) -> bytes:
    return Msg.decode(encoded).leaf_hash()


def log_files(root: Path) -> dict[str, bytes]:
    """Every file of the log, by name."""
    return {path.name: path.read_bytes() for path in sorted((root / "log").iterdir())}


def index_rows(hub: Hub) -> dict[str, list[tuple[bytes, bytes]]]:
    """All rows of the index, except how far the journal is applied."""
    with hub.store.index.read() as rows:
        found = {table: list(rows.all_rows(table)) for table in TABLES}
    found["meta"] = [row for row in found["meta"] if row[0] not in (b"applied", b"sum")]
    return found


def node_files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / "index" / "nodes").iterdir())}
