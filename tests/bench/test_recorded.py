"""The measurement of recorded events runs end to end, with too few events for meaningful figures. Takes minutes."""

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")

from bench import recorded
from bench.recorded_site import MATCH, ROBOT, events


@pytest.mark.parametrize("count", [2_000, 4_000, 20_000])
def test_each_question_matches_a_hundred_whatever_the_size(count: int) -> None:
    found = Counter((one["subject_id"], one["event_type"]) for one in events(count))
    assert sum(found.values()) == count
    assert found[ROBOT, "alarm"] == MATCH
    users = {key: number for key, number in found.items() if key[0] != ROBOT}
    assert set(users.values()) == {MATCH}
    assert {kind for _, kind in users} == {"view", "click"}


@pytest.mark.slow
def test_the_measurement_asks_both_services_and_counts_what_they_say(tmp_path: Path) -> None:
    messages: list[str] = []
    report = recorded.measure(tmp_path, messages.append, few=2_000, many=4_000, rounds=2)
    assert all(row.low <= row.value <= row.high for row in report.rows)
    bounds = [row.what for row in report.rows if row.most is not None]
    ways = [(what, how) for what in ("spread out", "in one place") for how in ("over HTTP", "the tables alone")]
    assert bounds == [f"{what}, {how}: times as long" for what, how in ways]
    assert report.row("tables of 4,000: files of the stream").value == 1
    assert report.row("an aggregate over 4,000: without Spark").value > 0
    again = recorded.measure(tmp_path, messages.append, few=2_000, many=4_000, rounds=1)
    assert again.row("in one place: rows read of 4,000").value <= 4_000
