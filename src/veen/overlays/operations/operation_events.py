"""The bodies of the nine operation profiles, their ids, and the links between operations. 001, spec-3 §1 to §10.

Times are Unix seconds, amounts are in the smallest unit. A field of type `any` is one CBOR value, stored as the
received bytes.
"""

from collections.abc import Callable
from dataclasses import field
from typing import Annotated, TypeVar, dataclass_transform

from veen.core import Malformed, cbor
from veen.core.cbor import Bstr, DeferredFaults, ListOf, Uint, heads
from veen.core.cbor.value import read_value
from veen.core.hashing import ht
from veen.core.limits import MAX_BODY_BYTES, MAX_CAP_STREAMS, MAX_VALUE_DEPTH
from veen.overlays.event import PROFILE_PREFIX, Event, ValueItem, body_text, event


class Embedded(ValueItem):
    """One CBOR value in deterministic encoding except for key order, stored as the received bytes."""

    __slots__ = ()

    def read(self, data: bytes, pos: int, late: DeferredFaults) -> tuple[bytes, int]:
        _, end = _read(data, pos, MAX_VALUE_DEPTH)
        return data[pos:end], end

    def write(self, field: bytes) -> bytes:
        try:
            decode(field, self.name)
        except Malformed as error:
            raise ValueError(str(error)) from None
        return field

    def plain(self, field: bytes) -> cbor.Value:
        return decode(field, self.name)


def decode(data: bytes, what: str = "body") -> cbor.Value:
    """Decode an embedded body."""
    value, end = _read(data, 0, MAX_VALUE_DEPTH)
    if end != len(data):
        raise Malformed(what, f"{len(data) - end} bytes after the end")
    return value


def _read(data: bytes, pos: int, depth: int) -> tuple[cbor.Value, int]:
    major, count, start = heads.read_head(data, pos)
    if major not in (heads.ARRAY, heads.MAP):
        return read_value(data, pos)
    if depth == 0:
        raise Malformed("cbor", f"nested too deep at byte {pos}")
    count, start = heads.read_count("value", major, data, pos)
    if major == heads.ARRAY:
        items: list[cbor.Value] = []
        for _ in range(count):
            item, start = _read(data, start, depth - 1)
            items.append(item)
        return tuple(items), start
    entries: dict[cbor.Key, cbor.Value] = {}
    for _ in range(count):
        key, end = read_value(data, start, 0)
        if not isinstance(key, int | str) or isinstance(key, bool) or (isinstance(key, int) and key < 0):
            raise Malformed("cbor", f"the key at byte {start} is neither an unsigned integer nor text")
        if key in entries:
            raise Malformed("cbor", f"the key at byte {start} repeats")
        entries[key], start = _read(data, end, depth - 1)
    return entries, start


def operation_id(msg_id: bytes) -> bytes:
    """The id by which operations refer to each other. §1.1."""
    return ht("veen/operation-id", msg_id)


def ids(item: str, most: int = MAX_BODY_BYTES, *, name: str = "") -> ListOf:
    return ListOf(Bstr(name=item), name=name, most=most)


def anything(*, name: str = "", optional: bool = False) -> ValueItem:
    return ValueItem(name=name, optional=optional)


PARENT = Bstr(name="parent_operation_id", optional=True)
METADATA = anything(name="metadata", optional=True)


class Operation(Event):
    """Base of the bodies of all profiles."""

    __slots__ = ()

    @property
    def parent(self) -> bytes | None:
        """The operation that this one depends on or answers, or None."""
        found = getattr(self, "parent_operation_id", None)
        return found if isinstance(found, bytes) else None


def repeated(listed: tuple[bytes, ...], what: str) -> str | None:
    return None if len(set(listed)) == len(listed) else f"duplicate in {what}"


OperationType = TypeVar("OperationType", bound=Operation)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def operation(name: str) -> Callable[[type[OperationType]], type[OperationType]]:
    """As `event`, with the schema id of a profile. Unlike other schemas, the name is hashed with a prefix."""
    return event(name, prefix=PROFILE_PREFIX)


@operation("paid.operation.v1")
class Paid(Operation):
    """§2. An operation together with its payment. Without `currency_code` the amount is in the default unit."""

    operation_type: Annotated[str, body_text()]
    operation_args: Annotated[bytes, anything()]
    payer_account: Annotated[bytes, Bstr()]
    payee_account: Annotated[bytes, Bstr()]
    amount: Annotated[int, Uint()]
    currency_code: Annotated[str | None, body_text(optional=True)] = None
    operation_reference: Annotated[bytes | None, Bstr(optional=True)] = None
    parent_operation_id: Annotated[bytes | None, PARENT] = None
    ttl_seconds: Annotated[int | None, Uint(optional=True)] = None
    metadata: Annotated[bytes | None, METADATA] = None


@operation("access.grant.v1")
class AccessGrant(Operation):
    """§3. Allows a subject to write to some streams, until `expiry_time` (exclusive)."""

    subject_identity: Annotated[bytes, Bstr()]
    subject_label: Annotated[str | None, body_text(optional=True)]
    allowed_stream_ids: Annotated[tuple[bytes, ...], ids("stream_id", MAX_CAP_STREAMS)]
    expiry_time: Annotated[int, Uint()]
    maximum_rate_per_second: Annotated[int | None, Uint(optional=True)] = None
    maximum_burst: Annotated[int | None, Uint(optional=True)] = None
    maximum_amount: Annotated[int | None, Uint(optional=True)] = None
    currency_code: Annotated[str | None, body_text(optional=True)] = None
    reason: Annotated[str | None, body_text(optional=True)] = None
    parent_operation_id: Annotated[bytes | None, PARENT] = None

    def flaw(self) -> str | None:
        return repeated(self.allowed_stream_ids, "streams")


@operation("access.revoke.v1")
class Revoke(Operation):
    """§3. Revokes one capability of a subject, or all of them."""

    subject_identity: Annotated[bytes, Bstr()]
    target_capability_reference: Annotated[bytes | None, Bstr(optional=True)] = None
    reason: Annotated[str | None, body_text(optional=True)] = None
    parent_operation_id: Annotated[bytes | None, PARENT] = None


@operation("delegated.execution.v1")
class Delegated(Operation):
    """§4. An operation that an agent executes for a principal, with the chain of capabilities that allows it."""

    principal_identity: Annotated[bytes, Bstr()]
    agent_identity: Annotated[bytes, Bstr()]
    delegation_chain: Annotated[tuple[bytes, ...], ids("capability")]
    operation_schema: Annotated[bytes, Bstr()]
    operation_body: Annotated[bytes, Embedded()]
    parent_operation_id: Annotated[bytes | None, PARENT] = None
    metadata: Annotated[bytes | None, METADATA] = None


@operation("agreement.definition.v1")
class Definition(Operation):
    """§5. The terms of one version of an agreement, and the parties that must confirm them."""

    agreement_id: Annotated[bytes, Bstr()]
    version: Annotated[int, Uint()]
    terms_hash: Annotated[bytes, Bstr()]
    terms_attachment_root: Annotated[bytes | None, Bstr(optional=True)]
    parties: Annotated[tuple[bytes, ...], ids("party")]
    effective_time: Annotated[int | None, Uint(optional=True)] = None
    expiry_time: Annotated[int | None, Uint(optional=True)] = None
    metadata: Annotated[bytes | None, METADATA] = None

    def flaw(self) -> str | None:
        return repeated(self.parties, "parties")


@operation("agreement.confirmation.v1")
class Confirmation(Operation):
    """§5. The decision of one party on one version."""

    agreement_id: Annotated[bytes, Bstr()]
    version: Annotated[int, Uint()]
    party_identity: Annotated[bytes, Bstr()]
    decision: Annotated[str, body_text()]
    decision_time: Annotated[int | None, Uint(optional=True)] = None
    parent_operation_id: Annotated[bytes | None, PARENT] = None
    metadata: Annotated[bytes | None, METADATA] = None


@operation("data.publication.v1")
class Publication(Operation):
    """§6. A version of content, published at a place in the log."""

    publication_id: Annotated[bytes, Bstr()]
    publisher_identity: Annotated[bytes, Bstr()]
    content_root: Annotated[bytes, Bstr()]
    content_class: Annotated[str, body_text()]
    version: Annotated[str, body_text()]
    labels: Annotated[tuple[str, ...] | None, ListOf(body_text(name="label"), most=MAX_BODY_BYTES, optional=True)] = (
        None
    )
    source_uri: Annotated[str | None, body_text(optional=True)] = None
    metadata: Annotated[bytes | None, METADATA] = None


@operation("state.checkpoint.v1")
class StateCheckpoint(Operation):
    """§7. The hash of a state at a place of the log, and the root of the log there."""

    state_id: Annotated[bytes, Bstr()]
    upto_stream_seq: Annotated[int, Uint()]
    mmr_root: Annotated[bytes, Bstr()]
    state_hash: Annotated[bytes, Bstr()]
    state_class: Annotated[str, body_text()]
    metadata: Annotated[bytes | None, METADATA] = None


@operation("recovery.request.v1")
class RecoveryRequest(Operation):
    """§8. A request to replace an identity by another."""

    target_identity: Annotated[bytes, Bstr()]
    requested_new_identity: Annotated[bytes, Bstr()]
    reason: Annotated[str | None, body_text(optional=True)] = None
    request_time: Annotated[int | None, Uint(optional=True)] = None
    metadata: Annotated[bytes | None, METADATA] = None


@operation("recovery.approval.v1")
class RecoveryApproval(Operation):
    """§8. The decision of one approver on a request."""

    target_identity: Annotated[bytes, Bstr()]
    requested_new_identity: Annotated[bytes, Bstr()]
    approver_identity: Annotated[bytes, Bstr()]
    policy_group_id: Annotated[bytes | None, Bstr(optional=True)]
    decision: Annotated[str, body_text()]
    decision_time: Annotated[int | None, Uint(optional=True)] = None
    parent_operation_id: Annotated[bytes | None, PARENT] = None
    metadata: Annotated[bytes | None, METADATA] = None


@operation("recovery.execution.v1")
class RecoveryExecution(Operation):
    """§8. Replaces the identity. `approval_references` are the operation ids of the approvals."""

    target_identity: Annotated[bytes, Bstr()]
    new_identity: Annotated[bytes, Bstr()]
    applied_time: Annotated[int | None, Uint(optional=True)]
    approval_references: Annotated[tuple[bytes, ...], ids("approval")]
    metadata: Annotated[bytes | None, METADATA] = None

    def flaw(self) -> str | None:
        return repeated(self.approval_references, "approvals")


@operation("query.audit.v1")
class QueryAudit(Operation):
    """§9. A read of a sensitive resource: requester, resource and purpose."""

    requester_identity: Annotated[bytes, Bstr()]
    resource_identifier: Annotated[str, body_text()]
    resource_class: Annotated[str, body_text()]
    query_parameters: Annotated[bytes | None, anything(optional=True)] = None
    purpose_code: Annotated[str | None, body_text(optional=True)] = None
    result_digest: Annotated[bytes | None, Bstr(optional=True)] = None
    request_time: Annotated[int | None, Uint(optional=True)] = None
    metadata: Annotated[bytes | None, METADATA] = None


@operation("federation.mirror.v1")
class Mirror(Operation):
    """§10. A message of another hub, identified by the fields of its receipt. The header's `parent_id` names it."""

    source_hub_identifier: Annotated[str, body_text()]
    source_label: Annotated[bytes, Bstr()]
    source_stream_seq: Annotated[int, Uint()]
    source_leaf_hash: Annotated[bytes, Bstr()]
    source_receipt_root: Annotated[bytes, Bstr()]
    target_label: Annotated[bytes, Bstr()]
    mirror_time: Annotated[int | None, Uint(optional=True)] = None
    metadata: Annotated[bytes | None, METADATA] = None
