"""Records a scenario: the input of each step and the hub's answer."""

from dataclasses import dataclass, field
from itertools import count

from vectors.form import Doc, dh_key, profile_doc, reader_doc, refused_doc, signer_doc, signing_key
from vectors.hub import Log, ModelHub
from veen.core import CapToken, Msg, PayloadHdr, Place, Receipt, Sealer, msg, naming, wire_json
from veen.core.errors import Refused

SCHEMA = naming.schema_id("chat.v1")


@dataclass(frozen=True, slots=True)
class Draft:
    """The choices of a client for a message."""

    client: str
    label: bytes
    client_seq: int
    prev_ack: int
    body: bytes = b""
    auth_ref: bytes | None = None
    header: PayloadHdr = field(default_factory=lambda: PayloadHdr(SCHEMA))


class Scenario:
    """One hub, one reader, and the steps so far."""

    def __init__(self, name: str, about: str, hub: ModelHub) -> None:
        self.name = name
        self.hub = hub
        self.reader = dh_key(f"{name}/reader")
        self._about = about
        self._clients: set[str] = set()
        self._numbers = count(1)
        self._steps: list[Doc] = []

    def compose(self, draft: Draft) -> tuple[Msg, Doc]:
        """The signed message with all its inputs."""
        self._clients.add(draft.client)
        key = signing_key(draft.client)
        ephemeral = dh_key(f"{self.name}/ephemeral/{next(self._numbers)}")
        profile = self.hub.profile
        place = Place(
            profile.profile_id(), draft.label, key.public_key, draft.client_seq, draft.prev_ack, draft.auth_ref
        )
        ciphertext = Sealer(self.reader.public_key, place, ephemeral).seal(draft.header, draft.body, profile.pad_block)
        made = msg.sign(
            key,
            profile_id=place.profile_id,
            label=draft.label,
            client_seq=draft.client_seq,
            prev_ack=draft.prev_ack,
            auth_ref=draft.auth_ref,
            ciphertext=ciphertext,
        )
        inputs: Doc = {
            "client": draft.client,
            "label": draft.label,
            "client_seq": draft.client_seq,
            "prev_ack": draft.prev_ack,
            "auth_ref": draft.auth_ref,
            "payload_hdr": wire_json.to_json(draft.header),
            "payload_hdr_cbor": draft.header.encode(),
            "body": draft.body,
            "ephemeral_secret": ephemeral.secret,
        }
        return made, inputs

    def submit(self, note: str, draft: Draft, hub_ts: int) -> Msg:
        """Send a message as its client created it."""
        made, inputs = self.compose(draft)
        self._step(note, made.encode(), hub_ts, {"inputs": inputs})
        return made

    def submit_bytes(self, note: str, data: bytes, hub_ts: int, **remarks: object) -> None:
        """Send bytes that no client created: a replay, or something damaged."""
        self._step(note, data, hub_ts, remarks)

    def authorize(self, note: str, name: str, token: CapToken, hub_ts: int) -> None:
        step: Doc = {"note": note, "authorize": name, "hub_ts": hub_ts}
        try:
            step["accepted"] = {"auth_ref": self.hub.authorize(token, hub_ts)}
        except Refused as error:
            step["refused"] = refused_doc(error)
        self._steps.append(step)

    def _step(self, note: str, data: bytes, hub_ts: int, more: Doc) -> None:
        step: Doc = {"note": note, "hub_ts": hub_ts, "msg": data, **more}
        try:
            step["accepted"] = self._accepted(self.hub.submit(data, hub_ts))
        except Refused as error:
            step["refused"] = refused_doc(error)
        self._steps.append(step)

    def _accepted(self, made: Receipt) -> Doc:
        log = self.hub.logs[made.label]
        return {
            "stream_seq": made.stream_seq,
            "leaf_hash": made.leaf_hash,
            "mmr_root": made.mmr_root,
            "peaks": log.peaks(made.stream_seq),
            "receipt": made.encode(),
            "mmr_proof": log.proof(made.stream_seq, made.stream_seq).encode(),
        }

    def document(self, **more: object) -> Doc:
        hub = self.hub
        return {
            "about": self._about,
            "profile": profile_doc(hub.profile),
            "hub": {
                **signer_doc(hub.key),
                "hub_id": hub.hub_id,
                "routing_key": hub.routing_key,
                "needs_capability": hub.closed,
                "limits": wire_json.to_json(hub.limits),
            },
            "reader": reader_doc(self.reader),
            "clients": {name: signer_doc(signing_key(name)) for name in self._clients},
            "steps": [{"step": number, **step} for number, step in enumerate(self._steps, 1)],
            "logs": [_log(label, log) for label, log in hub.logs.items()],
            **more,
        }


def _log(label: bytes, log: Log) -> Doc:
    """One label at the end. The proof of leaf m is also the consistency proof from size m."""
    size = log.tree.size
    return {
        "label": label,
        "stream_id": log.stream_id,
        "epoch": log.epoch,
        "size": size,
        "mmr_root": log.tree.root() if size else None,
        "leaves": log.leaves,
        "proofs": [log.proof(seq, size).encode() for seq in range(1, size + 1)],
    }
