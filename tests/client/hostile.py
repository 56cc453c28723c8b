"""A hub in memory that speaks real HTTP and is honest except for one lie, which starts with `lying = True`.

Its logs, trees, proofs and signatures are made with the core objects of a real hub, so that everything except the lie
verifies.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from veen.core import (
    Checkpoint,
    DhKey,
    Limits,
    Mmr,
    MmrProof,
    Msg,
    PayloadHdr,
    Place,
    Profile,
    Receipt,
    Refused,
    SigningKey,
    checkpoint,
    ciphertext,
    msg,
    naming,
    proof,
    receipt,
    strict_json,
)
from veen.core import hub_identity as identities
from veen.core.admission import BY_DETAIL, STATUS
from veen.core.cbor import DeferredFaults, Wire
from veen.core.envelopes import (
    CheckpointOrder,
    CheckpointRequest,
    CheckpointResponse,
    ConsistencyRequest,
    ErrorEnvelope,
    ProofAtRequest,
    ProofAtResponse,
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
    StreamItem,
    StreamRequest,
    StreamResponse,
    SubmitRequest,
    SubmitResponse,
)
from veen.core.wire_json import to_json

START = 1_750_000_000
DRIP_S = 0.1  # between two bytes of a slow answer
PAGE = 100


@dataclass
class Log:
    """The log of one label."""

    label: bytes
    entries: list[tuple[Msg, Receipt]] = field(default_factory=list)
    tree: Mmr = field(default_factory=Mmr)
    nodes: list[bytes] = field(default_factory=list)

    def append(self, key: SigningKey, message: Msg, hub_ts: int) -> Receipt:
        self.nodes += self.tree.append(message.leaf_hash())
        signed = receipt.sign(
            key,
            label=self.label,
            stream_seq=self.tree.size,
            leaf_hash=message.leaf_hash(),
            mmr_root=self.tree.root(),
            hub_ts=hub_ts,
        )
        self.entries.append((message, signed))
        return signed

    def cut(self, size: int) -> "Log":
        """A copy of the log with its first `size` entries."""
        made = Log(self.label, self.entries[:size])
        for message, _ in made.entries:
            made.nodes += made.tree.append(message.leaf_hash())
        return made

    def prove(self, stream_seq: int, size: int) -> MmrProof:
        if not 1 <= stream_seq <= size <= self.tree.size:
            raise Refused("E.NOT_FOUND", f"there is no entry {max(stream_seq, size)} under this label")
        return proof.prove(self.nodes.__getitem__, stream_seq, size)


class HostileHub:
    """The hub. A test sets a hook to change an answer; the hook receives the honest answer."""

    def __init__(self, profile: Profile | None = None, limits: Limits | None = None) -> None:
        self.key = SigningKey.generate()
        self.identity = identities.create(self.key, valid_from=START - 1000)
        self.profile = profile or Profile()
        self.limits = limits or Limits()
        self.hub_ts = START
        self.logs: dict[bytes, Log] = {}
        self.lying = False
        self.submitted: list[bytes] = []  # every MSG received, as encoded bytes
        self.asked: list[str] = []
        # Hooks that replace the honest answers.
        self.on_receipts: Callable[[list[Msg], list[Receipt]], list[Receipt]] | None = None
        self.on_items: Callable[[list[StreamItem]], list[StreamItem]] | None = None
        self.on_page: Callable[[StreamResponse], StreamResponse] | None = None
        self.on_receipt: Callable[[Receipt], Receipt] | None = None
        self.on_checkpoint: Callable[[Checkpoint], Checkpoint] | None = None
        self.on_proof: Callable[[MmrProof], MmrProof] | None = None
        self.on_status: Callable[[dict[str, Any]], None] | None = None
        self.on_submit: Callable[[Msg], Refused | None] | None = None
        self.mute: Callable[[str], bool] = lambda path: False  # process the request, then close without an answer
        self.drips: Callable[[str], bool] = lambda path: False  # process the request, then answer byte by byte
        self.has_batches = True
        self._stranger = SigningKey.generate()

    # Hub functions.

    def log(self, label: bytes) -> Log:
        return self.logs.setdefault(label, Log(label))

    def label(self, stream: str, epoch: int = 0) -> bytes:
        return naming.label(self.identity.routing_key, naming.stream_id(stream), epoch)

    def accept(self, message: Msg) -> Receipt:
        log = self.log(message.label)
        mine = [one for one, _ in log.entries if one.client_id == message.client_id]
        last = mine[-1] if mine else None
        for seq, (one, _) in enumerate(log.entries, 1):
            if one == message:
                raise BY_DETAIL["DUPLICATE"].refused("it was accepted", stream_seq=seq)
        if not (last.prev_ack if last else 0) <= message.prev_ack <= log.tree.size:
            raise BY_DETAIL["PREV_ACK"].refused("prev_ack", stream_seq=log.tree.size)
        if message.client_seq != (last.client_seq if last else 0) + 1:
            raise BY_DETAIL["CLIENT_SEQ"].refused("client_seq", expected=(last.client_seq if last else 0) + 1)
        return log.append(self.key, message, self.hub_ts)

    def forged(self, label: bytes, body: bytes = b"forged") -> Msg:
        """A message by an unknown client: properly signed, sealed to an unknown reader."""
        log = self.log(label)
        mine = [one for one, _ in log.entries if one.client_id == self._stranger.public_key]
        place = Place(self.profile.profile_id(), label, self._stranger.public_key, len(mine) + 1, 0)
        sealed = ciphertext.seal(
            DhKey.generate().public_key, place, PayloadHdr(os.urandom(32)), body, self.profile.pad_block
        )
        return msg.sign(
            self._stranger,
            profile_id=place.profile_id,
            label=label,
            client_seq=place.client_seq,
            prev_ack=0,
            auth_ref=None,
            ciphertext=sealed,
        )

    def fork(self, label: bytes, at: int) -> None:
        """Replace the history after `at` by another one, which is one entry longer."""
        size = self.log(label).tree.size
        self.logs[label] = self.log(label).cut(at)
        while self.log(label).tree.size <= size:
            self.log(label).append(self.key, self.forged(label), self.hub_ts)

    def signed(self, wrong: Receipt, key: SigningKey | None = None, **changes: Any) -> Receipt:
        """A receipt with changed fields, properly signed."""
        unsigned = replace(wrong, **changes)
        return replace(unsigned, hub_sig=(key or self.key).sign(unsigned.signing_digest()))

    # Answers.

    def status(self) -> dict[str, Any]:
        shown = {
            "hub_id": self.identity.hub_id.hex(),
            "hub_pk": self.key.public_key.hex(),
            "key_id": naming.key_id(self.key.public_key).hex(),
            "identity": to_json(self.identity),
            "identity_sig": to_json(identities.sign(self.identity, self.key)),
            "profile": to_json(self.profile),
            "profile_id": self.profile.profile_id().hex(),
            "epoch": self.profile.epoch(self.hub_ts),
            "hub_ts": self.hub_ts,
            "limits": to_json(self.limits),
            "admission": "open",
            "server_version": "0",
            "labels": len(self.logs),
            "entries": sum(log.tree.size for log in self.logs.values()),
        }
        if self.lying and self.on_status:
            self.on_status(shown)
        return shown

    def take(self, encoded: list[bytes]) -> list[Receipt | Refused]:
        self.submitted += encoded
        messages = [Msg.decode(one) for one in encoded]
        outcomes: list[Receipt | Refused] = []
        for message in messages:
            try:
                refused = self.on_submit(message) if self.lying and self.on_submit else None
                outcomes.append(refused or self.accept(message))
            except Refused as error:
                outcomes.append(error)
        if self.lying and self.on_receipts:
            said = iter(self.on_receipts(messages, [one for one in outcomes if isinstance(one, Receipt)]))
            outcomes = [next(said) if isinstance(one, Receipt) else one for one in outcomes]
        return outcomes

    def page(self, asked: StreamRequest) -> StreamResponse:
        log = self.logs.get(asked.label)
        if log is None or not log.entries:
            raise Refused("E.NOT_FOUND", "this label has no entries")
        last = min(asked.to_seq or log.tree.size, log.tree.size, asked.from_seq + PAGE - 1)
        items = [StreamItem(seq, *log.entries[seq - 1]) for seq in range(asked.from_seq, last + 1)]
        if self.lying and self.on_items:
            items = self.on_items(items)
        more = last + 1 if last < min(asked.to_seq or log.tree.size, log.tree.size) else None
        page = StreamResponse(asked.label, asked.from_seq, asked.to_seq, tuple(items), more)
        return self.on_page(page) if self.lying and self.on_page else page

    def receipt(self, asked: ReceiptRequest) -> ReceiptResponse:
        log = self.log(asked.label)
        if not 1 <= asked.stream_seq <= log.tree.size:
            raise Refused("E.NOT_FOUND", f"there is no entry {asked.stream_seq} under this label")
        found = log.entries[asked.stream_seq - 1][1]
        return ReceiptResponse(self.on_receipt(found) if self.lying and self.on_receipt else found)

    def checkpoint(self, asked: CheckpointRequest) -> CheckpointResponse:
        log = self.log(asked.label)
        if not 1 <= asked.upto_seq <= log.tree.size:
            raise Refused("E.NOT_FOUND", f"there is no entry {asked.upto_seq} under this label")
        made = self.checkpoint_of(log.cut(asked.upto_seq))
        return CheckpointResponse(self.on_checkpoint(made) if self.lying and self.on_checkpoint else made)

    def checkpoint_of(self, log: Log, key: SigningKey | None = None, **changes: Any) -> Checkpoint:
        said: dict[str, Any] = {
            "label_prev": log.label,
            "label_curr": log.label,
            "upto_seq": log.tree.size,
            "mmr_root": log.tree.root(),
            "epoch": 0,
        }
        return checkpoint.sign(key or self.key, **(said | changes))

    def proof(self, label: bytes, stream_seq: int, size: int) -> MmrProof:
        made = self.log(label).prove(stream_seq, size)
        return self.on_proof(made) if self.lying and self.on_proof else made

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        """`(status, content type, body)`."""
        try:
            if path == "/tooling/status":
                return 200, "application/json", strict_json.encode(self.status())
            return 200, "application/cbor", self._answer(path, body)
        except Refused as refused:
            return STATUS[refused.code], "application/cbor", ErrorEnvelope.of(refused).encode()

    def _answer(self, path: str, body: bytes) -> bytes:
        made: Wire
        if path == "/v1/submit":
            (outcome,) = self.take([SubmitRequest.decode(body).msg.encode()])
            if isinstance(outcome, Refused):
                raise outcome
            made = SubmitResponse(outcome)
        elif path == "/tooling/submit-batch" and self.has_batches:
            outcomes = self.take(_messages(body))
            return b"".join(
                ErrorEnvelope.of(one).encode() if isinstance(one, Refused) else one.encode() for one in outcomes
            )
        elif path == "/v1/stream":
            made = self.page(StreamRequest.decode(body))
        elif path == "/v1/receipt":
            made = self.receipt(ReceiptRequest.decode(body))
        elif path == "/v1/checkpoint":
            made = self.checkpoint(CheckpointRequest.decode(body))
        elif path == "/tooling/checkpoint":
            label = CheckpointOrder.decode(body).label
            made = self.checkpoint(CheckpointRequest(label, len(self.log(label).entries)))
        elif path == "/v1/proof":
            at = ProofRequest.decode(body)
            made = ProofResponse(self.proof(at.label, at.stream_seq, at.stream_seq))
        elif path == "/tooling/proof":
            in_later = ProofAtRequest.decode(body)
            made = ProofAtResponse(self.proof(in_later.label, in_later.stream_seq, in_later.upto_seq))
        elif path == "/tooling/consistency":
            between = ConsistencyRequest.decode(body)
            made = ProofAtResponse(self.proof(between.label, between.from_seq, between.to_seq))
        else:
            raise Refused("E.NOT_FOUND", f"there is no {path}")
        return made.encode()

    # HTTP, only as much as the client needs.

    async def __aenter__(self) -> "HostileHub":
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 26)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while True:
                asked = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, target, _ = asked[0].split(" ")
                named = dict(line.lower().split(": ", 1) for line in asked[1:] if ": " in line)
                body = await reader.readexactly(int(named.get("content-length", "0")))
                path = target.partition("?")[0]
                self.asked.append(path)
                status, kind, answer = self.answer(method, path, body)
                if self.mute(path):
                    break
                head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(answer)}\r\n\r\n"
                writer.write(head.encode())
                for byte in answer if self.drips(path) else b"":
                    writer.write(bytes((byte,)))
                    await asyncio.sleep(DRIP_S)
                writer.write(b"" if self.drips(path) else answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


def _messages(body: bytes) -> list[bytes]:
    found, pos = [], 0
    while pos < len(body):
        _, end = Msg.read(body, pos, DeferredFaults())
        found.append(body[pos:end])
        pos = end
    return found
