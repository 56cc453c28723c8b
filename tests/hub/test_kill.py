"""A hub that is killed at any moment: everything it acknowledged is there after a restart."""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from veen.core import CapToken, Msg, Receipt, SigningKey, cap_token, msg, naming
from veen.core.envelopes import (
    AuthorizeResponse,
    ErrorEnvelope,
    ReceiptRequest,
    ReceiptResponse,
    SubmitRequest,
    SubmitResponse,
)
from veen.core.hashing import U64_MAX, h
from veen.storage import fsck
from veen.storage.directory_reader import LogReader

WRITERS = 4
COMMAND = [sys.executable, "-m", "veen.cli", "hub"]
ISSUER = SigningKey.generate()
UPLOAD_EVERY = 8  # messages
UPLOAD_BYTES = 100_000


@dataclass(frozen=True)
class Setting:
    """Settings of a hub to kill. Chunks are closed often, so that some kills happen meanwhile."""

    limits: tuple[str, ...] = ("max_checkpoint_interval=8",)
    by_capability: bool = False
    workers: tuple[int | None, ...] = (0,)  # per run; None is the default

    def init_options(self) -> list[str]:
        return [option for limit in self.limits for option in ("--limit", limit)]

    def start_options(self, life: int) -> list[str]:
        admission = ["capability", "--issuer", ISSUER.public_key.hex()] if self.by_capability else ["open"]
        workers = self.workers[life % len(self.workers)]
        return ["--admission", *admission, *([] if workers is None else ["--workers", str(workers)])]


PLAIN = Setting()
PACKED = replace(PLAIN, limits=(*PLAIN.limits, "chunk_zstd_level=3"))
SETTINGS = {
    "plain": PLAIN,
    "compressed": PACKED,
    "by capability": replace(PLAIN, by_capability=True),
    "with workers": replace(PLAIN, workers=(None,)),
}
EVERYTHING = replace(PACKED, by_capability=True, workers=(0, None))


@dataclass
class Writer:
    """A client that keeps sending and records every receipt."""

    key: SigningKey
    hub_id: bytes
    label: bytes
    profile_id: bytes
    token: CapToken | None = None
    receipts: list[tuple[Msg, Receipt]] = field(default_factory=list)
    waiting: Msg | None = None  # in flight when the hub died
    uploads: list[bytes] = field(default_factory=list)  # acknowledged

    def message(self) -> Msg:
        """The message that was in flight, or else the next."""
        if self.waiting is None:
            lengths = (16).to_bytes(4, "big") * 2
            self.waiting = msg.sign(
                self.key,
                profile_id=self.profile_id,
                label=self.label,
                client_seq=len(self.receipts) + 1,
                prev_ack=self.receipts[-1][1].stream_seq if self.receipts else 0,
                auth_ref=self.token.auth_ref() if self.token else None,
                ciphertext=os.urandom(32) + lengths + os.urandom(32),
            )
        return self.waiting

    def write_until_it_dies(self, port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        try:
            self.authorize(connection)
            while True:
                self.send(connection)
                if not self.token and len(self.receipts) % UPLOAD_EVERY == 0:
                    self.upload(connection)
        except (OSError, http.client.HTTPException):
            connection.close()

    def authorize(self, connection: http.client.HTTPConnection) -> None:
        """In every run, independent of earlier ones."""
        if self.token:
            shown = cap_token.present(ISSUER, self.token, self.hub_id, U64_MAX)
            status, body = _ask(connection, "POST", "/tooling/authorize", shown.encode())
            assert status == 200, ErrorEnvelope.decode(body)
            assert AuthorizeResponse.decode(body).auth_ref == self.token.auth_ref()

    def upload(self, connection: http.client.HTTPConnection) -> None:
        sealed = os.urandom(UPLOAD_BYTES)
        status, _ = _ask(connection, "PUT", _upload_path(sealed), sealed)
        assert status in (201, 503)  # the state must not be a full disk
        if status == 201:
            self.uploads.append(sealed)

    def send(self, connection: http.client.HTTPConnection) -> None:
        sent = self.message()
        status, body = _ask(connection, "POST", "/v1/submit", SubmitRequest(sent).encode())
        if status == 200:
            receipt = SubmitResponse.decode(body).receipt
        else:
            # It was accepted before the hub died, and the reply was lost: fetch the receipt.
            refused = ErrorEnvelope.decode(body).refused()
            assert refused.detail_enum == "DUPLICATE", refused
            receipt = fetched(connection, self.label, int(refused.detail["stream_seq"]))
        receipt.check_binds(sent)
        self.receipts.append((sent, receipt))
        self.waiting = None


def _upload_path(sealed: bytes) -> str:
    return f"/tooling/attachments/{h(sealed).hex()}"


def _ask(connection: http.client.HTTPConnection, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    connection.request(method, path, body, {"content-type": "application/cbor"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def fetched(connection: http.client.HTTPConnection, label: bytes, stream_seq: int) -> Receipt:
    status, body = _ask(connection, "POST", "/v1/receipt", ReceiptRequest(label, stream_seq).encode())
    assert status == 200, ErrorEnvelope.decode(body)
    return ReceiptResponse.decode(body).receipt


def start(data_dir: Path, options: list[str] | None = None) -> tuple[subprocess.Popen[str], int]:
    # Logs that other tests wrote with a clock of their own end long ago.
    options = [*(options or PLAIN.start_options(0)), "--max-start-gap", "9999d"]
    command = [*COMMAND, "start", "--foreground", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", *options]
    env = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(data_dir.parent),
    }  # files of a killed process are cleaned up by the test
    hub = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=env)
    assert hub.stderr is not None
    line = hub.stderr.readline()
    assert line.startswith("{"), f"the hub did not start: {line}"
    return hub, int(json.loads(line)["listen"].rpartition(":")[2])


def ended(hub: subprocess.Popen[str]) -> int:
    with hub:  # closes its pipe
        return hub.wait()


def check_after_kills(folder: Path, setting: Setting, kills: int, seed: int) -> None:
    moments = random.Random(seed)
    data_dir = folder / "hub"
    init = [*COMMAND, "init", "--no-root", "--data-dir", str(data_dir), *setting.init_options(), "--json"]
    made = subprocess.run(init, check=True, capture_output=True, text=True)
    writers = [_writer(setting, bytes.fromhex(json.loads(made.stdout)["hub_id"]), data_dir, n) for n in range(WRITERS)]
    for life in range(1, kills + 1):
        hub, port = start(data_dir, setting.start_options(life))
        check_receipts(port, writers, moments)
        threads = [threading.Thread(target=writer.write_until_it_dies, args=(port,)) for writer in writers]
        for thread in threads:
            thread.start()
        threads[0].join(timeout=moments.uniform(0.0, 0.4))
        # A slow machine acknowledges little in a short run: the last one runs until something was acknowledged.
        while life == kills and acknowledged(writers) <= kills and threads[0].is_alive():
            threads[0].join(timeout=0.01)
        hub.send_signal(signal.SIGKILL)
        for thread in threads:
            thread.join()
        ended(hub)
        check_files(data_dir)
    hub, port = start(data_dir, setting.start_options(0))
    check_receipts(port, writers, moments, everything=True)
    hub.send_signal(signal.SIGTERM)
    assert ended(hub) == 0
    report = fsck.check(data_dir)
    assert not report.findings, report.findings[:3]
    assert acknowledged(writers) > kills


def _writer(setting: Setting, hub_id: bytes, data_dir: Path, number: int) -> Writer:
    key, stream = SigningKey.generate(), naming.stream_id(f"s{number % 2}")
    token = cap_token.mint(ISSUER, key.public_key, [stream], 1 << 20) if setting.by_capability else None
    return Writer(key, hub_id, naming.label(naming.routing_key(hub_id), stream, 0), _profile_id(data_dir), token)


def check_files(data_dir: Path) -> None:
    """A killed hub leaves a sound directory: fsck is clean without a restart in between."""
    report = fsck.check(data_dir, isolated=False)
    assert report.verdict is fsck.FsckVerdict.CLEAN, report.first


def acknowledged(writers: list[Writer]) -> int:
    return sum(len(writer.receipts) for writer in writers)


def check_receipts(port: int, writers: list[Writer], moments: random.Random, *, everything: bool = False) -> None:
    """Every acknowledged receipt, or a sample and the newest, as the hub returns it now."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for writer in writers:
        known = writer.receipts if everything else writer.receipts[-5:] + writer.receipts[: moments.randrange(0, 5)]
        for _, receipt in known:
            assert fetched(connection, writer.label, receipt.stream_seq) == receipt
        for sealed in writer.uploads if everything else writer.uploads[-1:]:
            assert _ask(connection, "GET", _upload_path(sealed)) == (200, sealed)
    connection.close()


def _profile_id(data_dir: Path) -> bytes:
    with LogReader(data_dir) as reader:
        return reader.hub_metadata.profile.profile_id()


def test_acknowledged_messages_survive_kill_9(tmp_path: Path) -> None:
    check_after_kills(tmp_path, EVERYTHING, kills=4, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_acknowledged_messages_survive_two_hundred_kills(tmp_path: Path, name: str) -> None:
    """Fifty runs of each setting, ten per directory: everything is read again after each."""
    seed = int(os.environ.get("VEEN_KILL_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")  # pytest prints it if the test fails
    for turn in range(5):
        (tmp_path / str(turn)).mkdir()
        check_after_kills(tmp_path / str(turn), SETTINGS[name], kills=10, seed=seed + turn)
