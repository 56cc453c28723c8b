"""The end of an epoch: the hub states the last entry of labels that accept no more, and closes their chunks. Spec §8.4.

The statement is an event on the control stream, so a replay of the log closes the same chunks. A label is listed once
no message can name it any more: its epoch is outside the window around `hub_ts`.
"""

from itertools import pairwise
from typing import Annotated

from veen.core.cbor import Bstr, ListOf, Nested, Uint, VersionField, Wire, int_map
from veen.core.limits import MAX_ENDED_LABELS


@int_map("ended label")
class EndedLabel(Wire):
    """The final size and root of a label."""

    label: Annotated[bytes, Bstr()]
    epoch: Annotated[int, Uint()]
    size: Annotated[int, Uint(least=1)]
    mmr_root: Annotated[bytes, Bstr()]


@int_map("epoch end", VersionField())
class EpochEnd(Wire):
    """Labels whose epochs are over, in ascending order of label."""

    labels: Annotated[
        tuple[EndedLabel, ...], ListOf(Nested(EndedLabel, name="ended label"), least=1, most=MAX_ENDED_LABELS)
    ]

    def flaw(self) -> str | None:
        ordered = all(one.label < other.label for one, other in pairwise(self.labels))
        return None if ordered else "the labels are not in ascending order"
