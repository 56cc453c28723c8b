"""The witnesses of a hub: the hub asks them to cosign its checkpoints, and before it starts what they hold.

A witness that is down delays nothing: its checkpoints wait, the newest of each label, and are tried again. A witness
that holds more of a label than the log, or another root, shows that the log is not the one that the hub signed before.
The hub then does not start or, if it runs, accepts nothing more on the label.
"""

import asyncio
import http.client
import secrets
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

from veen.core import Checkpoint, HubIdentity, Malformed, Refused, Unavailable, Unverified, VeenError, signing
from veen.core.cbor import Wire
from veen.core.cosignature import (
    RETIRED_KEY,
    Cosignature,
    CosignRequest,
    HeldLabels,
    HeldRequest,
    ResetRequest,
    WitnessedLabel,
    reset_digest,
)
from veen.core.envelopes import ErrorEnvelope, WitnessRequest
from veen.core.hashing import HASH_BYTES
from veen.core.limits import MAX_WITNESSED_LABELS
from veen.core.proof import entries_text
from veen.core.recovery import LabelRecovery
from veen.hub.conditions import Conditions, Reason
from veen.hub.config import WitnessAddress
from veen.storage.metadata import HubMetadata
from veen.storage.recovery import RecoveredLabels
from veen.storage.store import Lookup

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 1 << 22
RETRY_S, MAX_RETRY_S = 1.0, 60.0
MAX_PENDING = 4096  # labels that wait for one witness


class RolledBack(Unverified):
    """A witness cosigned more of a label, or another root, than this log has."""


class WitnessConnection:
    """Requests to one witness. Blocking; thread-safe, because each request has a connection of its own."""

    def __init__(self, address: WitnessAddress) -> None:
        self.address = address

    def cosign(self, asked: CosignRequest) -> Cosignature:
        made = Cosignature.decode(self._post("/v1/cosign", asked))
        self._check(made, asked.checkpoint.signing_digest())
        return made

    def reset(self, asked: ResetRequest) -> Cosignature:
        made = Cosignature.decode(self._post("/v1/reset", asked))
        self._check(made, reset_digest(asked.recovery.statement.recovery))
        return made

    def held(self, hub_id: bytes) -> Iterator[WitnessedLabel]:
        """Everything that the witness holds of a hub."""
        after, more, count = None, True, 0
        while more and count < MAX_WITNESSED_LABELS:
            asked = HeldRequest(hub_id, secrets.token_bytes(HASH_BYTES), after)
            page = HeldLabels.decode(self._post("/v1/held", asked))
            page.verify(asked, self.address.witness_pk)
            yield from page.labels
            count += len(page.labels)
            more = page.has_more and bool(page.labels)
            after = page.labels[-1].label if page.labels else None

    def _check(self, made: Cosignature, digest: bytes) -> None:
        if made.witness_pk != self.address.witness_pk:
            raise Unverified("cosignature", "it is of another witness")
        signing.verify(made.witness_pk, digest, made.sig, "cosignature")

    def _post(self, path: str, asked: Wire) -> bytes:
        """Raises `Unavailable` if there is no answer, `Refused` if it is an error."""
        parts = urlsplit(self.address.url)
        host, is_tls = parts.hostname or "", parts.scheme == "https"
        try:
            if is_tls:
                context = ssl.create_default_context()
                connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                    host, parts.port, timeout=TIMEOUT_S, context=context
                )
            else:
                connection = http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT_S)
            try:
                kind = {"content-type": "application/cbor"}
                connection.request("POST", parts.path.rstrip("/") + path, asked.encode(), kind)
                answer = connection.getresponse()
                data = answer.read(MAX_ANSWER_BYTES + 1)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{self.address.url}: {str(error) or type(error).__name__}") from error
        if len(data) > MAX_ANSWER_BYTES:
            raise Unavailable(f"{self.address.url}: the answer is longer than {MAX_ANSWER_BYTES} bytes")
        if answer.status == http.client.OK:
            return data
        try:
            raise ErrorEnvelope.decode(data).refused()
        except Malformed:
            raise Unavailable(f"{self.address.url}: it answered {answer.status}, not as a witness") from None


@dataclass(frozen=True, slots=True)
class StartCheck:
    """Compares the log with what the witnesses hold, before the hub signs anything.

    At least `quorum` witnesses must answer. With a majority of them, the hub never signs below a size that a majority
    has cosigned: two majorities have a witness in common.
    """

    hub_metadata: HubMetadata
    lookup: Lookup
    recovered: RecoveredLabels
    control_label: bytes
    reset_signed: Callable[[LabelRecovery, Cosignature], None]  # a witness cosigned the statement of a recovery
    warn: Callable[[str, str], None]  # the URL of a witness, and why it did not answer

    def run(self, witnesses: tuple[WitnessConnection, ...], quorum: int) -> None:
        """Raise `RolledBack` if the log is behind a witness, `Unavailable` if too few answer."""
        silent: list[str] = []
        for witness in witnesses:
            try:
                self._compare(witness)
            except RolledBack:
                raise
            except VeenError as error:
                silent.append(str(error))
                self.warn(witness.address.url, str(error))
        if len(witnesses) - len(silent) < quorum:
            raise Unavailable(
                f"{len(witnesses) - len(silent)} of {len(witnesses)} witnesses answered, and a start needs {quorum}: "
                + "; ".join(silent)
            )

    def _compare(self, witness: WitnessConnection) -> None:
        identity = self.hub_metadata.identity
        behind = [
            held
            for held in witness.held(identity.hub_id)
            if is_ahead(self.lookup, held.label, held.size, held.mmr_root)
        ]
        stated = self.recovered.of(self.control_label).recoveries
        for held in behind:
            if held.checkpoint is not None and not any(one.statement.is_incarnation(identity) for one in stated):
                identity.verify_checkpoint(held.checkpoint, self.hub_metadata.profile)
        if not stated:
            if behind:
                raise self._rolled_back(witness, behind[0])
            return
        for held in behind:
            self._reset(witness, held.label, held)
        newest, pk = stated[-1].statement, witness.address.witness_pk
        digest = reset_digest(newest.recovery)
        if not any(signing.is_valid(pk, digest, sig) for sig in newest.witness_sigs or ()) and not behind:
            self._reset(witness, self.control_label, None)

    def _reset(self, witness: WitnessConnection, label: bytes, held: WitnessedLabel | None) -> None:
        """Let the witness continue from the newest recovery. It refuses one that it has continued before."""
        stated = self.recovered.of(label).recoveries[-1]
        asked = ResetRequest(self.hub_metadata.identity, self.hub_metadata.signature, label, stated)
        try:
            made = witness.reset(asked)
        except Refused as refused:
            if held is None or refused.code == "E.UNAVAILABLE":
                raise
            raise self._rolled_back(witness, held) from None
        if held is not None and self.lookup.size(label) < stated.size_of(label, self.hub_metadata.identity):
            raise self._rolled_back(witness, held)
        self.reset_signed(stated, made)

    def _rolled_back(self, witness: WitnessConnection, held: WitnessedLabel) -> RolledBack:
        size = self.lookup.size(held.label)
        what = f"this log has {entries_text(size)}" if size < held.size else "this log has another root there"
        return RolledBack(
            f"label {held.label.hex()}",
            f"witness {witness.address.url} cosigned {entries_text(held.size)}, but {what}. "
            "The directory is an older or another copy of the log",
        )


@dataclass(eq=False)
class _Queue:
    """The queue of one witness: the newest checkpoint of each label. Only the loop's thread uses it."""

    witness: WitnessConnection
    pending: dict[bytes, int] = field(default_factory=dict)
    sizes: dict[bytes, int] = field(default_factory=dict)  # the last known size of each label at the witness
    uncosigned: set[bytes] = field(default_factory=set)  # labels whose last attempt failed, also those given up
    waiting: list[Callable[[], None]] = field(default_factory=list)  # called after the next attempt
    is_busy: bool = False
    retry_s: float = RETRY_S
    timer: asyncio.TimerHandle | None = None
    cosigned: int = 0
    failed: int = 0


@dataclass(eq=False)
class Cosigner:
    """Asks the witnesses of a running hub. All methods are called on the loop's thread.

    `read` returns the stored checkpoint of a place, `renew` the same one under the newest key. `store` stores a
    cosignature. `behind` is called if a witness holds more of a label than the log.
    """

    loop: asyncio.AbstractEventLoop
    executor: Executor
    conditions: Conditions
    lookup: Lookup
    hub_metadata: Callable[[], HubMetadata]
    read: Callable[[bytes, int], Checkpoint]
    renew: Callable[[bytes, int], Checkpoint]
    store: Callable[[WitnessRequest], object]
    behind: Callable[[bytes, int], None]
    witnesses: tuple[WitnessConnection, ...]

    def __post_init__(self) -> None:
        self._queues = [_Queue(witness) for witness in self.witnesses]
        self._closed = False

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Cosignatures, failures and waiting labels, by witness."""
        rows = {queue.witness.address.witness_pk.hex()[:16]: queue for queue in self._queues}
        return {
            "cosigned": {name: queue.cosigned for name, queue in rows.items()},
            "failed": {name: queue.failed for name, queue in rows.items()},
            "pending": {name: len(queue.pending) for name, queue in rows.items()},
        }

    def add(self, label: bytes, upto_seq: int, done: Callable[[], None] | None = None) -> None:
        """A checkpoint is stored: ask every witness. `done` is called when each was asked once."""
        left = len(self._queues)

        def attempted() -> None:
            nonlocal left
            left -= 1
            if not left and done:
                done()

        if not self._queues and done:
            done()
        for queue in self._queues:
            if label in queue.pending or len(queue.pending) < MAX_PENDING:
                queue.pending[label] = max(upto_seq, queue.pending.get(label, 0))
            queue.waiting.append(attempted)
            self._next(queue)

    def close(self) -> None:
        self._closed = True
        for queue in self._queues:
            if queue.timer:
                queue.timer.cancel()

    def _next(self, queue: _Queue) -> None:
        if self._closed or queue.is_busy:
            return
        if not queue.pending:
            _attempted(queue)
            return
        if queue.timer:
            if not queue.waiting:
                return
            queue.timer.cancel()  # someone waits: try now
            queue.timer = None
        queue.is_busy = True
        label, upto_seq = next(iter(queue.pending.items()))
        asked = self.loop.run_in_executor(
            self.executor, self._ask, queue.witness, label, upto_seq, queue.sizes.get(label, 0)
        )
        asked.add_done_callback(partial(self._asked, queue, label, upto_seq))

    def _ask(self, witness: WitnessConnection, label: bytes, upto_seq: int, size: int) -> int:
        """On another thread: get and store a cosignature. Returns the size that the witness holds now."""
        try:
            made = self._cosign(witness, self.read(label, upto_seq), size)
        except Refused as refused:
            if refused.detail_enum != RETIRED_KEY:
                raise
            try:
                renewed = self.renew(label, upto_seq)
            except VeenError:
                raise refused from None
            # A cosignature is of the digest, which has no key in it: it belongs to the stored checkpoint as well.
            made = self._cosign(witness, renewed, size)
        self.store(WitnessRequest(label, upto_seq, made.witness_pk, made.sig))
        return upto_seq

    def _cosign(self, witness: WitnessConnection, found: Checkpoint, size: int) -> Cosignature:
        metadata, label, upto_seq = self.hub_metadata(), found.label_curr, found.upto_seq

        def request(since: int) -> CosignRequest:
            grown = self.lookup.prove(label, since, upto_seq) if 0 < since <= upto_seq else None
            return CosignRequest(metadata.identity, metadata.signature, metadata.profile, found, grown)

        try:
            return witness.cosign(request(size))
        except Refused as refused:
            held = refused.detail.get("held_size")
            if refused.detail_enum != "PROOF" or not isinstance(held, int) or held > upto_seq:
                raise
            return witness.cosign(request(held))

    def _asked(self, queue: _Queue, label: bytes, upto_seq: int, asked: "asyncio.Future[int]") -> None:
        queue.is_busy = False
        if self._closed:
            return
        error = asked.exception()
        source = queue.witness.address.url
        is_over = error is None or self._is_over(error)
        if is_over and queue.pending.get(label) == upto_seq:
            del queue.pending[label]
        if error is None:
            queue.cosigned += 1
            queue.sizes[label] = upto_seq
            queue.retry_s = RETRY_S
            self._succeeded(queue, label)
            self._next(queue)
            return
        if getattr(error, "detail_enum", None) == "OLDER":  # it cosigned a later checkpoint of the label before
            self._succeeded(queue, label)
        else:
            queue.failed += 1
            queue.uncosigned.add(label)
            self.conditions.enter(Reason.WITNESS, error, source=source, refused=0, witness=source, label=label.hex())
        if is_over:  # the witness answers: go on with the other labels
            self._next(queue)
            return
        _attempted(queue)
        if queue.pending:
            queue.timer = self.loop.call_later(queue.retry_s, self._retry, queue)
            queue.retry_s = min(2 * queue.retry_s, MAX_RETRY_S)

    def _succeeded(self, queue: _Queue, label: bytes) -> None:
        """Note that the witness has cosigned a label. The bad state ends once this holds for every label."""
        queue.uncosigned.discard(label)
        if not queue.uncosigned:
            self.conditions.leave(Reason.WITNESS, queue.witness.address.url)

    def _retry(self, queue: _Queue) -> None:
        queue.timer = None
        self._next(queue)

    def _is_over(self, error: BaseException) -> bool:
        """Whether another attempt is useless. A conflict may show that this log is not the one that was signed.

        A retired key stays retired in an epoch that the newest may not sign, and a label beyond the witness's limit
        gets no room: such a checkpoint must not stay at the head of the queue, where it would block the other labels.
        """
        if not isinstance(error, Refused) or error.code != "E.CONFLICT":
            is_final = isinstance(error, Refused) and (error.detail_enum == RETIRED_KEY or error.code == "E.LIMIT")
            return is_final or isinstance(error, Malformed | Unverified)
        try:
            held = Checkpoint.decode(bytes.fromhex(str(error.detail.get("held", ""))))
            metadata = self.hub_metadata()
            # A witness cannot stop a label by a claim: it must show what the hub signed.
            metadata.identity.verify_checkpoint(held, metadata.profile)
        except (ValueError, VeenError):
            return True
        if is_ahead(self.lookup, held.label_curr, held.upto_seq, held.mmr_root):
            self.behind(held.label_curr, held.upto_seq)
        return True


def _attempted(queue: _Queue) -> None:
    waiting, queue.waiting = queue.waiting, []
    for one in waiting:
        one()


def is_ahead(lookup: Lookup, label: bytes, size: int, root: bytes | None) -> bool:
    """Whether a log has fewer entries of a label, or another root at that size."""
    if lookup.size(label) < size:
        return True
    return root is not None and lookup.root(label, size) != root


def check_keys(identity: HubIdentity, witness_pks: frozenset[bytes]) -> None:
    """Raise `Unavailable` if a key of the hub is named as its witness: it proves nothing that the hub does not."""
    for key in identity.hub_keys:
        if key.hub_pk in witness_pks:
            raise Unavailable(f"{key.hub_pk.hex()[:16]}… is a key of the hub itself, and cannot be its witness")
