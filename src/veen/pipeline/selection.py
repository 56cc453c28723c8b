"""What to read, as options say it: which labels, which part of them, which columns, and how much of it to verify."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from veen.core import Malformed, naming
from veen.core.hashing import HASH_BYTES
from veen.pipeline import columns as known
from veen.storage.metadata import HubMetadata

SEPARATOR = "\n"  # between the values of an option that takes several: no path or URL has it


class Verify(StrEnum):
    """How much is verified of what is read."""

    NONE = "none"  # nothing but what finding the next entry takes
    ENTRY = "entry"  # every entry; what failed is said beside it
    FULL = "full"  # every entry and the artifacts of its chunk; the first failure ends the job


@dataclass(frozen=True, slots=True)
class Selection:
    """One read. Ranges include both ends."""

    paths: tuple[str, ...]
    labels: tuple[bytes, ...] = ()
    streams: tuple[str, ...] = ()
    epochs: tuple[int, ...] = (0,)  # of the streams
    seq_min: int = 1
    seq_max: int | None = None
    ts_min: int | None = None
    ts_max: int | None = None
    columns: tuple[str, ...] = ()  # none: all
    verify: Verify = Verify.FULL
    pin: bytes | None = None  # hub_id, or the fingerprint of a hub key: whose log it must be
    parallelism: int | None = None
    max_entries: int | None = None  # in one batch of a stream

    def options(self) -> dict[str, str]:
        """As a data source is told."""
        made: dict[str, str] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and value != ():
                made[_OPTION_OF.get(field.name, field.name)] = _written(value)
        return made

    def labels_of(self, hub_metadata: HubMetadata) -> frozenset[bytes] | None:
        """The labels that are meant, under one hub; None for all."""
        if not self.labels and not self.streams:
            return None
        return frozenset().union(*self.asked(hub_metadata).values())

    def asked(self, hub_metadata: HubMetadata) -> dict[str, frozenset[bytes]]:
        """The labels of each stream and label that was asked for, under one hub, by what an error calls it."""
        routing = hub_metadata.identity.routing_key
        asked = {f"label {label.hex()}": frozenset({label}) for label in self.labels}
        for name in self.streams:
            stream_id = naming.stream_id(name)
            asked[f"stream {name}"] = frozenset(naming.label(routing, stream_id, epoch) for epoch in self.epochs)
        return asked

    def shown(self) -> tuple[str, ...]:
        """The columns, in order."""
        if self.columns:
            return self.columns
        return known.ENTRY_COLUMNS + (known.VERDICT_COLUMNS if self.verify is Verify.ENTRY else ())


_OPTION_OF = {"paths": "path", "labels": "label", "streams": "stream", "epochs": "epoch"}
_NUMBERS = ("seq_min", "seq_max", "ts_min", "ts_max", "parallelism", "max_entries")
NAMES = frozenset(_OPTION_OF.get(field.name, field.name) for field in fields(Selection))


def selection(options: Mapping[str, str]) -> Selection:
    """What the options of a data source say. Raises `Malformed` where they say nothing that can be done."""
    given = {name.lower(): text for name, text in options.items()}
    unknown = sorted(given.keys() - NAMES)
    if unknown:
        raise _bad(f"{unknown[0]} is not an option of it", f"there are {', '.join(sorted(NAMES))}")
    paths = _several(given.get("path", ""))
    if not paths:
        raise _bad("no path is given", "load(PATH), or option path: a data directory or the address of a hub")
    numbers = {name: _number(name, given[name]) for name in _NUMBERS if name in given}
    verify = given.get("verify", Verify.FULL).lower()
    if verify not in list(Verify):
        raise _bad(f"verify is {verify!r}", f"it is one of {', '.join(Verify)}")
    made = Selection(
        paths=paths,
        labels=tuple(_hash("label", text) for text in _several(given.get("label", ""))),
        streams=_several(given.get("stream", "")),
        epochs=tuple(_number("epoch", text) for text in _several(given.get("epoch", "0"))),
        columns=tuple(name.strip() for name in given.get("columns", "").split(",") if name.strip()),
        verify=Verify(verify),
        pin=_hash("pin", given["pin"]) if "pin" in given else None,
        **numbers,
    )
    check_columns(made.columns, made.verify)
    return made


def check_columns(names: Iterable[str], verify: Verify) -> None:
    """Raise unless there are such columns."""
    for name in names:
        if name not in known.KINDS:
            raise _bad(f"there is no column {name!r}", f"there are {', '.join(known.KINDS)}")
        if name in known.VERDICT_COLUMNS and verify is not Verify.ENTRY:
            raise _bad(f"the column {name} is only there with verify=entry", "give verify=entry, or leave it out")


def _several(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(SEPARATOR) if part.strip())


def _written(value: object) -> str:
    if isinstance(value, tuple):
        separator = "," if value and value[0] in known.KINDS else SEPARATOR
        return separator.join(_written(one) for one in value)
    return value.hex() if isinstance(value, bytes) else str(value)


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _bad(f"{name} is {text!r}, and not a number", f"give {name} digits only")
    return int(text)


def _hash(name: str, text: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != HASH_BYTES:
        raise _bad(f"{name} is not {2 * HASH_BYTES} hex digits", "a stream goes by its name in option stream")
    return value


def _bad(what: str, hint: str) -> Malformed:
    error = Malformed("selection", what)
    error.add_note(hint)
    return error
