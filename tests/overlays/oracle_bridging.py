"""The second implementation of the audit streams of a bridge."""

from typing import Any, TypeAlias

Doc: TypeAlias = dict[str, Any]

BRIDGING_KEYS: dict[str, list[str]] = {
    "bridge.export.v1": [
        "bundle_id bundle_hash source_hub_id export_stream epoch export_seq_from export_seq_to event_count "
        "export_checkpoint_id operator"
    ],
    "bridge.intake.v1": [
        "bundle_id source_hub_id export_stream epoch export_seq_from export_seq_to event_count import_stream position "
        "origins"
    ],
    "bridge.import.v1": [
        "bundle_id bundle_hash import_stream targets event_count result operator error_code? reason? position? "
        "excluded? policy?"
    ],
}
_NAMED = ("source_hub_id", "export_stream", "epoch", "export_seq_from", "export_seq_to", "event_count", "import_stream")
_NOTHING: list[Any] = [None, "", 0, 0, 0, 0, "", 0, 0, [], [], 0, "", ""]
_ANNOUNCED, _IMPORTED, _TARGETS, _EXCLUDED, _FAILURES = 7, 8, 9, 10, 11


class BridgingRules:
    """States are arrays but for what was exported, which is the body as it came."""

    states: dict[bytes, Any]

    def fresh(self, *key: bytes) -> bool:
        raise NotImplementedError

    def _is_copy(self, part: bytes, entry: Doc) -> bool:
        return not self.fresh(part, bytes.fromhex(entry["payload_hdr"].get("parent_id") or entry["msg_id"]))

    def _export(self, name: str, event: Doc, entry: Doc) -> bool | None:
        part = event["bundle_id"]
        if self._is_copy(part, entry) or part in self.states:
            return False
        self.states[part] = event
        return None

    def _origins(self, name: str, event: Doc, entry: Doc) -> bool | None:
        if name != "bridge.intake.v1":
            return None
        for origin in event["origins"]:
            part = origin[0][3]
            if self._is_copy(part, entry):
                return False
            self.states.setdefault(part, [event["bundle_id"], origin])
        return None

    def _import(self, name: str, event: Doc, entry: Doc) -> bool | None:
        part, is_intake = event["bundle_id"], name == "bridge.intake.v1"
        if not is_intake and not _is_told(event):
            return False
        if self._is_copy(part, entry):
            return False
        state = self.states.get(part, _NOTHING)
        changed = _taken_in(state, event) if is_intake else _ended(state, event)
        if changed is None:
            return False
        self.states[part] = changed
        return None


def _is_told(event: Doc) -> bool:
    failed = event["result"] == "failure"
    return (not failed or {"error_code", "reason"} <= set(event)) and ("excluded" in event) == ("policy" in event)


def _taken_in(state: list[Any], event: Doc) -> list[Any] | None:
    named = [event[name] for name in _NAMED]
    if event["position"] != state[_ANNOUNCED] + 1 or (state[_ANNOUNCED] and state[:_ANNOUNCED] != named):
        return None
    return [*named, state[_ANNOUNCED] + len(event["origins"]), *state[_IMPORTED:]]


def _ended(state: list[Any], event: Doc) -> list[Any] | None:
    if event["result"] == "failure":
        return [*state[:_FAILURES], state[_FAILURES] + 1, event["error_code"], event["reason"]]
    excluded = event.get("excluded", [])
    whole = state[_ANNOUNCED] == state[5] > 0
    if state[_IMPORTED] or not whole or event["event_count"] + len(excluded) != state[5]:
        return None
    return [*state[:_IMPORTED], 1, event["targets"], excluded, *state[_FAILURES:]]
