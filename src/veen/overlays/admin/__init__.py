"""Administration of a realm: capabilities, revocations, authority over streams, label classes, schemas. 001, spec-2."""

from veen.overlays.admin.admin_records import AdminRecord, RecordOverlay
from veen.overlays.admin.authority import AUTHORITIES, Authorities, AuthorityEvent, LabelAuthority, label_authority
from veen.overlays.admin.authorization import (
    AUTHORIZATIONS,
    Authorizations,
    CapabilityStatus,
    ShownCapability,
    Validity,
    capability_status,
)
from veen.overlays.admin.label_class import LABEL_CLASSES, LabelClass, LabelClasses
from veen.overlays.admin.revocation import REVOCATIONS, RevocationEvent, RevocationKind, Revocations
from veen.overlays.admin.schemas import SCHEMAS, SchemaDescriptor, Schemas
from veen.overlays.registry import AnyOverlay

__all__ = [
    "ADMIN",
    "AUTHORITIES",
    "AUTHORIZATIONS",
    "AdminRecord",
    "Authorities",
    "AuthorityEvent",
    "Authorizations",
    "CapabilityStatus",
    "LABEL_CLASSES",
    "LabelAuthority",
    "LabelClass",
    "LabelClasses",
    "REVOCATIONS",
    "RecordOverlay",
    "RevocationEvent",
    "RevocationKind",
    "Revocations",
    "SCHEMAS",
    "SchemaDescriptor",
    "Schemas",
    "ShownCapability",
    "Validity",
    "capability_status",
    "label_authority",
]

ADMIN: tuple[AnyOverlay, ...] = (LABEL_CLASSES, SCHEMAS, AUTHORITIES, REVOCATIONS, AUTHORIZATIONS)
