"""The logging handler stores every record and never breaks the program."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from veen.overlays.record import RecordEvent
from veen.recorder import spool
from veen.recorder.log_handler import RecorderHandler


@pytest.fixture
def handler(place: Path) -> Iterator[RecorderHandler]:
    made = RecorderHandler(place / "spool", "shop")
    yield made
    made.close()


def logger(handler: RecorderHandler) -> logging.Logger:
    made = logging.Logger("app")
    made.addHandler(handler)
    return made


def kept(place: Path) -> list[RecordEvent]:
    paths = spool.segments(place / "spool")
    return [one for path in paths for batch in spool.batches(path) for one in batch.events]


def test_a_record_is_an_event_with_its_extras(place: Path, handler: RecorderHandler) -> None:
    extra = {"subject_id": "alice", "event_type": "login", "ip": "::1", "odd": object, "big": 2**70}
    logger(handler).warning("hello %s", "there", extra=extra)
    (event,) = kept(place)
    value = event.value()
    assert isinstance(value, dict)
    assert (event.subject_id, event.event_type, event.origin) == ("alice", "login", "shop")
    assert (value["message"], value["level"], value["ip"], value["big"]) == (
        "hello there",
        "WARNING",
        "::1",
        str(2**70),
    )
    assert "subject_id" not in value


def test_a_record_without_extras_has_the_origin_as_subject(place: Path, handler: RecorderHandler) -> None:
    logger(handler).info("plain")
    (event,) = kept(place)
    assert (event.subject_id, event.event_type) == ("shop", "python.log")


def test_an_exception_is_kept_with_its_traceback(place: Path, handler: RecorderHandler) -> None:
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        logger(handler).exception("it went wrong")
    value = kept(place)[0].value()
    assert isinstance(value, dict)
    assert "RuntimeError: boom" in str(value["exception"])


class _Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("not even this")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("message", "arguments", "extra"),
    [
        ("%d", ("x",), {}),
        ("%s", (_Unshowable(),), {}),
        ("x", (), {"odd": _Unshowable()}),
        ("x", (), {"subject_id": _Unshowable()}),
        ("x" * (20 << 20), (), {}),
    ],
)
def test_an_unrecordable_object_is_counted_and_breaks_nothing(
    place: Path, handler: RecorderHandler, message: str, arguments: tuple[object, ...], extra: dict[str, object]
) -> None:
    log = logger(handler)
    log.info(message, *arguments, extra=extra)
    log.info("after")
    assert handler.failed == 1
    assert len(kept(place)) == 1


@pytest.mark.parametrize("text", ["\ud800", "a\x00b", "ü" * 5_000])
def test_any_text_can_be_logged(place: Path, handler: RecorderHandler, text: str) -> None:
    logger(handler).info("%s", text, extra={"subject_id": text})
    assert handler.failed == 0
    assert len(kept(place)) == 1


def test_a_full_spool_drops_events_and_a_failing_disk_is_survived(place: Path) -> None:
    handler = RecorderHandler(place / "spool", "shop", max_bytes=1_000)
    log = logger(handler)
    for _ in range(10):
        log.info("x")
    assert handler.dropped > 0
    assert handler.failed == 0
    handler.close()
    for path in spool.segments(place / "spool"):
        path.unlink()
    (place / "spool").rmdir()
    before = handler.dropped
    log.info("there is no folder any more")
    assert (handler.dropped, handler.failed) == (before + 1, 0)
    handler.close()
