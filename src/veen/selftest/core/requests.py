"""Requests that are not about a message: versions, malformed bodies, places that are not there. Spec §10.3–10.6."""

from secrets import token_bytes

from veen.core import cbor
from veen.core.cbor import Wire
from veen.core.envelopes import CheckpointRequest, ProofRequest, ReceiptRequest, StreamRequest
from veen.selftest.check import claim
from veen.selftest.trial import Trial
from veen.selftest.verdict import Failed

_READS = ("/v1/stream", "/v1/receipt", "/v1/proof", "/v1/checkpoint")
_U64_MAX = (1 << 64) - 1


@claim("request.version", "another major version than v1 is E.VERSION", "§10.3, §10.6")
def version(trial: Trial) -> None:
    for path in ("/v0/stream", "/v2/submit", "/v2/stream", "/v10/receipt"):
        trial.probe.post(path, b"\xa1\x01\x01").expect_code("E.VERSION")
        trial.probe.post_json(path, b'{"ver":1}').expect_code("E.VERSION")


def _malformed(label: bytes) -> dict[str, bytes]:
    good: dict[int, cbor.Value] = {1: 1, 2: label, 3: 1}
    return {
        "empty": b"",
        "not CBOR": b"\xff",
        "an array": cbor.encode([1, label, 1]),
        "another version": cbor.encode({**good, 1: 2}),
        "no label": cbor.encode({1: 1, 3: 1}),
        "no place": cbor.encode({1: 1, 2: label}),
        "a short label": cbor.encode({**good, 2: label[1:]}),
        "a label in text": cbor.encode({**good, 2: "a" * 32}),
        "a negative place": cbor.encode({**good, 3: -1}),
        "null for a place": cbor.encode({**good, 3: None}),
        "an unknown key": cbor.encode({**good, 99: 1}),
        "a text key": b"\xa4" + cbor.encode(good)[1:] + b"\x61x\x01",
        "a long head": b"\xb8\x03" + cbor.encode(good)[1:],
        "a map without end": b"\xbf" + cbor.encode(good)[1:] + b"\xff",
        "bytes after its end": cbor.encode(good) + b"\x00",
    }


@claim("request.malformed", "a read request that is not in the one form is E.BAD_REQUEST", "§10.4, §10.6")
def malformed(trial: Trial) -> str:
    cases = _malformed(token_bytes(32))
    for path in _READS:
        for name, body in cases.items():
            try:
                trial.probe.post(path, body).expect_code("E.BAD_REQUEST")
            except Failed as failed:
                raise Failed(f"{name}: {failed}") from None
    return f"{len(cases)} forms for each of {len(_READS)} reads"


@claim("request.malformed-json", "a read request in JSON that is not in the one form is E.BAD_REQUEST", "§10.3–10.6")
def malformed_json(trial: Trial) -> None:
    for path in _READS:
        for body in (b"", b"{", b"[]", b'{"ver":2}', b'{"ver":1,"extra":0}'):
            trial.probe.post_json(path, body).expect_code("E.BAD_REQUEST")


@claim("request.label", "a label nobody wrote to is E.NOT_FOUND", "§10.6")
def unknown_label(trial: Trial) -> None:
    label = token_bytes(32)
    for path, request in _requests(label, 1):
        trial.probe.post(path, request).expect_code("E.NOT_FOUND")
        trial.probe.post_json(path, request).expect_code("E.NOT_FOUND")


@claim("request.place", "a place that is not in the log is E.NOT_FOUND", "§5.4, §10.6")
def unknown_place(trial: Trial) -> None:
    label, size = trial.filled[0].msg.label, len(trial.filled)
    for seq in (0, size + 1, _U64_MAX):
        for path, request in _requests(label, seq):
            if path != "/v1/stream":  # where it is an empty page
                trial.probe.post(path, request).expect_code("E.NOT_FOUND")


def _requests(label: bytes, seq: int) -> list[tuple[str, Wire]]:
    return [
        ("/v1/stream", StreamRequest(label, seq)),
        ("/v1/receipt", ReceiptRequest(label, seq)),
        ("/v1/proof", ProofRequest(label, seq)),
        ("/v1/checkpoint", CheckpointRequest(label, seq)),
    ]


CHECKS = (version, malformed, malformed_json, unknown_label, unknown_place)
