"""The public names of the state package: a change here is a change for everyone who imports it."""

import veen.state


def test_the_public_names_are_these() -> None:
    stores = {"KvStore", "TaskQueue", "TaskJob", "Caller", "Server", "NoReply", "WalletBook"}
    blocking = {"BlockingKvStore", "BlockingTaskQueue", "BlockingCaller"}
    views = {
        "StateView",
        "StateAt",
        "EntrySource",
        "HubSource",
        "DirectorySource",
        "WatchedEntry",
        "watch",
        "drop_cache",
    }
    sending = {"EventSender", "EventRefused", "SentEvent"}
    proofs = {"prove", "verify_state", "VerifiedState", "StateSnapshot", "make", "compare"}
    assert set(veen.state.__all__) == stores | blocking | views | sending | proofs


def test_every_public_name_exists() -> None:
    assert [name for name in veen.state.__all__ if not hasattr(veen.state, name)] == []
