"""From a spool to the log."""

from tests.recorder.yard import LOGIN, WEB, Yard, event
from veen.recorder import SpoolFeed, SpoolWriter


def test_what_is_spooled_is_in_the_log_once_and_in_order(recorder: Yard) -> None:
    folder = recorder.root / "spool"
    writer = SpoolWriter(folder)
    writer.append([event(number, "login" if number % 3 == 0 else "http.request") for number in range(20)])
    writer.append([event(20)])
    writer.close()
    count = recorder.ship("shop", SpoolFeed(folder, "shop", follow=False))
    assert (count.sent, count.refused) == (21, 0)
    assert recorder.numbers(WEB) == [number for number in range(21) if number % 3 or number == 20]
    assert recorder.numbers(LOGIN) == [number for number in range(20) if number % 3 == 0]
