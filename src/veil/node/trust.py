"""Trust: a tier for every public key, by hand or by endorsement. It is local, and sovereign. Spec §1.1.

A tier that was set by hand holds. Any other key is judged by who vouches for it: keys trusted by hand count in full,
those they vouch for count less, either only where there are two of them, and all of it fades with age.

    score  = min(1, (direct + 0.45 * second hand) / 3)      each a sum of 1 / (1 + age / fading)
    tier   = TRUSTED from 0.8, KNOWN from 0.4, otherwise UNKNOWN

An endorsement is what its signer said in its own feed of the namespace TRUST, so nobody endorses in another's name.
"""

import struct
from collections import OrderedDict
from dataclasses import dataclass

from veil.codec import heads
from veil.codec.heads import ARRAY, UINT, Reader
from veil.errors import Malformed
from veil.limits import MAX_UINT32
from veil.node.config import Bounds, Tier, TierPolicy
from veil.objects import PUBKEY_BYTES
from veil.store.tables import Store, Table
from veil.tags import feed_tag

FADING_S = 7 * 86_400.0
MAX_AGE_S = 70 * 86_400.0
SECOND_HAND = 0.45
LEAST_ENDORSERS = 2
KNOWN_FROM, TRUSTED_FROM = 0.4, 0.8
_WHOLE_SCORE = 3.0
_MAX_NAMESPACES = 64
_WHEN = struct.Struct(">d")
_ENDORSEMENT_VERSION = 1
_FIELDS = 3


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a key or tag is treated as it is, in words, and what that allows."""

    subject: bytes
    tier: Tier
    score: float
    reasons: tuple[str, ...]
    forward_quota: float
    storage_share: float
    rate_bytes_s: int


def encode_endorsement(subject: bytes, at_s: float) -> bytes:
    """The payload by which the signer of an object vouches for a key."""
    numbers = heads.uint(_ENDORSEMENT_VERSION), heads.byte_string(subject), heads.uint(min(int(at_s), MAX_UINT32))
    return heads.head(ARRAY, _FIELDS) + b"".join(numbers)


def decode_endorsement(payload: bytes) -> tuple[bytes, int]:
    reader = Reader(payload, "endorsement")
    reader.exactly(ARRAY, _FIELDS)
    reader.exactly(UINT, _ENDORSEMENT_VERSION)
    subject, at = reader.fixed(PUBKEY_BYTES), reader.uint(MAX_UINT32)
    reader.end()
    return subject, at


class Trust:
    """Tiers and endorsements, kept in the store and bounded."""

    def __init__(self, store: Store, bounds: Bounds, tiers: dict[Tier, TierPolicy]) -> None:
        self._store = store
        self._bounds = bounds
        self._policies = tiers
        self._by_hand = {key: Tier(value[0]) for key, value in store.items(Table.TIERS)}
        # By endorser, the least recently heard first; then by subject, the oldest word first.
        self._words: OrderedDict[bytes, OrderedDict[bytes, float]] = OrderedDict()
        self._feeds: dict[int, dict[bytes, Tier]] = {}
        for key, value in store.items(Table.ENDORSEMENTS):
            endorser, subject = key[:PUBKEY_BYTES], key[PUBKEY_BYTES:]
            self._words.setdefault(endorser, OrderedDict())[subject] = _WHEN.unpack(value)[0]

    def by_hand(self) -> dict[bytes, Tier]:
        return dict(self._by_hand)

    def policy(self, tier: Tier) -> TierPolicy:
        return self._policies[tier]

    def feed_tier(self, tag: bytes, namespace: int) -> Tier | None:
        """The tier of whose feed a tag is of, where it was set by hand: known by the tag, without looking inside."""
        feeds = self._feeds.get(namespace)
        if feeds is None:
            if len(self._feeds) >= _MAX_NAMESPACES:
                self._feeds = {}
            feeds = {feed_tag(key, namespace): tier for key, tier in self._by_hand.items()}
            self._feeds[namespace] = feeds
        return feeds.get(tag)

    def set_tier(self, pubkey: bytes, tier: Tier | None) -> None:
        if len(pubkey) != PUBKEY_BYTES:
            raise Malformed("public key", f"{len(pubkey)} bytes, not {PUBKEY_BYTES}")
        self._feeds = {}
        if tier is None:
            self._by_hand.pop(pubkey, None)
            self._store.delete(Table.TIERS, pubkey)
        else:
            self._by_hand[pubkey] = tier
            self._store.put(Table.TIERS, pubkey, bytes((tier,)))

    def endorsed(self, endorser: bytes, subject: bytes, at_s: float, now: float) -> bool:
        """Take note of a word that `endorser` signed. Words from the future, too old or about oneself are none."""
        if endorser == subject or not now - MAX_AGE_S <= at_s <= now + FADING_S:
            return False
        words = self._words.setdefault(endorser, OrderedDict())
        self._words.move_to_end(endorser)
        if words.get(subject, 0.0) >= at_s:
            return False
        words[subject] = at_s
        words.move_to_end(subject)
        self._store.put(Table.ENDORSEMENTS, endorser + subject, _WHEN.pack(at_s))
        while len(words) > self._bounds.endorsements_per_endorser:
            self._forget(endorser, next(iter(words)))
        while len(self._words) > self._bounds.endorsers:
            least = next(iter(self._words))
            for known in list(self._words[least]):
                self._forget(least, known)
        return True

    def score(self, pubkey: bytes, now: float) -> float:
        return self._judge(pubkey, now)[0]

    def tier(self, pubkey: bytes | None, now: float) -> Tier:
        if pubkey is None:
            return Tier.UNKNOWN
        by_hand = self._by_hand.get(pubkey)
        if by_hand is not None:
            return by_hand
        score = self.score(pubkey, now) if self._words else 0.0
        return Tier.TRUSTED if score >= TRUSTED_FROM else Tier.KNOWN if score >= KNOWN_FROM else Tier.UNKNOWN

    def explain(self, pubkey: bytes, now: float) -> Explanation:
        score, reasons = self._judge(pubkey, now)
        if pubkey in self._by_hand:
            reasons = (f"set to {self._by_hand[pubkey].name.lower()} by hand", *reasons)
        return self.explanation(pubkey, self.tier(pubkey, now), score, reasons)

    def explanation(self, subject: bytes, tier: Tier, score: float, reasons: tuple[str, ...]) -> Explanation:
        policy = self._policies[tier]
        allowed = policy.forward_quota, policy.storage_share, policy.rate_bytes_s
        return Explanation(subject, tier, round(score, 6), reasons or ("nobody has said anything about it",), *allowed)

    def _judge(self, pubkey: bytes, now: float) -> tuple[float, tuple[str, ...]]:
        trusted = {key for key, tier in self._by_hand.items() if tier is Tier.TRUSTED}
        second = {
            subject for key in trusted for subject in self._words.get(key, ()) if self._may_vouch(subject)
        } - trusted
        direct, direct_count = self._sum(trusted, pubkey, now)
        remote, remote_count = self._sum(second, pubkey, now)
        reasons = []
        if direct_count:
            reasons.append(_told(direct_count, "keys trusted by hand", direct_count >= LEAST_ENDORSERS))
        if remote_count:
            reasons.append(_told(remote_count, "keys they vouch for", remote_count >= LEAST_ENDORSERS))
        total = (direct if direct_count >= LEAST_ENDORSERS else 0.0) + (
            SECOND_HAND * remote if remote_count >= LEAST_ENDORSERS else 0.0
        )
        return min(1.0, total / _WHOLE_SCORE), tuple(reasons)

    def _may_vouch(self, pubkey: bytes) -> bool:
        return self._by_hand.get(pubkey, Tier.UNKNOWN) >= Tier.UNKNOWN

    def _sum(self, endorsers: set[bytes], subject: bytes, now: float) -> tuple[float, int]:
        words = [self._words[key][subject] for key in endorsers if subject in self._words.get(key, ())]
        fresh = [max(now - at, 0.0) for at in words if now - at <= MAX_AGE_S]
        return sum(1.0 / (1.0 + age / FADING_S) for age in fresh), len(fresh)

    def _forget(self, endorser: bytes, subject: bytes) -> None:
        del self._words[endorser][subject]
        self._store.delete(Table.ENDORSEMENTS, endorser + subject)
        if not self._words[endorser]:
            del self._words[endorser]


def _told(count: int, who: str, counts: bool) -> str:
    return f"endorsed by {count} of the {who}" + ("" if counts else f", and {LEAST_ENDORSERS} are needed")
