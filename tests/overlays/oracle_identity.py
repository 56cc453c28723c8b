"""Identity once more for the golden states, with nothing of ours: one rule per schema, as id-spec words it."""

import re
from hashlib import sha256
from typing import Any, TypeAlias

Doc: TypeAlias = dict[str, Any]

IDENTITY_KEYS: dict[str, list[str]] = {
    "id.principal.v1": ["principal_pk created_at info?"],
    "id.device.v1": ["principal_pk device_id device_pk dh_pk label? created_at expires_at? flags?"],
    "id.ctx.profile.v1": ["ctx_id realm_id display_name? avatar_coid? prefs? updated_at"],
    "id.org.profile.v1": ["org_id display_name? metadata? created_at updated_at"],
    "id.group.v1": ["org_id realm_id? group_id name members_add? members_remove? updated_at"],
    "id.role.v1": ["org_id realm_id? role targets_ctx? targets_group? ts"],
    "id.role.revoke.v1": ["org_id realm_id? role targets_ctx? targets_group? ts"],
    "id.handlemap.v1": ["realm_id handle target_type target_id ts"],
    "id.external.v1": ["realm_id ctx_id? org_id? provider external_sub attributes? ts"],
    "id.revoke.v1": ["principal_pk? org_id? device_id? revoked_auth_ref? realm_id? ctx_id? reason? ts"],
}
HANDLE = re.compile(r"@?[a-z0-9]([a-z0-9._+-]*[a-z0-9])?(@[a-z0-9]([a-z0-9._+-]*[a-z0-9])?)?")


class IdentityRules:
    """The part of the oracle that knows identity."""

    states: dict[bytes, Any]

    def fresh(self, *key: bytes) -> bool:
        raise NotImplementedError

    def _origin(self, entry: Doc) -> bytes:
        raise NotImplementedError

    def _id(self, name: str, event: Doc, entry: Doc) -> bool | None:
        if not well_formed(name, event):
            return False
        if not self.fresh(self._origin(entry), bytes.fromhex(entry["body"])):
            return False
        getattr(self, "_" + name.removesuffix(".v1").replace(".", "_"))(event, entry["stream_seq"])
        return None

    def _id_principal(self, event: Doc, seq: int) -> None:
        part = b"p" + event["principal_pk"]
        was = self.states.get(part)
        first = {"created_at": event["created_at"], "epoch": 0, "stream_seq": seq, "info_epoch": 0, "info_seq": 0}
        self.states[part] = (was or first) | ({"info_seq": seq, "info": event["info"]} if "info" in event else {})

    def _last(self, part: bytes, event: Doc, ts: int, seq: int) -> None:
        was = self.states.get(part)
        if was is None or (ts, seq) > (was["ts"], was["stream_seq"]):
            self.states[part] = {"ts": ts, "epoch": 0, "stream_seq": seq, "record": event}

    def _id_device(self, event: Doc, seq: int) -> None:
        self._last(b"d" + event["principal_pk"] + event["device_id"], event, 0, seq)

    def _id_ctx_profile(self, event: Doc, seq: int) -> None:
        self._last(b"c" + event["ctx_id"] + event["realm_id"], event, event["updated_at"], seq)

    def _id_org_profile(self, event: Doc, seq: int) -> None:
        self._last(b"o" + event["org_id"], event, event["updated_at"], seq)

    def _id_handlemap(self, event: Doc, seq: int) -> None:
        self._last(b"h" + event["realm_id"] + event["handle"].encode(), event, event["ts"], seq)

    def _id_external(self, event: Doc, seq: int) -> None:
        provider = event["provider"].encode()
        part = b"l" + event["realm_id"] + len(provider).to_bytes(4, "big") + provider + event["external_sub"].encode()
        self._last(part, event, event["ts"], seq)

    def _mark(self, part: bytes, name: bytes, seq: int, *places: int) -> None:
        """Each mark is [name, on epoch, on seq, off epoch, off seq]."""
        marks = {mark[0]: list(mark) for mark in self.states.get(part, {"marks": []})["marks"]}
        mark = marks.setdefault(name, [name, 0, 0, 0, 0])
        for place in places:
            mark[place] = seq
        self.states[part] = {"marks": [marks[one] for one in sorted(marks)]}

    def _id_group(self, event: Doc, seq: int) -> None:
        part = b"g" + event["org_id"] + event["group_id"]
        was = self.states.get(part)
        if was is None or (event["updated_at"], seq) > (was["ts"], was["stream_seq"]):
            named = {"ts": event["updated_at"], "epoch": 0, "stream_seq": seq, "name": event["name"]}
            self.states[part] = named | ({"realm_id": event["realm_id"]} if "realm_id" in event else {})
        for place, listed in ((4, "members_remove"), (2, "members_add")):
            for ctx_id in event.get(listed, []):
                self._mark(b"m" + event["org_id"] + ctx_id, event["group_id"], seq, place)

    def _id_role(self, event: Doc, seq: int, place: int = 2) -> None:
        for letter, listed in ((b"r", "targets_ctx"), (b"s", "targets_group")):
            for target in event.get(listed, []):
                part = letter + event["org_id"] + target + event.get("realm_id", b"")
                self._mark(part, event["role"].encode(), seq, place)

    def _id_role_revoke(self, event: Doc, seq: int) -> None:
        self._id_role(event, seq, 4)

    def _id_revoke(self, event: Doc, seq: int) -> None:
        named = []
        if "device_id" in event:
            named.append(b"xd" + event["device_id"] + event.get("principal_pk", b""))
        if "revoked_auth_ref" in event:
            named.append(b"xa" + event["revoked_auth_ref"])
        if "ctx_id" in event:
            named.append(b"xc" + event["ctx_id"] + event.get("realm_id", b""))
        for part in named or [b"xo" + event["org_id"] + event.get("realm_id", b"")]:
            was = self.states.get(part)
            if was is None or event["ts"] < was["ts"]:
                said = {"ts": event["ts"], "epoch": 0, "stream_seq": seq}
                self.states[part] = said | {key: event[key] for key in ("reason", "org_id") if key in event}


def well_formed(name: str, event: Doc) -> bool:
    """The rules between the fields of one body."""
    if name == "id.device.v1":
        return bool(event["device_id"] == sha256(b"id/device\0" + event["device_pk"]).digest())
    if name == "id.handlemap.v1":
        return event["target_type"] in ("ctx", "org") and HANDLE.fullmatch(event["handle"]) is not None
    if name == "id.external.v1":
        return "ctx_id" in event or "org_id" in event
    if name == "id.revoke.v1":
        return bool({"device_id", "revoked_auth_ref", "ctx_id", "org_id"} & set(event))
    return True
