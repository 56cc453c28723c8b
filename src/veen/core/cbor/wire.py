"""Objects with a wire form: each states its table once; reading, writing and JSON follow from it."""

from typing import ClassVar, Self

from veen.core.cbor.kinds import Kind, Late
from veen.core.cbor.layout import Layout
from veen.core.errors import Malformed


class Wire:
    """An object with a wire form: a frozen dataclass whose fields are those of its `LAYOUT`, in order."""

    __slots__ = ()
    LAYOUT: ClassVar[Layout]

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The object whose encoding `data` is, all of it. Raises `Malformed` and nothing else."""
        late = Late()
        try:
            wire, end = cls.read(bytes(memoryview(data)), 0, late)
            if end != len(data):
                raise Malformed("cbor", f"{len(data) - end} bytes after the end")
            late.judge()
        except Malformed as error:
            raise Malformed(cls.LAYOUT.name, error.reason, error.fault) from None
        return wire

    @classmethod
    def read(cls, data: bytes, pos: int, late: Late) -> tuple[Self, int]:
        """The object that starts at `pos`: for objects within objects and for sequences."""
        values, end = cls.LAYOUT.read(data, pos, late)
        wire = cls(*values)
        late.note_flaw(wire)
        return wire, end

    def encode(self) -> bytes:
        """The one encoding of this object. Raises `ValueError` where a field breaks its table."""
        flaw = self.flaw()
        if flaw:
            raise ValueError(f"{self.LAYOUT.name}: {flaw}")
        return self.LAYOUT.write(self.LAYOUT.fields_of(self))

    def flaw(self) -> str | None:
        """Why these fields, each right by itself, cannot stand together; None where they can."""
        return None


class Nested(Kind):
    """A wire object as a field of another."""

    __slots__ = ("wire",)

    def __init__(self, name: str, wire: type[Wire], *, optional: bool = False) -> None:
        super().__init__(name, optional=optional)
        self.wire = wire

    def read(self, data: bytes, pos: int, late: Late) -> tuple[Wire, int]:
        return self.wire.read(data, pos, late)

    def write(self, field: Wire) -> bytes:
        return field.encode()
