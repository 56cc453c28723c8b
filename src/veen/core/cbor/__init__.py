"""One strict deterministic CBOR codec, driven by one field table per object. Spec §3.1."""

from veen.core.cbor.kinds import Bool, Bstr, Bytes, Constant, Details, Kind, Late, ListOf, Text, Uint, Version
from veen.core.cbor.layout import Array, Layout, Map
from veen.core.cbor.value import Key, Value, decode, encode
from veen.core.cbor.wire import Nested, Wire

__all__ = [
    "Array",
    "Bool",
    "Bstr",
    "Bytes",
    "Constant",
    "Details",
    "Key",
    "Kind",
    "Late",
    "Layout",
    "ListOf",
    "Map",
    "Nested",
    "Text",
    "Uint",
    "Value",
    "Version",
    "Wire",
    "decode",
    "encode",
]
