"""Sending and reading through the client with full verification, compared with the cryptography alone.

Both are CPU time of this process, measured in one run; the hub runs in its own process. The cryptography is measured
repeatedly while the client works, on the same thread and under the same load, and subtracted from the client's time.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from nacl import bindings

from veen.bench.bench_report import BenchReport, BenchRow
from veen.bench.hub_process import HubProcess
from veen.client import ClientDir
from veen.client.client import Client
from veen.client.sender import Draft
from veen.client.trust import Pin
from veen.core import SigningKey, signing

MESSAGES = 10_000
BODY_BYTES = 300
PROMISED = 1.5  # of the cryptography, for sending and reading together
STREAM = "bench"
ROUNDS = 3
_CALLS = 20
_PAUSE_S = 0.02
_HDR_BYTES, _MSG_BYTES, _CIPHERTEXT_BYTES = 36, 800, 512
# HPKE takes seven HMACs of two hashes each for its key schedule and the body key.
_HPKE_HASHES = (160,) * 14
# aad, nonce, ciphertext, leaf; what the client signs, what the hub signs; a node and the peaks of a tree.
_HASHES = (200, 100, _CIPHERTEXT_BYTES, 170, _MSG_BYTES, 200, 80, 320)
_LADDER_HASHES = (100,) * 4  # the rekey ladder: one step per receipt


class Primitives:
    """The cryptographic primitives for one message, without anything around them."""

    def __init__(self) -> None:
        self._secret, self._peer = os.urandom(32), bindings.crypto_scalarmult_base(os.urandom(32))
        self._nonce, self._body, self._header = os.urandom(24), os.urandom(BODY_BYTES), os.urandom(_HDR_BYTES)
        self._sealed = bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(
            self._body, self._secret, self._nonce, self._secret
        )
        self._sealed_header = ChaCha20Poly1305(self._secret).encrypt(self._nonce[:12], self._header, self._secret)
        self._key, self._digest = SigningKey.generate(), os.urandom(32)
        self._sig = self._key.sign(self._digest)
        self._hashed = [os.urandom(size) for size in (*_HASHES, *_HPKE_HASHES)]
        self._ladder = [os.urandom(size) for size in _LADDER_HASHES]

    def send(self) -> None:
        """Seal and sign; verify the receipt and extend the tree."""
        bindings.crypto_scalarmult_base(self._secret)
        bindings.crypto_scalarmult(self._secret, self._peer)
        ChaCha20Poly1305(self._secret).encrypt(self._nonce[:12], self._header, self._secret)
        bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(self._body, self._secret, self._nonce, self._secret)
        self._key.sign(self._digest)
        signing.verify(self._key.public_key, self._digest, self._sig)
        for data in (*self._hashed, *self._ladder):
            sha256(data).digest()

    def read(self) -> None:
        """Verify hub and client signatures, extend the tree, open."""
        signing.verify(self._key.public_key, self._digest, self._sig)
        signing.verify(self._key.public_key, self._digest, self._sig)
        bindings.crypto_scalarmult(self._secret, self._peer)
        ChaCha20Poly1305(self._secret).decrypt(self._nonce[:12], self._sealed_header, self._secret)
        bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(self._sealed, self._secret, self._nonce, self._secret)
        for data in self._hashed:
            sha256(data).digest()


class Sampler:
    """Measures an action periodically while other work runs."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._samples: list[float] = []

    async def run(self) -> None:
        while True:
            start = time.thread_time()
            for _ in range(_CALLS):
                self._action()
            self._samples.append(time.thread_time() - start)
            await asyncio.sleep(_PAUSE_S)

    @property
    def seconds(self) -> float:
        """Average time of one call, because the other work meets average conditions too."""
        return sum(self._samples) / len(self._samples) / _CALLS

    @property
    def total(self) -> float:
        return sum(self._samples)


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds per message."""

    cpu: float
    needed: float
    wall: float


async def _cost(work: Awaitable[None], needed: Callable[[], None]) -> Cost:
    sampler = Sampler(needed)
    cpu, wall = time.process_time(), time.perf_counter()
    sampling = asyncio.create_task(sampler.run())
    await work
    sampling.cancel()
    spent, passed = time.process_time() - cpu, time.perf_counter() - wall
    return Cost((spent - sampler.total) / MESSAGES, sampler.seconds, passed / MESSAGES)


async def _send(client: Client) -> None:
    sender = client.sender(STREAM)
    body = os.urandom(BODY_BYTES)
    sent = await asyncio.gather(*(sender.put(Draft(body)) for _ in range(MESSAGES)))
    assert sent[-1].stream_seq == MESSAGES


async def _read(client: Client) -> None:
    count = 0
    async for entry in client.read(STREAM):
        assert entry.body is not None
        count += 1
    assert count == MESSAGES


async def _round(url: str, pin: Pin, writer: ClientDir, reader: ClientDir) -> tuple[Cost, Cost]:
    """The costs of sending and of reading."""
    needed = Primitives()
    async with Client(url, writer, pin=pin) as client:
        send = await _cost(_send(client), needed.send)
    async with Client(url, reader, pin=pin) as client:
        read = await _cost(_read(client), needed.read)
    return send, read


def measure() -> BenchReport:
    rounds = [_with_hub() for _ in range(ROUNDS)]
    rows: list[BenchRow] = []
    for name, costs in (("send", [send for send, _ in rounds]), ("read", [read for _, read in rounds])):
        rows += [
            BenchRow.of(f"{name}, CPU", [cost.cpu * 1e6 for cost in costs], "µs"),
            BenchRow.of(f"{name}, its cryptography", [cost.needed * 1e6 for cost in costs], "µs"),
            BenchRow.of(f"{name}, by the clock", [cost.wall * 1e6 for cost in costs], "µs"),
            BenchRow.of(name, [cost.cpu / cost.needed for cost in costs], "of its cryptography"),
        ]
    together = [(send.cpu + read.cpu) / (send.needed + read.needed) for send, read in rounds]
    rows.append(BenchRow.of("send and read", together, "of their cryptography", most=PROMISED))
    return BenchReport("client", tuple(rows), (f"{MESSAGES:,} messages of {BODY_BYTES} bytes, each fully verified",))


def _with_hub() -> tuple[Cost, Cost]:
    with tempfile.TemporaryDirectory(prefix="veen-bench-") as name:
        place, now = Path(name), int(time.time())
        with (
            HubProcess(HubProcess.init(place / "hub")) as hub,
            ClientDir.create(place / "writer", None, now) as writer,
            ClientDir.create(place / "reader", None, now) as reader,
        ):
            reader.stream_keys.import_secret(STREAM, writer.stream_keys.create(STREAM))
            return asyncio.run(_round(f"http://127.0.0.1:{hub.port}", Pin.of_file(hub.data_dir), writer, reader))
