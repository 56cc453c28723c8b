"""LCLASS0: the class of data that a label holds, and the hints derived from it. 001, spec-2 §6.

The last classification of a label in the log counts. It is advisory: a hub may ignore it and still be correct.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from veen.core import cbor, naming
from veen.core.cbor import Bstr, Map, Text, Uint
from veen.core.limits import MAX_BODY_BYTES
from veen.overlays.admin.admin_records import RecordOverlay, Records, States, only
from veen.overlays.entry import FoldEntry
from veen.overlays.event import Event


@dataclass(frozen=True, slots=True)
class LabelClass(Event):
    """`veen.label.class.v1`. `retention_hint` is in seconds."""

    label: bytes
    class_: str
    sensitivity: str | None = None
    retention_hint: int | None = None

    SCHEMA: ClassVar = naming.schema_id("veen.label.class.v1")
    LAYOUT: ClassVar = Map(
        "veen.label.class.v1",
        {
            "label": Bstr(name="label"),
            "class": Text(MAX_BODY_BYTES, name="class_"),  # `class` is a Python keyword
            "sensitivity": Text(MAX_BODY_BYTES, name="sensitivity", optional=True),
            "retention_hint": Uint(name="retention_hint", optional=True),
        },
    )


class LabelClasses(RecordOverlay[LabelClass]):
    """One part per label."""

    CLASS = "label.class"
    EVENTS = (LabelClass,)

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, LabelClass)
        return (event.label,)

    def effective(self, records: Records[LabelClass]) -> Records[LabelClass]:
        return (max(records, key=lambda record: record.at),) if records else ()

    def plain(self, part: bytes, state: Records[LabelClass]) -> Mapping[str, cbor.Value]:
        (record,) = state
        event = record.event
        return {
            "label": part,
            "class": event.class_,
            "sensitivity": event.sensitivity,
            "retention_hint": event.retention_hint,
            **record.where(),
        }


LABEL_CLASSES = LabelClasses()


def class_of(states: States[LabelClass], label: bytes) -> LabelClass | None:
    """The classification of a label, or None."""
    record = only(states, label)
    return record.event if record else None


class RateClass(StrEnum):
    """The rate limit of a label relative to the other labels of its hub."""

    HIGHER = "higher"
    DEFAULT = "default"
    TIGHTER = "tighter"


@dataclass(frozen=True, slots=True)
class LabelPolicy:
    """Hints for a hub. None means the hub's own profile or retention applies."""

    pad_block: int | None = None
    rate: RateClass = RateClass.DEFAULT
    retention_sec: int | None = None


# Padding per class: (normal, sensitivity "high").
_PAD_BLOCKS: dict[str, tuple[int, int]] = {"user": (256, 1024), "wallet": (256, 1024), "log": (0, 0), "metric": (0, 0)}
_RATES = {"admin": RateClass.HIGHER, "control": RateClass.HIGHER, "bulk": RateClass.TIGHTER}


def policy(label_class: LabelClass | None) -> LabelPolicy:
    """The hints of §6.2. User data of high sensitivity gets the larger of the two paddings."""
    if label_class is None:
        return LabelPolicy()
    normal, sensitive = _PAD_BLOCKS.get(label_class.class_, (None, None))
    pad_block = sensitive if label_class.sensitivity == "high" else normal
    return LabelPolicy(pad_block, _RATES.get(label_class.class_, RateClass.DEFAULT), label_class.retention_hint)
