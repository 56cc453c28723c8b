"""How a label's tree is kept up with its hub, and kept on disk. Spec §9, RESYNC0."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from veen.client import evidence_verify
from veen.client import local_tree as trees
from veen.client.client_state import LabelState, Moved
from veen.client.contradiction import Caught, Contradiction, Lie
from veen.client.hub_session import Contact
from veen.client.local_tree import LabelTree, size_of
from veen.core import MmrProof, Receipt, Refused, VeenError
from veen.core.cbor import Wire
from veen.core.envelopes import (
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
    StreamRequest,
    StreamResponse,
)
from veen.core.hashing import U64_MAX
from veen.core.proof import Head
from veen.core.tooling_messages import ConsistencyRequest, ProofAtResponse

W = TypeVar("W", bound=Wire)
_REMEMBERED = 4096
_PAGE = 500


@dataclass(frozen=True, slots=True)
class _Jump:
    """From one signed size to a receipt further on, with the proofs that allow it."""

    receipt: Receipt
    own: MmrProof
    growth: MmrProof | None


class Follower:
    """One label: the tree as far as it is verified. Shared by all who read and write it."""

    def __init__(self, contact: Contact, label: bytes) -> None:
        self.label = label
        self._contact = contact
        self._lock = asyncio.Lock()
        self._recent: OrderedDict[int, Receipt] = OrderedDict()  # of this run, so that repeats need no proof
        self._take(contact.dir.state.label(contact.hub_id, label))

    def _take(self, stored: LabelState | None) -> None:
        """Be where the disk is."""
        self._stored = stored
        head = trees.decode_head(stored.head) if stored else None
        self.tree = LabelTree(self.label, stored.size, stored.peaks, head) if stored else LabelTree(self.label)

    def start_over(self) -> None:
        """Be where the disk is now, with nothing remembered."""
        self._recent.clear()
        self._take(self._contact.dir.state.label(self._contact.hub_id, self.label))

    async def follow(
        self, receipts: Sequence[Receipt], *, keep: Iterable[Receipt] = (), done: Iterable[bytes] = ()
    ) -> None:
        """Take the tree past these receipts, ascending, whose signatures hold; then make that durable.

        `keep` are receipts to keep for ever, `done` the leaves that leave the outbox. Raises `Contradiction` where one
        does not fit; then nothing has changed, and what shows it is saved.
        """
        kept, gone = tuple(keep), tuple(done)
        async with self._lock:
            while True:
                tree = self.tree.copy()
                try:
                    await self._grow(tree, receipts)
                except Contradiction as error:
                    raise await self.sharpened(error) from None
                if await self._persist(tree, kept, gone):
                    break
        self.remember(receipts)

    async def adopt(self, before: LabelTree, grown: LabelTree, receipts: Sequence[Receipt]) -> bool:
        """Take up a tree that grew from `before` by these receipts; False where `before` is not what we have."""
        async with self._lock:
            same = (before.size, before.root()) == (self.tree.size, self.tree.root())
            if not same or not await self._persist(grown.copy(), (), ()):
                return False
        self.remember(receipts)
        return True

    def remember(self, receipts: Iterable[Receipt]) -> None:
        for receipt in receipts:
            self._recent[receipt.stream_seq] = receipt
        while len(self._recent) > _REMEMBERED:
            self._recent.popitem(last=False)

    async def _persist(self, tree: LabelTree, kept: tuple[Receipt, ...], gone: tuple[bytes, ...]) -> bool:
        """False where another process moved the label meanwhile; then we are where it is."""
        assert tree.head is not None
        contact, before = self._contact, self._stored
        new = LabelState(contact.profile_id, tree.size, tree.root(), tree.peaks, tree.head.encode())
        if new == before and not kept and not gone:
            return True
        try:
            await contact.on_disk(
                lambda: contact.dir.state.advance(
                    contact.hub_id, self.label, new, after=before, receipts=kept, done=gone
                )
            )
        except Moved:
            self._take(contact.dir.state.label(contact.hub_id, self.label))
            return False
        self._stored, self.tree = new, tree
        return True

    async def _grow(self, tree: LabelTree, receipts: Sequence[Receipt]) -> None:
        jumps = await self._jumps(tree, receipts)
        for receipt in receipts:
            seq = receipt.stream_seq
            if seq == tree.size + 1:
                tree.append(receipt)
            elif seq > tree.size:
                jump = jumps[seq]
                tree.jump(jump.receipt, jump.own, jump.growth)
            elif seq == tree.size:
                tree.check_here(receipt)
            else:
                await self._check_behind(tree, receipt)

    async def _jumps(self, tree: LabelTree, receipts: Sequence[Receipt]) -> dict[int, _Jump]:
        """The proofs for every gap, asked for together."""
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
                Lie.SEQ_GAP, f"it signed for entry {receipt.stream_seq} and has no proof of it: {refused}", (receipt,)
            ) from None
        growth = await self.consistency(before, receipt) if before else None
        return _Jump(receipt, own, growth)

    async def _check_behind(self, tree: LabelTree, receipt: Receipt) -> None:
        """A receipt for a place that we are past."""
        known = self._recent.get(receipt.stream_seq) or self._kept(receipt.stream_seq)
        if known is None:
            assert tree.head is not None
            tree.check_behind(receipt, await self.consistency(receipt, tree.head))
        elif (known.leaf_hash, known.mmr_root) != (receipt.leaf_hash, receipt.mmr_root):
            raise trees.forked(known, receipt)
        else:
            trees.check_times(known, receipt)

    def _kept(self, stream_seq: int) -> Receipt | None:
        data = self._contact.dir.state.receipt(self._contact.hub_id, self.label, stream_seq)
        return Receipt.decode(data) if data else None

    def known(self, stream_seq: int) -> Receipt | None:
        """A receipt of that place that was verified before."""
        return self._recent.get(stream_seq) or self._kept(stream_seq)

    async def check(self, head: Head) -> None:
        """Raise unless a head whose signature holds is of the history we know, before or behind where we are."""
        async with self._lock:
            try:
                await self._check(head)
            except Contradiction as error:
                raise await self.sharpened(error) from None

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
        """Raise where the hub no longer has what it signed for, or has something else there."""
        if self.tree.head is not None:
            await self.check(await self.check_has(self.tree.size))

    async def check_has(self, stream_seq: int) -> Receipt:
        """The receipt at a place that the hub has signed for. Raises `Contradiction` where it has none any more."""
        try:
            return await self.receipt(stream_seq)
        except Refused as refused:
            if refused.code != "E.NOT_FOUND":
                raise
            raise await self._contact.caught(self.truncated(refused.message)) from None

    def truncated(self, said: str) -> Contradiction:
        """The hub says that there is less than it signed for."""
        head = self.tree.head
        reason = f"the hub has signed for {self.tree.size} entries, and now says: {said}"
        return Contradiction(Lie.TRUNCATED_STREAM, reason, (head,) if head else ())

    async def tree_at(self, size: int) -> LabelTree:
        """The tree as it was with `size` entries, tied to the history we know: where a reader begins."""
        if size == 0:
            return LabelTree(self.label)
        if size == self.tree.size:
            return self.tree.copy()
        receipt = await self.receipt(size)
        if size > self.tree.size:
            await self.follow([receipt])
            if size == self.tree.size:
                return self.tree.copy()
        await self.check(receipt)
        made = LabelTree(self.label)
        made.jump(receipt, await self.proof(size), None)
        return made

    async def sharpened(self, error: Contradiction, known: Head | None = None) -> Contradiction:
        """What the hub says now of the places we know: another story there tells more than the first symptom.

        The original stands wherever the hub does not answer; what shows it is saved either way.
        """
        if error.lie in (Lie.ROOT, Lie.SEQ_GAP, Lie.FORKED_HISTORY) and not isinstance(error, Caught):
            error = await self._fork_at(known, self.tree.head) or error
            if not evidence_verify.shows(self._contact.trust.known, error)[1]:
                error = await self._proof_of(error) or error
        return await self._contact.caught(error)

    async def _fork_at(self, *heads: Head | None) -> Contradiction | None:
        """Two roots of one size: that of a signed head, and another that the hub signs for it now."""
        for head in heads:
            now = await self._told_now(head) if head and trees.label_of(head) == self.label else None
            if head and now and now.mmr_root != head.mmr_root:
                return trees.forked(head, now)
        return None

    async def _proof_of(self, error: Contradiction) -> Contradiction | None:
        """What proves to anyone that a receipt signs a root which is not that of the log.

        Another root that the hub signs for the same size does, and so does the signed log before the receipt.
        """
        for head in error.statements:
            if not isinstance(head, Receipt) or head.label != self.label:
                continue
            now = await self._told_now(head)
            if now and now.mmr_root != head.mmr_root:
                return trees.forked(head, now)
            found = await self._bad_growth(head)
            if found and now:
                return found
            if found:  # the hub has no such entry, which says more than its root
                return Contradiction(error.lie, error.reason, found.statements, peaks=found.peaks)
        return None

    async def _bad_growth(self, receipt: Receipt) -> Contradiction | None:
        """The receipt against the tree of the entries before it, where the hub signs for that."""
        tree = LabelTree(self.label)
        try:
            if receipt.stream_seq > 1:
                before = await self.receipt(receipt.stream_seq - 1)
                tree.jump(before, await self.proof(before.stream_seq), None)
        except VeenError:
            return None
        try:
            tree.append(receipt)
        except Contradiction as found:
            return found
        return None

    async def _told_now(self, head: Head) -> Receipt | None:
        try:
            return await self.receipt(size_of(head))
        except VeenError:
            return None

    # What the hub is asked.

    async def ask(self, path: str, request: Wire, answer: type[W]) -> W:
        return await self._contact.link.ask(path, request, answer)

    async def receipt(self, stream_seq: int) -> Receipt:
        """The receipt at a place, by the hub's own key and for that place."""
        request = ReceiptRequest(self.label, stream_seq)
        receipt = (await self._contact.link.ask("/v1/receipt", request, ReceiptResponse)).receipt
        await self._contact.verify([receipt])
        if (receipt.label, receipt.stream_seq) != (self.label, stream_seq):
            raise Contradiction(
                Lie.REPLAYED_RECEIPT,
                f"asked for the receipt of entry {stream_seq}, it gave that of entry {receipt.stream_seq}"
                + ("" if receipt.label == self.label else " of another label"),
                (receipt,),
            )
        return receipt

    async def proof(self, stream_seq: int) -> MmrProof:
        request = ProofRequest(self.label, stream_seq)
        return (await self._contact.link.ask("/v1/proof", request, ProofResponse)).mmr_proof

    async def consistency(self, old: Head, new: Head) -> MmrProof:
        """The proof that one signed tree is a prefix of another. A hub that has none to show has forked."""
        request = ConsistencyRequest(self.label, size_of(old), size_of(new))
        try:
            return (await self._contact.link.ask("/tooling/consistency", request, ProofAtResponse)).mmr_proof
        except Refused as refused:
            raise Contradiction(
                Lie.FORKED_HISTORY,
                f"it does not show how the log of {size_of(new)} entries continues that of {size_of(old)}: {refused}",
                (old, new),
            ) from None

    async def page(self, first: int, last: int | None) -> StreamResponse:
        """Entries with their receipts, as the hub gives them."""
        request = StreamRequest(self.label, first, to_seq=last, max_items=_PAGE, with_receipts=True)
        return StreamResponse.decode(await self._contact.link.page(request))

    async def find(self, leaf_hash: bytes, after: int) -> Receipt | None:
        """The receipt of a message that may have been accepted, somewhere after a place; None where it was not.

        For an answer that was lost and cannot be had again: reads what was written since.
        """
        first: int | None = after + 1
        while first is not None:
            try:
                page = await self.page(first, None)
            except Refused as refused:
                if refused.code == "E.NOT_FOUND":
                    return None
                raise
            for item in page.items:
                if item.msg.leaf_hash() == leaf_hash:
                    return await self.receipt(item.stream_seq)
            first = page.next_cursor if page.items and (page.next_cursor or 0) > first else None
        return None

    async def end(self) -> int:
        """How many entries the hub says there are: found by asking for ever later ones, then by halves."""
        low, step = self.tree.size, 1
        while low + step < U64_MAX and await self._has(low + step):
            low, step = low + step, step * 2
        high = min(low + step, U64_MAX)  # not there
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if await self._has(middle) else (low, middle)
        return low

    async def _has(self, stream_seq: int) -> bool:
        try:
            await self.receipt(stream_seq)
        except Refused as refused:
            if refused.code == "E.NOT_FOUND":
                return False
            raise
        return True


class Followers:
    """The labels of one hub that this run has touched."""

    def __init__(self, contact: Contact) -> None:
        self._contact = contact
        self._by_label: dict[bytes, Follower] = {}

    def of(self, label: bytes) -> Follower:
        if label not in self._by_label:
            self._by_label[label] = Follower(self._contact, label)
        return self._by_label[label]
