"""Build the operation that `veen op send` sends: from NAME=VALUE words or JSON, from evidence, or from the log."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plumbing.cli.command import Misuse, misuse
from veen.cli.kit import pinning
from veen.cli.kit.exit_status import hinted
from veen.client import evidence, local_files
from veen.client.evidence import MAX_EVIDENCE_BYTES
from veen.core import Malformed, Unverified, cbor, naming, strict_json
from veen.core.cbor import Bstr, FieldType, ListOf, Text, Uint
from veen.core.hashing import HASH_BYTES
from veen.core.strict_json import Json
from veen.overlays import AnyOverlay, At, registry
from veen.overlays.operations import OPERATION_OVERLAYS
from veen.overlays.operations.mirror import Validated, record
from veen.overlays.operations.operation_events import Delegated, Embedded, Mirror, Operation, StateCheckpoint
from veen.overlays.operations.operation_index import BY_NAME, OPERATIONS
from veen.state.state_view import StateView

_HEX, _NAME, _STREAMS = "hex:", "name:", "allowed_stream_ids"


def kind_of(text: str) -> type[Operation]:
    """Return the operation class of a kind such as `access.grant`."""
    found = BY_NAME.get(text.removesuffix(".v1"))
    if found is None:
        raise Misuse(f"there is no kind of operation {text!r}", "veen op kinds lists them")
    return found


def words(kind: type[Operation], given: Sequence[str]) -> dict[str, Json]:
    """Parse NAME=VALUE words into a JSON object. A list takes one word per item."""
    kinds = {one.name: one for one in kind.LAYOUT.kinds}
    found: dict[str, Json] = {}
    for word in given:
        name, separator, text = word.partition("=")
        if not separator or name not in kinds:
            raise _wrong(kind, f"{word!r} is not NAME=VALUE" if not separator else f"there is no field {name!r}")
        listed = kinds[name]
        if isinstance(listed, ListOf):
            more = found.setdefault(name, [])
            assert isinstance(more, list)
            more += [_word(listed.item, text)] if text else []
        elif name in found:
            raise _wrong(kind, f"{name} is given twice")
        else:
            found[name] = _word(listed, text)
    return found


def document(kind: type[Operation], data: bytes) -> dict[str, Json]:
    """Parse a JSON object of fields."""
    try:
        found = strict_json.decode(data, "body")
    except Malformed as error:
        raise _wrong(kind, str(error)) from None
    if not isinstance(found, dict):
        raise _wrong(kind, "the body is not a JSON object")
    return found


def operation(kind: type[Operation], given: Mapping[str, Json]) -> Operation:
    """Return the operation with these fields. Raises `Misuse` if they do not fit its layout."""
    kinds = {one.name: one for one in kind.LAYOUT.kinds}
    unknown = [name for name in given if name not in kinds]
    missing = [name for name, one in kinds.items() if not one.optional and name not in given]
    if unknown or missing:
        raise _wrong(kind, f"there is no field {unknown[0]!r}" if unknown else f"{missing[0]} is missing")
    fields = _embedding(given) if kind is Delegated else given
    try:
        made = kind(**{name: _value(one, fields[name]) if name in fields else None for name, one in kinds.items()})
        made.encode()
    except ValueError as error:
        raise _wrong(kind, str(error)) from None
    return made


def _embedding(given: Mapping[str, Json]) -> Mapping[str, Json]:
    """Encode the inner operation of a delegated one, which may be given as a kind and a JSON object."""
    named, inner = given["operation_schema"], given["operation_body"]
    if not isinstance(named, str) or named.removesuffix(".v1") not in BY_NAME:
        return given
    kind = kind_of(named)
    if isinstance(inner, dict):
        inner = _HEX + operation(kind, inner).encode().hex()
    return {**given, "operation_schema": kind.SCHEMA.hex(), "operation_body": inner}


def _word(kind: FieldType, text: str) -> Json:
    if isinstance(kind, Uint):
        return int(text) if text.isascii() and text.isdigit() and len(text) <= HASH_BYTES else text
    if isinstance(kind, Text | Bstr):
        return text
    try:
        return strict_json.decode(text.encode(), kind.name)
    except Malformed as error:
        if _is_json(text):  # such as 1.5, which the wire format cannot hold: do not silently send it as text
            raise Misuse(str(error), "if it is text, quote it, as in '\"1.5\"'") from None
        return text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _value(kind: FieldType, found: Json) -> Any:
    match kind:
        case Uint() if isinstance(found, int) and not isinstance(found, bool):
            return found
        case Text() if isinstance(found, str):
            return found
        case Bstr() if isinstance(found, str):
            return _id(kind, found)
        case ListOf() if isinstance(found, list):
            if kind.name == _STREAMS:
                return tuple(_stream(one) for one in found)
            return tuple(_value(kind.item, one) for one in found)
        case Embedded() if isinstance(found, str) and found.startswith(_HEX):
            return bytes.fromhex(found.removeprefix(_HEX))
        case Uint() | Text() | Bstr() | ListOf():
            raise ValueError(f"{kind.name} has the wrong type: {json.dumps(found)}")
        case _:
            return cbor.encode(_anything(found))


def id_of(name: str, found: Json) -> bytes:
    """Parse a single field that is an id."""
    with misuse("give 64 hex digits, or name: and a name"):
        value = _value(Bstr(name=name), found)
    assert isinstance(value, bytes)
    return value


def _id(kind: Bstr, text: str) -> bytes:
    """Parse hex digits, or hash a name."""
    if text.startswith(_NAME):
        return naming.schema_id(text.removeprefix(_NAME))
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != kind.size:
        raise ValueError(f"{kind.name} is {text!r}, but must be {2 * kind.size} hex digits, or name: and a name")
    return found


def _stream(found: Json) -> bytes:
    if not isinstance(found, str):
        raise ValueError(f"{found!r} is not a stream: give its name or 64 hex digits")
    return naming.stream_id(found)


def _anything(found: Json) -> cbor.Value:
    """Convert JSON to CBOR. Text after `hex:` becomes bytes."""
    match found:
        case str() if found.startswith(_HEX):
            return bytes.fromhex(found.removeprefix(_HEX))
        case list():
            return [_anything(one) for one in found]
        case dict():
            return {name: _anything(one) for name, one in found.items()}
    return found


def _wrong(kind: type[Operation], reason: str) -> Misuse:
    name = kind.NAME.removesuffix(".v1")
    return Misuse(f"{name}: {reason}", f"veen op kinds {name} lists its fields")


_FILE_PREFIX = "@"
_CHECKPOINT_FIELDS = {
    "state_id",
    "upto_stream_seq",
    "mmr_root",
    "state_hash",
}  # missing ones are filled in from the log
_MIRROR_FIELDS = ("source_hub_identifier", "mirror_time", "metadata")  # all others come from --source


def needs_log(kind: type[Operation], given: dict[str, Json]) -> bool:
    """Return whether some fields must be filled in from a log."""
    return kind is StateCheckpoint and not given.keys() >= _CHECKPOINT_FIELDS


def overlay_of(kind: type[Operation]) -> AnyOverlay:
    """Return the profile overlay of a kind of operation."""
    return next(one for one in OPERATION_OVERLAYS if one is not OPERATIONS and kind in one.EVENTS)


def parse_fields(kind: type[Operation], fields: list[str], body: str | None) -> dict[str, Json]:
    if body is None:
        return words(kind, fields)
    data = Path(body[1:]).read_bytes() if body.startswith(_FILE_PREFIX) else body.encode()
    return {**document(kind, data), **words(kind, fields)}


def verify_source(
    kind: type[Operation], given: dict[str, Json], source: Path | None, pin: str | None
) -> Validated | None:
    """Verify the evidence that a mirror record is made from. Rule F1."""
    if kind is not Mirror:
        if source is not None or pin is not None:
            raise Misuse("--source and --source-pin are for federation.mirror", "leave them out")
        return None
    if source is None:
        hint = "veen evidence with a client of the source hub writes the evidence of one entry"
        raise Misuse("missing --source: a mirror record is made from evidence", hint)
    unknown = [name for name in given if name not in _MIRROR_FIELDS]
    if unknown:
        raise Misuse(f"{unknown[0]} is taken from --source", f"give only {', '.join(_MIRROR_FIELDS)}")
    found = evidence.verify(local_files.read_file(source, MAX_EVIDENCE_BYTES), pinning.pinned_key(pin))
    if pin is None and "source_hub_identifier" not in given:
        unnamed = Unverified(str(source), "no source hub was named, so anyone could have made the file")
        raise hinted(unnamed, "--source-pin HUB_ID names the hub that must have signed it")
    if found.contradictions:
        raise Unverified(str(source), f"its hub contradicts itself: {found.contradictions[0]}")
    if len(found.entries) != 1:
        raise Unverified(str(source), f"it contains {len(found.entries)} messages, but must contain one")
    receipt = found.entries[0].receipt
    if not any((tie.label, tie.stream_seq) == (receipt.label, receipt.stream_seq) for tie in found.ties):
        raise Unverified(str(source), "it has no inclusion proof of its message")
    named = given.get("source_hub_identifier", found.hub_id.hex())
    if not isinstance(named, str):
        raise Misuse("source_hub_identifier is not text", "give the id or the address of the source hub")
    if named != found.hub_id.hex() and pin is None:
        raise Misuse(f"the evidence does not prove that {named} signed it", "give --source-pin HUB_ID")
    return Validated(named, receipt)


def mirror(mirrored: Validated, given: dict[str, Json], view: StateView[Any, Any]) -> Mirror:
    made = record(mirrored, view.source.label(view.stream_id, view.present_epoch()))
    fields = {name: getattr(made, name) for name in ("source_hub_identifier", "source_stream_seq")}
    hashes = ("source_label", "source_leaf_hash", "source_receipt_root", "target_label")
    whole = operation(Mirror, {**given, **fields, **{name: getattr(made, name).hex() for name in hashes}})
    assert isinstance(whole, Mirror)
    return whole


async def checkpoint(given: dict[str, Json], view: StateView[Any, Any]) -> Operation:
    """Fill in missing fields of a checkpoint from the log. The default is the whole state at the end of the stream."""
    fields: dict[str, Json] = {"state_id": view.stream_id.hex(), **given}
    overlay = registry().of_class(str(given.get("state_class", "")))
    if overlay is None:  # an unknown state class cannot be folded here, so nothing can be filled in
        return operation(StateCheckpoint, fields)
    upto = given.get("upto_stream_seq")
    at = At(view.present_epoch(), upto) if isinstance(upto, int) else None
    async with StateView(view.source, view.stream_id, overlay, cached=False) as states, states.reading(at) as reading:
        if not reading.at.stream_seq:
            raise Misuse("this stream has no entries", "send the checkpoint after the first entry")
        state_id = id_of("state_id", fields["state_id"])
        part = (state_id,) if state_id in reading.states else ()
        found: dict[str, Json] = {
            "upto_stream_seq": reading.at.stream_seq,
            "mmr_root": (await view.source.receipt(view.stream_id, reading.at)).mmr_root.hex(),
            "state_hash": reading.state_hash(*part).hex(),
        }
    return operation(StateCheckpoint, {**found, **fields})
