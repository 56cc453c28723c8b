"""The second implementation of the recorder's overlays."""

import json
from typing import Any, TypeAlias

Doc: TypeAlias = dict[str, Any]

RECORD_KEYS: dict[str, list[str]] = {
    "record.event.v1": ["subject_id event_type event_time origin payload source? position?"],
    "record.map.v1": ["event_type stream"],
    "record.migration.v1": ["kind from_stream to_stream event_types reason?"],
    "record.producer.v1": ["name client_ids origins streams"],
    "record.profile.v1": [
        "hub_id admin_pk streams max_payload_bytes retention_sec every_sec? every_events?",
    ],
}


class RecordRules:
    """Counts, and what stands."""

    states: dict[bytes, Any]

    def fresh(self, *key: bytes) -> bool:
        raise NotImplementedError

    def _events(self, name: str, event: Doc, entry: Doc) -> bool | None:
        payload = json.dumps(json.loads(event["payload"]), sort_keys=True, separators=(",", ":"))
        if payload != event["payload"]:
            return False
        parts = [b"s" + event["subject_id"].encode(), b"t" + event["event_type"].encode()]
        parts += [b"o" + event["origin"].encode(), b"p" + bytes.fromhex(entry["client_id"])]
        keys = [_origin(entry)]
        if "source" in event:
            parts.append(b"i" + event["source"].encode())
            keys.append(repr((event["source"], event["position"])).encode())
        counted = [self._count(part, keys, event, entry) for part in parts]
        return None if all(counted) else False

    def _count(self, part: bytes, keys: list[bytes], event: Doc, entry: Doc) -> bool:
        met = [self.fresh(part, key) for key in keys]
        if not all(met):
            return False
        time, hub_ts = event["event_time"], entry["hub_ts"]
        was = self.states.get(part)
        self.states[part] = {
            "events": was["events"] + 1 if was else 1,
            "first_event_time": min(was["first_event_time"], time) if was else time,
            "last_event_time": max(was["last_event_time"], time) if was else time,
            "first_hub_ts": min(was["first_hub_ts"], hub_ts) if was else hub_ts,
            "last_hub_ts": max(was["last_hub_ts"], hub_ts) if was else hub_ts,
        }
        return True

    def _changes(self, name: str, event: Doc, entry: Doc) -> bool | None:
        said: dict[bytes, Doc] = {}
        match name.split(".")[1]:
            case "map":
                said[b"t" + event["event_type"].encode()] = {"stream": event["stream"]}
            case "migration":
                for one in event["event_types"]:
                    said[b"t" + one.encode()] = {"stream": event["to_stream"]}
            case "producer":
                if bytes.fromhex(entry["client_id"]) in event["client_ids"]:
                    return False
                said[b"p" + event["name"].encode()] = {"producer": event}
                for one in event["client_ids"]:
                    said[b"k" + one] = {"owner": event["name"]}
            case _:
                said[b"s"] = {"profile": event}
        taken = [self._stand(name, part, now, event, entry) for part, now in said.items()]
        return None if all(taken) else False

    def _stand(self, name: str, part: bytes, now: Doc, event: Doc, entry: Doc) -> bool:
        if not self.fresh(part, _origin(entry)):
            return False
        was = self.states.get(part, {})
        refused = {
            "record.map.v1": "stream" in was,
            "record.migration.v1": was.get("stream") != event.get("from_stream"),
            "record.producer.v1": was.get("owner", event.get("name")) != event.get("name"),
        }
        if refused.get(name, False):
            return False
        self.states[part] = {"since": entry["stream_seq"], **now}
        return True


def _origin(entry: Doc) -> bytes:
    return bytes.fromhex(entry["payload_hdr"].get("parent_id") or entry["msg_id"])
