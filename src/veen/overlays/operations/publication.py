"""Data publication: versions of content, one message per version. 001, spec-3 §6."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

from veen.core import cbor, mmr
from veen.core.cbor import Bstr, Nested, Uint, Wire, text_map
from veen.core.hashing import HASH_BYTES
from veen.overlays.event import At, Event, FoldEntry, plain_wire
from veen.overlays.operations.operation_events import Publication
from veen.overlays.operations.operation_index import LoggedOperation, of_kind, own_id
from veen.overlays.operations.rules import (
    ExternalFacts,
    Rule,
    RuleFinding,
    Survivorship,
    UsedVersion,
    open_finding,
    repeat_finding,
    rule_finding,
)
from veen.overlays.overlay import FoldStep, MergeOverlay

CONTENT = mmr.Tags("veen/content-node", "veen/content-root")
_VERSION, _PUBLICATION = b"v", b"p"


@text_map("release", keys={"event": "said"})
class Release(Wire):
    """One published version, with its place."""

    operation_id: Annotated[bytes, Bstr()]
    epoch: Annotated[int, Uint()]
    stream_seq: Annotated[int, Uint()]
    hub_ts: Annotated[int, Uint()]
    event: Annotated[Publication, Nested(Publication)]

    @property
    def at(self) -> At:
        return At(self.epoch, self.stream_seq)


@text_map("published")
class PublishedData(Wire):
    """The state of a version (`release`) or of a publication (`versions`, `latest`, `highest`)."""

    versions: Annotated[int, Uint()] = 0
    release: Annotated[Release | None, Nested(Release, optional=True)] = None
    latest: Annotated[Release | None, Nested(Release, optional=True)] = None
    highest: Annotated[Release | None, Nested(Release, optional=True)] = None


NOTHING = PublishedData()


class Publications(MergeOverlay[PublishedData]):
    """One part per version, which applies one message, and one per publication."""

    CLASS = "data.publication"
    EVENTS = (Publication,)
    EMPTY = NOTHING

    def parts(self, entry: FoldEntry, event: Event) -> tuple[bytes, ...]:
        assert isinstance(event, Publication)
        return version_part(event.publication_id, event.version), publication_part(event.publication_id)

    def keys(self, step: FoldStep) -> tuple[bytes, ...]:
        """In the publication's part the key is the version name, so that a repeated version is not counted again."""
        event = step.event
        assert isinstance(event, Publication)
        return (step.entry.origin,) if step.part[:1] == _VERSION else (event.version.encode(),)

    def refusal(self, state: PublishedData, step: FoldStep) -> str | None:
        first = state.release
        return None if first is None else f"{Rule.PUBLICATION_P1}: {_already(first.stream_seq)}"

    def lift(self, step: FoldStep) -> PublishedData:
        event, entry = step.event, step.entry
        assert isinstance(event, Publication)
        made = Release(own_id(entry, event), *step.at, entry.hub_ts, event)
        return PublishedData(0, made) if step.part[:1] == _VERSION else PublishedData(1, None, made, made)

    def merge(self, a: PublishedData, b: PublishedData) -> PublishedData:
        if a == NOTHING or b == NOTHING:
            return b if a == NOTHING else a
        return PublishedData(a.versions + b.versions, a.release, b.latest, _higher(a.highest, b.highest))

    def plain(self, part: bytes, state: PublishedData) -> Mapping[str, cbor.Value]:
        if part[:1] == _VERSION:
            release = state.release
            shown = {} if release is None else plain_wire(release.event)
            return {**shown, "stream_seq": release.stream_seq if release else None}
        return {
            "publication_id": part[1:],
            "versions": state.versions,
            "latest": state.latest.event.version if state.latest else None,
            "highest": state.highest.event.version if state.highest else None,
        }


PUBLICATIONS = Publications()


def version_part(publication_id: bytes, version: str) -> bytes:
    return _VERSION + publication_id + version.encode()


def publication_part(publication_id: bytes) -> bytes:
    return _PUBLICATION + publication_id


def content_root(hashes: Iterable[bytes]) -> bytes:
    """The root of the tree over the hashes of content items, in order. §6.2."""
    listed = list(hashes)
    if any(len(one) != HASH_BYTES for one in listed):
        raise ValueError(f"a content hash must have {HASH_BYTES} bytes")
    return mmr.root(listed, CONTENT)


def height(version: str) -> tuple[tuple[int, int, str], ...]:
    """The sort key of a version name: digits compare as numbers, other characters as text, so v1.10 is above v1.9."""
    found = re.findall(r"([0-9]+)|([^0-9]+)", version)
    digits = [(number.lstrip("0"), text) for number, text in found]
    return tuple((0, 0, text) if text else (1, len(number), number) for number, text in digits)


def check(known: Iterable[LoggedOperation], facts: ExternalFacts) -> Iterator[RuleFinding]:
    """Check P1 and P2 for every publication."""
    firsts: dict[tuple[bytes, str], LoggedOperation] = {}
    lines: dict[bytes, list[tuple[LoggedOperation, Publication]]] = {}
    for one, event in (listed := of_kind(known, Publication)):
        if firsts.setdefault((event.publication_id, event.version), one) is one:
            lines.setdefault(event.publication_id, []).append((one, event))
    for one, event in listed:
        first = firsts[event.publication_id, event.version]
        yield repeat_finding(Rule.PUBLICATION_P1, one, first, _already(first.at.stream_seq))
        if first is not one:
            continue
        if facts.taken is None:
            yield open_finding(Rule.PUBLICATION_P2, one, "the versions that consumers use are not known")
        else:
            yield rule_finding(Rule.PUBLICATION_P2, one, _outlived(one, event, lines[event.publication_id], facts))


def _already(stream_seq: int) -> str:
    return f"entry {stream_seq} already published this version"


def _outlived(
    one: LoggedOperation, event: Publication, line: list[tuple[LoggedOperation, Publication]], facts: ExternalFacts
) -> str | None:
    """Why a consumer of this version should use another one, or None."""
    if UsedVersion(event.publication_id, event.version) not in (facts.taken or ()):
        return None
    latest = facts.survivorship is Survivorship.LATEST
    best, _ = line[-1] if latest else max(line, key=lambda other: (height(other[1].version), other[0].at))
    return None if best is one else f"a consumer uses it, but the {facts.survivorship} is in entry {best.at.stream_seq}"


def _higher(a: Release | None, b: Release | None) -> Release | None:
    if a is None or b is None:
        return a or b
    return max(a, b, key=lambda one: (height(one.event.version), one.at))
