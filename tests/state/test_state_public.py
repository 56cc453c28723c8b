"""The public names of the state package: a change here is a change for everyone who imports it."""

import veen.state


def test_the_public_names_are_these() -> None:
    faces = {"KvStore", "TaskQueue", "Job", "Caller", "Server", "NoReply", "WalletBook"}
    blocking = {"BlockingKvStore", "BlockingTaskQueue", "BlockingCaller"}
    reading = {"View", "Reading", "Source", "HubSource", "DirectorySource", "Seen", "watch", "forget"}
    sending = {"Channel", "NotTaken", "Said"}
    proving = {"prove", "reckon", "Reckoned", "Snapshot", "make", "compare"}
    assert set(veen.state.__all__) == faces | blocking | reading | sending | proving


def test_every_public_name_is_there() -> None:
    assert [name for name in veen.state.__all__ if not hasattr(veen.state, name)] == []
