"""The fields of a JSON object that has no layout of its own, such as what a hub says of itself, read strictly."""

from dataclasses import dataclass
from typing import TypeVar

from veen.core import jsonform
from veen.core.cbor import Late, Wire
from veen.core.errors import Malformed
from veen.core.hashing import HASH_BYTES, U64_MAX
from veen.core.jsontext import Json

W = TypeVar("W", bound=Wire)


@dataclass(frozen=True, slots=True)
class Fields:
    """An object's fields by name. Each is there and of its kind, or `Malformed` names it and the object."""

    what: str
    found: dict[str, Json]

    @classmethod
    def of(cls, what: str, found: Json) -> "Fields":
        if not isinstance(found, dict):
            raise Malformed(what, "not an object")
        return cls(what, found)

    def field(self, name: str) -> Json:
        if name not in self.found:
            raise Malformed(self.what, f"{name} is missing")
        return self.found[name]

    def number(self, name: str) -> int:
        number = self.field(name)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= U64_MAX:
            raise Malformed(self.what, f"{name} is not an unsigned integer")
        return number

    def text(self, name: str) -> str:
        text = self.field(name)
        if not isinstance(text, str):
            raise Malformed(self.what, f"{name} is not text")
        return text

    def hash(self, name: str) -> bytes:
        shown = self.field(name)
        try:
            content = bytes.fromhex(str(shown))
        except ValueError:
            content = b""
        if len(content) != HASH_BYTES or content.hex() != shown:
            raise Malformed(self.what, f"{name} is not {2 * HASH_BYTES} lowercase hex digits")
        return content

    def wire(self, name: str, cls: type[W]) -> W:
        late = Late()
        try:
            wire = jsonform.from_json(cls, self.field(name), late)
            late.judge()
        except Malformed as error:
            raise Malformed(self.what, f"{name}: {error.reason}") from None
        return wire
