"""The state of a stream, which anyone can check: from a hub or a data directory, at any place. See docs/state.md.

A `View` reads and keeps; a `Channel` sends after asking the state; `KvStore`, `TaskQueue`, `Caller`, `Server` and
`WalletBook` are the two together, for the overlays that programs use most.
"""

from veen.state.blocking import BlockingCaller, BlockingKvStore, BlockingTaskQueue
from veen.state.calls import Caller, NoReply, Server
from veen.state.channel import Channel, NotTaken, Said
from veen.state.dirsource import DirectorySource
from veen.state.hubsource import HubSource
from veen.state.keeping import forget
from veen.state.kvstore import KvStore
from veen.state.proving import Reckoned, prove, reckon
from veen.state.reading import Reading
from veen.state.snapshots import Snapshot, compare, make
from veen.state.source import Source
from veen.state.taskqueue import Job, TaskQueue
from veen.state.view import View
from veen.state.walletbook import WalletBook
from veen.state.watching import Seen, watch

__all__ = [
    "BlockingCaller",
    "BlockingKvStore",
    "BlockingTaskQueue",
    "Caller",
    "Channel",
    "DirectorySource",
    "HubSource",
    "Job",
    "KvStore",
    "NoReply",
    "NotTaken",
    "Reading",
    "Reckoned",
    "Said",
    "Seen",
    "Server",
    "Snapshot",
    "Source",
    "TaskQueue",
    "View",
    "WalletBook",
    "compare",
    "forget",
    "make",
    "prove",
    "reckon",
    "watch",
]
