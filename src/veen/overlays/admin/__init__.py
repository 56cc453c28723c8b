"""The overlays by which a realm is run: who may write, which hub orders what, what is kept where. 001, spec-2."""

from veen.overlays.admin.authority import AUTHORITIES, Authorities, Authority, LabelAuthority, label_authority
from veen.overlays.admin.authorization import AUTHORIZATIONS, Authorizations, Capability, Standing, Worth, standing_of
from veen.overlays.admin.labelclass import LABEL_CLASSES, LabelClass, LabelClasses
from veen.overlays.admin.records import Record, RecordOverlay
from veen.overlays.admin.revocation import REVOCATIONS, Revocation, RevocationKind, Revocations
from veen.overlays.admin.schemas import SCHEMAS, Descriptor, Schemas
from veen.overlays.registry import AnyOverlay

__all__ = [
    "ADMIN",
    "AUTHORITIES",
    "AUTHORIZATIONS",
    "Authorities",
    "Authority",
    "Authorizations",
    "Capability",
    "Descriptor",
    "LABEL_CLASSES",
    "LabelAuthority",
    "LabelClass",
    "LabelClasses",
    "REVOCATIONS",
    "Record",
    "RecordOverlay",
    "Revocation",
    "RevocationKind",
    "Revocations",
    "SCHEMAS",
    "Schemas",
    "Standing",
    "Worth",
    "label_authority",
    "standing_of",
]

ADMIN: tuple[AnyOverlay, ...] = (LABEL_CLASSES, SCHEMAS, AUTHORITIES, REVOCATIONS, AUTHORIZATIONS)
