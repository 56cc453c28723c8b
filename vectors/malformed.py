"""malformed.json: each wire object, and bytes that are almost valid."""

from collections.abc import Iterator
from dataclasses import dataclass

from vectors import spans
from vectors.form import Doc, signing_key
from vectors.spans import Names
from vectors.spoiling import Spoiled, whole, within
from vectors.trees import leaf
from veen.core import Checkpoint, MmrProof, Msg, PayloadHdr, Profile, ProofStep, Rate, Receipt, cap_token, envelopes
from veen.core.cbor import Wire
from veen.core.hashing import h
from veen.core.limits import MAX_PROOF_PATH

ALL = 9


@dataclass(frozen=True, slots=True)
class Subject:
    """An object to damage: the names of its fields, and how deep to go."""

    name: str
    wire: Wire
    names: Names
    depth: int = ALL
    more: tuple[Spoiled, ...] = ()


def _names(text: str) -> dict[str, None]:
    return dict.fromkeys(text.split())


MSG = _names("ver profile_id label client_id client_seq prev_ack auth_ref ct_hash ciphertext sig")
RECEIPT = _names("ver label stream_seq leaf_hash mmr_root hub_ts hub_sig")
CHECKPOINT = _names("ver label_prev label_curr upto_seq mmr_root epoch hub_sig") | {"witness_sigs": [None]}
PAYLOAD_HDR = _names("schema parent_id att_root cap_ref expires_at")
PROFILE = _names("aead kdf sig dh hpke_suite epoch_sec pad_block mmr_hash")
PROOF = _names("ver leaf_hash") | {"path": [_names("dir sib")], "peaks_after": [None]}
RATE = _names("per_sec burst")
ALLOW = {"stream_ids": [None], "ttl": None, "rate": RATE}
TOKEN = _names("ver issuer_pk subject_pk") | {"allow": ALLOW, "sig_chain": [None]}
PRESENTATION = _names("ver hub_id not_after") | {"token": TOKEN, "sig": None}
STREAM_REQUEST = _names("ver label from_seq to_seq max_items cursor with_receipts with_mmr_proof")
ITEM = {"stream_seq": None, "msg": MSG, "receipt": RECEIPT}
STREAM_RESPONSE = _names("ver label from_seq to_seq") | {
    "items": [ITEM],
    "next_cursor": None,
    "mmr_proof": PROOF,
    "server_version": None,
}
ERROR = _names("ver code message detail retry_after request_id")

_MSG = Msg(leaf(1), leaf(2), leaf(3), 4, 3, leaf(5), h(bytes(8)), bytes(8), bytes(64))
_LONG = Msg(leaf(1), leaf(2), leaf(3), 400, 70_000, None, h(bytes(256)), bytes(256), bytes(64))
_RECEIPT = Receipt(leaf(1), 2, leaf(3), leaf(4), 1_700_000_000, bytes(64))
_CHECKPOINT = Checkpoint(leaf(1), leaf(1), 2, leaf(3), 4, bytes(64))
_WITNESSED = Checkpoint(leaf(1), leaf(2), 300, leaf(3), 4, bytes(64), (bytes(64), bytes((1,)) * 64))
_PROOF = MmrProof(leaf(5), (ProofStep(0, leaf(6)), ProofStep(0, leaf(7)), ProofStep(1, leaf(8))), (leaf(9), leaf(10)))
_TOKEN = cap_token.resign(
    cap_token.mint(signing_key("issuer"), signing_key("alice").public_key, [leaf(1), leaf(2)], 3600, Rate(1, 2)),
    signing_key("issuer"),
)


def _wire_objects() -> Iterator[Subject]:
    yield Subject("msg", _MSG, MSG)
    yield Subject("msg", _LONG, MSG)
    zero_seq = _RECEIPT.encode().replace(b"\x02\x58\x20" + leaf(3), b"\x00\x58\x20" + leaf(3))
    yield Subject("receipt", _RECEIPT, RECEIPT, more=(("stream_seq: 0", "CBOR", zero_seq),))
    plain = _CHECKPOINT.encode()
    zero_upto = plain.replace(b"\x02\x58\x20" + leaf(3), b"\x00\x58\x20" + leaf(3))
    empty, null = (b"\x88" + plain[1:] + tail for tail in (b"\x80", b"\xf6"))
    more = (
        ("upto_seq: 0", "CBOR", zero_upto),
        ("witness_sigs: an empty list", "SIZE", empty),
        ("witness_sigs: null for none", "CBOR", null),
    )
    yield Subject("checkpoint", _CHECKPOINT, CHECKPOINT, more=more)
    yield Subject("checkpoint", _WITNESSED, CHECKPOINT)
    yield Subject("payload_hdr", PayloadHdr(leaf(1)), PAYLOAD_HDR, more=_null_options())
    yield Subject("payload_hdr", PayloadHdr(leaf(1), leaf(2), leaf(3), leaf(4), 5), PAYLOAD_HDR)
    yield Subject("profile", Profile(60, 256), PROFILE, more=_other_algorithms())
    yield Subject("mmr_proof", _PROOF, PROOF, more=_steps())
    yield Subject("cap_token", _TOKEN, TOKEN)
    presented = cap_token.present(signing_key("issuer"), _TOKEN, leaf(3), 1_700_000_000)
    yield Subject("cap_presentation", presented, PRESENTATION)


def _envelopes() -> Iterator[Subject]:
    version = "0.0.1"
    page = (envelopes.StreamItem(1, _MSG), envelopes.StreamItem(2, _MSG, _RECEIPT))
    detail: dict[str, int | str] = {"stage": "auth", "detail_enum": "CAP_RATE"}
    by_seq, by_upto = _names("ver label stream_seq"), _names("ver label upto_seq")

    def answer(field: str, names: Names) -> Names:
        return {"ver": None, field: names, "server_version": None}

    yield Subject("submit_request", envelopes.SubmitRequest(_MSG), {"ver": None, "msg": MSG}, 1)
    yield Subject("submit_response", envelopes.SubmitResponse(_RECEIPT, version), answer("receipt", RECEIPT), 1)
    request = envelopes.StreamRequest(leaf(1), 0, 100, 1000, 42, True, False)
    yield Subject("stream_request", request, STREAM_REQUEST)
    response = envelopes.StreamResponse(leaf(1), 1, 2, page, 3, _PROOF, version)
    yield Subject("stream_response", response, STREAM_RESPONSE, 1)
    yield Subject("receipt_request", envelopes.ReceiptRequest(leaf(1), 2), by_seq)
    yield Subject("receipt_response", envelopes.ReceiptResponse(_RECEIPT), answer("receipt", RECEIPT), 1)
    yield Subject("proof_request", envelopes.ProofRequest(leaf(1), 2), by_seq)
    yield Subject("proof_response", envelopes.ProofResponse(_PROOF), answer("mmr_proof", PROOF), 1)
    yield Subject("checkpoint_request", envelopes.CheckpointRequest(leaf(1), 2), by_upto)
    made = envelopes.CheckpointResponse(_CHECKPOINT)
    yield Subject("checkpoint_response", made, answer("checkpoint", CHECKPOINT), 1)
    error = envelopes.ErrorEnvelope("E.RATE", "too fast", detail, 1, "r-1")
    yield Subject("error", error, ERROR)


def _null_options() -> tuple[Spoiled, ...]:
    """`null` for an absent header field: the field must be omitted."""
    data = b"\xa2" + PayloadHdr(leaf(1)).encode()[1:]
    options = list(PAYLOAD_HDR)[1:]
    return tuple((f"{name}: null for none", "CBOR", data + bytes((key, 0xF6))) for key, name in enumerate(options, 2))


def _other_algorithms() -> tuple[Spoiled, ...]:
    data = Profile(60, 256).encode()
    texts = {"aead": b"xchacha20poly1305", "kdf": b"hkdf-sha256", "sig": b"ed25519", "dh": b"x25519"}
    cases = [(f"{name}: another algorithm", "CBOR", data.replace(text, text[::-1])) for name, text in texts.items()]
    return (*cases, ("aead: in capitals", "CBOR", data.replace(b"xchacha", b"XChaCha")))


def _steps() -> tuple[Spoiled, ...]:
    data = _PROOF.encode()
    step = ProofStep(0, leaf(6)).encode()
    long = MmrProof(leaf(5), (ProofStep(0, leaf(6)),) * MAX_PROOF_PATH, ()).encode()
    count = b"\x03\x98" + bytes((MAX_PROOF_PATH,))
    longer = long.replace(count, b"\x03\x98" + bytes((MAX_PROOF_PATH + 1,)) + step)
    return (
        ("path: one step above the limit", "SIZE", longer),
        ("path.0.dir: 2", "CBOR", data.replace(step, step.replace(b"\x01\x00", b"\x01\x02", 1))),
        ("path.0.dir: false", "CBOR", data.replace(step, step.replace(b"\x01\x00", b"\x01\xf4", 1))),
    )


def _combined(data: bytes, item: spans.Item) -> Iterator[Spoiled]:
    """Two faults at once: CBOR is checked before SIZE, and SIZE before VERSION."""
    pairs = list(zip(item.children[::2], item.children[1::2], strict=True)) if item.major == spans.MAP else []
    values = [value for _, value in pairs] or list(item.children)
    strings = [one for one in values if one.major == spans.BSTR and one.argument == 32]
    if values[0].field != "ver" or not strings:
        return
    ver, field = values[0], strings[-1]
    version = data[: ver.start] + b"\x02" + data[ver.end :]
    short = b"\x58\x1f" + data[field.content + 1 : field.end]
    yield "version 2 and a byte after the end", "CBOR", version + b"\0"
    yield f"version 2 and a short {field.field}", "SIZE", version[: field.start] + short + version[field.end :]
    yield (
        f"a short {field.field} and a byte after the end",
        "CBOR",
        (data[: field.start] + short + data[field.end :] + b"\0"),
    )


def _subject(subject: Subject) -> Doc:
    data = subject.wire.encode()
    item = spans.read(data, subject.names)
    assert item.end == len(data)
    cases = [*whole(data), *within(data, item, subject.depth), *_combined(data, item), *subject.more]
    return {
        "object": subject.name,
        "valid": data,
        "malformed": [{"name": name, "fault": fault, **_edit(data, bad)} for name, fault, bad in cases],
    }


def _edit(valid: bytes, bad: bytes) -> Doc:
    """The edit of the valid bytes: everything except the common prefix and suffix."""
    shorter = min(len(valid), len(bad))
    at = next((i for i in range(shorter) if valid[i] != bad[i]), shorter)
    kept = next((i for i in range(shorter - at) if valid[-1 - i] != bad[-1 - i]), shorter - at)
    return {"at": at, "remove": len(valid) - at - kept, "insert": bad[at : len(bad) - kept]}


def malformed() -> Doc:
    return {
        "about": "Bytes that are no wire object, by the object they are meant to be, with the fault to be found.",
        "faults": {
            "CBOR": {"code": "E.FORMAT", "detail_enum": "CBOR_INVALID"},
            "SIZE": {"code": "E.SIZE", "detail_enum": "FIELD_SIZE"},
            "VERSION": {"code": "E.FORMAT", "detail_enum": "VERSION"},
        },
        "objects": [_subject(subject) for subject in (*_wire_objects(), *_envelopes())],
    }
