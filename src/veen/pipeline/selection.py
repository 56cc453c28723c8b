"""The selection of a read, given as options: labels, ranges, columns and the level of verification."""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from veen.core import Malformed, naming
from veen.core.hashing import HASH_BYTES
from veen.storage.metadata import HubMetadata

SEPARATOR = "\n"  # between the values of one option; no path or URL contains it
COLUMN_TYPES = {  # of an entry, as Spark SQL types
    "source": "string",  # the directory or hub that the entry was read from
    "hub_id": "binary",
    "label": "binary",
    "stream_seq": "bigint",
    "hub_ts": "bigint",
    "client_id": "binary",
    "client_seq": "bigint",
    "prev_ack": "bigint",
    "auth_ref": "binary",
    "ct_hash": "binary",
    "leaf_hash": "binary",
    "mmr_root": "binary",
    "entry_hash": "binary",
    "msg": "binary",
    "receipt": "binary",
    "ok": "boolean",
    "faults": "array<string>",  # names of the failed checks
}
VERDICT_COLUMNS = ("ok", "faults")
ENTRY_COLUMNS = tuple(name for name in COLUMN_TYPES if name not in VERDICT_COLUMNS)
Paths = str | Path | Iterable[str | Path]


class Verify(StrEnum):
    """The level of verification of a read."""

    NONE = "none"  # only the framing that is needed to find the next entry
    ENTRY = "entry"  # every entry; the columns `ok` and `faults` report failures
    FULL = "full"  # every entry and the artifacts of its chunk; the first failure ends the job


@dataclass(frozen=True, slots=True)
class Selection:
    """One read. Ranges include both ends."""

    paths: tuple[str, ...]
    labels: tuple[bytes, ...] = ()
    streams: tuple[str, ...] = ()
    epochs: tuple[int, ...] = ()  # of the streams; empty: all
    seq_min: int = 1
    seq_max: int | None = None
    ts_min: int | None = None
    ts_max: int | None = None
    columns: tuple[str, ...] = ()  # empty: all
    verify: Verify = Verify.FULL
    pin: bytes | None = None  # hub id or fingerprint of a hub key that the log must have
    parallelism: int | None = None
    max_entries: int | None = None  # per batch of a streaming read

    def options(self) -> dict[str, str]:
        """The selection as data source options."""
        made: dict[str, str] = {}
        for field in fields(self):
            if listed := _listed(getattr(self, field.name)):
                made[_OPTION_OF.get(field.name, field.name)] = _written(field.name, listed)
        return made

    def labels_of(self, metadata: HubMetadata) -> frozenset[bytes] | None:
        """The selected labels under one hub; None for all."""
        if not self.labels and not self.streams:
            return None
        return frozenset().union(*self.labels_by_name(metadata).values())

    def labels_by_name(self, metadata: HubMetadata) -> dict[str, frozenset[bytes]]:
        """The labels of each selected stream and label under one hub, keyed by their name in error messages."""
        routing, epochs = metadata.identity.routing_key, in_epochs(self, metadata).epochs
        named = {f"label {label.hex()}": frozenset({label}) for label in self.labels}
        for name in self.streams:
            stream_id = naming.stream_id(name)
            named[f"stream {name}"] = frozenset(naming.label(routing, stream_id, epoch) for epoch in epochs)
        return named

    @property
    def timed(self) -> bool:
        return self.ts_min is not None or self.ts_max is not None

    def shown(self) -> tuple[str, ...]:
        if self.columns:
            return self.columns
        return ENTRY_COLUMNS + (VERDICT_COLUMNS if self.verify is Verify.ENTRY else ())


def in_epochs(selection: Selection, metadata: HubMetadata, ahead: int = 0) -> Selection:
    """Select every epoch since the hub's first key, plus `ahead` future ones, if the selection names none."""
    profile, skew = metadata.profile, metadata.limits.max_epoch_skew_sec
    if selection.epochs:
        return selection
    if not profile.epoch_sec:
        return replace(selection, epochs=(0,))
    born = metadata.lineage.identities[-1].signing_keys[0].valid_from
    last = profile.epochs_around(int(time.time()), skew).stop + ahead
    return replace(selection, epochs=tuple(range(profile.epochs_around(born, skew).start, last)))


_OPTION_OF = {"paths": "path", "labels": "label", "streams": "stream", "epochs": "epoch"}
_NUMBERS = ("seq_min", "seq_max", "ts_min", "ts_max", "parallelism", "max_entries")
NAMES = frozenset(_OPTION_OF.get(field.name, field.name) for field in fields(Selection))


def select(paths: Paths, **given: Any) -> Selection:
    """Build a selection from plain values: single values or lists, bytes or hex. None means "not given"."""
    given["path"] = [_absolute(str(path)) for path in _listed(paths)]
    return selection({name: _written(name, listed) for name, value in given.items() if (listed := _listed(value))})


def _absolute(path: str) -> str:
    # Spark plans and reads in other working directories than the caller's.
    return path if "://" in path else os.path.abspath(path)


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return [given] if isinstance(given, str | bytes | int | Path) else list(given)


def selection(options: Mapping[str, str]) -> Selection:
    """Parse the options of a data source. Raises `Malformed` with a hint for unusable ones."""
    given = {name.lower(): text for name, text in options.items()}
    unknown = sorted(given.keys() - NAMES)
    if unknown:
        raise _bad(f"unknown option {unknown[0]}", f"known options: {', '.join(sorted(NAMES))}")
    paths = _several(given.get("path", ""))
    if not paths:
        raise _bad("no path is given", "give load(PATH) or the option path: a data directory or the address of a hub")
    numbers = {name: _number(name, given[name]) for name in _NUMBERS if name in given}
    verify = given.get("verify", Verify.FULL).lower()
    if verify not in list(Verify):
        raise _bad(f"verify is {verify!r}", f"use one of {', '.join(Verify)}")
    made = Selection(
        paths=paths,
        labels=tuple(_hash("label", text) for text in _several(given.get("label", ""))),
        streams=_several(given.get("stream", "")),
        epochs=tuple(_number("epoch", text) for text in _several(given.get("epoch", ""))),
        columns=tuple(name.strip() for name in given.get("columns", "").split(",") if name.strip()),
        verify=Verify(verify),
        pin=_hash("pin", given["pin"]) if "pin" in given else None,
        **numbers,
    )
    check_columns(made.columns, made.verify)
    return made


def check_columns(names: Iterable[str], verify: Verify) -> None:
    """Raise `Malformed` if a column does not exist at this level of verification."""
    for name in names:
        if name not in COLUMN_TYPES:
            raise _bad(f"unknown column {name!r}", f"known columns: {', '.join(COLUMN_TYPES)}")
        if name in VERDICT_COLUMNS and verify is not Verify.ENTRY:
            raise _bad(f"column {name} exists only with verify=entry", "set verify=entry, or leave the column out")


def _several(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(SEPARATOR) if part.strip())


def _written(name: str, values: Iterable[object]) -> str:
    separator = "," if name == "columns" else SEPARATOR
    return separator.join(value.hex() if isinstance(value, bytes) else str(value) for value in values)


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _bad(f"{name} is {text!r}, which is not a number", f"give {name} as digits only")
    return int(text)


def _hash(name: str, text: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != HASH_BYTES:
        raise _bad(f"{name} is not {2 * HASH_BYTES} hex digits", "to select a stream by name, use the option stream")
    return value


def _bad(what: str, hint: str) -> Malformed:
    error = Malformed("selection", what)
    error.add_note(hint)
    return error
