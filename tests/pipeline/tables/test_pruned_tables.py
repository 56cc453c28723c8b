"""Tables need every entry: those that have the pruned ones go on, others refuse and say why."""

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")

from tests.cli.runner import Veen
from tests.client.pair import STREAM
from tests.client.test_pruned_entries import DAY, keep, run
from tests.pipeline.test_pruned_source import pruned_hub
from veen.core import Unavailable, Unverified
from veen.core.retention import RetentionPolicy
from veen.pipeline import select
from veen.pipeline.decoding import Keys
from veen.pipeline.tables import Loaded, Tables, load
from veen.pipeline.tables.verify import verify
from veen.storage.paths import Folders

POLICIES = [RetentionPolicy(DAY), RetentionPolicy(DAY, 2 * DAY)]


def loaded(place: Path, source: object, seq_max: int | None = None) -> Loaded:
    """Bring the tables of a place up to the end of the hub or directory."""
    return load(Tables(place / "tables"), select(str(source), stream=STREAM, seq_max=seq_max), keys(place))


def keys(place: Path) -> Keys:
    return Keys((str(place / "reader"),))


@pytest.mark.parametrize("policy", POLICIES)
def test_new_tables_of_a_pruned_log_are_refused_with_the_reason(place: Path, policy: RetentionPolicy) -> None:
    veen = Veen(place)

    def refused(source: object) -> str:
        with pytest.raises(Unavailable, match="entries 1 to 8 were pruned") as caught:
            loaded(place, source)
        asked = ("pipeline", "run", source, "--stream", STREAM, "--out", place / "tables", "--processes", 1)
        ran = veen(*asked, "--client", place / "reader")
        assert str(caught.value) in ran.error
        assert "backup that still has the entries" in ran.err
        assert "damaged" not in ran.err
        assert Tables(place / "tables").view().spans == {}
        return str(caught.value)

    with pruned_hub(place, policy) as (hub, url):
        assert "by the hub on" in refused(url)
        data_dir = hub.data_dir
    refused(data_dir)


@pytest.mark.parametrize("policy", POLICIES)
def test_tables_that_have_the_pruned_entries_go_on(place: Path, policy: RetentionPolicy) -> None:
    """Also if they end with the last pruned entry, and their entries still agree with the log."""
    with pruned_hub(place, None) as (hub, url):
        assert loaded(place, url, seq_max=8).entries == 8
        keep(hub, policy)
        assert run(hub).range_count == 1
        assert loaded(place, url).entries == 2
        checked = verify(Tables(place / "tables"), select(url, stream=STREAM), keys(place))
        assert (checked.problems, [span.last for span in checked.signed]) == ([], [10])
        data_dir = hub.data_dir
    assert loaded(place, data_dir).entries == 0
    checked = verify(Tables(place / "tables"), select(str(data_dir), stream=STREAM), keys(place))
    assert (checked.problems, [span.last for span in checked.signed]) == ([], [10])


def test_tables_of_a_directory_go_on_behind_a_pruned_range(place: Path) -> None:
    with pruned_hub(place, None) as (hub, _):
        assert loaded(place, hub.data_dir, seq_max=8).entries == 8
        keep(hub, POLICIES[1])
        assert run(hub).range_count == 1
        data_dir = hub.data_dir
    assert loaded(place, data_dir).entries == 2


def test_tables_that_end_within_a_pruned_range_are_refused(place: Path) -> None:
    with pruned_hub(place, None) as (hub, url):
        assert loaded(place, url, seq_max=6).entries == 6
        keep(hub, POLICIES[0])
        assert run(hub).range_count == 1
        with pytest.raises(Unavailable, match="entries 7 to 8 were pruned"):
            loaded(place, url)
        data_dir = hub.data_dir
    with pytest.raises(Unavailable, match="entries 7 to 8 were pruned"):
        loaded(place, data_dir)
    checked = verify(Tables(place / "tables"), select(str(data_dir), stream=STREAM), keys(place))
    assert (checked.problems, [span.last for span in checked.signed]) == ([], [6])


def test_a_range_that_was_erased_in_the_middle_ends_the_load_there(place: Path) -> None:
    with pruned_hub(place, None, 6) as (hub, url):
        with pytest.raises(Unavailable, match="entries 5 to 8 were pruned"):
            loaded(place, url)
        data_dir = hub.data_dir
    with pytest.raises(Unavailable, match="entries 5 to 8 were pruned"):
        loaded(place, data_dir)
    assert loaded(place, data_dir, seq_max=4).entries == 4


def test_a_pruned_file_without_a_manifest_is_damage_for_tables(place: Path) -> None:
    with pruned_hub(place, POLICIES[0]) as (hub, _):
        data_dir, label = hub.data_dir, hub.label(STREAM)
    Folders(data_dir).manifest(label).unlink()
    with pytest.raises(Unverified, match="entries 1 to 8 are missing"):
        loaded(place, data_dir)
