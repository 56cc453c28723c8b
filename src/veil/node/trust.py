"""Trust: a tier for every public key, set by hand or derived from endorsements. All of it is local. Spec §1.1.

A tier set by hand has priority. The score of any other key comes from endorsements: direct ones by keys that are
trusted by hand, and second-hand ones by keys that a key trusted by hand endorses. Each kind needs at least two
endorsers and decays with age. New keys are free, so each key trusted by hand contributes one vote: its own, or that of
one key it endorses.

    score  = min(1, (direct + 0.45 * second hand) / 3)      each a sum of 1 / (1 + age / fading)
    tier   = TRUSTED from 0.8, KNOWN from 0.4, otherwise UNKNOWN

An endorsement is published in the signer's own feed of namespace TRUST, so it cannot be forged.
"""

import struct
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from plumbing.cbor_heads import ARRAY, UINT, write_array
from veil.codec import Reader
from veil.node.config import Bounds, Tier, TierPolicy
from veil.objects import PUBKEY_BYTES
from veil.store import Store, Table
from veil.tags import feed_tag
from veil.veil_errors import Malformed
from veil.veil_limits import MAX_UINT32

FADING_S = 7 * 86_400.0
MAX_AGE_S = 70 * 86_400.0
SECOND_HAND = 0.45
MIN_ENDORSERS = 2
KNOWN_FROM, TRUSTED_FROM = 0.4, 0.8
_FULL_SCORE = 3.0
_MAX_NAMESPACES = 64
_WHEN = struct.Struct(">d")
_ENDORSEMENT_VERSION = 1
_FIELDS = 3
_NONE: Mapping[bytes, float] = {}


@dataclass(frozen=True, slots=True)
class Explanation:
    """The tier of a key or tag, the reasons for it, and its limits."""

    subject: bytes
    tier: Tier
    score: float
    reasons: tuple[str, ...]
    forward_quota: float
    storage_share: float
    rate_bytes_s: int


def encode_endorsement(subject: bytes, at_s: float) -> bytes:
    """The payload of an endorsement of a key by the signer of the object."""
    return write_array(_ENDORSEMENT_VERSION, subject, min(int(at_s), MAX_UINT32))


def decode_endorsement(payload: bytes) -> tuple[bytes, int]:
    reader = Reader(payload, "endorsement")
    reader.exactly(ARRAY, _FIELDS)
    reader.exactly(UINT, _ENDORSEMENT_VERSION)
    subject, at = reader.fixed(PUBKEY_BYTES), reader.uint(MAX_UINT32)
    reader.end()
    return subject, at


class Trust:
    """Tiers and endorsements. They are in the store, and bounded."""

    def __init__(self, store: Store, bounds: Bounds, tiers: dict[Tier, TierPolicy]) -> None:
        self._store = store
        self._bounds = bounds
        self._policies = tiers
        self._by_hand = {key: Tier(value[0]) for key, value in store.items(Table.TIERS)}
        # By endorser, least recently active first; then by subject, oldest endorsement first.
        self._endorsements: OrderedDict[bytes, OrderedDict[bytes, float]] = OrderedDict()
        self._feeds: dict[int, dict[bytes, Tier]] = {}
        for key, value in store.items(Table.ENDORSEMENTS):
            endorser, subject = key[:PUBKEY_BYTES], key[PUBKEY_BYTES:]
            self._endorsements.setdefault(endorser, OrderedDict())[subject] = _WHEN.unpack(value)[0]

    def by_hand(self) -> dict[bytes, Tier]:
        return dict(self._by_hand)

    def policy(self, tier: Tier) -> TierPolicy:
        return self._policies[tier]

    def feed_tier(self, tag: bytes, namespace: int) -> Tier | None:
        """The tier of the publisher of a feed tag, if it was set by hand. Needs only the tag."""
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

    def add_endorsement(self, endorser: bytes, subject: bytes, at_s: float, now: float) -> bool:
        """Store an endorsement. Return False if it is too old, in the future, known or about the endorser itself."""
        if endorser == subject or not now - MAX_AGE_S <= at_s <= now + FADING_S:
            return False
        given = self._endorsements.setdefault(endorser, OrderedDict())
        self._endorsements.move_to_end(endorser)
        if given.get(subject, 0.0) >= at_s:
            return False
        given[subject] = at_s
        given.move_to_end(subject)
        self._store.put(Table.ENDORSEMENTS, endorser + subject, _WHEN.pack(at_s))
        while len(given) > self._bounds.endorsements_per_endorser:
            self._forget(endorser, next(iter(given)))
        while len(self._endorsements) > self._bounds.endorsers:
            least = next(iter(self._endorsements))
            for known in list(self._endorsements[least]):
                self._forget(least, known)
        return True

    def score(self, pubkey: bytes, now: float) -> float:
        return self._evaluate(pubkey, now)[0]

    def tier(self, pubkey: bytes | None, now: float) -> Tier:
        if pubkey is None:
            return Tier.UNKNOWN
        by_hand = self._by_hand.get(pubkey)
        if by_hand is not None:
            return by_hand
        score = self.score(pubkey, now) if self._endorsements else 0.0
        return Tier.TRUSTED if score >= TRUSTED_FROM else Tier.KNOWN if score >= KNOWN_FROM else Tier.UNKNOWN

    def explain(self, pubkey: bytes, now: float) -> Explanation:
        score, reasons = self._evaluate(pubkey, now)
        if pubkey in self._by_hand:
            reasons = (f"set to {self._by_hand[pubkey].name.lower()} by hand", *reasons)
        return self.explanation(pubkey, self.tier(pubkey, now), score, reasons)

    def explanation(self, subject: bytes, tier: Tier, score: float, reasons: tuple[str, ...]) -> Explanation:
        policy = self._policies[tier]
        allowed = policy.forward_quota, policy.storage_share, policy.rate_bytes_s
        return Explanation(subject, tier, round(score, 6), reasons or ("no endorsements",), *allowed)

    def _evaluate(self, pubkey: bytes, now: float) -> tuple[float, tuple[str, ...]]:
        trusted = [key for key, tier in self._by_hand.items() if tier is Tier.TRUSTED]
        direct = {key: weight for key in trusted if (weight := self._weight(key, pubkey, now))}
        enough = len(direct) >= MIN_ENDORSERS
        second_hand = self._second_hand([key for key in trusted if not enough or key not in direct], pubkey, now)
        votes = _votes(second_hand)
        reasons = []
        if direct:
            reasons.append(_reason(f"{len(direct)} keys trusted by hand", enough))
        if second_hand:
            endorsers = f"{len(second_hand)} keys endorsed by keys trusted by hand, which count as {len(votes)}"
            reasons.append(_reason(endorsers, len(votes) >= MIN_ENDORSERS))
        total = (sum(direct.values()) if enough else 0.0) + (
            SECOND_HAND * sum(votes) if len(votes) >= MIN_ENDORSERS else 0.0
        )
        return min(1.0, total / _FULL_SCORE), tuple(reasons)

    def _weight(self, endorser: bytes, subject: bytes, now: float) -> float:
        """The current weight of an endorsement; 0 if there is none."""
        at = self._endorsements.get(endorser, _NONE).get(subject)
        if at is None or now - at > MAX_AGE_S:
            return 0.0
        return 1.0 / (1.0 + max(now - at, 0.0) / FADING_S)

    def _second_hand(self, roots: list[bytes], pubkey: bytes, now: float) -> list[tuple[float, list[bytes]]]:
        """The weights of second-hand endorsements, each with the `roots` that endorse the endorser."""
        found: dict[bytes, list[bytes]] = {}
        for root in roots:
            for key in self._endorsements.get(root, _NONE):
                if (
                    pubkey in self._endorsements.get(key, _NONE)
                    and self._is_second_hand_endorser(key)
                    and self._weight(root, key, now)
                ):
                    found.setdefault(key, []).append(root)
        weighed = [(self._weight(key, pubkey, now), vouching) for key, vouching in found.items()]
        return [(weight, vouching) for weight, vouching in weighed if weight]

    def _is_second_hand_endorser(self, pubkey: bytes) -> bool:
        """Whether a key counts as second-hand endorser: keys trusted by hand are direct, muted ones are ignored."""
        return Tier.UNKNOWN <= self._by_hand.get(pubkey, Tier.UNKNOWN) < Tier.TRUSTED

    def _forget(self, endorser: bytes, subject: bytes) -> None:
        del self._endorsements[endorser][subject]
        self._store.delete(Table.ENDORSEMENTS, endorser + subject)
        if not self._endorsements[endorser]:
            del self._endorsements[endorser]


def _votes(second_hand: list[tuple[float, list[bytes]]]) -> list[float]:
    """The weights that count if each root supports one endorser: a maximum matching, heaviest first."""
    supported: dict[bytes, int] = {}  # by root: the endorser it supports
    ranked = sorted(second_hand, key=lambda one: -one[0])

    def match(at: int, tried: set[bytes]) -> bool:
        for root in ranked[at][1]:
            if root not in tried:
                tried.add(root)
                if root not in supported or match(supported[root], tried):
                    supported[root] = at
                    return True
        return False

    return [weight for at, (weight, _) in enumerate(ranked) if match(at, set())]


def _reason(endorsers: str, counts: bool) -> str:
    return f"endorsed by {endorsers}" + ("" if counts else f"; at least {MIN_ENDORSERS} are needed")
