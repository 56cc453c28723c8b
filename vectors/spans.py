"""The start and end of each item in a valid encoding, so a single item can be damaged."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

UINT, NINT, BSTR, TEXT, ARRAY, MAP, TAG, SIMPLE = range(8)
_WIDTHS = {24: 1, 25: 2, 26: 4, 27: 8}

# Names of the fields: an object's in order, a list's single item in a list, None for a plain value.
Names: TypeAlias = "Mapping[str, Any] | list[Any] | None"


@dataclass(frozen=True, slots=True)
class Item:
    """One item: its head is `start:content`, all of it `start:end`. The children of a map alternate keys and values."""

    name: str
    names: Names
    start: int
    content: int
    end: int
    major: int
    argument: int
    children: tuple["Item", ...]

    @property
    def field(self) -> str:
        """Its own name, without those of the enclosing objects."""
        return self.name.rpartition(".")[2]

    @property
    def is_list(self) -> bool:
        return isinstance(self.names, list)


def read(data: bytes, names: Names, name: str = "", pos: int = 0) -> Item:
    """The item at `pos` of a valid encoding."""
    major, info = data[pos] >> 5, data[pos] & 0x1F
    content = pos + 1 + _WIDTHS.get(info, 0)
    argument = info if info < 24 else int.from_bytes(data[pos + 1 : content], "big")
    end = content
    children: list[Item] = []
    if major in (BSTR, TEXT):
        end += argument
    count = argument if major == ARRAY else 2 * argument if major == MAP else 0
    for index in range(count):
        label, inner = _child(major, names, index, children)
        child = read(data, inner, f"{name}.{label}" if name else label, end)
        children.append(child)
        end = child.end
    return Item(name, names, pos, content, end, major, argument, tuple(children))


def _child(major: int, names: Names, index: int, before: list[Item]) -> tuple[str, Names]:
    if isinstance(names, list):
        return str(index), names[0]
    if not isinstance(names, Mapping):
        return str(index), None
    if major == ARRAY:
        return list(names.items())[index]
    if index % 2 == 0:
        return f"key {index // 2 + 1}", None
    return list(names.items())[before[-1].argument - 1]
