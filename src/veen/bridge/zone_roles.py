"""Roles of an air-gap bridge: the mapping of export to import streams, and which keys each role may hold.

001, AGB0 §4.5 step 3.
"""

from dataclasses import dataclass

from veen.bridge.bundle import BundleCode, BundleFault
from veen.client import ClientDir
from veen.core import Refused, naming
from veen.overlays.bridge_logs import OFFLINE_LOG, ONLINE_LOG

EXPORT, IMPORT = "export/", "import/"


@dataclass(frozen=True, slots=True)
class StreamMapping:
    """Prefix rules; the longest matching prefix wins."""

    rules: tuple[tuple[str, str], ...] = ((EXPORT, IMPORT),)

    def __post_init__(self) -> None:
        if any(not source or not target or source == target for source, target in self.rules):
            raise ValueError("a mapping rule needs two different, non-empty prefixes")
        if len({source for source, _ in self.rules}) != len(self.rules):
            raise ValueError("two mapping rules have the same source prefix")

    def target(self, stream: str) -> str:
        """export/zone1/doors -> import/zone1/doors. Raises `BundleFault` if no rule matches."""
        matching = [rule for rule in self.rules if stream.startswith(rule[0]) and len(stream) > len(rule[0])]
        if not matching:
            prefixes = ", ".join(source for source, _ in self.rules)
            raise BundleFault(BundleCode.MAPPING, f"no import stream for {stream!r}: rules exist for {prefixes}")
        source, target = max(matching, key=lambda rule: len(rule[0]))
        return target + stream.removeprefix(source)

    def is_source(self, stream: str) -> bool:
        return any(stream.startswith(source) for source, _ in self.rules)


def parse(texts: list[str] | None) -> StreamMapping:
    """Parse options of the form FROM=TO. Raises `ValueError`."""
    if not texts:
        return StreamMapping()
    rules = []
    for text in texts:
        source, given, target = text.partition("=")
        if not given:
            raise ValueError(f"{text!r} is not FROM=TO, such as export/=import/")
        rules.append((source, target))
    return StreamMapping(tuple(rules))


CODE = "E.ROLE"


class RoleConflict(Refused):
    """An identity holds keys or capabilities that would let events flow back; `held` lists them."""

    def __init__(self, role: str, held: list[str]) -> None:
        super().__init__(CODE, f"{role} may not hold {'; '.join(held)}")
        self.held = tuple(held)
        self.add_note("give each role a client directory of its own, with the keys and capabilities of that role only")


def check_exporter(folder: ClientDir, log: str = ONLINE_LOG) -> None:
    """Raise unless this identity can write only the bridge's own log and reads no import stream."""
    own = naming.stream_id(log)
    named = {key.stream_id: key.name for key, _ in folder.stream_keys.all()}
    writable = {stream for token in folder.caps for stream in token.allow.stream_ids} - {own}
    held = [f"a capability to write to {_stream_name(stream, named)}" for stream in sorted(writable)]
    held += [f"the reader key of {name}" for name in _readable(folder) if name.startswith(IMPORT)]
    if held:
        raise RoleConflict("the exporter", held)


def check_importer(folder: ClientDir, mapping: StreamMapping, log: str = OFFLINE_LOG) -> None:
    """Raise unless this identity can read only the bridge's own log and source streams, and writes no export stream."""
    held = [f"the reader key of {name}" for name in _readable(folder) if name != log and not mapping.is_source(name)]
    sources = {key.stream_id: key.name for key, _ in folder.stream_keys.all() if mapping.is_source(key.name)}
    writable = {stream for token in folder.caps for stream in token.allow.stream_ids}
    held += [f"a capability to write to {sources[stream]}" for stream in sorted(writable & set(sources))]
    if naming.stream_id(ONLINE_LOG) in writable:
        held.append(f"a capability to write to {ONLINE_LOG}")
    if held:
        raise RoleConflict("the importer", held)


def enforces_capabilities(admission: str) -> bool:
    """Whether the hub enforces capabilities. An open hub accepts writes from anyone who knows a stream's key."""

    return admission != "open"


def _readable(folder: ClientDir) -> list[str]:
    return [key.name for key, secret in folder.stream_keys.all() if secret]


def _stream_name(stream_id: bytes, named: dict[bytes, str]) -> str:
    return named.get(stream_id, f"stream {stream_id.hex()[:16]}…")
