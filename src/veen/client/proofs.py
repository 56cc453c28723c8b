"""Inclusion proofs of entries, and evidence that contains them."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from veen.client import evidence
from veen.client.client_identity import Card
from veen.client.contradiction import Contradiction, Lie
from veen.client.evidence import Evidence, Exhibit, Opening, Tie
from veen.client.hub_session import HubSession
from veen.client.reader import LabelReader, Opener, ReadRange
from veen.client.tree_follower import Follower
from veen.core import Checkpoint, DhKey, MmrProof, Receipt, Refused, Unverified, proof
from veen.core.envelopes import CheckpointOrder, CheckpointRequest, CheckpointResponse, ProofAtRequest, ProofAtResponse
from veen.core.limits import MAX_PAGE_ITEMS
from veen.core.proof import Head, Leaf, decode_head, entries_text


@dataclass(frozen=True, slots=True)
class Proved:
    """An entry, a signed root, and the proof that connects them. All of it is verified."""

    receipt: Receipt
    head: Head
    mmr_proof: MmrProof


async def prove(follower: Follower, stream_seq: int, upto_seq: int | None) -> Proved:
    """The proof of an entry in the tree that ends with it, or in a later tree."""
    receipt = await follower.receipt(stream_seq)
    await follower.check(receipt)
    if upto_seq is None or upto_seq == stream_seq:
        return Proved(receipt, receipt, _checked(await follower.proof(stream_seq), receipt, receipt))
    head = await follower.receipt(upto_seq)
    await follower.check(head)
    return Proved(receipt, head, await _included(follower, receipt, head, upto_seq))


async def _included(follower: Follower, receipt: Receipt, head: Head, upto_seq: int) -> MmrProof:
    request = ProofAtRequest(follower.label, receipt.stream_seq, upto_seq)
    shown = await follower.ask("/tooling/proof", request, ProofAtResponse)
    return _checked(shown.mmr_proof, receipt, head)


def _checked(shown: MmrProof, receipt: Receipt, head: Head) -> MmrProof:
    try:
        proof.verify_inclusion(shown, Leaf.of(receipt), head)
    except Unverified as error:
        reason = f"the proof of entry {receipt.stream_seq}: {error.reason}"
        raise Contradiction(Lie.ROOT, reason, (receipt, head)) from None
    return shown


async def exhibit(
    session: HubSession,
    follower: Follower,
    upto: Checkpoint,
    seqs: Sequence[int],
    claim: str,
    key: DhKey | None,
    writers: Sequence[Card] = (),
) -> Evidence:
    """Evidence of entries: receipt, message, the proof that connects each with a checkpoint, cards of the writers."""
    receipts, ties, exhibits = [], [], []
    for seq in sorted(set(seqs)):
        if not 1 <= seq <= upto.upto_seq:
            raise Refused("E.NOT_FOUND", f"no entry {seq} under this label")
        reader = LabelReader(session, follower, 0, Opener(None), ReadRange(seq, seq))
        (entry,) = [entry async for page in reader.pages() for entry in page]
        shown = await _included(follower, entry.receipt, upto, upto.upto_seq)
        receipts.append(entry.receipt)
        ties.append(Tie(follower.label, seq, upto.upto_seq, shown))
        exhibits.append(Exhibit(seq, entry.msg, Opening.of(key, entry.msg) if key else None))
    wrote = {one.msg.client_id for one in exhibits}
    cards = [card for own in writers for card in session.dir.cards_of(own, wrote)]
    return evidence.make_evidence(
        session.trust.known, claim, [*receipts, upto], ties=ties, exhibits=exhibits, writers=cards
    )


@dataclass(frozen=True, slots=True)
class Resynced:
    """The sizes of a label before and after, and the number of entries that were verified again."""

    label: bytes
    before: int
    size: int
    checkpoint: Checkpoint | None  # None if the label is empty
    replayed: int


async def fetch_checkpoint(
    session: HubSession, follower: Follower, stream_id: bytes | None, upto_seq: int
) -> Checkpoint:
    """The hub's checkpoint of a prefix, with signature, stream, size and history verified."""
    request = CheckpointRequest(follower.label, upto_seq)
    try:
        shown = (await session.link.ask("/v1/checkpoint", request, CheckpointResponse)).checkpoint
    except Refused as refused:
        if refused.code == "E.NOT_FOUND" and upto_seq <= follower.tree.size:
            await follower.check_has(upto_seq)  # a missing checkpoint is allowed, a missing entry is not
        raise
    try:
        await session.verify([shown])
        _check_asked(shown, follower.label, upto_seq)
        kept = session.dir.state.checkpoint(session.hub_id, follower.label)
        if kept is not None:
            _check_kept(Checkpoint.decode(kept), shown)
    except Contradiction as error:
        raise await follower.recorded(error) from None
    if stream_id is not None:
        shown.check_labels(session.trust.profile, session.routing_key, stream_id)
    await follower.check(shown)
    await asyncio.to_thread(session.dir.state.put_checkpoint, session.hub_id, shown)
    return shown


async def fetch_cosigned(session: HubSession, follower: Follower, stream_id: bytes | None) -> Checkpoint:
    """The newest checkpoint that a witness cosigned, with signature, stream and history verified, not the witnesses."""
    data = await session.link.get(f"/tooling/cosigned?label={follower.label.hex()}", _MAX_CHECKPOINT_BYTES)
    return await _verified(session, follower, stream_id, Checkpoint.decode(data))


async def order_checkpoint(
    session: HubSession, follower: Follower, stream_id: bytes | None, order: CheckpointOrder
) -> Checkpoint:
    """Let the hub store a checkpoint of all entries of a label, and ask its witnesses; verified as `fetch_cosigned`.

    Raises `Contradiction` if it has fewer entries than this client knew before.
    """
    known = follower.tree.size
    answer = await session.link.ask("/tooling/checkpoint", order, CheckpointResponse)
    return await _verified(session, follower, stream_id, answer.checkpoint, known)


async def _verified(
    session: HubSession, follower: Follower, stream_id: bytes | None, shown: Checkpoint, least: int = 0
) -> Checkpoint:
    """A checkpoint whose size the hub chose, of at least `least` entries."""
    try:
        await session.verify([shown])
        _check_asked(shown, follower.label, max(shown.upto_seq, least))
    except Contradiction as error:
        raise await follower.recorded(error) from None
    if stream_id is not None:
        shown.check_labels(session.trust.profile, session.routing_key, stream_id)
    await follower.check(shown)
    return shown


_MAX_CHECKPOINT_BYTES = 1 << 14


def _check_asked(shown: Checkpoint, label: bytes, upto_seq: int) -> None:
    if shown.label_curr != label:
        raise Contradiction(Lie.STALE_CHECKPOINT, "the checkpoint has another label than the requested one", (shown,))
    if shown.upto_seq != upto_seq:
        reason = f"the checkpoint is of {entries_text(shown.upto_seq)}, but {upto_seq} were requested"
        raise Contradiction(Lie.STALE_CHECKPOINT, reason, (shown,))


def _check_kept(kept: Checkpoint, shown: Checkpoint) -> None:
    if kept.upto_seq == shown.upto_seq and kept.mmr_root != shown.mmr_root:
        reason = f"two roots are signed for the log of {entries_text(shown.upto_seq)}"
        raise Contradiction(Lie.FORKED_HISTORY, reason, (kept, shown))


async def resync(
    session: HubSession, follower: Follower, stream_id: bytes | None = None, replay_from: int | None = None
) -> Resynced:
    """Advance a label to the end of the hub's log, verified against the known history.

    With `replay_from`, all entries from there on are verified again. Raises `Contradiction` if the hub has forked, lost
    signed entries, or cannot prove what it returns.
    """
    await session.refresh()
    before = follower.tree.size
    await follower.check_end()
    size = await follower.end()
    if size == 0:
        return Resynced(follower.label, before, 0, None, 0)
    shown = await fetch_checkpoint(session, follower, stream_id, size)
    receipt = await follower.receipt(size)
    if receipt.mmr_root != shown.mmr_root:
        reason = f"checkpoint and receipt sign two roots for the log of {entries_text(size)}"
        raise await follower.recorded(Contradiction(Lie.FORKED_HISTORY, reason, (receipt, shown)))
    await follower.follow([receipt])
    replayed = 0 if replay_from is None else await _replay(session, follower, ReadRange(replay_from, size))
    return Resynced(follower.label, before, follower.tree.size, shown, replayed)


async def _replay(session: HubSession, follower: Follower, wanted: ReadRange) -> int:
    """Verify entries again, one by one, without opening them."""
    reader = LabelReader(session, follower, 0, Opener(None), wanted)
    count = 0
    async with aclosing(reader.pages()) as pages:
        async for page in pages:
            count += len(page)
    return count


async def forget(session: HubSession, follower: Follower) -> None:
    """Start a label over, because the user decided so. The signed statements are saved as evidence first."""
    claim = f"signed statements of label {follower.label.hex()} before it was started over"
    signed = await asyncio.to_thread(_signed, session, follower)
    # Saved before they are deleted, so that a crash between the two loses nothing.
    for start in range(0, len(signed), MAX_PAGE_ITEMS):
        heads = signed[start : start + MAX_PAGE_ITEMS]
        some = evidence.make_evidence(session.trust.record_of(heads[0]), claim, heads)
        await asyncio.to_thread(session.box.save, some)
    await asyncio.to_thread(session.dir.state.forget, session.hub_id, follower.label)
    follower.start_over()


def _signed(session: HubSession, follower: Follower) -> list[Head]:
    """All stored signed statements of a label."""
    found = [follower.tree.head] if follower.tree.head else []
    with session.dir.state.tables.read() as rows:
        for table in ("receipts", "checkpoints"):
            found += [decode_head(row) for _, row in rows.scan(table, session.hub_id + follower.label)]
    return found
