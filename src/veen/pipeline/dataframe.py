"""Entries as DataFrames, with keyword arguments instead of option strings."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veen.pipeline.selection import Selection, Verify, selection
from veen.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Paths = str | Path | Iterable[str | Path]


def select(paths: Paths, **given: Any) -> Selection:
    """Build a selection from plain values: single values or lists, bytes or hex. None means "not given"."""
    made = Selection(
        paths=tuple(_absolute(str(path)) for path in _several(paths)),
        labels=tuple(_bytes(one) for one in _several(given.pop("label", None))),
        streams=tuple(_several(given.pop("stream", None))),
        epochs=tuple(_several(given.pop("epoch", None))) or (0,),
        columns=tuple(_several(given.pop("columns", None))),
        verify=Verify(given.pop("verify", None) or Verify.FULL),
        pin=_bytes(pin) if (pin := given.pop("pin", None)) is not None else None,
        **{name: value for name, value in given.items() if value is not None},
    )
    return selection(made.options())  # validates the values


def read(paths: Paths, *, spark: "SparkSession | None" = None, **given: Any) -> "DataFrame":
    """Return the entries of data directories or hubs as a DataFrame. Keywords are the options of the format `veen`.

    Example: `read("data", stream="doors", ts_min=1700000000).count()`
    """
    spark = spark or session()
    return spark.read.format("veen").options(**select(paths, **given).options()).load()


def read_stream(paths: Paths, *, spark: "SparkSession | None" = None, **given: Any) -> "DataFrame":
    """Return a streaming DataFrame of the entries, `max_entries` per batch."""
    spark = spark or session()
    return spark.readStream.format("veen").options(**select(paths, **given).options()).load()


def _absolute(path: str) -> str:
    # Spark plans and reads in other working directories than the caller's.
    return path if "://" in path else os.path.abspath(path)


def _several(given: Any) -> list[Any]:
    if given is None:
        return []
    return [given] if isinstance(given, str | bytes | int | Path) else list(given)


def _bytes(given: str | bytes) -> bytes:
    return bytes.fromhex(given) if isinstance(given, str) else given
