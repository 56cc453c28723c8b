"""LCLASS0: what kind of data a label holds, and the hints that follow from it. 001, spec-2 §6.

The classification of a label is the last one in the log. It is advice: a hub that does not know it, or does not follow
it, is no less correct.
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
            "label": Bstr("label"),
            "class": Text("class_", MAX_BODY_BYTES),  # the key is a word that Python keeps for itself
            "sensitivity": Text("sensitivity", MAX_BODY_BYTES, optional=True),
            "retention_hint": Uint("retention_hint", optional=True),
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
        said = record.event
        return {
            "label": part,
            "class": said.class_,
            "sensitivity": said.sensitivity,
            "retention_hint": said.retention_hint,
            **record.where(),
        }


LABEL_CLASSES = LabelClasses()


def class_of(states: States[LabelClass], label: bytes) -> LabelClass | None:
    """What a label is classified as, None where nobody has said."""
    record = only(states, label)
    return record.event if record else None


class RateClass(StrEnum):
    """How much a label may carry, beside the others of its hub."""

    HIGHER = "higher"
    DEFAULT = "default"
    TIGHTER = "tighter"


@dataclass(frozen=True, slots=True)
class LabelPolicy:
    """What a hub may do for a label. None leaves it to the hub's own profile and retention."""

    pad_block: int | None = None
    rate: RateClass = RateClass.DEFAULT
    retention_sec: int | None = None


# The padding for a class: for most of it, and for what is highly sensitive.
_PAD_BLOCKS: dict[str, tuple[int, int]] = {"user": (256, 1024), "wallet": (256, 1024), "log": (0, 0), "metric": (0, 0)}
_RATES = {"admin": RateClass.HIGHER, "control": RateClass.HIGHER, "bulk": RateClass.TIGHTER}


def policy(said: LabelClass | None) -> LabelPolicy:
    """The hints of §6.2. Of the two paddings for people's data, the larger is for what is highly sensitive."""
    if said is None:
        return LabelPolicy()
    usual, sensitive = _PAD_BLOCKS.get(said.class_, (None, None))
    pad_block = sensitive if said.sensitivity == "high" else usual
    return LabelPolicy(pad_block, _RATES.get(said.class_, RateClass.DEFAULT), said.retention_hint)
