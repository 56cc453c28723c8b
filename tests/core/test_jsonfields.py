"""Fields of a JSON object without a layout: a missing or wrong field is named in the error."""

import pytest

from veen.core import Malformed, Rate, strict_json, wire_json
from veen.core.wire_json import Fields

NO_WIRE: list[strict_json.Json] = [None, [], {"per_sec": 1}, {"per_sec": 1, "burst": -1}]
WHOLE: strict_json.Json = {"n": 1, "t": "x", "h": "0a" * 32, "w": wire_json.to_json(Rate(1, 2))}


@pytest.mark.parametrize(
    ("kind", "name", "wrong"),
    [
        *[("number", "n", wrong) for wrong in (True, "1", -1, 1 << 64, None, [1])],
        *[("text", "t", wrong) for wrong in (1, None, ["x"])],
        *[("hash", "h", wrong) for wrong in ("", "0A" * 32, "0a" * 31, "0a" * 33, "zz" * 32, 1, None)],
        *[("wire", "w", wrong) for wrong in NO_WIRE],
    ],
)
def test_a_field_is_there_and_of_its_kind_or_is_named(kind: str, name: str, wrong: strict_json.Json) -> None:
    def read(fields: Fields) -> object:
        return fields.wire(name, Rate) if kind == "wire" else getattr(fields, kind)(name)

    assert isinstance(WHOLE, dict)
    assert read(Fields.of("thing", WHOLE)) in (1, "x", b"\n" * 32, Rate(1, 2))
    for broken in ({**WHOLE, name: wrong}, {key: value for key, value in WHOLE.items() if key != name}):
        with pytest.raises(Malformed, match=f"thing: {name}"):
            read(Fields.of("thing", broken))


def test_a_value_that_is_not_an_object_has_no_fields() -> None:
    with pytest.raises(Malformed, match="thing: not an object"):
        Fields.of("thing", [])
