"""Counter names of a node. They are stable, because metrics expose them."""

from collections import Counter

NAMES = (
    "frames_in",
    "frames_refused",
    "frames_garbage",
    "frames_oversized",
    "bytes_in",
    "bytes_out",
    "shards_new",
    "shards_duplicate",
    "shards_late",
    "shards_rival",
    "shards_stray",
    "shards_implausible",
    "shards_forwarded",
    "shards_held_back",
    "shards_served",
    "shards_pushed",
    "shards_escalated",
    "objects_whole",
    "objects_refused",
    "objects_delivered",
    "objects_unreadable",
    "objects_replayed",
    "objects_dropped",
    "lies_found",
    "pulls_sent",
    "pulls_answered",
    "pulls_failed",
    "summaries_sent",
    "summaries_received",
    "entries_announced",
    "entries_received",
    "acks_sent",
    "acks_received",
    "queue_overflows",
    "cache_evicted",
    "cache_expired",
)


class Counters(Counter[str]):
    """Counts by name. An unknown name raises `KeyError`."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(NAMES, 0))

    def __missing__(self, key: str) -> int:
        raise KeyError(key)
