"""Compare copies of one hub's log: two receipts for one place with different roots prove equivocation."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from veen.core import Malformed, Receipt, Unverified
from veen.pipeline.audit.chain import ChainLink
from veen.pipeline.dataframe import read
from veen.pipeline.read_plan import Piece
from veen.pipeline.rows import rows
from veen.pipeline.selection import Selection, Verify
from veen.storage.metadata import HubMetadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_PER_LABEL = 100  # differences to examine per label; most are a damaged receipt
_COLUMNS = ("label", "stream_seq", "mmr_root", "receipt")


@dataclass(frozen=True, slots=True)
class Copy:
    """One directory: its metadata and the outcomes of its labels."""

    url: str
    metadata: HubMetadata
    labels: dict[bytes, list[ChainLink]]


@dataclass(frozen=True, slots=True)
class UncomparedRange:
    """A range of a label that both copies have and that was not yet found equal."""

    label: bytes
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ConflictingReceipts:
    """Two receipts that one hub signed for one place with different roots. They prove equivocation to anyone."""

    hub_id: bytes
    label: bytes
    stream_seq: int
    sources: tuple[str, str]
    receipts: tuple[bytes, bytes]


Differences = Iterable[tuple[bytes, int, bytes, bytes]]  # label, stream_seq, one receipt from each copy
Join = Callable[[Copy, Copy, Sequence[UncomparedRange]], Differences]


def compare(copies: Sequence[Copy], join: Join) -> Iterator[ConflictingReceipts]:
    """The first contradiction of each label between copies of the same hub."""
    for one, other in combinations(copies, 2):
        if one.metadata.identity.hub_id != other.metadata.identity.hub_id:
            continue
        shared = sorted(one.labels.keys() & other.labels.keys())
        ranges = [found for label in shared for found in uncompared(one, other, label)]
        reported: set[bytes] = set()
        for label, seq, mine, others in join(one, other, ranges) if ranges else ():
            if label not in reported and _signed(one, label, seq, mine) and _signed(other, label, seq, others):
                reported.add(label)
                yield ConflictingReceipts(
                    one.metadata.identity.hub_id, label, seq, (one.url, other.url), (mine, others)
                )


def uncompared(one: Copy, other: Copy, label: bytes) -> Iterator[UncomparedRange]:
    """The range after the last place where both trees were equal."""
    roots = [
        {link.piece.last: link.outcome.root for link in copy.labels[label] if link.outcome.sound}
        for copy in (one, other)
    ]
    same = max((seq for seq in roots[0].keys() & roots[1].keys() if roots[0][seq] == roots[1][seq]), default=0)
    last = min(copy.labels[label][-1].piece.last for copy in (one, other))
    if same < last:
        yield UncomparedRange(label, same + 1, last)


def join_inline(one: Copy, other: Copy, ranges: Sequence[UncomparedRange]) -> Differences:
    """Compare in this process, label by label."""
    for found in ranges:
        theirs = dict(_receipts(other, found))
        seen = 0
        for seq, receipt in _receipts(one, found):
            if seq in theirs and _root(theirs[seq]) != _root(receipt) and seen < MAX_PER_LABEL:
                seen += 1
                yield found.label, seq, receipt, theirs[seq]


def _root(encoded: bytes) -> bytes | None:
    try:
        return Receipt.decode(encoded).mmr_root
    except Malformed:
        return None


def _receipts(copy: Copy, found: UncomparedRange) -> Iterator[tuple[int, bytes]]:
    selection = Selection((copy.url,), columns=("stream_seq", "receipt"), verify=Verify.NONE)
    for link in copy.labels[found.label]:
        first, last = max(link.piece.first, found.first), min(link.piece.last, found.last)
        if first > last:
            continue
        piece = Piece(copy.url, link.piece.hub_id, link.piece.chunk, first, last)
        try:
            yield from rows((piece,), selection)
        except Malformed:
            continue  # the audit of the piece reported it


def join_on(spark: "SparkSession") -> Join:
    """Compare on Spark, all labels at once."""

    def join(one: Copy, other: Copy, ranges: Sequence[UncomparedRange]) -> Differences:
        from pyspark.sql import functions as f

        given = {"label": [found.label for found in ranges], "seq_min": min(found.first for found in ranges)}
        given |= {"columns": _COLUMNS, "verify": Verify.ENTRY}  # continues after unreadable entries
        mine, theirs = (read(copy.url, spark=spark, **given) for copy in (one, other))
        joined = mine.alias("a").join(theirs.alias("b"), ["label", "stream_seq"]).where("a.mmr_root <> b.mmr_root")
        first = joined.groupBy("label").agg(f.min("stream_seq").alias("least")).alias("c")
        near = joined.join(first, "label").where(f"stream_seq < least + {MAX_PER_LABEL}")
        for row in (
            near.selectExpr("label", "stream_seq", "a.receipt AS x", "b.receipt AS y")
            .orderBy("label", "stream_seq")
            .collect()
        ):
            yield bytes(row["label"]), row["stream_seq"], bytes(row["x"]), bytes(row["y"])

    return join


def _signed(copy: Copy, label: bytes, seq: int, encoded: bytes) -> bool:
    """Whether the hub signed the receipt for that place. A damaged receipt contradicts nothing."""
    try:
        receipt = Receipt.decode(encoded)
        copy.metadata.identity_at(label, seq).verify_receipt(receipt)
    except (Malformed, Unverified):
        return False
    return (receipt.label, receipt.stream_seq) == (label, seq)
