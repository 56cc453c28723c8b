"""The sequencer: gives every verified message its place in the log, or rejects it. It signs and writes nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field

from veen.core import Msg, Place, Refused, Unavailable, control_stream, naming
from veen.core.cap_token import token_of
from veen.core.control_stream import EpochEnd
from veen.core.limits import MAX_LIMIT_CHANGES
from veen.core.profile import LoweredLimits
from veen.core.signing import DigestSigner
from veen.hub import lost_entries
from veen.hub.admission_rules import Rules, authorize, check_expiry, check_revoked, check_sizes, revocable, sequence
from veen.hub.admission_state import AdmissionState, ControlEvent, Group, Item, Outcome, Placed
from veen.hub.conditions import Reason, public_text
from veen.storage.store import Lookup, Store


@dataclass(eq=False)
class Sequencer:
    """Decides every entry of the log. Owned by the loop's thread."""

    state: AdmissionState
    _rules: Rules
    _control_log: "ControlLog"
    _clock: Callable[[], float]  # `HubTime.now`
    stopped: set[bytes] = field(default_factory=set)  # labels with lost entries

    @property
    def hub_ts(self) -> int:
        """The hub's time: it never decreases."""
        return max(int(self._clock()), self.state.hub_ts)

    def decide(self, items: list[Item], hub_ts: int) -> Group:
        """Decide about items, in order, and close their group. Rejected items change nothing."""
        state = self.state
        state.hub_ts = hub_ts
        for item in items:
            outcome: Placed | Outcome
            try:
                if isinstance(item, ControlEvent):
                    if item.check:
                        item.check()
                    outcome = self._log_event(item.event, hub_ts)
                else:
                    outcome = self._accept(item.message, item.encoded, hub_ts)
            except Refused as refused:
                outcome = refused
            state.open.outcomes.append((item, outcome))
        return state.close()

    def _accept(self, message: Msg, encoded: bytes, hub_ts: int) -> Placed:
        if message.label in self.stopped:
            raise lost_entries.stopped()
        rules, registry = self._rules, self._rules.limits_in_force.registry
        limits = registry.limits
        if registry.earlier:
            limits = registry.at(hub_ts)
            if message.client_id != rules.control_pk:  # it may have been parsed before the limits were lowered
                check_sizes(message, encoded, limits)
        found = self.state.streams.find(message.label, hub_ts)
        stream = found[0] if found else None
        bucket = authorize(message, stream, self.state, rules, limits, hub_ts)
        sequence(message, stream, self.state, rules, hub_ts)
        if bucket is not None and message.auth_ref is not None:
            self.state.set_bucket(message.auth_ref, message.label, bucket)
        return self.state.place(message, encoded, hub_ts, found)

    def _log_event(self, event: control_stream.Event, hub_ts: int) -> Placed | bytes:
        """Log a control event. A repeated event gets its old receipt, unless it was revoked since."""
        effects = control_stream.effects(event, hub_ts)
        if effects.capability is not None:
            check_revoked(revocable(token_of(effects.capability)), self.state.realm, hub_ts)
        if effects.limits is not None:
            self._check_limits(effects.limits)
        if effects.epoch_end is not None:
            self._check_ended(effects.epoch_end, hub_ts)
        known = self._control_log.find(effects)
        if known is not None:
            return known
        if effects.capability is not None:
            check_expiry(effects.capability.expires_at(hub_ts), hub_ts)
        message = self._control_log.message(event, hub_ts)
        placed = self._accept(message, message.encode(), hub_ts)
        self.state.apply_control_event(event, placed)
        return placed

    def _check_limits(self, event: LoweredLimits) -> None:
        """Raise unless the event lowers the current limits: another one may have been faster."""
        registry = self._rules.limits_in_force.registry
        if event.before != registry.limits:
            raise Refused("E.CONFLICT", "the limits have changed meanwhile; read them again")
        if len(registry.earlier) >= MAX_LIMIT_CHANGES:
            raise Refused("E.LIMIT", f"the limits of a hub can be lowered {MAX_LIMIT_CHANGES} times")

    def _check_ended(self, event: EpochEnd, hub_ts: int) -> None:
        """Raise unless no message can name these labels any more, and the event has their last entries."""
        profile, skew = self._rules.profile, self._rules.limits.max_epoch_skew_sec
        current = profile.epochs_around(hub_ts, skew)
        for one in event.labels:
            tree = self.state.tree(one.label)
            if one.epoch >= current.start or (one.size, one.mmr_root) != (tree.size, tree.root()):
                raise Refused("E.CONFLICT", f"label {one.label.hex()} does not end with entry {one.size}")


class ControlLog:
    """The events on the hub's control stream."""

    def __init__(self, store: Store, state: AdmissionState, rules: Rules, key: DigestSigner) -> None:
        self._store = store
        self._state = state
        self._rules = rules
        self._key = key

    def message(self, event: control_stream.Event, hub_ts: int) -> Msg:
        """The hub's own message with an event, for the next place of the control stream.

        Raises `Refused` if the control key cannot sign now.
        """
        rules, key = self._rules, self._key
        label = naming.label(rules.routing_key, rules.control_stream, rules.profile.epoch(hub_ts))
        client_seq, _ = self._state.cursor(label, key.public_key) or (0, 0)
        place = Place(rules.profile_id, label, key.public_key, client_seq + 1, self._state.tree(label).size)
        try:
            return control_stream.message(key, rules.hub_id, place, event, rules.profile.pad_block)
        except Unavailable as error:
            raise Refused("E.UNAVAILABLE", public_text(Reason.SIGNING_KEY, error), retry_after=1) from error

    def find(self, effects: control_stream.Effects) -> Placed | bytes | None:
        """The receipt of the event that had these effects first, or its place in a group that is not durable yet."""
        at = self._place_of(effects)
        if at is None:
            return None
        for group in self._state.undurable():
            for placed in group.placed:
                if (placed.message.label, placed.stream_seq) == at:
                    return placed
        entry = Lookup(self._store).entry(*at)
        return entry.receipt if entry else None

    def _place_of(self, effects: control_stream.Effects) -> tuple[bytes, int] | None:
        """`(label, stream_seq)` of that event. None if repeating the event has an effect: it is logged each time."""
        groups = [*self._state.undurable(), *self._store.tails()]
        if effects.capability is not None:
            auth_ref = effects.capability.auth_ref()
            caps = [group.caps[auth_ref][:2] for group in groups if auth_ref in group.caps]
            with self._store.index.read() as rows:
                row = rows.cap(auth_ref)
            return caps[0] if caps else row[:2] if row else None
        if effects.streams:
            (stream,) = effects.streams
            found = [group.streams[stream] for group in groups if stream in group.streams]
            with self._store.index.read() as rows:
                return found[0] if found else rows.stream(stream)
        return None
