"""Logs of the nine operation profiles with golden states."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from vectors.form import Doc, secret
from vectors.overlays.logs import START, Line, folded, msg_id
from veen.core import cbor
from veen.core.hashing import U64_MAX
from veen.overlays import AnyOverlay
from veen.overlays.operations.access import ACCESS
from veen.overlays.operations.agreement import AGREEMENTS
from veen.overlays.operations.delegation import DELEGATIONS
from veen.overlays.operations.mirror import MIRRORS
from veen.overlays.operations.operation_events import (
    AccessGrant,
    Confirmation,
    Definition,
    Delegated,
    Mirror,
    Paid,
    Publication,
    QueryAudit,
    RecoveryApproval,
    RecoveryExecution,
    RecoveryRequest,
    Revoke,
    StateCheckpoint,
    operation_id,
)
from veen.overlays.operations.operation_index import OPERATIONS
from veen.overlays.operations.payment import PAYMENTS
from veen.overlays.operations.publication import PUBLICATIONS
from veen.overlays.operations.query_audit import QUERY_AUDITS
from veen.overlays.operations.recovery import RECOVERIES
from veen.overlays.operations.state_statement import SNAPSHOTS

A, B, C, D = (secret(f"operation {name}") for name in ("a", "b", "c", "d"))
NULL, NOTE = cbor.encode(None), cbor.encode({"note": ["x", 1, -1, True]})
PAID = Paid("translate", cbor.encode({"to": "ja"}), A, B, 300, "JPY", C, None, 60, NOTE)


def op(number: int) -> bytes:
    """The operation id of the entry with this number."""
    return operation_id(msg_id(number))


PAID_LOG = (
    Line("a paid operation", PAID),
    Line("the default unit", Paid("store", NULL, A, B, 7)),
    Line("a payment back, in answer to the first", replace(PAID, payer_account=B, payee_account=A, amount=100)),
    Line("to oneself", replace(PAID, payee_account=A)),
    Line("a mirrored copy of the first", PAID, msg_id(1), client=1),
    Line("after its time", PAID, expires_at=START, client=1),
    Line("beyond 64 bits", replace(PAID, amount=U64_MAX)),
    Line("a body with a key too many", PAID, body=b"\xa1\x61x\x00"),
)
ACCESS_LOG = (
    Line("a grant", AccessGrant(A, "alice", (C, D), START + 100, 10, 20, 500, "JPY", "project", None)),
    Line("a grant of nothing", AccessGrant(B, None, (), 0)),
    Line("another for the first", AccessGrant(A, None, (C,), START + 900)),
    Line("a capability is revoked", Revoke(A, D, "lost")),
    Line("a grant is revoked by its operation id", Revoke(A, op(1))),
    Line("all of a subject's are revoked", Revoke(B, None, None, op(2)), client=1),
    Line("a grant after that stands", AccessGrant(B, None, (D,), START + 900)),
    Line(
        "a stream named twice",
        AccessGrant(B, None, (D,), 0),
        body=AccessGrant(B, None, (C, D), 0).encode().replace(C, D),
    ),
    Line("a mirrored copy", Revoke(A, D, "lost"), msg_id(4), client=2),
)
DELEGATED_LOG = (
    Line("an execution", Delegated(A, B, (C, D), Paid.SCHEMA, PAID.encode(), op(9), NOTE)),
    Line("a chain of one", Delegated(A, A, (C,), D, NULL), client=1),
    Line("an empty chain", Delegated(A, B, (), D, NULL)),
    Line("a mirrored copy of the first", Delegated(A, B, (C, D), D, NULL), msg_id(1), client=2),
    Line("a mirrored one whose original is not here", Delegated(A, B, (C,), D, NULL), secret("elsewhere"), client=2),
    Line("a payload that does not open", Delegated(A, B, (C,), D, NULL), sealed=True),
)
TERMS = Definition(A, 1, B, None, (C, D), START, START + 999, NOTE)
AGREEMENT_LOG = (
    Line("a decision on nothing", Confirmation(A, 1, C, "accept")),
    Line("a definition", TERMS),
    Line("a party accepts", Confirmation(A, 1, D, "accept", START, op(2)), client=1),
    Line("the other rejects", Confirmation(A, 1, C, "reject")),
    Line("and then accepts", Confirmation(A, 1, C, "accept", None, None, NOTE)),
    Line("who is no party", Confirmation(A, 1, B, "accept")),
    Line("a version that is not above", replace(TERMS, terms_hash=D)),
    Line("a higher version", replace(TERMS, version=3, terms_attachment_root=D, effective_time=None)),
    Line("a lower version", replace(TERMS, version=2)),
    Line("it is withdrawn from", Confirmation(A, 1, D, "withdraw")),
    Line("an agreement of nobody", Definition(B, 0, B, None, ())),
)
RELEASE = Publication(A, B, C, "model", "v1.9", ("beta", ""), "https://example.com/m", NOTE)
PUBLICATION_LOG = (
    Line("a version", RELEASE),
    Line("a higher one", replace(RELEASE, version="v1.10", content_root=D, labels=())),
    Line("the first again, with other content", replace(RELEASE, content_root=D)),
    Line("a lower one, which is the latest", replace(RELEASE, version="v1.8", labels=None, source_uri=None)),
    Line("a mirrored copy of the second", replace(RELEASE, version="v1.10", content_root=D, labels=()), msg_id(2)),
    Line("another publication", replace(RELEASE, publication_id=B, version="")),
)
KEPT = StateCheckpoint(A, 7, B, C, "wallet.ledger", NOTE)
SNAPSHOT_LOG = (
    Line("a checkpoint", KEPT),
    Line("of another place", replace(KEPT, upto_stream_seq=U64_MAX)),
    Line("a second for the first place, which counts", replace(KEPT, state_hash=D, metadata=None), client=1),
    Line("of another state", replace(KEPT, state_id=B, state_class="kv")),
    Line("a mirrored copy of the first", KEPT, msg_id(1), client=2),
    Line("all keys but one missing", KEPT, body=b"\xa1\x68state_id\x58\x20" + A),
)
RECOVERY_LOG = (
    Line("an approval without a request", RecoveryApproval(A, B, C, None, "approve")),
    Line("a request", RecoveryRequest(A, B, "lost my phone", START, NOTE)),
    Line("the same again", RecoveryRequest(A, B)),
    Line("a request for another", RecoveryRequest(A, D)),
    Line("an approval", RecoveryApproval(A, B, C, D, "approve", START, op(2), NOTE), client=1),
    Line("a rejection", RecoveryApproval(A, B, D, None, "reject")),
    Line("an approval of the other request", RecoveryApproval(A, D, C, None, "approve")),
    Line("an execution by an approval that comes later", RecoveryExecution(A, B, None, (op(20),))),
    Line("an execution by a rejection", RecoveryExecution(A, B, None, (op(5), op(6)))),
    Line("an execution by an approval of another change", RecoveryExecution(A, B, None, (op(7),))),
    Line("an execution by nobody", RecoveryExecution(A, B, None, ())),
    Line("an execution", RecoveryExecution(A, B, START, (op(5),), NOTE)),
    Line("an execution by an approval that was used", RecoveryExecution(A, D, None, (op(7),))),
    Line("a request after that", RecoveryRequest(A, C)),
)
READ = QueryAudit(A, "patient:1234", "personal-data", NOTE, "treatment", B, START, NULL)
AUDIT_LOG = (
    Line("a read", READ),
    Line("another, for another purpose", replace(READ, purpose_code="billing"), after=60),
    Line("without a purpose", QueryAudit(A, "patient:1234", "personal-data")),
    Line("of another resource", replace(READ, resource_identifier="")),
    Line("by another", replace(READ, requester_identity=C), client=1),
    Line("a mirrored copy", READ, msg_id(1), client=2),
)


def mirror(note: str, seq: int, parent: bytes | None = None, **more: bytes) -> Line:
    event = replace(Mirror("hub.example", A, seq, secret(f"leaf {seq}"), B, C, START, NOTE), **more)  # type: ignore[arg-type]
    return Line(note, event, parent or event.source_leaf_hash, client=2)


MIRROR_LOG = (
    mirror("a mirrored message", 5),
    mirror("the one before it", 4),
    mirror("one further on", 7),
    mirror("what fills the gap", 6),
    mirror("the same again", 5),
    mirror("for another target", 5, target_label=D),
    mirror("under another parent", 9, parent=D),
    mirror("a message 0", 0),
    mirror("the last there can be", U64_MAX),
)
INDEX_LOG = (
    PAID_LOG[0],
    ACCESS_LOG[0],
    ACCESS_LOG[3],
    DELEGATED_LOG[0],
    DELEGATED_LOG[2],
    AGREEMENT_LOG[0],
    AGREEMENT_LOG[1],
    PUBLICATION_LOG[0],
    SNAPSHOT_LOG[0],
    *RECOVERY_LOG[:2],
    RECOVERY_LOG[8],
    AUDIT_LOG[0],
    MIRROR_LOG[0],
    Line("a mirrored copy of the first", PAID, msg_id(1), client=1),
    MIRROR_LOG[0],
    PAID_LOG[-1],
)
LOGS: dict[str, tuple[AnyOverlay, Sequence[Line]]] = {
    "operation-paid.json": (PAYMENTS, PAID_LOG),
    "operation-access.json": (ACCESS, ACCESS_LOG),
    "operation-delegated.json": (DELEGATIONS, DELEGATED_LOG),
    "operation-agreement.json": (AGREEMENTS, AGREEMENT_LOG),
    "operation-publication.json": (PUBLICATIONS, PUBLICATION_LOG),
    "operation-snapshot.json": (SNAPSHOTS, SNAPSHOT_LOG),
    "operation-recovery.json": (RECOVERIES, RECOVERY_LOG),
    "operation-query.json": (QUERY_AUDITS, AUDIT_LOG),
    "operation-mirror.json": (MIRRORS, MIRROR_LOG),
    "operation-index.json": (OPERATIONS, INDEX_LOG),
}


def _made(name: str) -> Callable[[], Doc]:
    return lambda: folded(*LOGS[name])


GENERATED: dict[str, Callable[[], Doc]] = {name: _made(name) for name in LOGS}
