"""Logs of a recorder: events of its streams, and its administration."""

from collections.abc import Callable
from dataclasses import replace

from vectors.form import Doc, secret
from vectors.overlays.logs import CLIENTS, Line, folded, msg_id
from veen.overlays.record import (
    CHANGES,
    RECORD_TALLIES,
    RECORDER_CHANGES,
    MapType,
    Migration,
    Producer,
    RecorderProfile,
    RecordEvent,
)

_WEB, _SLOW = "record/app/web", "record/app/slow"
_EVENT = RecordEvent("alice", "login", 1_700_000_000_123, "shop", '{"ok":true}')
_PLACED = RecordEvent("bob", "http.request", 1_700_000_000_500, "shop", '{"ms":12.5}', "jsonl:app", 0)
_KEYS = tuple(sorted(secret(f"overlay producer {number}") for number in range(2)))
_SHOP = Producer("shop", _KEYS[:1], ("shop",), (_WEB,))
_PROFILE = RecorderProfile(secret("overlay hub"), secret("overlay admin"), (_WEB, CHANGES), 65_536, 31_536_000, 300)

_ODD = _EVENT.encode().replace(b'{"ok":true}', b'{"ok": 1}  ')

EVENT_LOG = (
    Line("an event", _EVENT),
    Line("the same once more, which is another event", _EVENT, client=1, after=60),
    Line("a mirrored copy of the first", _EVENT, msg_id(1), client=2),
    Line("an event with its place in a file", _PLACED),
    Line("of the same place: a copy, whatever it says", replace(_PLACED, content='{"ms":13}')),
    Line("the next place of that file", replace(_PLACED, position=87, event_time=5)),
    Line("a place that is bytes", replace(_PLACED, source="otlp", position=b"\x00\x01")),
    Line("a payload that is not in its one form", _EVENT, body=_ODD),
    Line("a payload that does not open", _EVENT, sealed=True),
)
CHANGE_LOG = (
    Line("the set-up", _PROFILE),
    Line("an event type and its stream", MapType("http.request", _WEB)),
    Line("the same again", MapType("http.request", _WEB)),
    Line("another stream for it", MapType("http.request", _SLOW)),
    Line("a second type of that stream", MapType("http.slow", _WEB)),
    Line("a split", Migration("split", _WEB, _SLOW, ("http.slow",))),
    Line("a split of what has gone", Migration("split", _WEB, _SLOW, ("http.request", "http.slow"), "again")),
    Line("a producer", _SHOP),
    Line("another of the same key", replace(_SHOP, name="bank", client_ids=_KEYS, origins=("bank",))),
    Line("the producer with one more key, and origin", replace(_SHOP, origins=("shop", "shop-admin"))),
    Line("the administrator as a producer", replace(_SHOP, name="admin", client_ids=(CLIENTS[0],))),
    Line("another set-up", replace(_PROFILE, streams=(_SLOW, _WEB, CHANGES), every_events=10_000)),
    Line("a mirrored copy of the first mapping", MapType("http.request", _WEB), msg_id(2), client=1),
)

GENERATED: dict[str, Callable[[], Doc]] = {
    "record-events.json": lambda: folded(RECORD_TALLIES, EVENT_LOG),
    "record-changes.json": lambda: folded(RECORDER_CHANGES, CHANGE_LOG),
}
