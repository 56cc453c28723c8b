"""The second implementation of the nine operation profiles."""

import re
from hashlib import sha256
from typing import Any, TypeAlias

import cbor2

Doc: TypeAlias = dict[str, Any]

FORMS = {
    "paid.operation.v1": "operation_type operation_args payer_account payee_account amount currency_code? "
    "operation_reference? parent_operation_id? ttl_seconds? metadata?",
    "access.grant.v1": "subject_identity subject_label? allowed_stream_ids expiry_time maximum_rate_per_second? "
    "maximum_burst? maximum_amount? currency_code? reason? parent_operation_id?",
    "access.revoke.v1": "subject_identity target_capability_reference? reason? parent_operation_id?",
    "delegated.execution.v1": "principal_identity agent_identity delegation_chain operation_schema operation_body "
    "parent_operation_id? metadata?",
    "agreement.definition.v1": "agreement_id version terms_hash terms_attachment_root? parties effective_time? "
    "expiry_time? metadata?",
    "agreement.confirmation.v1": "agreement_id version party_identity decision decision_time? parent_operation_id? "
    "metadata?",
    "data.publication.v1": "publication_id publisher_identity content_root content_class version labels? source_uri? "
    "metadata?",
    "state.checkpoint.v1": "state_id upto_stream_seq mmr_root state_hash state_class metadata?",
    "recovery.request.v1": "target_identity requested_new_identity reason? request_time? metadata?",
    "recovery.approval.v1": "target_identity requested_new_identity approver_identity policy_group_id? decision "
    "decision_time? parent_operation_id? metadata?",
    "recovery.execution.v1": "target_identity new_identity applied_time? approval_references metadata?",
    "query.audit.v1": "requester_identity resource_identifier resource_class query_parameters? purpose_code? "
    "result_digest? request_time? metadata?",
    "federation.mirror.v1": "source_hub_identifier source_label source_stream_seq source_leaf_hash "
    "source_receipt_root target_label mirror_time? metadata?",
}
OPERATION_KEYS = {f"veen/schema:{name}": [form] for name, form in FORMS.items()}


def _origin(entry: Doc) -> bytes:
    return bytes.fromhex(entry["payload_hdr"].get("parent_id") or entry["msg_id"])


def _id(msg_id: bytes) -> bytes:
    return sha256(b"veen/operation-id\0" + msg_id).digest()


def _present(**fields: Any) -> Doc:
    return {name: value for name, value in fields.items() if value is not None}


class OperationRules:
    """States are what is encoded for a part; a method answers False where the entry changes nothing."""

    states: dict[bytes, Any]

    def fresh(self, *key: bytes) -> bool:
        raise NotImplementedError

    def _operation(self, name: str, event: Doc, entry: Doc) -> bool | None:
        if entry["hub_ts"] > entry["payload_hdr"].get("expires_at", entry["hub_ts"]):
            return False
        unit, moved = event.get("currency_code", "").encode(), False
        for account in dict.fromkeys((event["payer_account"], event["payee_account"])):
            if not self.fresh(account + unit, _origin(entry)):
                continue
            change = event["amount"] * ((account == event["payee_account"]) - (account == event["payer_account"]))
            was = self.states.get(account + unit, [[account, 0]])[0][1]
            was = was if isinstance(was, int) else int.from_bytes(was[1], "big") * (-1 if was[0] else 1)
            self.states[account + unit] = [[account, _number(was + change)]]
            moved = True
        return moved

    def _grant(self, name: str, event: Doc, entry: Doc) -> bool | None:
        subject, named = event["subject_identity"], event.get("allowed_stream_ids", [])
        if len(set(named)) < len(named) or not self.fresh(subject, _origin(entry)):
            return False
        was = self.states.get(subject, {"grants": [], "revoked": [], "all_revoked": False})
        if "allowed_stream_ids" in event:
            place = {"operation_id": _id(_origin(entry)), "epoch": 0, "stream_seq": entry["stream_seq"]}
            made = {**place, "client_id": bytes.fromhex(entry["client_id"]), "grant": event}
            was = {**was, "grants": [*was["grants"], made]}
        elif (target := event.get("target_capability_reference")) is None:
            was = {**was, "grants": [], "all_revoked": True}
        else:
            left = [one for one in was["grants"] if one["operation_id"] != target]
            was = {**was, "grants": left, "revoked": sorted({*was["revoked"], target})}
        self.states[subject] = was
        return None

    def _execution(self, name: str, event: Doc, entry: Doc) -> bool | None:
        if not event["delegation_chain"] or not self.fresh(_origin(entry)):
            return False
        place = {"epoch": 0, "stream_seq": entry["stream_seq"], "client_id": bytes.fromhex(entry["client_id"])}
        self.states[_id(_origin(entry))] = {**place, "said": event}
        return None

    def _agreement(self, name: str, event: Doc, entry: Doc) -> bool | None:
        part, place = event["agreement_id"], {"epoch": 0, "stream_seq": entry["stream_seq"]}
        versions = {one["definition"]["version"]: one for one in self.states.get(part, {"versions": []})["versions"]}
        if not self.fresh(part, _origin(entry)):
            return False
        if "terms_hash" in event:
            if versions and event["version"] <= max(versions):
                return False
            made = {"operation_id": _id(_origin(entry)), **place, "definition": event, "decided": []}
            versions[event["version"]] = made
        else:
            version, party = versions.get(event["version"]), event["party_identity"]
            if version is None or party not in version["definition"]["parties"]:
                return False
            decided = {one["party_identity"]: one for one in version["decided"]}
            said = _present(decision_time=event.get("decision_time"))
            decided[party] = {"party_identity": party, "decision": event["decision"], **place, **said}
            versions[event["version"]] = {**version, "decided": [decided[one] for one in sorted(decided)]}
        self.states[part] = {"versions": [versions[number] for number in sorted(versions)]}
        return None

    def _publication(self, name: str, event: Doc, entry: Doc) -> bool | None:
        part = b"v" + event["publication_id"] + event["version"].encode()
        if part in self.states:
            return False
        place = {"operation_id": _id(_origin(entry)), "epoch": 0, "stream_seq": entry["stream_seq"]}
        made = {**place, "hub_ts": entry["hub_ts"], "said": event}
        self.states[part] = {"versions": 0, "release": made}
        line = self.states.get(b"p" + event["publication_id"], {"versions": 0, "highest": made})
        highest = max((line["highest"], made), key=lambda one: _numbers(one["said"]["version"]))
        shown = {"versions": line["versions"] + 1, "latest": made, "highest": highest}
        self.states[b"p" + event["publication_id"]] = shown
        return None

    def _checkpoint(self, name: str, event: Doc, entry: Doc) -> bool | None:
        part = event["state_id"] + event["upto_stream_seq"].to_bytes(8, "big")
        if not self.fresh(part, _origin(entry)):
            return False
        count = self.states.get(part, {"checkpoints": 0})["checkpoints"] + 1
        place = {"operation_id": _id(_origin(entry)), "epoch": 0, "stream_seq": entry["stream_seq"]}
        self.states[part] = {"checkpoints": count, **place, "latest": event}
        return None

    def _recovery(self, name: str, event: Doc, entry: Doc) -> bool | None:
        part, own = event["target_identity"], _id(_origin(entry))
        was = self.states.get(part, {"asked": [], "answers": []})
        place = {"operation_id": own, "epoch": 0, "stream_seq": entry["stream_seq"]}
        if not self.fresh(part, _origin(entry)):
            return False
        new = event.get("requested_new_identity") or event["new_identity"]
        asked = any(one["new_identity"] == new for one in was["asked"])
        if name.endswith("request.v1"):
            if asked:
                return False
            self.states[part] = {**was, "asked": [*was["asked"], {**place, "new_identity": new}]}
        elif name.endswith("approval.v1"):
            if not asked:
                return False
            said = {"new_identity": new, "approver_identity": event["approver_identity"], "decision": event["decision"]}
            answer = {**place, **said, **_present(policy_group_id=event.get("policy_group_id"))}
            self.states[part] = {**was, "answers": [*was["answers"], answer]}
        else:
            answers = {one["operation_id"]: one for one in was["answers"]}
            named = [answers.get(one, {}) for one in event["approval_references"]]
            right = [one.get("decision") == "approve" and one.get("new_identity") == new for one in named]
            if not right or not all(right):
                return False
            replaced = {"asked": [], "answers": [], "new_identity": new}
            self.states[part] = {**replaced, "epoch": 0, "stream_seq": entry["stream_seq"]}
        return None

    def _audit(self, name: str, event: Doc, entry: Doc) -> bool | None:
        resource = cbor2.dumps([event["resource_class"], event["resource_identifier"]])
        part = event["requester_identity"] + resource
        if not self.fresh(part, _origin(entry)):
            return False
        was = self.states.get(part, {"count": 0, "first_ts": entry["hub_ts"]})
        times = {"first_ts": was["first_ts"], "last_ts": entry["hub_ts"]}
        purpose = _present(last_purpose=event.get("purpose_code"))
        self.states[part] = {"count": was["count"] + 1, **times, **purpose}
        return None

    def _mirror(self, name: str, event: Doc, entry: Doc) -> bool | None:
        seq = event["source_stream_seq"]
        if seq == 0 or _origin(entry) != event["source_leaf_hash"]:
            return False
        part = cbor2.dumps([event["source_hub_identifier"], event["source_label"], event["target_label"]])
        ranges = self.states.get(part, [])
        if any(first <= seq <= last for first, last in ranges):
            return False
        joined: list[list[int]] = []
        for first, last in sorted([*ranges, [seq, seq]]):
            if joined and joined[-1][1] + 1 == first:
                joined[-1][1] = last
            else:
                joined.append([first, last])
        self.states[part] = joined
        return None

    def _index(self, name: str, event: Doc, entry: Doc) -> bool | None:
        own = bytes.fromhex(entry["msg_id"]) if "source_leaf_hash" in event else _origin(entry)
        if not self.fresh(own):
            return False
        self.states[_id(own)] = cbor2.loads(bytes.fromhex(entry["cbor"]))
        return None


def _numbers(version: str) -> list[tuple[bool, int, str]]:
    parts = re.findall(r"[0-9]+|[^0-9]+", version)
    return [(one.isdigit(), int(one) if one.isdigit() else 0, "" if one.isdigit() else one) for one in parts]


def _number(value: int) -> Any:
    magnitude = abs(value)
    fits = -(1 << 64) <= value < 1 << 64
    return value if fits else [value < 0, magnitude.to_bytes((magnitude.bit_length() + 7) // 8, "big")]
