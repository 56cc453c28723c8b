"""A strict deterministic CBOR codec, driven by one field table per object. Spec §3.1."""

from veen.core.cbor.field_types import (
    Bool,
    Bstr,
    Bytes,
    Constant,
    DeferredFaults,
    Details,
    FieldType,
    ListOf,
    Text,
    Uint,
    VersionField,
)
from veen.core.cbor.layout import Array, Layout, Map, Nested, Wire, array, int_map, text_map
from veen.core.cbor.value import Key, Value, decode, encode

__all__ = [
    "Array",
    "Bool",
    "Bstr",
    "Bytes",
    "Constant",
    "DeferredFaults",
    "Details",
    "FieldType",
    "Key",
    "Layout",
    "ListOf",
    "Map",
    "Nested",
    "Text",
    "Uint",
    "Value",
    "VersionField",
    "Wire",
    "array",
    "decode",
    "encode",
    "int_map",
    "text_map",
]
