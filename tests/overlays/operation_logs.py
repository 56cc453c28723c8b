"""Histories of operations: a log that keeps every rule with its external facts, and ways to break each rule."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256

from tests.overlays.logs import CLIENTS, LABEL, START, msg_id
from veen.core import PayloadHdr, Receipt, cbor, mmr, naming
from veen.core.cap_token import mint
from veen.core.receipt import sign
from veen.core.signing import SigningKey
from veen.overlays import FoldEntry, fold, state_hash
from veen.overlays.operations.operation_events import (
    AccessGrant,
    Confirmation,
    Definition,
    Delegated,
    Mirror,
    Operation,
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
from veen.overlays.operations.payment import PAYMENTS
from veen.overlays.operations.rules import (
    AccessFact,
    CapabilityFact,
    Decision,
    Effect,
    ExternalFacts,
    FactSource,
    LogPlace,
    Rule,
    UsedVersion,
)

ROOT = sha256(b"the capability that was there first").digest()
STREAM = naming.stream_id("deeds")
NULL = cbor.encode(None)


def name(text: str) -> bytes:
    return sha256(text.encode()).digest()


A, B, C, D = (name(one) for one in "abcd")
KEYS = tuple(SigningKey(name(f"key {number}")) for number in range(4))
HUB = SigningKey(name("another hub"))


@dataclass
class OperationHistory:
    """A log under construction and the external facts of its domain."""

    log: list[FoldEntry] = field(default_factory=list)
    processed: list[LogPlace] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    capabilities: dict[bytes, CapabilityFact] = field(default_factory=dict)
    decisions: dict[tuple[bytes, int, bytes], str] = field(default_factory=dict)
    versions: dict[bytes, int] = field(default_factory=dict)
    definitions: int = 0
    confirmations: int = 0
    releases: int = 0
    mirrored: int = 0
    recovered: int = 0
    accesses: list[AccessFact] = field(default_factory=list)
    sources: dict[FactSource, Receipt] = field(default_factory=dict)
    taken: tuple[UsedVersion, ...] = ()

    def add(
        self,
        event: Operation,
        client: int = 0,
        auth_ref: bytes | None = ROOT,
        parent_id: bytes | None = None,
    ) -> bytes:
        """Log an operation and return its id."""
        seq = len(self.log) + 1
        header = PayloadHdr(event.SCHEMA, parent_id)
        placed = (LABEL, 0, seq, START + seq, CLIENTS[client], auth_ref, msg_id(seq))
        self.log.append(FoldEntry(*placed, header, event.encode()))
        return operation_id(msg_id(seq))

    def world(self) -> ExternalFacts:
        return ExternalFacts(
            stream_id=STREAM,
            processed=tuple(self.processed),
            effects=tuple(self.effects),
            granters=frozenset({CLIENTS[0]}),
            bootstrapped=frozenset({ROOT}),
            capabilities=self.capabilities,
            decisions=tuple(Decision(*key, decision) for key, decision in self.decisions.items()),
            taken=self.taken,
            executors=frozenset({CLIENTS[0]}),
            accesses=tuple(self.accesses),
            regulated=frozenset({"patient"}),
            sources=self.sources,
        )

    def capability(self, issuer: int, subject: bytes) -> bytes:
        token = mint(KEYS[issuer], subject, [STREAM], 3600)
        self.capabilities[token.auth_ref()] = CapabilityFact(token, START)
        return token.auth_ref()

    def snapshot(self, state_id: bytes = A) -> StateCheckpoint:
        """Log a checkpoint of the current state."""
        root, states = mmr.root(one.msg_id for one in self.log), fold(PAYMENTS, self.log).states
        return StateCheckpoint(state_id, len(self.log), root, state_hash(PAYMENTS, states), "paid.operation")


def paid(amount: int = 5, payer: bytes = A, payee: bytes = B, **more: object) -> Paid:
    return replace(Paid("store", NULL, payer, payee, amount, "JPY"), **more)  # type: ignore[arg-type]


def pay(deeds: OperationHistory) -> None:
    made = deeds.add(paid())
    deeds.processed.append(LogPlace(LABEL, len(deeds.log)))
    deeds.effects += [Effect(made, False, made), Effect(made, True)]


def grant(deeds: OperationHistory) -> None:
    deeds.add(AccessGrant(CLIENTS[1], "two", (STREAM,), START + 10_000))
    deeds.add(paid(), client=1, auth_ref=None)
    deeds.processed.append(LogPlace(LABEL, len(deeds.log)))


def revoke(deeds: OperationHistory) -> None:
    deeds.add(Revoke(name("gone"), ROOT if len(deeds.log) % 2 else None))


def delegate(deeds: OperationHistory) -> None:
    principal, agent = KEYS[1].public_key, KEYS[2].public_key
    chain = (deeds.capability(0, principal), deeds.capability(1, agent))
    deeds.add(Delegated(principal, agent, chain, Paid.SCHEMA, paid().encode()))


def agree(deeds: OperationHistory) -> None:
    if deeds.confirmations >= deeds.definitions:
        deeds.definitions += 1
        deeds.add(Definition(A, deeds.definitions, B, None, (C, D)))
    for party, decision in ((C, "accept"), (D, "accept"), (C, "reject")):
        deeds.confirmations += 1
        deeds.add(Confirmation(A, deeds.definitions, party, decision))
        deeds.decisions[A, deeds.definitions, party] = decision


def publish(deeds: OperationHistory) -> None:
    deeds.releases += 1
    version = f"v1.{deeds.releases}"
    deeds.add(Publication(A, B, C, "model", version))
    deeds.taken = (UsedVersion(A, version),)


def snap(deeds: OperationHistory) -> None:
    if deeds.log:
        deeds.add(deeds.snapshot(name(f"state {len(deeds.log)}")))


def recover(deeds: OperationHistory) -> None:
    deeds.recovered += 1
    target, new = name(f"target {deeds.recovered}"), name(f"new {deeds.recovered}")
    request = deeds.add(RecoveryRequest(target, new))
    refs = [deeds.add(RecoveryApproval(target, new, one, None, "approve", None, request)) for one in (C, D)]
    deeds.add(RecoveryExecution(target, new, None, tuple(refs)))


def query(deeds: OperationHistory) -> None:
    deeds.add(QueryAudit(A, "patient:7", "patient", None, "treatment", B))
    deeds.accesses.append(AccessFact(A, "patient:7", "patient", B))


def mirrored(deeds: OperationHistory) -> Mirror:
    deeds.mirrored += 1
    seq = deeds.mirrored
    receipt = sign(HUB, label=C, stream_seq=seq, leaf_hash=name(f"leaf {seq}"), mmr_root=D, hub_ts=START)
    deeds.sources[FactSource("hub.example", C, seq)] = receipt
    return Mirror("hub.example", C, seq, receipt.leaf_hash, receipt.mmr_root, LABEL)


def mirror(deeds: OperationHistory) -> None:
    event = mirrored(deeds)
    deeds.add(event, parent_id=event.source_leaf_hash)


RIGHT: tuple[Callable[[OperationHistory], None], ...] = (
    pay, grant, revoke, delegate, agree, publish, snap, recover, query, mirror,
)  # fmt: skip


def _pay_twice(deeds: OperationHistory) -> None:
    pay(deeds)
    deeds.processed.append(deeds.processed[-1])


def _effect_without_key(deeds: OperationHistory) -> None:
    made = deeds.add(paid())
    deeds.effects.append(Effect(made, False, A))


def _grant_by_anyone(deeds: OperationHistory) -> None:
    deeds.add(AccessGrant(A, None, (STREAM,), START + 10_000), client=2)


def _write_without_leave(deeds: OperationHistory) -> None:
    deeds.add(QueryAudit(A, "x", "x"), client=2, auth_ref=None)


def _empty_chain(deeds: OperationHistory) -> None:
    deeds.add(Delegated(A, B, (), Paid.SCHEMA, NULL))


def _chain_that_ran_out(deeds: OperationHistory) -> None:
    principal, agent = KEYS[1].public_key, KEYS[3].public_key
    first, last = deeds.capability(0, principal), deeds.capability(1, agent)
    deeds.capabilities[last] = replace(deeds.capabilities[last], issued_at=START - 4000)
    deeds.add(Delegated(principal, agent, (first, last), Paid.SCHEMA, NULL))


def _chain_with_a_gap(deeds: OperationHistory) -> None:
    principal, agent = KEYS[1].public_key, KEYS[3].public_key
    chain = (deeds.capability(0, principal), deeds.capability(2, agent))
    deeds.add(Delegated(principal, agent, chain, Paid.SCHEMA, NULL))


def _decision_taken_wrong(deeds: OperationHistory) -> None:
    agree(deeds)
    deeds.decisions[A, deeds.definitions, C] = "accept"  # an earlier one


def _version_again(deeds: OperationHistory) -> None:
    agree(deeds)
    deeds.add(Definition(A, deeds.definitions, C, None, (C, D)))


def _publish_again(deeds: OperationHistory) -> None:
    publish(deeds)
    deeds.add(Publication(A, B, D, "model", f"v1.{deeds.releases}"))


def _old_version_used(deeds: OperationHistory) -> None:
    publish(deeds)
    old = deeds.taken
    publish(deeds)
    deeds.taken = old


def _snapshot_twice(deeds: OperationHistory) -> None:
    pay(deeds)
    made = deeds.snapshot()
    deeds.add(made)
    deeds.add(made)


def _snapshot_of_another_state(deeds: OperationHistory) -> None:
    pay(deeds)
    deeds.add(replace(deeds.snapshot(), state_hash=D))


def _approval_that_is_none(deeds: OperationHistory) -> None:
    deeds.add(RecoveryExecution(A, B, None, (D,)))


def _approval_that_rejects(deeds: OperationHistory) -> None:
    ref = deeds.add(RecoveryApproval(A, B, C, None, "reject"))
    deeds.add(RecoveryExecution(A, B, None, (ref,)))


def _execution_by_anyone(deeds: OperationHistory) -> None:
    ref = deeds.add(RecoveryApproval(A, B, C, None, "approve"))
    deeds.add(RecoveryExecution(A, B, None, (ref,)), client=2)


def _unlogged_read(deeds: OperationHistory) -> None:
    deeds.accesses.append(AccessFact(B, "patient:8", "patient", None))


def _mirror_of_something_else(deeds: OperationHistory) -> None:
    event = replace(mirrored(deeds), source_receipt_root=A)
    deeds.add(event, parent_id=event.source_leaf_hash)


def _mirror_twice(deeds: OperationHistory) -> None:
    event = mirrored(deeds)
    deeds.add(event, parent_id=event.source_leaf_hash)
    deeds.add(event, parent_id=event.source_leaf_hash)


WRONG: dict[Rule, Callable[[OperationHistory], None]] = {
    Rule.PAID_P1: _pay_twice,
    Rule.PAID_P2: _effect_without_key,
    Rule.ACCESS_A1: _grant_by_anyone,
    Rule.ACCESS_A2: _write_without_leave,
    Rule.DELEGATED_D1: _empty_chain,
    Rule.DELEGATED_D2: _chain_that_ran_out,
    Rule.DELEGATED_D3: _chain_with_a_gap,
    Rule.AGREEMENT_M1: _decision_taken_wrong,
    Rule.AGREEMENT_M2: _version_again,
    Rule.PUBLICATION_P1: _publish_again,
    Rule.PUBLICATION_P2: _old_version_used,
    Rule.SNAPSHOT_S1: _snapshot_twice,
    Rule.SNAPSHOT_S2: _snapshot_of_another_state,
    Rule.RECOVERY_R1: _approval_that_is_none,
    Rule.RECOVERY_R2: _approval_that_rejects,
    Rule.RECOVERY_R3: _execution_by_anyone,
    Rule.QUERY_Q1: _unlogged_read,
    Rule.MIRROR_F1: _mirror_of_something_else,
    Rule.MIRROR_F2: _mirror_twice,
}
