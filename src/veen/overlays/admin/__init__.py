"""The overlays by which a realm is run: who may write, which hub orders what, what is kept where. 001, spec-2."""

from veen.overlays.admin.admin_records import AdminRecord, RecordOverlay
from veen.overlays.admin.authority import AUTHORITIES, Authorities, AuthorityOverlay, LabelAuthority, label_authority
from veen.overlays.admin.authorization import (
    AUTHORIZATIONS,
    Authorizations,
    CapabilityStanding,
    ShownCapability,
    Worth,
    standing_of,
)
from veen.overlays.admin.label_class import LABEL_CLASSES, LabelClass, LabelClasses
from veen.overlays.admin.revocation import REVOCATIONS, RevocationKind, RevocationOverlay, Revocations
from veen.overlays.admin.schemas import SCHEMAS, SchemaDescriptor, Schemas
from veen.overlays.registry import AnyOverlay

__all__ = [
    "ADMIN",
    "AUTHORITIES",
    "AUTHORIZATIONS",
    "AdminRecord",
    "Authorities",
    "AuthorityOverlay",
    "Authorizations",
    "CapabilityStanding",
    "LABEL_CLASSES",
    "LabelAuthority",
    "LabelClass",
    "LabelClasses",
    "REVOCATIONS",
    "RecordOverlay",
    "RevocationKind",
    "RevocationOverlay",
    "Revocations",
    "SCHEMAS",
    "SchemaDescriptor",
    "Schemas",
    "ShownCapability",
    "Worth",
    "label_authority",
    "standing_of",
]

ADMIN: tuple[AnyOverlay, ...] = (LABEL_CLASSES, SCHEMAS, AUTHORITIES, REVOCATIONS, AUTHORIZATIONS)
