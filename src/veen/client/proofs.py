"""Inclusion proofs of entries, and evidence that contains them."""

from collections.abc import Sequence
from dataclasses import dataclass

from veen.client import evidence
from veen.client.contradiction import Contradiction, Lie
from veen.client.entry import Opener
from veen.client.evidence import Evidence, Exhibit, Opening, Tie
from veen.client.hub_session import HubSession
from veen.client.reader import LabelReader, ReadRange
from veen.client.tree_follower import Follower
from veen.core import Checkpoint, DhKey, MmrProof, Receipt, Refused, Unverified, proof
from veen.core.proof import Head, Leaf
from veen.core.tooling_messages import ProofAtRequest, ProofAtResponse


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
    session: HubSession, follower: Follower, upto: Checkpoint, seqs: Sequence[int], claim: str, key: DhKey | None
) -> Evidence:
    """Evidence of entries: receipt, message, and the proof that connects each with a checkpoint."""
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
    return evidence.make(session.trust.known, claim, [*receipts, upto], ties=ties, exhibits=exhibits)
