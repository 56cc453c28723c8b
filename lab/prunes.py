"""What must hold after an operator pruned a log."""

from lab.promises import Violation, shown
from veen.core import Limits, Msg, control_stream, naming
from veen.core.retention import Prune, Segment
from veen.storage import metadata, pruned_chunk
from veen.storage.paths import Folders
from veen.storage.store import Lookup


def check_prunes(folders: Folders, lookup: Lookup) -> int:
    """Every pruned segment names the event on the control stream that announced it. Returns how many there are."""
    hub = metadata.read_metadata(folders)
    count = 0
    for path in sorted(folders.log.glob("manifest-*.cbor")):
        label = bytes.fromhex(path.stem.removeprefix("manifest-"))
        manifest = pruned_chunk.verified_manifest(folders, hub.identity, label)
        assert manifest is not None
        for segment in manifest.segments:
            if segment.level:
                count += 1
                _check_event(hub, lookup, label, segment)
    return count


def _check_event(hub: metadata.HubMetadata, lookup: Lookup, label: bytes, segment: Segment) -> None:
    assert segment.pruned_at is not None
    assert segment.event_seq is not None
    hub_id, epoch = hub.identity.hub_id, hub.profile.epoch(segment.pruned_at)
    control = naming.label(hub.identity.routing_key, naming.control_stream(hub_id), epoch)
    entry = lookup.entry(control, segment.event_seq)
    event = control_stream.event_of(hub_id, Msg.decode(entry.msg), Limits()) if entry else None
    if (
        not isinstance(event, Prune)
        or (event.label, event.level) != (label, segment.level)
        or not event.start_seq <= segment.start_seq <= segment.end_seq <= event.end_seq
    ):
        place = shown((label, segment.start_seq))
        raise Violation(
            f"the chunk from {place} was pruned, but entry {segment.event_seq} of the control stream is {event}"
        )
