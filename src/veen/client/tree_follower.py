"""The local copy of a label's tree, which must grow consistently with the hub's signatures. Spec §5, §9, RESYNC0.

Receipts with valid signatures advance the tree. There are four cases:

    the next entry            append its leaf; the root must be the signed one
    a later entry             others wrote in between: a proof in its own tree gives the peaks there, and a consistency
                              proof connects them with ours
    the current entry         the root must be the same, or the hub has signed two
    an earlier entry          a consistency proof from it to our tree

`LabelTree` decides and `Follower` requests the proofs. A receipt that does not fit raises `Contradiction`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from veen.client import evidence
from veen.client.client_state import LabelState, StateConflict
from veen.client.contradiction import Caught, Contradiction, Lie, shown_time
from veen.client.exchange import SMALL_BYTES
from veen.client.hub_session import HubSession
from veen.core import Checkpoint, Malformed, Mmr, MmrProof, ProofStep, Receipt, Refused, Unverified, VeenError, proof
from veen.core.cbor import Wire
from veen.core.cosignature import WitnessPolicy
from veen.core.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ConsistencyRequest,
    ProofAtRequest,
    ProofAtResponse,
    ProofRequest,
    ProofResponse,
    ReceiptCheck,
    ReceiptRequest,
    ReceiptResponse,
    StreamRequest,
    StreamResponse,
)
from veen.core.hashing import U64_MAX
from veen.core.limits import MAX_PAGE_ITEMS
from veen.core.proof import Head, Leaf, decode_head, entries_text, label_of, size_of
from veen.core.receipt import time_clash
from veen.core.recovery import LabelRecovery, RecoveryList
from veen.core.retention import PRUNED, Tombstone


def peaks_from(shown: MmrProof, head: Head) -> tuple[bytes, ...]:
    """All peaks of a signed tree, from the proof of its last leaf in this tree."""
    peak = head.leaf_hash if isinstance(head, Receipt) else shown.leaf_hash
    proof.verify_inclusion(shown, Leaf(label_of(head), peak, size_of(head)), head)
    for step in shown.path:
        # The last leaf of a tree is a right child on every level; `verify_inclusion` has checked that.
        peak = _node(step.sib, peak)
    return (peak, *shown.peaks_after)


def _node(left: bytes, right: bytes) -> bytes:
    pair = Mmr(1, [left])
    return pair.append(right)[1]


class LabelTree(Mmr):
    """The tree of one label, and the signed statement that proves its size and root."""

    __slots__ = ("head", "label")

    def __init__(self, label: bytes, size: int = 0, peaks: Sequence[bytes] = (), head: Head | None = None) -> None:
        super().__init__(size, peaks)
        self.label = label
        self.head = head

    def copy(self) -> "LabelTree":
        """A copy that grows on its own. Its peaks were checked already."""
        made = LabelTree.__new__(LabelTree)
        made.size, made.peaks, made._tags = self.size, self.peaks.copy(), self._tags
        made.label, made.head = self.label, self.head
        return made

    def add(self, receipt: Receipt) -> None:
        """Append the next entry. If the receipt does not fit, the tree stays unchanged."""
        if receipt.stream_seq != self.size + 1:
            raise ValueError(f"entry {receipt.stream_seq} is not the next after {self.size}")
        before = self.peaks.copy()
        self.append(receipt.leaf_hash)
        try:
            if self.root() != receipt.mmr_root:
                raise self._bad_root(receipt, before)
            check_times(self.head, receipt)
        except Contradiction:
            self.size, self.peaks = self.size - 1, before
            raise
        self.head = receipt

    def _bad_root(self, receipt: Receipt, peaks: list[bytes]) -> Contradiction:
        statements = (self.head, receipt) if self.head else (receipt,)
        return Contradiction(
            Lie.ROOT,
            f"the signed root of entry {receipt.stream_seq} is not the root of the tree that ends with it",
            statements,
            peaks=tuple(peaks),
        )

    def jump(self, receipt: Receipt, own: MmrProof, growth: MmrProof | None) -> None:
        """Advance to a later entry. `own` proves it in its own tree, `growth` that our tree is a prefix of that tree.

        `growth` may be None only if our tree is empty.
        """
        try:
            peaks = peaks_from(own, receipt)
        except Unverified as error:
            raise Contradiction(
                Lie.SEQ_GAP,
                f"the hub has no valid proof for the tree of {entries_text(receipt.stream_seq)} that the receipt "
                f"signs: {error.reason}",
                (receipt,),
            ) from None
        self.check_prefix_of(receipt, growth)
        self.size, self.peaks, self.head = receipt.stream_seq, list(peaks), receipt

    def check_prefix_of(self, later: Head, growth: MmrProof | None) -> None:
        """Raise `Contradiction` unless our tree is a prefix of the tree that `later` signs."""
        if self.head is None:
            return
        if growth is None:
            raise ValueError("a tree with entries needs a consistency proof")
        self._check_consistent(self.head, later, growth)

    def check_behind(self, earlier: Head, growth: MmrProof) -> None:
        """Raise `Contradiction` unless the tree that `earlier` signs is a prefix of ours."""
        if self.head is None:
            raise ValueError("an empty tree has no earlier entries")
        self._check_consistent(earlier, self.head, growth)

    def check_here(self, head: Head) -> None:
        """Raise `Contradiction` unless a signed root for our size equals our root."""
        if size_of(head) != self.size:
            raise ValueError(f"the signed root is for {entries_text(size_of(head))}, not {self.size}")
        if head.mmr_root != self.root():
            raise forked(self.head, head)
        check_times(self.head, head)

    def _check_consistent(self, old: Head, new: Head, growth: MmrProof) -> None:
        try:
            proof.verify_consistency(growth, old, new)
        except Unverified as error:
            raise Contradiction(
                Lie.FORKED_HISTORY,
                f"the log of {entries_text(size_of(new))} does not continue the log of {size_of(old)}: {error.reason}",
                (old, new),
            ) from None
        check_times(old, new)


def check_times(one: Head | None, other: Head) -> None:
    """Raise `Contradiction` if two receipts of one label have contradicting times. A checkpoint has no time."""
    clash = time_clash(one, other) if isinstance(one, Receipt) and isinstance(other, Receipt) else None
    if clash:
        assert one is not None
        raise Contradiction(Lie.TIME, clash, (one, other))


def next_proof(tree: LabelTree, leaf_hash: bytes) -> MmrProof:
    """The proof of the next leaf in its own tree, before it is appended. The peaks contain all of it."""
    peaks, size = tuple(tree.peaks), tree.size
    joins = (size ^ (size + 1)).bit_length() - 1
    return MmrProof(leaf_hash, tuple(ProofStep(proof.RIGHT, peak) for peak in peaks[:joins]), peaks[joins:])


def forked(known: Head | None, other: Head) -> Contradiction:
    """The contradiction of two roots for one size."""
    reason = f"two roots are signed for the log of {entries_text(size_of(other))}"
    return Contradiction(Lie.FORKED_HISTORY, reason, (known, other) if known else (other,))


def same_place(known: Receipt, other: Receipt) -> Contradiction:
    """The contradiction of two receipts for one place."""
    reason = f"two different entries are signed as entry {other.stream_seq}"
    return Contradiction(Lie.DUPLICATE_SEQ, reason, (known, other))


W = TypeVar("W", bound=Wire)
_MAX_RECENT = 4096
_PAGE_ENTRIES = 500


class PrunedEntries(Refused):
    """The hub pruned entries, and proved that. `tombstone` is verified, and of the last chunk of several."""

    def __init__(self, tombstone: Tombstone, about: str = "", first: int | None = None) -> None:
        segment = tombstone.segment
        when = shown_time(segment.pruned_at or 0)
        text = f"entries {first or segment.start_seq} to {segment.end_seq} were pruned by the hub on {when}"
        super().__init__("E.NOT_FOUND", about + text, detail_enum=PRUNED)
        self.tombstone = tombstone
        self.first = first or segment.start_seq


@dataclass(frozen=True, slots=True)
class _Jump:
    """A receipt beyond the next place, with the proofs that connect it to the known tree."""

    receipt: Receipt
    own: MmrProof
    growth: MmrProof | None


class Follower:
    """The verified tree of one label. All readers and senders of the label share it."""

    def __init__(self, session: HubSession, label: bytes) -> None:
        self.label = label
        self._session = session
        self._lock = asyncio.Lock()
        self._recent: OrderedDict[int, Receipt] = OrderedDict()  # receipts of this run, which need no proof again
        self._load(session.dir.state.label(session.hub_id, label))

    def _load(self, stored: LabelState | None) -> None:
        """Continue from the stored state."""
        self._stored = stored
        head = decode_head(stored.head) if stored else None
        self.tree = LabelTree(self.label, stored.size, stored.peaks, head) if stored else LabelTree(self.label)

    def start_over(self) -> None:
        """Continue from the stored state, and forget the receipts of this run."""
        self._recent.clear()
        self._load(self._session.dir.state.label(self._session.hub_id, self.label))

    async def follow(
        self, receipts: Sequence[Receipt], *, keep: Sequence[Receipt] = (), done: Sequence[bytes] = ()
    ) -> None:
        """Advance the tree past these receipts, which are ascending and have valid signatures, and store the result.

        `keep` are receipts to store, `done` the leaves to remove from the outbox. Raises `Contradiction` if a receipt
        does not fit. Then nothing has changed, and the evidence is saved.
        """
        async with self._lock:
            while True:
                tree = self.tree.copy()
                try:
                    await self._grow(tree, receipts)
                except Contradiction as error:
                    raise await self.with_best_evidence(error) from None
                if await self._persist(tree, keep, done):
                    break
        self.remember(receipts)

    async def adopt(self, before: LabelTree, grown: LabelTree, receipts: Sequence[Receipt]) -> bool:
        """Use a tree that grew from `before` by these receipts; False if `before` is not our current tree."""
        async with self._lock:
            same = (before.size, before.root()) == (self.tree.size, self.tree.root())
            if not same or not await self._persist(grown.copy(), (), ()):
                return False
        self.remember(receipts)
        return True

    def remember(self, receipts: Iterable[Receipt]) -> None:
        for receipt in receipts:
            self._recent[receipt.stream_seq] = receipt
        while len(self._recent) > _MAX_RECENT:
            self._recent.popitem(last=False)

    async def _persist(self, tree: LabelTree, kept: Sequence[Receipt], gone: Sequence[bytes]) -> bool:
        """False if another process advanced the label meanwhile; then its state is loaded."""
        assert tree.head is not None
        session, before = self._session, self._stored
        new = LabelState(session.profile_id, tree.size, tree.head.mmr_root, tuple(tree.peaks), tree.head.encode())
        if new == before and not kept and not gone:
            return True
        try:
            await asyncio.to_thread(
                session.dir.state.advance, session.hub_id, self.label, new, after=before, receipts=kept, done=gone
            )
        except StateConflict:
            self._load(session.dir.state.label(session.hub_id, self.label))
            return False
        self._stored, self.tree = new, tree
        return True

    async def _grow(self, tree: LabelTree, receipts: Sequence[Receipt]) -> None:
        jumps: dict[int, _Jump] | None = None
        for receipt in receipts:
            seq = receipt.stream_seq
            if seq == tree.size + 1:
                tree.add(receipt)
            elif seq > tree.size:
                jumps = jumps or await self._jumps(tree, receipts)
                tree.jump(jumps[seq].receipt, jumps[seq].own, jumps[seq].growth)
            elif seq == tree.size:
                tree.check_here(receipt)
            else:
                await self._check_behind(tree, receipt)

    async def _jumps(self, tree: LabelTree, receipts: Sequence[Receipt]) -> dict[int, _Jump]:
        """The proofs for every gap, requested together."""
        gaps: list[tuple[Head | None, Receipt]] = []
        size, head = tree.size, tree.head
        for receipt in receipts:
            if receipt.stream_seq > size + 1:
                gaps.append((head, receipt))
            if receipt.stream_seq > size:
                size, head = receipt.stream_seq, receipt
        found = await asyncio.gather(*(self._jump(before, receipt) for before, receipt in gaps))
        return {jump.receipt.stream_seq: jump for jump in found}

    async def _jump(self, before: Head | None, receipt: Receipt) -> _Jump:
        try:
            own = await self.proof(receipt.stream_seq)
        except Refused as refused:
            raise Contradiction(
                Lie.SEQ_GAP, f"the hub signed entry {receipt.stream_seq} but has no proof of it: {refused}", (receipt,)
            ) from None
        growth = await self.consistency(before, receipt) if before else None
        return _Jump(receipt, own, growth)

    async def _check_behind(self, tree: LabelTree, receipt: Receipt) -> None:
        """Check a receipt of a place that the tree already contains."""
        known = self._recent.get(receipt.stream_seq) or self._kept(receipt.stream_seq)
        if known is None:
            assert tree.head is not None
            tree.check_behind(receipt, await self.consistency(receipt, tree.head))
        elif (known.leaf_hash, known.mmr_root) != (receipt.leaf_hash, receipt.mmr_root):
            raise forked(known, receipt)
        else:
            check_times(known, receipt)

    def _kept(self, stream_seq: int) -> Receipt | None:
        data = self._session.dir.state.receipt(self._session.hub_id, self.label, stream_seq)
        return Receipt.decode(data) if data else None

    def known(self, stream_seq: int) -> Receipt | None:
        """The receipt of that place, if it was verified before."""
        return self._recent.get(stream_seq) or self._kept(stream_seq)

    async def check(self, head: Head) -> None:
        """Raise `Contradiction` unless a signed root with a valid signature belongs to the known history."""
        async with self._lock:
            try:
                await self._check(head)
            except Contradiction as error:
                raise await self.with_best_evidence(error) from None

    async def _check(self, head: Head) -> None:
        tree = self.tree
        if tree.head is None:
            return
        if size_of(head) == tree.size:
            tree.check_here(head)
        elif size_of(head) > tree.size:
            tree.check_prefix_of(head, await self.consistency(tree.head, head))
        elif isinstance(head, Receipt):
            await self._check_behind(tree, head)
        else:
            tree.check_behind(head, await self.consistency(head, tree.head))

    async def check_end(self) -> None:
        """Raise `Contradiction` if the hub no longer has the last known entry, or has another one there."""
        if self.tree.head is not None:
            await self.check(await self.check_has(self.tree.size))

    async def check_has(self, stream_seq: int) -> Head:
        """The receipt at a place that the hub has signed, or a checkpoint behind it if the receipt was pruned.

        Raises `Contradiction` if the hub no longer has it.
        """
        try:
            return (await self._head(stream_seq))[0]
        except Refused as refused:
            if refused.code != "E.NOT_FOUND":
                raise
            raise await self.lost(refused.message) from None

    async def lost(self, answer: str) -> Contradiction:
        """The contradiction of a hub that reports fewer entries than it signed. The hub is shown what it lost."""
        await self._show_lost()
        return await self.recorded(self.truncated(answer))

    async def _show_lost(self) -> None:
        """Show the hub our last receipt, so that it stops to sign other entries for the places that it lost."""
        receipt = self.tree.head if isinstance(self.tree.head, Receipt) else self.known(self.tree.size)
        if receipt is not None:
            with suppress(VeenError):  # other hubs may not have this endpoint
                await self.ask("/tooling/receipt-check", receipt, ReceiptCheck)

    async def recorded(self, error: Contradiction) -> Contradiction:
        """Save the evidence of a contradiction, and return it, or the loss that the hub stated in a recovery."""
        return await self.recovered() or await self._session.recorded(error)

    async def recovered(self, policy: WitnessPolicy | None = None) -> Contradiction | None:
        """The loss of entries that we have verified, if the hub stated it in a recovery. The receipts are kept.

        Raises `Unverified` if the witnesses of `policy` have not cosigned the statement.
        """
        session, head = self._session, self.tree.head
        if head is None:
            return None
        try:
            await session.refresh()  # the statement is signed by a new key
            path = f"/tooling/recoveries?label={self.label.hex()}"
            shown = RecoveryList.decode(await session.link.get(path, SMALL_BYTES))
        except VeenError:
            return None  # a hub without statements
        for one in reversed(shown.recoveries):
            size = self._size_in(one, head)
            if size is not None and size < size_of(head):
                if policy is not None:
                    policy.check_reset(one, session.trust.known.identity)
                return await self._lost_by(one, size)
        return None

    def _size_in(self, shown: LabelRecovery, head: Head) -> int | None:
        """The size that a valid statement gives for the label, if it replaced the key of `head`."""
        trust = self._session.trust
        identity = trust.known.identity
        try:
            if trust.history_of(head) is None:
                is_older = shown.statement.replaces(identity, trust.lineage.verify_head(head, trust.profile))
            else:
                is_older = shown.statement.is_incarnation(identity)
            return shown.size_of(self.label, identity) if is_older else None
        except Unverified:
            return None

    async def _lost_by(self, shown: LabelRecovery, size: int) -> Contradiction:
        session = self._session
        when = shown_time(shown.statement.recovery.recovered_at)
        reason = (
            f"the hub stated on {when} that it has {entries_text(size)} of this label; it had signed {self.tree.size}"
        )
        error = Contradiction(Lie.RECOVERY, reason, (self.tree.head,) if self.tree.head else ())
        kept = (self.known(seq) for seq in range(size + 1, min(self.tree.size, size + _MAX_RECENT) + 1))
        statements = (*error.statements, *(receipt for receipt in kept if receipt))[:MAX_PAGE_ITEMS]
        made = evidence.of_recovery(session.trust, f"{Lie.RECOVERY}: {reason}", statements, shown)
        error.evidence = await asyncio.to_thread(session.box.save, made)
        error.hub_id = session.hub_id
        return error

    def truncated(self, answer: str) -> Contradiction:
        """The contradiction of a hub that reports fewer entries than it signed."""
        head = self.tree.head
        reason = f"the hub has signed {entries_text(self.tree.size)}, but now answers: {answer}"
        return Contradiction(Lie.TRUNCATED_STREAM, reason, (head,) if head else ())

    async def tree_at(self, size: int) -> LabelTree:
        """The tree with `size` entries, verified against the known history: the start of a reader.

        Raises `PrunedEntries` if entry `size` has no receipt any more, and the next one was pruned with it.
        """
        if size == 0:
            return LabelTree(self.label)
        if size == self.tree.size:
            return self.tree.copy()
        head, tombstone = await self._head(size)
        if size > self.tree.size and isinstance(head, Receipt):
            await self.follow([head])
            if size == self.tree.size:
                return self.tree.copy()
        await self.check(head)
        if tombstone is not None and size_of(head) > size:
            raise PrunedEntries(tombstone)
        if isinstance(head, Receipt):
            made = LabelTree(self.label)
            made.jump(head, await self.proof(size), None)
            return made
        return LabelTree(self.label, size, peaks_from(await self.proof(size), head), head)

    async def pruned(self, refused: Refused, stream_seq: int) -> "PrunedEntries":
        """The error for an entry that the hub says it pruned. Raises if it does not prove that.

        The hub must have signed that it pruned a range with the entry, and the range must belong to the known history.
        """
        tombstone, signed = await self._pruned(refused, stream_seq)
        await self.check(signed)
        return PrunedEntries(tombstone)

    async def _pruned(self, refused: Refused, stream_seq: int) -> tuple[Tombstone, Checkpoint]:
        """The verified tombstone of an entry, and the checkpoint that ends with the pruned range.

        The checkpoint has a valid signature and the root of the tombstone. The caller checks it against the history.
        """
        try:
            await self._session.refresh()  # a new key may have signed it
            tombstone = Tombstone.of_answer(refused, self._session.trust.known.identity, self.label, stream_seq)
        except (Malformed, Unverified) as error:
            if stream_seq <= self.tree.size:
                raise await self.lost(f"entry {stream_seq} was pruned, without proof: {error}") from None
            raise Unverified(
                f"entry {stream_seq}", f"the hub says that it was pruned, without proof: {error}"
            ) from None
        segment = tombstone.segment
        signed = await self.checkpoint(segment.end_seq)
        if signed.mmr_root != segment.mmr_root_end:
            reason = f"the tombstone has another root for {entries_text(segment.end_seq)} than the checkpoint"
            raise await self.recorded(Contradiction(Lie.FORKED_HISTORY, reason, (signed,)))
        return tombstone, signed

    async def with_best_evidence(self, error: Contradiction, known: Head | None = None) -> Contradiction:
        """Look for stronger evidence: another root that the hub signs now proves more than the first symptom.

        Keeps the original error if the hub does not answer. The evidence is saved in both cases.
        """
        stated = await self.recovered()
        if stated is not None:
            return stated
        if error.lie in (Lie.ROOT, Lie.SEQ_GAP, Lie.FORKED_HISTORY) and not isinstance(error, Caught):
            error = await self._fork_at(known, self.tree.head) or error
            report = evidence.shows(self._session.trust.known, error)[1]
            if report is None or not (report.contradictions or report.retired):
                error = await self._proof_of(error) or error
        return await self._session.recorded(error)

    async def _fork_at(self, *heads: Head | None) -> Contradiction | None:
        """Two roots for one size: the root of a signed statement, and another one that the hub signs now."""
        for head in heads:
            now = await self._current_head(head) if head and label_of(head) == self.label else None
            if head and now and now.mmr_root != head.mmr_root:
                return forked(head, now)
        return None

    async def _proof_of(self, error: Contradiction) -> Contradiction | None:
        """A contradiction that proves to anyone that a signed root does not belong to the log.

        Another root that the hub signs for the same size proves it, and so does the signed log before a receipt.
        """
        for head in error.statements:
            if label_of(head) != self.label:
                continue
            now = await self._current_head(head)
            if now and now.mmr_root != head.mmr_root:
                return forked(head, now)
            if not isinstance(head, Receipt):
                continue
            found = await self._bad_growth(head)
            if found and now:
                return found
            if found:  # the hub has no such entry, which is worse than a wrong root
                return Contradiction(error.lie, error.reason, found.statements, peaks=found.peaks)
        return None

    async def _bad_growth(self, receipt: Receipt) -> Contradiction | None:
        """Check the receipt against the tree of the entries before it, if the hub signs that."""
        tree = LabelTree(self.label)
        try:
            if receipt.stream_seq > 1:
                before = await self._receipt(receipt.stream_seq - 1)
                tree.jump(before, await self.proof(before.stream_seq), None)
        except VeenError:
            return None
        try:
            tree.add(receipt)
        except Contradiction as found:
            return found
        return None

    async def _current_head(self, head: Head) -> Head | None:
        """The statement that the hub signs now for the size of `head`."""
        with suppress(VeenError):
            try:
                return await self._receipt(size_of(head))
            except Refused as refused:
                if refused.detail_enum == PRUNED:
                    return await self.checkpoint(size_of(head))
        return None

    # Requests to the hub.

    async def _head(self, stream_seq: int) -> tuple[Head, Tombstone | None]:
        """The receipt at a place. If it was pruned, the tombstone, and the checkpoint that ends with the pruned range.

        Every pruned range has that checkpoint. A hub may have none of a place within it, and a retired key signs none:
        with epochs only keys of its epoch may.
        """
        try:
            return await self._receipt(stream_seq), None
        except Refused as refused:
            if refused.detail_enum != PRUNED:
                raise
            tombstone, signed = await self._pruned(refused, stream_seq)
            return signed, tombstone

    async def checkpoint(self, upto_seq: int) -> Checkpoint:
        """A checkpoint of the log up to a place, with its signature and place verified."""
        request = CheckpointRequest(self.label, upto_seq)
        found = (await self._session.link.ask("/v1/checkpoint", request, CheckpointResponse)).checkpoint
        await self._session.verify([found])
        if (found.label_curr, found.upto_seq) != (self.label, upto_seq):
            reason = f"the hub returned a checkpoint of another prefix than that of {entries_text(upto_seq)}"
            raise Contradiction(Lie.REPLAYED_RECEIPT, reason, (found,))
        return found

    async def ask(self, path: str, request: Wire, answer: type[W]) -> W:
        return await self._session.link.ask(path, request, answer)

    async def receipt(self, stream_seq: int) -> Receipt:
        """The receipt at a place, with its signature and place verified. Raises `PrunedEntries` if it was pruned."""
        try:
            return await self._receipt(stream_seq)
        except Refused as refused:
            if refused.detail_enum != PRUNED:
                raise
            raise await self.pruned(refused, stream_seq) from None

    async def placed(self, leaf_hash: bytes, stream_seq: int) -> "Receipt | PrunedEntries":
        """The receipt of a message that the hub says is at a place.

        If that receipt was pruned, the hub must prove that the place has this message.
        """
        try:
            return await self.receipt(stream_seq)
        except PrunedEntries as pruned:
            segment = pruned.tombstone.segment
            request = ProofAtRequest(self.label, stream_seq, segment.end_seq)
            shown = (await self._session.link.ask("/tooling/proof", request, ProofAtResponse)).mmr_proof
            proof.verify_leaf(shown, leaf_hash, stream_seq, segment.end_seq, segment.mmr_root_end)
            about = f"the message is entry {stream_seq}, and its receipt cannot be had: "
            return PrunedEntries(pruned.tombstone, about)

    async def _receipt(self, stream_seq: int) -> Receipt:
        request = ReceiptRequest(self.label, stream_seq)
        receipt = (await self._session.link.ask("/v1/receipt", request, ReceiptResponse)).receipt
        await self._session.verify([receipt])
        if (receipt.label, receipt.stream_seq) != (self.label, stream_seq):
            raise Contradiction(
                Lie.REPLAYED_RECEIPT,
                f"the hub returned the receipt of entry {receipt.stream_seq} instead of entry {stream_seq}"
                + ("" if receipt.label == self.label else " of another label"),
                (receipt,),
            )
        return receipt

    async def proof(self, stream_seq: int) -> MmrProof:
        request = ProofRequest(self.label, stream_seq)
        return (await self._session.link.ask("/v1/proof", request, ProofResponse)).mmr_proof

    async def consistency(self, old: Head, new: Head) -> MmrProof:
        """The proof that one signed tree is a prefix of another. A hub that has none has forked."""
        request = ConsistencyRequest(self.label, size_of(old), size_of(new))
        try:
            return (await self._session.link.ask("/tooling/consistency", request, ProofAtResponse)).mmr_proof
        except Refused as refused:
            if new is self.tree.head:
                await self.check_has(size_of(new))  # a hub that lost the entry cannot prove anything about it
            raise Contradiction(
                Lie.FORKED_HISTORY,
                f"no proof that the log of {entries_text(size_of(new))} extends that of {size_of(old)}: {refused}",
                (old, new),
            ) from None

    async def page(self, first: int, last: int | None) -> StreamResponse:
        """Entries with their receipts, not verified."""
        request = StreamRequest(self.label, first, to_seq=last, max_items=_PAGE_ENTRIES, with_receipts=True)
        return StreamResponse.decode(await self._session.link.page(request))

    async def find(self, leaf_hash: bytes, after: int) -> "Receipt | PrunedEntries | None":
        """The receipt of a message that may have been accepted after a place; None if it was not.

        For a response that was lost and cannot be requested again: reads the entries since then.
        """
        first: int | None = after + 1
        while first is not None:
            try:
                page = await self.page(first, None)
            except Refused as refused:
                if refused.detail_enum == PRUNED:
                    end = (await self.pruned(refused, first)).tombstone.segment.end_seq
                    found = await self._find_pruned(leaf_hash, first, end)
                    if found is not None:
                        return found
                    first = end + 1
                    continue
                if refused.code == "E.NOT_FOUND":
                    return None
                raise
            for item in page.items:
                if item.msg.leaf_hash() == leaf_hash:
                    return await self._receipt(item.stream_seq)
            first = page.next_cursor if page.items and (page.next_cursor or 0) > first else None
        return None

    async def _find_pruned(self, leaf_hash: bytes, first: int, last: int) -> "Receipt | PrunedEntries | None":
        """The same among pruned entries, one request or two for each."""
        for stream_seq in range(first, last + 1):
            with suppress(Unverified):  # the place has another message
                found = await self.placed(leaf_hash, stream_seq)
                if isinstance(found, PrunedEntries) or found.leaf_hash == leaf_hash:
                    return found
        return None

    async def end(self) -> int:
        """The number of entries that the hub claims to have."""
        return await last_place(self._has, self.tree.size)

    async def _has(self, stream_seq: int) -> bool:
        try:
            await self._receipt(stream_seq)
        except Refused as refused:
            if refused.code == "E.NOT_FOUND":
                return refused.detail_enum == PRUNED
            raise
        return True


async def last_place(has: Callable[[int], Awaitable[object]], known: int = 0) -> int:
    """The last place of a log with an entry, from `known` on: double the step until there is no entry, then bisect."""
    low, step = known, 1
    while low + step < U64_MAX and await has(low + step):
        low, step = low + step, step * 2
    high = min(low + step, U64_MAX)  # not there
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if await has(middle) else (low, middle)
    return low


class Followers:
    """The followers of one hub's labels in this run."""

    def __init__(self, session: HubSession) -> None:
        self._session = session
        self._by_label: dict[bytes, Follower] = {}

    def of(self, label: bytes) -> Follower:
        if label not in self._by_label:
            self._by_label[label] = Follower(self._session, label)
        return self._by_label[label]
