"""Which stream and epoch a label is of, as far as the names that are known explain it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from veen.core import Receipt, naming
from veen.pipeline.planning import by_label
from veen.pipeline.sources import Chunk, Source
from veen.storage import frame
from veen.storage.directory import Papers


@dataclass(frozen=True, slots=True)
class Stream:
    """A label and the stream it is of. Where no name explains it, the label's own hex digits stand for the name."""

    label: bytes
    name: str
    stream_id: bytes | None = None
    epoch: int = 0


def streams_of(
    source: Source, papers: Papers, chunks: Sequence[Chunk], names: Iterable[str], epochs: Iterable[int] = (0,)
) -> dict[bytes, Stream]:
    """The stream of each label that has entries. Where a hub has epochs, the time of a label's first entry tells."""
    known = {name: naming.stream_id(name) for name in names}
    routing, profile = papers.identity.routing_key, papers.profile
    found: dict[bytes, Stream] = {}
    for of_label in by_label(chunks):
        label = of_label[0].label
        around = set(epochs)
        if profile.epoch_sec and of_label[0].start_seq == 1:
            first = Receipt.decode(frame.read_unhashed(source.first_frame(of_label[0]))[0].receipt)
            around |= set(profile.epochs_around(first.hub_ts, papers.limits.max_epoch_skew_sec))
        named = (
            Stream(label, name, stream_id, epoch)
            for name, stream_id in known.items()
            for epoch in sorted(around)
            if naming.label(routing, stream_id, epoch) == label
        )
        found[label] = next(named, Stream(label, label.hex()))
    return found
