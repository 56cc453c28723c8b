"""The public names and schemas of the recorder."""

from veen import recorder
from veen.overlays import record


def test_the_public_names_are_these() -> None:
    assert recorder.__all__ == sorted(recorder.__all__)
    assert {"RecorderCheckpoint", "ProducerKit", "init", "enrol", "verify"} <= set(recorder.__all__)
    assert all(hasattr(recorder, name) for name in recorder.__all__)


def test_the_schemas_are_named_as_they_are_documented() -> None:
    events = (record.RecordEvent, record.MapType, record.Migration, record.Producer, record.RecorderProfile)
    assert [one.NAME for one in events] == [
        "record.event.v1",
        "record.map.v1",
        "record.migration.v1",
        "record.producer.v1",
        "record.profile.v1",
    ]
    assert record.CHANGES == "record/infrastructure/changes"
