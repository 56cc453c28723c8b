"""The admission table of spec §8.2 as data, and the HTTP status of every code.

The order of the rows is the order of the checks: the first that fails is the answer, on every hub. Code that
refuses takes its code, stage and detail_enum from here; `docs/errors.md` is written from here.
"""

from dataclasses import dataclass
from enum import StrEnum

from veen.core.errors import Fault, Malformed, Refused


class AdmissionStage(StrEnum):
    """The steps of the pipeline, in order. Spec §8.1."""

    PREFILTER = "prefilter"
    STRUCTURAL = "structural"
    AUTH = "auth"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class AdmissionRow:
    """One way for a message to be refused."""

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
        _PRE, "stateless policy reject", "E.AUTH", "PREFILTER_REJECT", "solve the hub's challenge and send it along"
    ),
    AdmissionRow(
        _STR, "not deterministic CBOR, or unknown fields", "E.FORMAT", "CBOR_INVALID", "encode it as the table says"
    ),
    AdmissionRow(_STR, "a field has the wrong size", "E.SIZE", "FIELD_SIZE", "check the field the message names"),
    AdmissionRow(_STR, "version not supported", "E.FORMAT", "VERSION", "use a client that speaks this hub's version"),
    AdmissionRow(_STR, "profile not supported", "E.FORMAT", "PROFILE", "take profile_id from the hub's status"),
    AdmissionRow(
        _STR, "ct_hash is not the ciphertext's hash", "E.FORMAT", "CT_HASH", "the message was altered: seal it again"
    ),
    AdmissionRow(
        _STR, "att_root does not match", "E.FORMAT", "ATT_ROOT", "supply the attachments the message commits to"
    ),
    AdmissionRow(_AUT, "the message's signature fails", "E.SIG", "SIG_INVALID", "sign with the key that is client_id"),
    AdmissionRow(_AUT, "capability missing or unknown", "E.CAP", "CAP_MISSING", "authorize a capability, then name it"),
    AdmissionRow(
        _AUT,
        "capability does not hold, is revoked, or asks too much",
        "E.CAP",
        "CAP_INVALID",
        "ask the issuer for a valid capability",
    ),
    AdmissionRow(
        _AUT,
        "auth_ref, key or hub is not one for this message",
        "E.AUTH",
        "AUTH_REF",
        "use a capability for this key and stream, a client_id that is not used up or revoked, or the stream's own hub",
    ),
    AdmissionRow(_AUT, "capability expired", "E.TIME", "CAP_TTL", "ask the issuer for a new capability"),
    AdmissionRow(_AUT, "rate limit exceeded", "E.RATE", "CAP_RATE", "wait as long as retry_after says"),
    AdmissionRow(_COM, "prev_ack is ahead of the log or went back", "E.SEQ", "PREV_ACK", "resync, then send again"),
    AdmissionRow(_COM, "already accepted", "E.SEQ", "DUPLICATE", "fetch the receipt at the stream_seq in the detail"),
    AdmissionRow(_COM, "client_seq is not the next", "E.SEQ", "CLIENT_SEQ", "resync client_seq from the log"),
    AdmissionRow(
        _COM,
        "the label is of no registered stream, or its epoch is outside the window",
        "E.TIME",
        "EPOCH",
        "register the stream: authorizing a capability for it does, or the operator with POST /tooling/streams; if it "
        "is registered, take epoch and hub_ts from the hub's status",
    ),
)

BY_DETAIL: dict[str, AdmissionRow] = {row.detail_enum: row for row in ADMISSION}

# What a malformed message falls under.
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

# Spec §10.6: what the endpoints themselves may answer.
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

# What each of those means, and what to do.
API_MEANING: dict[str, tuple[str, str]] = {
    "E.BAD_REQUEST": ("not the request it claims to be: malformed, unknown fields, wrong types", "mend the request"),
    "E.VERSION": ("the path names another major version than `/v1`", "use a client that speaks this hub's version"),
    "E.UNAUTHORIZED": ("the call needs the operator's token or a capability", "send one along"),
    "E.FORBIDDEN": ("the capability does not reach that far", "ask its issuer for one that does"),
    "E.NOT_FOUND": ("the label, or that place in it, is unknown", "check label and stream_seq; it may come later"),
    "E.CONFLICT": ("it contradicts what is already there", "fetch what is there before sending again"),
    "E.LIMIT": ("it is above one of this hub's limits", "ask for less; the hub's status lists its limits"),
    "E.UNAVAILABLE": ("busy, starting or stopping: nothing was decided", "try again, after retry_after if it is there"),
}

STATUS: dict[str, int] = ADMISSION_STATUS | API_STATUS


def refused_structure(error: Malformed) -> Refused:
    """A malformed message as the admission refusal it is."""
    return BY_FAULT[error.fault].refused(error.reason)
