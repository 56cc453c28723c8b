"""Compares a checkpoint that another client received with what this client knows. RESYNC0.2, invariants of spec §9.

The hub signed both, so a difference is the hub's fault:

    two roots for one size      proved: the two signatures are evidence for anyone
    another size                ask the hub for its receipt at that size and a proof that it extends the history known
                                here; a receipt with another root is proof of the first kind
    no receipt at that size     the hub signed more entries than it shows: nothing is proved yet; ask again later
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from veen.bridge.veil_gossip.gossip_items import VerifiedCheckpoint
from veen.client import evidence
from veen.client.client import Client
from veen.client.client_dir import ClientDir
from veen.client.contradiction import Contradiction, Lie
from veen.client.hub_session import keep_contradiction, own_knowledge
from veen.client.tree_follower import Follower, forked
from veen.client.trust import HubRecord
from veen.core import Checkpoint, Malformed, Receipt, Refused, Unavailable, Unverified, VeenError
from veen.core.hashing import u64be
from veen.core.proof import Head, decode_head, entries_text


class ComparisonResult(StrEnum):
    AGREES = "agrees"  # the same history, as far as it reaches
    UNFOLLOWED = "unfollowed"  # this client does not follow the label: compared with other checkpoints only
    UNASKED = "unasked"  # the hub was not asked or did not answer
    UNSHOWN = "unshown"  # the hub signed more entries than it shows here
    DOUBTED = "doubted"  # the hub's proof fails here, which proves nothing to others
    FORKED = "forked"  # proved: the hub signed two histories


# After a timeout, do not wait for the hub again for each further checkpoint.
_HUB_SILENCE_S = 15.0
# Results that may still change; these checkpoints are compared again.
OPEN = frozenset({ComparisonResult.UNASKED, ComparisonResult.UNSHOWN, ComparisonResult.DOUBTED})


@dataclass(frozen=True, slots=True)
class ComparedCheckpoint:
    """The result of a comparison; `evidence` is the saved evidence file, if any."""

    standing: ComparisonResult
    reason: str = ""
    evidence: Path | None = None


class CheckpointComparer:
    """Compares with what one client knows about one hub. Without `client`, only with stored data."""

    def __init__(
        self,
        folder: ClientDir,
        known: HubRecord,
        client: Client | None = None,
        labels: Collection[bytes] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`labels` are followed in addition to those that the client has read or written."""
        self._dir = folder
        self._known = known
        self._client = client
        self._labels = frozenset(labels)
        self._clock = clock
        self._silent_until = -math.inf

    @property
    def hub_id(self) -> bytes:
        return self._known.identity.hub_id

    @property
    def known(self) -> HubRecord:
        """The current hub record; requests to the hub may have added new keys."""
        return self._client.session.trust.known if self._client else self._known

    async def compare(self, received: VerifiedCheckpoint, others: Iterable[Checkpoint] = ()) -> ComparedCheckpoint:
        """Compare with stored data, then with the hub's receipt. `others` are checkpoints received earlier."""
        shown = received.checkpoint
        mine = list(self._stored(shown.label_curr, shown.upto_seq))
        result = None
        for other in (*mine, *others):
            if other.mmr_root != shown.mmr_root:
                result = self._save_contradiction(received.record, forked(other, shown))
                if result.standing is ComparisonResult.FORKED:
                    break
        if result is not None:
            return result
        if mine:
            return ComparedCheckpoint(ComparisonResult.AGREES)
        if not self._follows(shown.label_curr):
            return ComparedCheckpoint(ComparisonResult.UNFOLLOWED)
        if self._client is None:
            return ComparedCheckpoint(ComparisonResult.UNASKED, "the hub was not asked")
        if self._clock() < self._silent_until:
            return ComparedCheckpoint(
                ComparisonResult.UNASKED, f"the hub was not asked: it did not answer in the last {_HUB_SILENCE_S:g} s"
            )
        follower = Follower(self._client.session, shown.label_curr)
        try:
            return await self._compare_with_hub(follower, received)
        except Contradiction as error:
            return await self._doubted(follower, received.record, error)
        except (Unavailable, Refused, Malformed, Unverified) as error:
            if isinstance(error, Unavailable):
                self._silent_until = self._clock() + _HUB_SILENCE_S
            return ComparedCheckpoint(ComparisonResult.UNASKED, f"the hub did not answer: {error}")

    def _stored(self, label: bytes, size: int) -> Iterator[Head]:
        """Everything of that size that this client verified itself."""
        state, hub_id = self._dir.state, self.hub_id
        at = state.label(hub_id, label)
        if at is not None and at.size == size:
            yield decode_head(at.head)
        with state.tables.read() as rows:
            receipt = rows.get(hub_id + label + u64be(size), db=rows.db["receipts"])
            checkpoint = rows.get(hub_id + label + u64be(size), db=rows.db["checkpoints"])
        if receipt is not None:
            yield Receipt.decode(receipt)
        if checkpoint is not None:
            yield Checkpoint.decode(checkpoint)

    def _follows(self, label: bytes) -> bool:
        return label in self._labels or self._dir.state.label(self.hub_id, label) is not None

    async def _compare_with_hub(self, follower: Follower, received: VerifiedCheckpoint) -> ComparedCheckpoint:
        shown = received.checkpoint
        size = shown.upto_seq
        try:
            now = await follower.receipt(size)
        except Refused as refused:
            if refused.code != "E.NOT_FOUND":
                raise
            return await self._unshown(follower, shown)
        if now.mmr_root != shown.mmr_root:
            return self._save_contradiction(received.record, forked(now, shown))
        await follower.check(now)
        return ComparedCheckpoint(ComparisonResult.AGREES)

    async def _unshown(self, follower: Follower, shown: Checkpoint) -> ComparedCheckpoint:
        """The hub has no receipt there: it shows fewer entries than it signed, or no longer has old receipts."""
        end, size = await follower.end(), shown.upto_seq
        if end < size or follower.tree.head is None:
            return ComparedCheckpoint(ComparisonResult.UNSHOWN, self._missing_proof(follower, size, end))
        await follower.check(shown)
        return ComparedCheckpoint(ComparisonResult.AGREES)

    @staticmethod
    def _missing_proof(follower: Follower, size: int, end: int) -> str:
        signed = f"not proved yet: the hub signed {entries_text(size)} of label {follower.label.hex()} and shows {end}"
        wanted = f"a checkpoint of at most {end} entries" if end else "the entries"
        return f"{signed}; to decide it, get {wanted} from the sender of this one, or receipt {size} from the hub"

    async def _doubted(self, follower: Follower, record: HubRecord, error: Contradiction) -> ComparedCheckpoint:
        """The hub's answers contradict what it signed before: look for evidence that convinces others too."""
        result = self._save_contradiction(record, error)
        if result.standing is ComparisonResult.FORKED or not follower.tree.size:
            return result
        try:
            following = await follower.receipt(follower.tree.size + 1)
            follower.tree.copy().add(following)
        except Contradiction as sharper:
            found = self._save_contradiction(record, sharper)
            return found if found.standing is ComparisonResult.FORKED else result
        except VeenError:
            return result
        return result

    def _save_contradiction(self, record: HubRecord, error: Contradiction) -> ComparedCheckpoint:
        """Save the evidence. The fork counts as proved only if the file alone shows a contradiction."""
        newest = _with_more_keys(record, self.known)
        _, report = evidence.shows(newest, error, own_knowledge(self._dir, newest.identity.hub_id, error))
        if report is None or not (report.contradictions or report.retired):
            return ComparedCheckpoint(ComparisonResult.DOUBTED, _not_proved(error))
        keep_contradiction(self._dir, newest, error)
        if not report.contradictions:
            return ComparedCheckpoint(ComparisonResult.DOUBTED, report.retired[0], error.evidence)
        return ComparedCheckpoint(ComparisonResult.FORKED, report.contradictions[0], error.evidence)


def _with_more_keys(one: HubRecord, other: HubRecord) -> HubRecord:
    """The record with more keys. The caller has checked that one continues the other."""
    return one if len(one.identity.hub_keys) >= len(other.identity.hub_keys) else other


def _not_proved(error: Contradiction) -> str:
    wanted = "receipts or checkpoints for comparable sizes" if error.lie is Lie.FORKED_HISTORY else "more entries"
    return f"not proved to others: {error.lie}: {error.reason}; ask for {wanted}"
