"""The admission table of spec §8.2 as data, and the HTTP status of every code.

Checks run in the order of the rows, and the first that fails determines the answer, on every hub. Code that rejects a
message takes code, stage and detail_enum from here, and `docs/errors.md` is generated from here.
"""

from dataclasses import dataclass
from enum import StrEnum

from veen.core.errors import Fault, Malformed, Refused


class AdmissionStage(StrEnum):
    """The stages of admission, in order. Spec §8.1."""

    PREFILTER = "prefilter"
    STRUCTURAL = "structural"
    AUTH = "auth"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class AdmissionRow:
    """One reason to reject a message."""

    stage: AdmissionStage
    failure: str
    code: str
    detail_enum: str
    advice: str

    def refused(self, message: str, *, retry_after: int | None = None, **detail: int | str) -> Refused:
        """The error to raise for this row."""
        return Refused(
            self.code,
            message,
            stage=self.stage,
            detail_enum=self.detail_enum,
            detail=detail,
            retry_after=retry_after,
        )


_PRE, _STR, _AUT, _COM = AdmissionStage.PREFILTER, AdmissionStage.STRUCTURAL, AdmissionStage.AUTH, AdmissionStage.COMMIT

ADMISSION: tuple[AdmissionRow, ...] = (
    AdmissionRow(
        _PRE, "size caps exceeded", "E.SIZE", "SIZE_PREFILTER", "send less in one message, or use attachments"
    ),
    AdmissionRow(
        _PRE,
        "rejected by a stateless policy",
        "E.AUTH",
        "PREFILTER_REJECT",
        "solve the hub's challenge and send the solution with the message",
    ),
    AdmissionRow(
        _STR,
        "not deterministic CBOR, or unknown fields",
        "E.FORMAT",
        "CBOR_INVALID",
        "encode it as docs/wire.md specifies",
    ),
    AdmissionRow(
        _STR, "a field has the wrong size", "E.SIZE", "FIELD_SIZE", "check the field named in the error message"
    ),
    AdmissionRow(_STR, "version not supported", "E.FORMAT", "VERSION", "use a client that supports this hub's version"),
    AdmissionRow(_STR, "profile not supported", "E.FORMAT", "PROFILE", "take profile_id from the hub's status"),
    AdmissionRow(
        _STR,
        "ct_hash does not match the ciphertext",
        "E.FORMAT",
        "CT_HASH",
        "the message was altered: seal and sign it again",
    ),
    AdmissionRow(
        _STR, "att_root does not match", "E.FORMAT", "ATT_ROOT", "supply the attachments the message commits to"
    ),
    AdmissionRow(
        _AUT, "the message's signature does not verify", "E.SIG", "SIG_INVALID", "sign with the secret key of client_id"
    ),
    AdmissionRow(
        _AUT, "capability missing or unknown", "E.CAP", "CAP_MISSING", "authorize a capability, then set auth_ref"
    ),
    AdmissionRow(
        _AUT,
        "capability invalid, revoked, or beyond the hub's limits",
        "E.CAP",
        "CAP_INVALID",
        "ask the issuer for a valid capability",
    ),
    AdmissionRow(
        _AUT,
        "auth_ref, client key or hub is not valid for this message",
        "E.AUTH",
        "AUTH_REF",
        "use a capability for this key and stream, a client_id that is not used up or revoked, or the stream's own hub",
    ),
    AdmissionRow(_AUT, "capability expired", "E.TIME", "CAP_TTL", "ask the issuer for a new capability"),
    AdmissionRow(_AUT, "rate limit exceeded", "E.RATE", "CAP_RATE", "wait retry_after seconds"),
    AdmissionRow(
        _COM, "prev_ack is ahead of the log, or lower than before", "E.SEQ", "PREV_ACK", "resync, then send again"
    ),
    AdmissionRow(_COM, "already accepted", "E.SEQ", "DUPLICATE", "fetch the receipt at the stream_seq in the detail"),
    AdmissionRow(_COM, "client_seq is not the next", "E.SEQ", "CLIENT_SEQ", "resync client_seq from the log"),
    AdmissionRow(
        _COM,
        "the label belongs to no registered stream, or its epoch is outside the window",
        "E.TIME",
        "EPOCH",
        "if the label's epoch is within first_epoch and last_epoch of the detail, the stream is not registered: "
        "authorize a capability for it, or have the operator run veen hub stream add; otherwise the clock is wrong, so "
        "take epoch and hub_ts from the hub's status",
    ),
)

# The causes of E.TIME/EPOCH. A hub cannot tell them apart, because a label is a hash; a client can.
UNREGISTERED, WRONG_CLOCK = "unregistered", "wrong clock"

BY_DETAIL: dict[str, AdmissionRow] = {row.detail_enum: row for row in ADMISSION}

# The row of each structural fault.
BY_FAULT: dict[Fault, AdmissionRow] = {
    Fault.CBOR: BY_DETAIL["CBOR_INVALID"],
    Fault.SIZE: BY_DETAIL["FIELD_SIZE"],
    Fault.VERSION: BY_DETAIL["VERSION"],
}

ADMISSION_STATUS: dict[str, int] = {
    "E.FORMAT": 400,
    "E.TIME": 400,
    "E.AUTH": 403,
    "E.CAP": 403,
    "E.SIG": 409,
    "E.SEQ": 409,
    "E.SIZE": 413,
    "E.RATE": 429,
}

# Errors of the endpoints themselves. Spec §10.6.
API_STATUS: dict[str, int] = {
    "E.BAD_REQUEST": 400,
    "E.VERSION": 400,
    "E.UNAUTHORIZED": 401,
    "E.FORBIDDEN": 403,
    "E.NOT_FOUND": 404,
    "E.CONFLICT": 409,
    "E.LIMIT": 413,
    "E.UNAVAILABLE": 503,
}

# The meaning of each code, and what to do.
API_MEANING: dict[str, tuple[str, str]] = {
    "E.BAD_REQUEST": ("the request is malformed, has unknown fields or wrong types", "correct the request"),
    "E.VERSION": ("the path names another major version than `/v1`", "use a client that supports this hub's version"),
    "E.UNAUTHORIZED": ("the request needs the operator's token or a capability", "send one with the request"),
    "E.FORBIDDEN": ("the capability does not permit this request", "ask its issuer for one that does"),
    "E.NOT_FOUND": ("the label, or that place in it, is unknown", "check label and stream_seq, or try again later"),
    "E.CONFLICT": ("the request contradicts stored data", "fetch the stored data before sending again"),
    "E.LIMIT": ("the request is above one of this hub's limits", "request less; the hub's status lists its limits"),
    "E.UNAVAILABLE": (
        "busy, starting or stopping; nothing was decided",
        "try again, after retry_after if it is present",
    ),
}

STATUS: dict[str, int] = ADMISSION_STATUS | API_STATUS


def refused_structure(error: Malformed) -> Refused:
    """The admission error for a malformed message."""
    return BY_FAULT[error.fault].refused(error.reason)
