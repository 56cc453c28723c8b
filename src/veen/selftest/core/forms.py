"""JSON says what CBOR says: the same names, bytes as lowercase hex. Spec §10.3, §10.4."""

from collections.abc import Callable
from typing import TypeVar

from veen.core import jsonform, jsontext
from veen.core.cbor import Wire
from veen.core.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
    StreamRequest,
    StreamResponse,
    SubmitRequest,
    SubmitResponse,
)
from veen.selftest import drafts
from veen.selftest.check import claim
from veen.selftest.trial import Trial
from veen.selftest.verdict import Failed, expect

W = TypeVar("W", bound=Wire)
_NOT_PROVOKED_IN_JSON = ("SIZE_PREFILTER",)  # digits take twice the room, so each form has a cap of its own


def _both(trial: Trial, path: str, request: Wire, cls: type[W]) -> None:
    plain = trial.probe.post(path, request).read(cls)
    shown = trial.probe.post_json(path, request).read(cls)
    expect(plain == shown, f"{path} says one thing in CBOR and another in JSON")


@claim("json.reads", "every read gives the same answer in JSON as in CBOR", "§10.3–10.4")
def reads(trial: Trial) -> None:
    label = trial.filled[0].msg.label
    _both(trial, "/v1/stream", StreamRequest(label, 1), StreamResponse)
    full = StreamRequest(label, 2, to_seq=8, max_items=4, with_receipts=True, with_mmr_proof=True)
    _both(trial, "/v1/stream", full, StreamResponse)
    _both(trial, "/v1/receipt", ReceiptRequest(label, 3), ReceiptResponse)
    _both(trial, "/v1/proof", ProofRequest(label, 7), ProofResponse)
    _both(trial, "/v1/checkpoint", CheckpointRequest(label, 5), CheckpointResponse)


@claim("json.submit", "a message submitted in JSON is the same message", "§10.3–10.4")
def submit(trial: Trial) -> None:
    writer = trial.writer()
    message = writer.message()
    receipt = trial.probe.post_json("/v1/submit", SubmitRequest(message)).read(SubmitResponse).receipt
    receipt.check_binds(message)
    trial.facts.verify_receipt(receipt)
    asked = ReceiptRequest(message.label, receipt.stream_seq)
    again = trial.probe.post("/v1/receipt", asked).read(ReceiptResponse).receipt
    expect(again == receipt, "the receipt is another one in CBOR")


@claim("json.refusals", "a message is refused in JSON as it is in CBOR", "§8.2, §10.6")
def refusals(trial: Trial) -> str:
    tried = [fault for fault in drafts.possible(trial) if fault not in _NOT_PROVOKED_IN_JSON]
    for fault in tried:
        try:
            trial.probe.post_json("/v1/submit", drafts.draft(trial, fault).json()).expect_row(fault)
        except Failed as failed:
            raise Failed(f"{fault}: {failed}") from None
    return f"{len(tried)} rows"


_BENT: dict[str, Callable[[list[jsontext.Json]], bytes]] = {
    "empty": lambda fields: b"",
    "not JSON": lambda fields: b"{",
    "an array": lambda fields: jsontext.encode([1, fields]),
    "another version": lambda fields: _request(fields, ver=2),
    "true for 1": lambda fields: _request(fields, ver=True),
    "an unknown name": lambda fields: _request(fields, more=1),
    "no message": lambda fields: b'{"ver":1}',
    "a field less": lambda fields: _request(fields[:-1]),
    "a field more": lambda fields: _request([*fields, 1]),
    "a negative number": lambda fields: _request([*fields[:4], -1, *fields[5:]]),
    "a float": lambda fields: _request(fields).replace(b'"ver":1', b'"ver":1.0'),
    "capital digits": lambda fields: _request([*fields[:-1], "AB" * 64]),
    "half a byte": lambda fields: _request([*fields[:-1], str(fields[-1])[:-1]]),
    "text for a number": lambda fields: _request([*fields[:4], "01", *fields[5:]]),
}


def _request(fields: list[jsontext.Json], **more: jsontext.Json) -> bytes:
    return jsontext.encode({"ver": 1, "msg": fields, **more})


@claim("json.strict", "a submit request that is not in the one form is refused in JSON, too", "§10.3–10.4, §3.1")
def strict(trial: Trial) -> str:
    fields = jsonform.to_json(drafts.anyone(trial).message())
    assert isinstance(fields, list)
    for name, bend in _BENT.items():
        try:
            trial.probe.post_json("/v1/submit", bend(fields)).expect_row("CBOR_INVALID")
        except Failed as failed:
            raise Failed(f"{name}: {failed}") from None
    return f"{len(_BENT)} forms"


CHECKS = (reads, submit, refusals, strict)
