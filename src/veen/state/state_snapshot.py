"""State snapshots: a state in a file, with its hash, its stream, and the hub's receipts for the end of each epoch.

The file alone proves that the hub signed the receipts and that the state matches its hash. It does not prove that the
log produces this state: `compare` folds the log again to check that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Generic, TypeVar

from veen.client.trust import HubRecord
from veen.core import Malformed, Profile, Receipt, Unavailable, Unverified, naming
from veen.core.cbor import (
    Bstr,
    Bytes,
    Constant,
    ListOf,
    Nested,
    Text,
    Uint,
    VersionField,
    Wire,
    array,
    heads,
    int_map,
)
from veen.core.hashing import ht
from veen.core.hub_identity import lineage
from veen.core.limits import MAX_BODY_BYTES, MAX_PAGE_ITEMS, MAX_TEXT_BYTES
from veen.overlays import At, Overlay, state_hash
from veen.overlays.event import ascending
from veen.state.state_view import StateAt, StateView, shown

S = TypeVar("S")
M = TypeVar("M")

KIND = "veen.state-snapshot.v1"
MAX_SNAPSHOT_BYTES = 1 << 28


@array("part state")
class PartState(Wire):
    """A part and its encoded state."""

    part: Annotated[bytes, Bytes(MAX_BODY_BYTES)]
    state: Annotated[bytes, Bytes(MAX_SNAPSHOT_BYTES)]


@int_map("state snapshot", Constant(KIND, name="kind"), VersionField())
class StateSnapshot(Wire):
    """A snapshot file.

    `heads` are the hub's receipts at the end of each epoch; the last is where the state was read.
    """

    overlay_class: Annotated[str, Text(MAX_TEXT_BYTES)]
    rules: Annotated[int, Uint()]  # `Overlay.VERSION`
    settings: Annotated[bytes, Bytes(MAX_TEXT_BYTES)]
    stream_id: Annotated[bytes, Bstr()]
    hub: Annotated[HubRecord, Nested(HubRecord)]
    heads: Annotated[tuple[Receipt, ...], ListOf(Nested(Receipt, name="receipt"), least=1, most=MAX_PAGE_ITEMS)]
    state_hash: Annotated[bytes, Bstr()]
    states: Annotated[
        tuple[PartState, ...], ListOf(Nested(PartState, name="part state"), most=MAX_SNAPSHOT_BYTES)
    ]  # ascending by part

    def flaw(self) -> str | None:
        if not ascending(one.part for one in self.states):
            return "parts are not in ascending order"
        return None if self._hashed() == self.state_hash else "the state does not match state_hash"

    def _hashed(self) -> bytes:
        pairs = [heads.write_head(heads.ARRAY, 2) + heads.write_bstr(one.part) + one.state for one in self.states]
        return ht(f"veen/state-{self.overlay_class}", heads.write_head(heads.ARRAY, len(pairs)) + b"".join(pairs))

    def end(self) -> At:
        """The last entry included in the state."""
        return self.places()[-1]

    def places(self) -> tuple[At, ...]:
        return tuple(At(self._epoch(receipt), receipt.stream_seq) for receipt in self.heads)

    def _epoch(self, receipt: Receipt) -> int:
        profile: Profile = self.hub.profile
        for epoch in profile.epochs_around(receipt.hub_ts, self.hub.limits.max_epoch_skew_sec):
            if naming.label(self.hub.identity.routing_key, self.stream_id, epoch) == receipt.label:
                return epoch
        raise Unverified("state snapshot", f"the receipt of entry {receipt.stream_seq} is for another stream")

    def verify(self, pin: bytes | None = None) -> None:
        """Raise unless the hub signed every head for this stream and the epochs ascend."""
        hub = self.hub
        hub.identity.verify(hub.signature, hub.identity.hub_id if pin is None else pin)
        line = lineage(hub.identity, hub.origin)
        for receipt in self.heads:
            line.identity_at(receipt.label, receipt.stream_seq).verify_receipt(receipt)
        places = self.places()
        if any(a.epoch >= b.epoch for a, b in pairwise(places)):
            raise Unverified("state snapshot", "heads are not in ascending order of epochs")

    def decode_states(self, overlay: Overlay[S, M]) -> Mapping[bytes, S]:
        """Decode the state of each part. Raises `Malformed` if it was made by another overlay."""
        self.check_overlay(overlay)
        states = {one.part: overlay.decode_state(one.part, one.state) for one in self.states}
        if state_hash(overlay, states) != self.state_hash:
            raise Malformed("state snapshot", f"not a state of {overlay.CLASS}")
        return states

    def check_overlay(self, overlay: Overlay[S, M]) -> None:
        if (self.overlay_class, self.rules, self.settings) != (overlay.CLASS, overlay.VERSION, overlay.settings()):
            ours = f"{overlay.CLASS} version {overlay.VERSION}"
            raise Malformed(
                "state snapshot",
                f"made by {self.overlay_class} version {self.rules} or with other settings, not by {ours}",
            )


async def make(view: StateView[S, M], reading: StateAt[S, M]) -> StateSnapshot:
    """Make a snapshot of a reading."""
    ends = reading.ends()
    if not ends or not reading.at.stream_seq:
        raise Unavailable("the stream has no entry up to this place, so there is no receipt for a snapshot")
    signed = [await view.source.receipt(view.stream_id, end) for end in ends if end.stream_seq]
    overlay = view.overlay
    states = dict(reading.states)
    parts = tuple(PartState(part, overlay.encode_state(states[part])) for part in sorted(states))
    named = (overlay.CLASS, overlay.VERSION, overlay.settings())
    hashed = state_hash(overlay, states)
    return StateSnapshot(*named, view.stream_id, view.source.known, tuple(signed), hashed, parts)


@dataclass(frozen=True, slots=True)
class SnapshotMatch(Generic[S]):
    """The place and number of parts of a snapshot that matches the log."""

    at: At
    parts: int


async def compare(view: StateView[S, M], snapshot: StateSnapshot) -> SnapshotMatch[S]:
    """Raise `Unverified` unless the log has the snapshot's roots and produces its state."""
    snapshot.check_overlay(view.overlay)
    if snapshot.stream_id != view.stream_id or snapshot.hub.identity.hub_id != view.source.known.identity.hub_id:
        raise Unverified("state snapshot", "it is of another stream or another hub")
    for place, head in zip(snapshot.places(), snapshot.heads, strict=True):
        found = await view.source.receipt(view.stream_id, place)
        if found.mmr_root != head.mmr_root:
            raise Unverified("state snapshot", f"the log has another root at entry {shown(place)}")
    async with view.reading(snapshot.end()) as reading:
        if reading.ends() != snapshot.places():
            raise Unverified("state snapshot", "it omits an epoch of the log")
        if reading.state_hash() != snapshot.state_hash:
            raise Unverified("state snapshot", f"the log up to entry {shown(snapshot.end())} produces another state")
        return SnapshotMatch(reading.at, len(reading.states))
