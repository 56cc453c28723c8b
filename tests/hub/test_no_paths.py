"""No answer of a hub names a file of its data directory, whatever happened to that file. Its log does."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest
from wsproto.events import CloseConnection

from plumbing.durable import Disk
from tests.hub.client import ISSUER, START, TOKEN, WITNESS, Clock, Hub, Writer, hub_key, make_dir, running, until
from tests.hub.disks import QuickDisk
from tests.hub.subscriber import Subscriber
from tests.hub.test_conditions import gauge
from tests.hub.test_evidence import contradiction
from veen.core import Checkpoint, Limits, Msg, SigningKey, cap_token, naming
from veen.core.cbor import Wire
from veen.core.envelopes import (
    CheckpointList,
    CheckpointRequest,
    ConsistencyRequest,
    ProofAtRequest,
    ProofRequest,
    ReceiptRequest,
    StreamRegistration,
    StreamRequest,
    SubmitRequest,
    WitnessRequest,
)
from veen.core.hashing import h
from veen.hub import conditions
from veen.hub.admission_rules import Admission
from veen.storage import rotation
from veen.storage.paths import Folders

INTERVAL = 4
SEALED = b"\x07" * 100_000  # large enough to be mapped
LATER = START + 200

FILES = {
    "every seed": "keys/*.seed",
    "chunks": "log/chunk-*.log",
    "summaries and peaks": "log/[ps]*",
    "checkpoints": "log/checkpoint-*.cbor",
    "nodes": "index/nodes/*",
    "attachments": "attachments/*/*",
    "evidence": "evidence/*",
    "witnesses": "witnesses/*",
    "metadata": "*.json",
    "signatures": "*.sig",
    "journal": "journal/*",
}
DIRS = ("keys", "log", "journal", "attachments", "evidence", "index/nodes")


def _elsewhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _other(content: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        draft = path.with_name("other")  # a new file, so that mapped content stays
        draft.write_bytes(content(path.read_bytes()))
        draft.chmod(0o600)
        draft.replace(path)

    return act


WAYS: dict[str, Callable[[Path], None]] = {
    "removed": Path.unlink,
    "a link": _elsewhere,
    "a folder": _folder,
    "empty": _other(lambda data: b""),
    "half": _other(lambda data: data[: len(data) // 2]),
    "flipped": _other(lambda data: bytes(byte ^ 0xFF for byte in data)),
    "readable by all": lambda path: path.chmod(0o644),
}


class Kept:
    """A data directory with one of everything, and what was sent to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        clock = Clock()
        self.data_dir = make_dir(root, limits=Limits(max_checkpoint_interval=INTERVAL))
        with running(self.data_dir, clock) as hub:
            self.writer = hub.writer()
            self.first = self.writer.message()
            self.writer.send_many(2 * INTERVAL + 1)
            hub.ask("PUT", f"/tooling/attachments/{h(SEALED).hex()}", SEALED)
            hub.post("/tooling/equivocation", contradiction(hub, hub_key(hub)))
        with running(self.data_dir, clock) as hub:
            found = hub.get(f"/tooling/checkpoints?label={self.writer.label.hex()}").read(CheckpointList)
            self.checkpoint = found.checkpoints[0]
            hub.post("/tooling/witness", witnessed(self.checkpoint)).read(Checkpoint)
        rotation.rotate_key(Disk(), Folders(self.data_dir), START + 100, 0)

    def copy(self, target: Path) -> Path:
        shutil.copytree(self.data_dir, target / "hub")
        return target / "hub"


def witnessed(checkpoint: Checkpoint) -> WitnessRequest:
    sig = WITNESS.sign(checkpoint.signing_digest())
    return WitnessRequest(checkpoint.label_curr, checkpoint.upto_seq, WITNESS.public_key, sig)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("kept"))


class Sweep:
    """Calls every endpoint and records the answers."""

    def __init__(self, hub: Hub, kept: Kept) -> None:
        self._hub = hub
        self._kept = kept
        label = kept.writer.label
        self.writer = Writer(hub, label, kept.writer.key, None, kept.writer.client_seq, kept.writer.prev_ack)
        token = cap_token.mint(ISSUER, SigningKey.generate().public_key, [naming.stream_id("s")], 1000)
        last = 2 * INTERVAL + 1
        self._posted: list[tuple[str, Wire]] = [
            ("/v1/stream", StreamRequest(label, 1, with_mmr_proof=True)),
            ("/v1/stream", StreamRequest(label, last)),
            ("/v1/receipt", ReceiptRequest(label, 1)),
            ("/v1/proof", ProofRequest(label, last)),
            ("/v1/proof", ProofRequest(label, 2)),
            ("/v1/checkpoint", CheckpointRequest(label, 3)),
            ("/v1/checkpoint", CheckpointRequest(label, last)),
            ("/tooling/proof", ProofAtRequest(label, 1, last)),
            ("/tooling/consistency", ConsistencyRequest(label, 1, last)),
            ("/tooling/witness", witnessed(kept.checkpoint)),
            ("/tooling/equivocation", contradiction(hub, SigningKey(b"\x09" * 32))),
        ]
        self._written: list[tuple[str, Wire]] = [
            ("/v1/submit", SubmitRequest(kept.first)),
            ("/tooling/streams", StreamRegistration(naming.stream_id("t"))),
            ("/tooling/authorize", hub.presented(token)),
        ]
        self.answers: list[tuple[str, bytes]] = []

    def read(self) -> None:
        hub, label = self._hub, self._kept.writer.label.hex()
        for path in (
            # Except the OpenAPI description: it is the same for every hub, and names the formats of some files.
            *("/healthz", "/readyz", "/metrics", "/tooling/status", "/nothing", "/v2/x"),
            *("/tooling/origin", "/tooling/equivocation", f"/tooling/checkpoints?label={label}"),
            *(f"/tooling/attachments/{coid.hex()}" for coid in (h(SEALED), bytes(32))),
        ):
            self._note(path, hub.get(path))
            self._note(path, hub.get(path, accept="application/json"))
        for path, wire in self._posted:
            self._note(path, hub.post(path, wire))
            self._note(path, hub.post_json(path, wire))
        for sealed in (SEALED, b"another"):
            path = f"/tooling/attachments/{h(sealed).hex()}"
            self._note(path, hub.ask("PUT", path, sealed))
        subscriber = Subscriber(hub, f"label={label}&from=1")
        event = subscriber._event()
        if isinstance(event, CloseConnection):
            self.answers.append(("/tooling/subscribe", (event.reason or "").encode()))
        subscriber._socket.close()

    def write(self) -> None:
        """Requests that may end the hub, without an answer."""
        hub = self._hub
        token = f"Bearer {TOKEN}"
        for path, wire in self._written:
            self._try(lambda path=path, wire=wire: self._note(path, hub.post(path, wire, authorization=token)))  # type: ignore[misc]
        for message in (self.writer.message(), hub.writer("new").message()):
            self._try(lambda message=message: self._submit(message))  # type: ignore[misc]
        self._note("/readyz", hub.get("/readyz"))
        self._note("/tooling/status", hub.get("/tooling/status"))

    def check(self, data_dir: Path, names: set[str]) -> None:
        words = {str(data_dir), str(data_dir.parent), "/etc/passwd", *names}
        found = {(path, word) for path, body in self.answers for word in words if word.encode() in body}
        assert found == set(), [body for path, body in self.answers if path in {path for path, _ in found}]

    def _submit(self, message: Msg) -> None:
        self._note("/v1/submit", self._hub.submit(message))
        self._note("/tooling/submit-batch", self._hub.post("/tooling/submit-batch", message.encode()))

    def _note(self, path: str, reply: object) -> None:
        self.answers.append((path, getattr(reply, "body", b"")))
        self.answers.append((path, repr(getattr(reply, "headers", {})).encode()))

    def _try(self, act: Callable[[], None]) -> None:
        def run() -> None:
            with suppress(OSError, AssertionError):
                act()

        thread = Thread(target=run, daemon=True)
        thread.start()
        broken = self._hub.service.broken
        assert broken is not None
        until(lambda: not thread.is_alive() or broken.done())


def names_in(data_dir: Path) -> set[str]:
    """The names of its files, except ordinary words such as `lock`."""
    return {path.name for path in data_dir.rglob("*") if path.is_file() and "." in path.name}


def check_answers(data_dir: Path, kept: Kept, spoil: Callable[[Path], object]) -> Iterator[Hub]:
    names = names_in(data_dir)
    settings = {"admission": Admission.OPEN, "disk_reserve_bytes": 0}
    hub = Hub(data_dir, Clock(LATER), QuickDisk(), settings).start()
    try:
        spoil(data_dir)
        sweep = Sweep(hub, kept)
        sweep.read()
        sweep.write()
        sweep.check(data_dir, names | names_in(data_dir))
        yield hub
    finally:
        assert hub.service.broken is not None
        hub.abandon() if hub.service.broken.done() else hub.stop()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("files", FILES)
def test_no_answer_names_a_file_that_is_gone_or_damaged(tmp_path: Path, kept: Kept, files: str, way: str) -> None:
    def spoil(data_dir: Path) -> None:
        found = [path for path in data_dir.glob(FILES[files]) if path.is_file()]
        assert found or files == "journal", "the test would try nothing"
        for path in found:
            WAYS[way](path)

    list(check_answers(kept.copy(tmp_path), kept, spoil))


@pytest.mark.parametrize("folder", [*DIRS, "."])
def test_no_answer_names_a_folder_that_is_gone(tmp_path: Path, kept: Kept, folder: str) -> None:
    data_dir = kept.copy(tmp_path)
    for _ in check_answers(data_dir, kept, lambda data_dir: (data_dir / folder).rename(tmp_path / "aside")):
        (tmp_path / "aside").rename(data_dir / folder)


def test_no_answer_names_what_was_put_where_a_file_of_the_hub_belongs(tmp_path: Path, kept: Kept) -> None:
    list(check_answers(kept.copy(tmp_path), kept, lambda data_dir: (data_dir / "origin.cbor").write_bytes(b"\xff")))


def test_a_missing_file_is_named_in_the_log_until_it_is_back(
    tmp_path: Path, kept: Kept, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "RECHECK_S", 0.01)
    data_dir = kept.copy(tmp_path)
    capfd.readouterr()
    label = kept.writer.label
    (chunk, *_) = sorted((data_dir / "log").glob(f"chunk-{label.hex()}-*.log"))
    with running(data_dir, Clock(LATER)) as hub:
        chunk.rename(tmp_path / "aside")
        for _ in range(5):
            reply = hub.post("/v1/receipt", ReceiptRequest(label, 1))
            assert reply.refusal() == (500, "E.UNAVAILABLE", None, None)
            assert reply.error().message.startswith("stored data of the hub is damaged: see the hub's log")
        assert gauge(hub, "damage") == (1, 1)
        assert hub.get("/readyz").json()["bad_states"] == ["damage"]
        (tmp_path / "aside").rename(chunk)
        until(lambda: gauge(hub, "damage") == (0, 1))
        assert hub.post("/v1/receipt", ReceiptRequest(label, 1)).status == 200
    rows = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    _, entered, left, _ = rows
    assert (entered["event"], entered["reason"]) == ("bad_state_entered", "damage")
    assert f"{chunk.name} is missing" in entered["error"]
    assert (left["event"], left["reason"], left["refused"]) == ("bad_state_left", "damage", 5)
