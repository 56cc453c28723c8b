"""The second implementation of the overlays by which a realm is run."""

from hashlib import sha256
from typing import Any, TypeAlias

import cbor2
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

Doc: TypeAlias = dict[str, Any]
NEVER_ENDS = float("inf")

ADMIN_KEYS: dict[str, list[str]] = {
    "veen.label.class.v1": ["label class sensitivity? retention_hint?"],
    "veen.meta.schema.v1": ["schema_id name version doc_url? owner? ts"],
    "veen.fed.authority.v1": ["realm_id stream_id primary_hub replica_hubs policy ts ttl"],
    "veen.revocation.v1": ["kind target reason? ts ttl?"],
    "veen.control.cap.v1": ["1 2 3 4 5"],
    "veen.control.presentation.v1": ["1 2 3 4 5"],
    "veen.control.revocation.v1": ["kind target reason? ts ttl?"],
}


class AdminRules:
    """States are lists of records."""

    states: dict[bytes, Any]

    def fresh(self, *key: bytes) -> bool:
        raise NotImplementedError

    def _class(self, name: str, event: Doc, entry: Doc) -> bool | None:
        if not self.fresh(event["label"], _origin(entry)):
            return False
        self.states[event["label"]] = [_record(event, entry)]
        return None

    def _schema(self, name: str, event: Doc, entry: Doc) -> bool | None:
        if not self.fresh(event["schema_id"], _origin(entry)):
            return False
        (was,) = self.states.get(event["schema_id"], [None])
        if was is not None and was["said"]["ts"] > event["ts"]:
            return False
        self.states[event["schema_id"]] = [_record(event, entry)]
        return None

    def _authority(self, name: str, event: Doc, entry: Doc) -> bool | None:
        if event["policy"] not in ("single-primary", "multi-primary"):
            return False
        return self._lasting(event["realm_id"] + event["stream_id"], event, entry)

    def _revocation(self, name: str, event: Doc, entry: Doc) -> bool | None:
        if event["kind"] not in ("client-id", "auth-ref", "cap-token"):
            return False
        return self._lasting(event["kind"].encode() + b"\0" + event["target"], event, entry)

    def _lasting(self, part: bytes, event: Doc, entry: Doc) -> bool | None:
        """Compares all pairs: a record is dropped if an earlier one covers its whole period."""
        new = _record(event, entry)
        everyone = [*self.states.get(part, []), new]
        kept = [
            one
            for one in everyone
            if _span(one)[1] > _span(one)[0]
            and not any(_rank(other) < _rank(one) and _span(other)[1] >= _span(one)[1] for other in everyone)
        ]
        if new not in kept:
            return False
        self.states[part] = sorted(kept, key=_rank)
        return None

    def _authorization(self, name: str, event: Doc, entry: Doc) -> bool | None:
        keys: dict[Any, Any] = event
        token = keys if name == "veen.control.cap.v1" else keys[4]
        part = sha256(b"veen/cap\0" + cbor2.dumps(token)).digest()
        if part in self.states or not _signed(token) or (token is not event and not _presented(keys)):
            return False
        self.states[part] = [_record(event, entry)]
        return None


def _origin(entry: Doc) -> bytes:
    return bytes.fromhex(entry["payload_hdr"].get("parent_id") or entry["msg_id"])


def _record(event: Doc, entry: Doc) -> Doc:
    client_id = bytes.fromhex(entry["client_id"])
    place = {"epoch": 0, "stream_seq": entry["stream_seq"], "hub_ts": entry["hub_ts"], "client_id": client_id}
    return {**place, "said": event}


def _span(record: Doc) -> tuple[int, float]:
    said = record["said"]
    return said["ts"], said["ts"] + said["ttl"] if "ttl" in said else NEVER_ENDS


def _rank(record: Doc) -> tuple[Any, ...]:
    said = record["said"]
    if "primary_hub" in said:
        return said["ts"], said["primary_hub"], cbor2.dumps(said), record["stream_seq"]
    return said["ts"], -_span(record)[1], record["stream_seq"]


def _presented(shown: dict[Any, Any]) -> bool:
    digest = sha256(b"veen/cap-presentation\0" + cbor2.dumps({key: shown[key] for key in (1, 2, 3, 4)})).digest()
    try:
        Ed25519PublicKey.from_public_bytes(shown[4][2]).verify(shown[5], digest)
    except InvalidSignature:
        return False
    return True


def _signed(token: dict[Any, Any]) -> bool:
    grant = cbor2.dumps({key: token[key] for key in (1, 2, 3, 4)})
    previous = bytes(64)
    for link in token[5]:
        try:
            Ed25519PublicKey.from_public_bytes(token[2]).verify(
                link, sha256(b"veen/cap-link\0" + grant + previous).digest()
            )
        except InvalidSignature:
            return False
        previous = link
    return True
