"""Work beside the main flow of a program."""

import time

from plumbing.background import CoreShare


def burn(seconds: float) -> None:
    """Use processor time on this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_share_of_a_core_waits_in_proportion_to_what_was_used() -> None:
    waits: list[float] = []
    share = CoreShare(0.25, waits.append)
    burn(0.02)
    share.pause()
    burn(0.01)
    share.pause()
    assert waits[0] >= 3 * 0.02
    assert waits[1] >= 3 * 0.01
    assert sum(waits) <= 3 * time.thread_time()
