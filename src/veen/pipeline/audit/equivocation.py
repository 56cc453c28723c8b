"""Copies of one hub's log held against each other: two receipts of one place with different roots are two histories."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from veen.core import Malformed, Receipt, Unverified
from veen.pipeline.audit.chain import ChainLink
from veen.pipeline.read_plan import Piece
from veen.pipeline.rows import rows
from veen.pipeline.selection import Selection, Verify
from veen.storage.metadata import HubMetadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_PER_LABEL = 100  # differences looked at before a label is given up: all but a few are one damaged receipt
_COLUMNS = ("label", "stream_seq", "mmr_root", "receipt")


@dataclass(frozen=True, slots=True)
class Copy:
    """One directory: its papers, and what came of its labels."""

    url: str
    hub_metadata: HubMetadata
    labels: dict[bytes, list[ChainLink]]


@dataclass(frozen=True, slots=True)
class Doubt:
    """The part of a label that two copies both have and have not been seen to agree on."""

    label: bytes
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ConflictingReceipts:
    """Two receipts that one hub signed for one place, with different roots: proof for anyone."""

    hub_id: bytes
    label: bytes
    stream_seq: int
    sources: tuple[str, str]
    receipts: tuple[bytes, bytes]


Differences = Iterable[tuple[bytes, int, bytes, bytes]]  # label, stream_seq, a receipt of each
Join = Callable[[Copy, Copy, Sequence[Doubt]], Differences]


def compare(copies: Sequence[Copy], join: Join) -> Iterator[ConflictingReceipts]:
    """Every contradiction between copies of the same hub, the first of each label."""
    for one, other in combinations(copies, 2):
        if one.hub_metadata.identity.hub_id != other.hub_metadata.identity.hub_id:
            continue
        shared = sorted(one.labels.keys() & other.labels.keys())
        doubts = [found for label in shared for found in in_doubt(one, other, label)]
        said: set[bytes] = set()
        for label, seq, mine, others in join(one, other, doubts) if doubts else ():
            if label not in said and _signed(one, label, seq, mine) and _signed(other, label, seq, others):
                said.add(label)
                yield ConflictingReceipts(
                    one.hub_metadata.identity.hub_id, label, seq, (one.url, other.url), (mine, others)
                )


def in_doubt(one: Copy, other: Copy, label: bytes) -> Iterator[Doubt]:
    """What to look at: all behind the last place where the two trees were seen to be the same."""
    roots = [
        {link.piece.last: link.outcome.root for link in copy.labels[label] if link.outcome.sound}
        for copy in (one, other)
    ]
    same = max((seq for seq in roots[0].keys() & roots[1].keys() if roots[0][seq] == roots[1][seq]), default=0)
    last = min(copy.labels[label][-1].piece.last for copy in (one, other))
    if same < last:
        yield Doubt(label, same + 1, last)


def join_here(one: Copy, other: Copy, doubts: Sequence[Doubt]) -> Differences:
    """In this process, label by label."""
    for found in doubts:
        theirs = dict(_receipts(other, found))
        seen = 0
        for seq, receipt in _receipts(one, found):
            if seq in theirs and _root(theirs[seq]) != _root(receipt) and seen < MOST_PER_LABEL:
                seen += 1
                yield found.label, seq, receipt, theirs[seq]


def _root(encoded: bytes) -> bytes | None:
    try:
        return Receipt.decode(encoded).mmr_root
    except Malformed:
        return None


def _receipts(copy: Copy, found: Doubt) -> Iterator[tuple[int, bytes]]:
    selection = Selection((copy.url,), columns=("stream_seq", "receipt"), verify=Verify.NONE)
    for link in copy.labels[found.label]:
        first, last = max(link.piece.first, found.first), min(link.piece.last, found.last)
        if first > last:
            continue
        piece = Piece(copy.url, link.piece.hub_id, link.piece.chunk, first, last)
        try:
            yield from rows((piece,), selection)
        except Malformed:
            continue  # what cannot be read there has been said


def join_on(spark: "SparkSession") -> Join:
    """On Spark, all labels at once."""

    def join(one: Copy, other: Copy, doubts: Sequence[Doubt]) -> Differences:
        from pyspark.sql import functions as f

        from veen.pipeline.dataframe import read

        given = {"label": [found.label for found in doubts], "seq_min": min(found.first for found in doubts)}
        given |= {"columns": _COLUMNS, "verify": Verify.ENTRY}  # which goes on behind what cannot be read
        mine, theirs = (read(copy.url, spark=spark, **given) for copy in (one, other))
        joined = mine.alias("a").join(theirs.alias("b"), ["label", "stream_seq"]).where("a.mmr_root <> b.mmr_root")
        first = joined.groupBy("label").agg(f.min("stream_seq").alias("least")).alias("c")
        near = joined.join(first, "label").where(f"stream_seq < least + {MOST_PER_LABEL}")
        for row in (
            near.selectExpr("label", "stream_seq", "a.receipt AS x", "b.receipt AS y")
            .orderBy("label", "stream_seq")
            .collect()
        ):
            yield bytes(row["label"]), row["stream_seq"], bytes(row["x"]), bytes(row["y"])

    return join


def _signed(copy: Copy, label: bytes, seq: int, encoded: bytes) -> bool:
    """Whether it is the hub's word on that place: a damaged receipt contradicts nobody."""
    try:
        receipt = Receipt.decode(encoded)
        copy.hub_metadata.identity_at(label, seq).verify_receipt(receipt)
    except (Malformed, Unverified):
        return False
    return (receipt.label, receipt.stream_seq) == (label, seq)
