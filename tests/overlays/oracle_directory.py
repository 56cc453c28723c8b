"""The second implementation of the directory and of connections."""

from typing import Any, TypeAlias

Doc: TypeAlias = dict[str, Any]

DIRECTORY_KEYS: dict[str, list[str]] = {
    "disc.hub.advertise.v1": ["hub_id hub_pk profile_id region tags endpoints overlays ttl_sec version"],
    "disc.hub.retire.v1": ["hub_id reason?"],
    "disc.overlay.advertise.v1": ["overlay_id name version schemas docs_url? tags ttl_sec"],
    "disc.overlay.retire.v1": ["overlay_id reason?"],
    "disc.service.advertise.v1": [
        "service_id name overlay_id methods stream_ids regions required_caps auth_policy? operator? tags ttl_sec"
    ],
    "disc.service.retire.v1": ["service_id reason?"],
    "connect.hub.v1": ["name hub_id hub_pk profile_id endpoint trusted expires_at"],
    "connect.service.v1": ["name service_id overlay_id methods stream_ids required_caps auth_mode expires_at"],
    "connect.plan.v1": ["name route issuer_service? wait_until?"],
    "connect.authorize.v1": ["name auth_ref expires_at"],
    "connect.bind.v1": ["name request_streams reply_streams"],
    "connect.end.v1": ["name reason?"],
}
LARGEST = 16_384
ORDER = ("hub", "service", "plan", "authorized", "bound", "ended")
FIELDS = {"authorize": "authorized", "bind": "bound", "end": "ended"}


class DirectoryRules:
    """States are maps, in the order of their keys."""

    states: dict[bytes, Any]

    def fresh(self, *key: bytes) -> bool:
        raise NotImplementedError

    def _discovery(self, name: str, event: Doc, entry: Doc) -> bool | None:
        _, what, verb, _ = name.split(".")
        part = what[0].encode() + event[f"{what}_id"]
        parent = entry["payload_hdr"].get("parent_id")
        if len(bytes.fromhex(entry["body"])) > LARGEST:
            return False
        if not self.fresh(part, bytes.fromhex(parent or entry["msg_id"])):
            return False
        place = {"epoch": 0, "stream_seq": entry["stream_seq"], "publisher": bytes.fromhex(entry["client_id"])}
        was = self.states.get(part, {})
        if verb == "retire":
            if "retired" in was:
                return False
            said = {"reason": event["reason"]} if "reason" in event else {}
            self.states[part] = {**was, "retired": {**place, **said}}
            return None
        ends = min(entry["hub_ts"] + event["ttl_sec"], (1 << 64) - 1)
        ends = min(ends, entry["payload_hdr"].get("expires_at", ends))
        advertised = {**place, "mirrored": parent is not None, "expires_at": ends, "descriptor": event}
        self.states[part] = {"advertised": advertised}
        return None

    def _connect(self, name: str, event: Doc, entry: Doc) -> bool | None:
        part, verb, now = event["name"].encode(), name.split(".")[1], entry["hub_ts"]
        origin = bytes.fromhex(entry["payload_hdr"].get("parent_id") or entry["msg_id"])
        if not self.fresh(part, origin):
            return False
        was = self.states.get(part, {})
        if not _allowed(verb, was, event, now):
            return False
        field = FIELDS.get(verb, verb)
        before = {} if field == "ended" else {key: was[key] for key in ORDER[: ORDER.index(field)] if key in was}
        after = {key: was[key] for key in ("bound",) if field == "authorized" and key in was}
        merged = {**before, field: event, **after}
        merged.pop("ended", None) if field != "ended" else None
        self.states[part] = {key: merged[key] for key in ORDER if key in merged}
        return None


def _allowed(verb: str, was: Doc, event: Doc, now: int) -> bool:
    if verb == "hub":
        return bool(now <= event["expires_at"])
    if "hub" not in was:
        return False
    if verb == "end":
        return True
    if verb == "service":
        return bool(now <= min(was["hub"]["expires_at"], event["expires_at"]) and event["stream_ids"])
    if "service" not in was:
        return False
    service = was["service"]
    if verb == "plan":
        routes = {"none": ["none"], "cap_token": ["service", "operator"]}.get(service["auth_mode"], ["outside"])
        named = ("issuer_service" in event) == (event["route"] == "service")
        return now <= service["expires_at"] and event["route"] in routes and named
    if "plan" not in was or not was["hub"]["trusted"]:
        return False
    with_token = was["plan"]["route"] in ("service", "operator")
    if verb == "authorize":
        in_time = "authorized" in was or now <= was["plan"].get("wait_until", now)
        return bool(with_token and in_time and now <= event["expires_at"])
    held = not with_token or ("authorized" in was and now <= was["authorized"]["expires_at"])
    known = all(one in service["stream_ids"] for one in event["request_streams"] + event["reply_streams"])
    return bool(held and now <= service["expires_at"] and event["request_streams"] and known)
