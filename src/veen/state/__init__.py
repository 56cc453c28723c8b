"""The verified state of a stream, from a hub or a data directory, at any place. See docs/state.md.

`StateView` reads and caches state. `EventSender` checks an event against the state before it sends it. `KvStore`,
`TaskQueue`, `Caller`, `Server` and `WalletBook` combine both for the most common overlays.
"""

from veen.state.directory_source import DirectorySource
from veen.state.entry_source import EntrySource, HubSource
from veen.state.event_sender import EventRefused, EventSender, SentEvent
from veen.state.state_proof import VerifiedState, prove, verify_state
from veen.state.state_snapshot import StateSnapshot, compare, make
from veen.state.state_view import StateAt, StateView, drop_cache
from veen.state.stream_stores import (
    BlockingCaller,
    BlockingKvStore,
    BlockingTaskQueue,
    Caller,
    KvStore,
    NoReply,
    Server,
    TaskJob,
    TaskQueue,
    WalletBook,
)
from veen.state.watch import WatchedEntry, watch

__all__ = [
    "BlockingCaller",
    "BlockingKvStore",
    "BlockingTaskQueue",
    "Caller",
    "DirectorySource",
    "EntrySource",
    "EventRefused",
    "EventSender",
    "HubSource",
    "KvStore",
    "NoReply",
    "SentEvent",
    "Server",
    "StateAt",
    "StateSnapshot",
    "StateView",
    "TaskJob",
    "TaskQueue",
    "VerifiedState",
    "WalletBook",
    "WatchedEntry",
    "compare",
    "drop_cache",
    "make",
    "prove",
    "verify_state",
    "watch",
]
