"""Which steps are copies of earlier ones: found from the digests of their keys alone, whichever runs they are in."""

from collections.abc import Mapping, Sequence
from typing import Any

from veen.overlays import At
from veen.pipeline.folding.nodes import NEVER, Node


def repeated(before: Sequence[Node], new: Sequence[Node]) -> dict[bytes, At]:
    """The keys of new runs that are met more than once, in them or before them, each with its first place.

    Only those are held in memory that the new runs have; the runs before them are gone through file by file.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not new:
        return {}
    fresh = pa.concat_tables([_keys(node) for node in new])
    wanted = fresh["key"].combine_chunks()
    found = [fresh]
    for node in before:
        keys = _keys(node)
        found.append(keys.filter(pc.is_in(keys["key"], value_set=wanted)))
    whole = pa.concat_tables(found)
    counted = whole.group_by("key").aggregate([("seq", "count")])
    several = counted.filter(pc.greater(counted["seq_count"], 1))["key"].combine_chunks()
    places: dict[bytes, At] = {}
    for row in whole.filter(pc.is_in(whole["key"], value_set=several)).to_pylist():
        places[row["key"]] = min(places.get(row["key"], NEVER), At(row["epoch"], row["seq"]))
    return places


def copied_in(node: Node, places: Mapping[bytes, At]) -> tuple[tuple[bytes, int, int], ...]:
    """The keys of a run that were met before it, with where."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not places:
        return ()
    keys = _keys(node)
    among = keys.filter(pc.is_in(keys["key"], value_set=pa.array(sorted(places), type=keys.schema.field("key").type)))
    found = []
    for row in among.to_pylist():
        first = places[row["key"]]
        if first < At(row["epoch"], row["seq"]):
            found.append((row["key"], first.epoch, first.stream_seq))
    return tuple(found)


def _keys(node: Node) -> Any:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    keys = pq.ParquetFile(node.keys).read(columns=["key", "epoch", "seq"])
    return keys.filter(pc.is_valid(keys["key"]))
