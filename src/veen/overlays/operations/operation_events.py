"""The bodies of the nine operation profiles. 001, spec-3 §2 to §10.

Times are Unix seconds, amounts are in the smallest unit. A field of type `any` is one CBOR value, stored as the
received bytes.
"""

from dataclasses import dataclass
from typing import ClassVar

from veen.core.cbor import Bstr, ListOf, Uint
from veen.core.limits import MAX_BODY_BYTES, MAX_CAP_STREAMS
from veen.overlays.fields import body
from veen.overlays.operations.operation import (
    METADATA,
    PARENT,
    Embedded,
    Operation,
    anything,
    ids,
    profile_schema,
    repeated,
    text,
)


@dataclass(frozen=True, slots=True)
class Paid(Operation):
    """§2. An operation together with its payment. Without `currency_code` the amount is in the default unit."""

    operation_type: str
    operation_args: bytes
    payer_account: bytes
    payee_account: bytes
    amount: int
    currency_code: str | None = None
    operation_reference: bytes | None = None
    parent_operation_id: bytes | None = None
    ttl_seconds: int | None = None
    metadata: bytes | None = None

    NAME: ClassVar = "paid.operation.v1"
    SCHEMA: ClassVar = profile_schema(NAME)
    LAYOUT: ClassVar = body(
        NAME,
        text("operation_type"),
        anything("operation_args"),
        Bstr("payer_account"),
        Bstr("payee_account"),
        Uint("amount"),
        text("currency_code", optional=True),
        Bstr("operation_reference", optional=True),
        PARENT,
        Uint("ttl_seconds", optional=True),
        METADATA,
    )


@dataclass(frozen=True, slots=True)
class AccessGrant(Operation):
    """§3. Allows a subject to write to some streams, until `expiry_time` (exclusive)."""

    subject_identity: bytes
    subject_label: str | None
    allowed_stream_ids: tuple[bytes, ...]
    expiry_time: int
    maximum_rate_per_second: int | None = None
    maximum_burst: int | None = None
    maximum_amount: int | None = None
    currency_code: str | None = None
    reason: str | None = None
    parent_operation_id: bytes | None = None

    NAME: ClassVar = "access.grant.v1"
    SCHEMA: ClassVar = profile_schema(NAME)
    LAYOUT: ClassVar = body(
        NAME,
        Bstr("subject_identity"),
        text("subject_label", optional=True),
        ids("allowed_stream_ids", "stream_id", MAX_CAP_STREAMS),
        Uint("expiry_time"),
        Uint("maximum_rate_per_second", optional=True),
        Uint("maximum_burst", optional=True),
        Uint("maximum_amount", optional=True),
        text("currency_code", optional=True),
        text("reason", optional=True),
        PARENT,
    )

    def flaw(self) -> str | None:
        return repeated(self.allowed_stream_ids, "streams")


@dataclass(frozen=True, slots=True)
class Revoke(Operation):
    """§3. Revokes one capability of a subject, or all of them."""

    subject_identity: bytes
    target_capability_reference: bytes | None = None
    reason: str | None = None
    parent_operation_id: bytes | None = None

    NAME: ClassVar = "access.revoke.v1"
    SCHEMA: ClassVar = profile_schema(NAME)
    LAYOUT: ClassVar = body(
        NAME,
        Bstr("subject_identity"),
        Bstr("target_capability_reference", optional=True),
        text("reason", optional=True),
        PARENT,
    )


@dataclass(frozen=True, slots=True)
class Delegated(Operation):
    """§4. An operation that an agent executes for a principal, with the chain of capabilities that allows it."""

    principal_identity: bytes
    agent_identity: bytes
    delegation_chain: tuple[bytes, ...]
    operation_schema: bytes
    operation_body: bytes
    parent_operation_id: bytes | None = None
    metadata: bytes | None = None

    NAME: ClassVar = "delegated.execution.v1"
    SCHEMA: ClassVar = profile_schema(NAME)
    LAYOUT: ClassVar = body(
        NAME,
        Bstr("principal_identity"),
        Bstr("agent_identity"),
        ids("delegation_chain", "capability"),
        Bstr("operation_schema"),
        Embedded("operation_body"),
        PARENT,
        METADATA,
    )


@dataclass(frozen=True, slots=True)
class Definition(Operation):
    """§5. The terms of one version of an agreement, and the parties that must confirm them."""

    agreement_id: bytes
    version: int
    terms_hash: bytes
    terms_attachment_root: bytes | None
    parties: tuple[bytes, ...]
    effective_time: int | None = None
    expiry_time: int | None = None
    metadata: bytes | None = None

    NAME: ClassVar = "agreement.definition.v1"
    SCHEMA: ClassVar = profile_schema(NAME)
    LAYOUT: ClassVar = body(
        NAME,
        Bstr("agreement_id"),
        Uint("version"),
        Bstr("terms_hash"),
        Bstr("terms_attachment_root", optional=True),
        ids("parties", "party"),
        Uint("effective_time", optional=True),
        Uint("expiry_time", optional=True),
        METADATA,
    )

    def flaw(self) -> str | None:
        return repeated(self.parties, "parties")


@dataclass(frozen=True, slots=True)
class Confirmation(Operation):
    """§5. The decision of one party on one version."""

    agreement_id: bytes
    version: int
    party_identity: bytes
    decision: str
    decision_time: int | None = None
    parent_operation_id: bytes | None = None
    metadata: bytes | None = None

    NAME: ClassVar = "agreement.confirmation.v1"
    SCHEMA: ClassVar = profile_schema(NAME)
    LAYOUT: ClassVar = body(
        NAME,
        Bstr("agreement_id"),
        Uint("version"),
        Bstr("party_identity"),
        text("decision"),
        Uint("decision_time", optional=True),
        PARENT,
        METADATA,
    )


@dataclass(frozen=True, slots=True)
class Publication(Operation):
    """§6. A version of content, published at a place in the log."""

    publication_id: bytes
    publisher_identity: bytes
    content_root: bytes
    content_class: str
    version: str
    labels: tuple[str, ...] | None = None
    source_uri: str | None = None
    metadata: bytes | None = None

    NAME: ClassVar = "data.publication.v1"
    SCHEMA: ClassVar = profile_schema(NAME)
    LAYOUT: ClassVar = body(
        NAME,
        Bstr("publication_id"),
        Bstr("publisher_identity"),
        Bstr("content_root"),
        text("content_class"),
        text("version"),
        ListOf("labels", text("label"), most=MAX_BODY_BYTES, optional=True),
        text("source_uri", optional=True),
        METADATA,
    )


@dataclass(frozen=True, slots=True)
class StateCheckpoint(Operation):
    """§7. The hash of a state at a place of the log, and the root of the log there."""

    state_id: bytes
    upto_stream_seq: int
    mmr_root: bytes
    state_hash: bytes
    state_class: str
    metadata: bytes | None = None

    NAME: ClassVar = "state.checkpoint.v1"
    SCHEMA: ClassVar = profile_schema(NAME)
    LAYOUT: ClassVar = body(
        NAME,
        Bstr("state_id"),
        Uint("upto_stream_seq"),
        Bstr("mmr_root"),
        Bstr("state_hash"),
        text("state_class"),
        METADATA,
    )


@dataclass(frozen=True, slots=True)
class RecoveryRequest(Operation):
    """§8. A request to replace an identity by another."""

    target_identity: bytes
    requested_new_identity: bytes
    reason: str | None = None
    request_time: int | None = None
    metadata: bytes | None = None

    NAME: ClassVar = "recovery.request.v1"
    SCHEMA: ClassVar = profile_schema(NAME)
    LAYOUT: ClassVar = body(
        NAME,
        Bstr("target_identity"),
        Bstr("requested_new_identity"),
        text("reason", optional=True),
        Uint("request_time", optional=True),
        METADATA,
    )


@dataclass(frozen=True, slots=True)
class RecoveryApproval(Operation):
    """§8. The decision of one approver on a request."""

    target_identity: bytes
    requested_new_identity: bytes
    approver_identity: bytes
    policy_group_id: bytes | None
    decision: str
    decision_time: int | None = None
    parent_operation_id: bytes | None = None
    metadata: bytes | None = None

    NAME: ClassVar = "recovery.approval.v1"
    SCHEMA: ClassVar = profile_schema(NAME)
    LAYOUT: ClassVar = body(
        NAME,
        Bstr("target_identity"),
        Bstr("requested_new_identity"),
        Bstr("approver_identity"),
        Bstr("policy_group_id", optional=True),
        text("decision"),
        Uint("decision_time", optional=True),
        PARENT,
        METADATA,
    )


@dataclass(frozen=True, slots=True)
class RecoveryExecution(Operation):
    """§8. Replaces the identity. `approval_references` are the operation ids of the approvals."""

    target_identity: bytes
    new_identity: bytes
    applied_time: int | None
    approval_references: tuple[bytes, ...]
    metadata: bytes | None = None

    NAME: ClassVar = "recovery.execution.v1"
    SCHEMA: ClassVar = profile_schema(NAME)
    LAYOUT: ClassVar = body(
        NAME,
        Bstr("target_identity"),
        Bstr("new_identity"),
        Uint("applied_time", optional=True),
        ids("approval_references", "approval"),
        METADATA,
    )

    def flaw(self) -> str | None:
        return repeated(self.approval_references, "approvals")


@dataclass(frozen=True, slots=True)
class QueryAudit(Operation):
    """§9. A read of a sensitive resource: requester, resource and purpose."""

    requester_identity: bytes
    resource_identifier: str
    resource_class: str
    query_parameters: bytes | None = None
    purpose_code: str | None = None
    result_digest: bytes | None = None
    request_time: int | None = None
    metadata: bytes | None = None

    NAME: ClassVar = "query.audit.v1"
    SCHEMA: ClassVar = profile_schema(NAME)
    LAYOUT: ClassVar = body(
        NAME,
        Bstr("requester_identity"),
        text("resource_identifier"),
        text("resource_class"),
        anything("query_parameters", optional=True),
        text("purpose_code", optional=True),
        Bstr("result_digest", optional=True),
        Uint("request_time", optional=True),
        METADATA,
    )


@dataclass(frozen=True, slots=True)
class Mirror(Operation):
    """§10. A message of another hub, identified by the fields of its receipt. The header's `parent_id` names it."""

    source_hub_identifier: str
    source_label: bytes
    source_stream_seq: int
    source_leaf_hash: bytes
    source_receipt_root: bytes
    target_label: bytes
    mirror_time: int | None = None
    metadata: bytes | None = None

    NAME: ClassVar = "federation.mirror.v1"
    SCHEMA: ClassVar = profile_schema(NAME)
    LAYOUT: ClassVar = body(
        NAME,
        text("source_hub_identifier"),
        Bstr("source_label"),
        Uint("source_stream_seq"),
        Bstr("source_leaf_hash"),
        Bstr("source_receipt_root"),
        Bstr("target_label"),
        Uint("mirror_time", optional=True),
        METADATA,
    )
