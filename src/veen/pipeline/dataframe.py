"""Entries as DataFrames, without option strings."""

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
    """A selection from plain values: one or several of what takes several, bytes or hex, and what is None left out."""
    made = Selection(
        paths=tuple(_from_anywhere(str(path)) for path in _several(paths)),
        labels=tuple(_bytes(one) for one in _several(given.pop("label", None))),
        streams=tuple(_several(given.pop("stream", None))),
        epochs=tuple(_several(given.pop("epoch", None))) or (0,),
        columns=tuple(_several(given.pop("columns", None))),
        verify=Verify(given.pop("verify", None) or Verify.FULL),
        pin=_bytes(pin) if (pin := given.pop("pin", None)) is not None else None,
        **{name: value for name, value in given.items() if value is not None},
    )
    return selection(made.options())  # judged by the one reader of options


def read(paths: Paths, *, spark: "SparkSession | None" = None, **given: Any) -> "DataFrame":
    """The entries of data directories or hubs. Keywords are the options of the format `veen`."""
    spark = spark or session()
    return spark.read.format("veen").options(**select(paths, **given).options()).load()


def read_stream(paths: Paths, *, spark: "SparkSession | None" = None, **given: Any) -> "DataFrame":
    """The same as they come, `max_entries` in a batch."""
    spark = spark or session()
    return spark.readStream.format("veen").options(**select(paths, **given).options()).load()


def _from_anywhere(path: str) -> str:
    """Spark plans and reads in other folders than the one in which a path was given."""
    return path if "://" in path else os.path.abspath(path)


def _several(given: Any) -> list[Any]:
    if given is None:
        return []
    return [given] if isinstance(given, str | bytes | int | Path) else list(given)


def _bytes(given: str | bytes) -> bytes:
    return bytes.fromhex(given) if isinstance(given, str) else given
