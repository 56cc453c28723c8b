"""A checkpoint that someone else was given, held against what this client was told. RESYNC0.2, invariants of spec §9.

Both are signed by the hub, so it is the hub that must explain a difference:

    two roots for one size      proved: the two signatures are the evidence, for anyone
    another size                the hub is asked for its own word on that size, and for the proof that this word and the
                                history known here are one; a word that differs is the proof of the first kind
    no word on that size        the hub signed for more than it shows: nothing is proved yet, and it is asked again
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from veen.bridge.veil_gossip.item_verify import VerifiedCheckpoint
from veen.client import evidence_verify, local_tree
from veen.client.client import Client
from veen.client.client_dir import ClientDir
from veen.client.contradiction import Contradiction, Lie
from veen.client.hub_session import keep_contradiction
from veen.client.tree_follower import Follower
from veen.client.trust import HubRecord
from veen.core import Checkpoint, Malformed, Receipt, Refused, Unavailable, Unverified, VeenError
from veen.core.hashing import u64be
from veen.core.proof import Head


class ComparisonResult(StrEnum):
    """How a checkpoint stands to what is known here."""

    AGREES = "agrees"  # one history, as far as it goes
    UNFOLLOWED = "unfollowed"  # of a label that this client does not follow: held against other checkpoints only
    UNASKED = "unasked"  # the hub was not asked, or did not answer
    UNSHOWN = "unshown"  # the hub signed for more than it shows here
    DOUBTED = "doubted"  # the hub does not prove what it says, which is no proof to others
    FORKED = "forked"  # proved: the hub signed two histories


# A hub that does not answer is waited for once, not once for each checkpoint.
_SILENCE_S = 15.0
# What may yet become another: asked again each time.
OPEN = frozenset({ComparisonResult.UNASKED, ComparisonResult.UNSHOWN, ComparisonResult.DOUBTED})


@dataclass(frozen=True, slots=True)
class ComparedCheckpoint:
    """What came of a comparison; `evidence` is the file that shows it, where anything does."""

    standing: ComparisonResult
    reason: str = ""
    evidence: Path | None = None


class CheckpointComparer:
    """What one client knows of one hub. Without a hub to ask, all that is kept is what is compared."""

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
        """What is known of the hub by now: whoever asks it learns of its new keys."""
        return self._client.contact.trust.known if self._client else self._known

    async def hold(self, judged: VerifiedCheckpoint, others: Iterable[Checkpoint] = ()) -> ComparedCheckpoint:
        """Against what is kept, then against the hub's own word. `others` are checkpoints that were received before."""
        shown = judged.checkpoint
        mine = list(self._kept(shown.label_curr, shown.upto_seq))
        held = None
        for other in (*mine, *others):
            if other.mmr_root != shown.mmr_root:
                held = self._caught(judged.record, local_tree.forked(other, shown))
                if held.standing is ComparisonResult.FORKED:
                    break
        if held is not None:
            return held
        if mine:
            return ComparedCheckpoint(ComparisonResult.AGREES)
        if not self._follows(shown.label_curr):
            return ComparedCheckpoint(ComparisonResult.UNFOLLOWED)
        if self._client is None:
            return ComparedCheckpoint(ComparisonResult.UNASKED, "the hub was not asked")
        if self._clock() < self._silent_until:
            return ComparedCheckpoint(
                ComparisonResult.UNASKED, "the hub was not asked, since it was silent a moment ago"
            )
        follower = Follower(self._client.contact, shown.label_curr)
        try:
            return await self._ask(follower, judged)
        except Contradiction as error:
            return await self._doubted(follower, judged.record, error)
        except (Unavailable, Refused, Malformed, Unverified) as error:
            if isinstance(error, Unavailable):
                self._silent_until = self._clock() + _SILENCE_S
            return ComparedCheckpoint(ComparisonResult.UNASKED, f"the hub gave no answer: {error}")

    def _kept(self, label: bytes, size: int) -> Iterator[Head]:
        """Everything of that size that this client has verified itself."""
        state, hub_id = self._dir.state, self.hub_id
        at = state.label(hub_id, label)
        if at is not None and at.size == size:
            yield local_tree.decode_head(at.head)
        with state.tables.read() as rows:
            receipt = rows.get("receipts", hub_id + label + u64be(size))
            checkpoint = rows.get("checkpoints", hub_id + label + u64be(size))
        if receipt is not None:
            yield Receipt.decode(receipt)
        if checkpoint is not None:
            yield Checkpoint.decode(checkpoint)

    def _follows(self, label: bytes) -> bool:
        return label in self._labels or self._dir.state.label(self.hub_id, label) is not None

    async def _ask(self, follower: Follower, judged: VerifiedCheckpoint) -> ComparedCheckpoint:
        shown = judged.checkpoint
        size = shown.upto_seq
        try:
            now = await follower.receipt(size)
        except Refused as refused:
            if refused.code != "E.NOT_FOUND":
                raise
            return await self._unshown(follower, shown)
        if now.mmr_root != shown.mmr_root:
            return self._caught(judged.record, local_tree.forked(now, shown))
        await follower.check(now)
        return ComparedCheckpoint(ComparisonResult.AGREES)

    async def _unshown(self, follower: Follower, shown: Checkpoint) -> ComparedCheckpoint:
        """The hub has no receipt there: it has fewer entries than it signed for, or keeps no receipts so old."""
        end, size = await follower.end(), shown.upto_seq
        if end < size or follower.tree.head is None:
            return ComparedCheckpoint(ComparisonResult.UNSHOWN, self._what_would_decide(follower, size, end))
        await follower.check(shown)
        return ComparedCheckpoint(ComparisonResult.AGREES)

    @staticmethod
    def _what_would_decide(follower: Follower, size: int, end: int) -> str:
        asked = f"not proved yet: the hub signed for {size} entries of label {follower.label.hex()} and shows {end}"
        from_them = f"; a checkpoint of at most {end} entries from whoever sent this one would decide it" if end else ""
        return f"{asked}{from_them or '; whoever sent this one can show the entries'}, or the hub's own receipt {size}"

    async def _doubted(self, follower: Follower, record: HubRecord, error: Contradiction) -> ComparedCheckpoint:
        """The hub's answers do not fit what it said before: look for what proves it to others too."""
        held = self._caught(record, error)
        if held.standing is ComparisonResult.FORKED or not follower.tree.size:
            return held
        try:
            following = await follower.receipt(follower.tree.size + 1)
            follower.tree.copy().append(following)
        except Contradiction as sharper:
            found = self._caught(record, sharper)
            return found if found.standing is ComparisonResult.FORKED else held
        except VeenError:
            return held
        return held

    def _caught(self, record: HubRecord, error: Contradiction) -> ComparedCheckpoint:
        """Save what shows it. It is proved where the file by itself shows a contradiction, and not before."""
        newest = _with_keys(record, self.known)
        _, contradictions = evidence_verify.shows(newest, error)
        if not contradictions:
            return ComparedCheckpoint(ComparisonResult.DOUBTED, _not_proved(error))
        keep_contradiction(self._dir, newest, error)
        return ComparedCheckpoint(ComparisonResult.FORKED, contradictions[0], error.evidence)


def _with_keys(one: HubRecord, other: HubRecord) -> HubRecord:
    """The record with more keys, each of which continues the other."""
    return one if len(one.identity.hub_keys) >= len(other.identity.hub_keys) else other


def _not_proved(error: Contradiction) -> str:
    what = "what it signed for sizes that can be compared" if error.lie is Lie.FORKED_HISTORY else "more of it"
    return f"not proved to others: {error.lie}: {error.reason}; ask for {what}"
