"""An audit statement: an auditor's signature over a report, so that it can be told later who said it."""

from dataclasses import dataclass, replace
from typing import ClassVar

from veen.core import SigningKey, Unverified, signing
from veen.core.cbor import Bstr, Map, Text, Uint, Version, Wire
from veen.core.hashing import ht
from veen.core.limits import MAX_TEXT_BYTES
from veen.core.signing import SIGNATURE_BYTES
from veen.pipeline.audit import report

_NO_SIG = bytes(SIGNATURE_BYTES)


@dataclass(frozen=True, slots=True)
class Statement(Wire):
    """What an auditor says: this report, with this verdict, at this time, by this key."""

    report_digest: bytes
    verdict: str
    made_at: int
    auditor_pk: bytes
    sig: bytes

    LAYOUT: ClassVar = Map(
        "audit statement",
        {
            1: Version(),
            2: Bstr("report_digest"),
            3: Text("verdict", MAX_TEXT_BYTES),
            4: Uint("made_at"),
            5: Bstr("auditor_pk"),
            6: Bstr("sig", SIGNATURE_BYTES),
        },
    )

    def signing_digest(self) -> bytes:
        """Over everything but the signature."""
        return ht("veen/audit-statement", replace(self, sig=_NO_SIG).encode())

    def verify(self, encoded_report: bytes, auditor_pk: bytes | None = None) -> None:
        """Raise unless this is the auditor's word on that report. Without `auditor_pk`, whoever signed it."""
        if auditor_pk is not None and auditor_pk != self.auditor_pk:
            raise Unverified("audit statement", "it is signed with another key than the auditor's")
        signing.verify(self.auditor_pk, self.signing_digest(), self.sig, "audit statement")
        if report.digest(encoded_report) != self.report_digest:
            raise Unverified("audit statement", "it is of another report")
        said = report.decode(encoded_report)
        if (said["verdict"], said["made_at"]) != (self.verdict, self.made_at):
            raise Unverified("audit statement", "its verdict or its time is not the report's")


def sign(key: SigningKey, encoded_report: bytes) -> Statement:
    """An auditor's statement of a report."""
    said = report.decode(encoded_report)
    verdict, made_at = str(said["verdict"]), int(str(said["made_at"]))
    unsigned = Statement(report.digest(encoded_report), verdict, made_at, key.public_key, _NO_SIG)
    return replace(unsigned, sig=key.sign(unsigned.signing_digest()))
