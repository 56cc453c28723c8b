"""Ways to break a hub, one behaviour at a time; every check must detect at least one of them."""

import re
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.selftest.admission_oracle import AdmissionOracle
from tests.selftest.broken_hub import Answer, Breakage, Call, Forger, Handle, alter_answer, alter_request, refusals
from veen.core import CapToken, MmrProof, Msg, Receipt, SigningKey, hub_identity, naming, wire_json
from veen.core import receipt as receipts
from veen.core.admission import BY_DETAIL, STATUS, AdmissionStage
from veen.core.cap_token import decode_capability, token_of
from veen.core.cbor import DeferredFaults
from veen.core.envelopes import (
    AuthorizeResponse,
    CheckpointResponse,
    ErrorEnvelope,
    ProofAtResponse,
    ProofResponse,
    ReceiptResponse,
    StreamRequest,
    StreamResponse,
    SubmitRequest,
    SubmitResponse,
)

SUBMIT, STREAM, AUTHORIZE = "/v1/submit", "/v1/stream", "/tooling/authorize"


@dataclass(frozen=True)
class Case:
    """A breakage and the check that must fail because of it."""

    check: str
    name: str
    breakage: Breakage
    strict: bool = False  # use the strict hub instead of the open one

    def __str__(self) -> str:
        return f"{self.check}: {self.name}"


# Changed rejections.


def accepts(row: str, path: str | None = None, *, only_json: bool = False) -> Breakage:
    """Accept what that row rejects, with a receipt signed by the hub's own key."""

    def make(forger: Forger) -> Handle:
        place = Counter[str]()

        def accepted(answer: Answer) -> Answer:
            place["next"] += 1
            made = receipts.sign(
                forger.key,
                label=secrets.token_bytes(32),
                stream_seq=1000 + place["next"],
                leaf_hash=secrets.token_bytes(32),
                mmr_root=secrets.token_bytes(32),
                hub_ts=int(forger.hub.clock()),
            )
            response = AuthorizeResponse(secrets.token_bytes(32), made.hub_ts, made) if path == AUTHORIZE else None
            return replace(answer.write(response or SubmitResponse(made), 200), headers=without_retry(answer))

        return refusals(row, accepted, path, only_json=only_json)(forger)

    return make


def without_retry(answer: Answer) -> dict[str, str]:
    return {name: text for name, text in answer.headers.items() if name != "retry-after"}


def as_row(answer: Answer, row: str) -> Answer:
    """Turn an answer into the rejection of another row."""
    due = BY_DETAIL[row]
    return answer.error(due.code, stage=str(due.stage), detail_enum=row)


def detail(answer: Answer, **changed: str | None) -> Answer:
    envelope = answer.read(ErrorEnvelope)
    detail = {name: text for name, text in {**(envelope.detail or {}), **changed}.items() if text is not None}
    return answer.write(replace(envelope, detail=detail or None))


def other_code(answer: Answer) -> Answer:
    envelope = answer.read(ErrorEnvelope)
    code = "E.SEQ" if envelope.code != "E.SEQ" else "E.FORMAT"
    return answer.write(replace(envelope, code=code), STATUS[code])


def crash(answer: Answer) -> Answer:
    return Answer(500, b"oops", {"content-type": "text/plain"})


def row_cases(row: str) -> list[Case]:
    """Break each part of a rejection separately."""
    check, path = f"refuse.{row}", AUTHORIZE if row == "CAP_INVALID" else SUBMIT
    strict = row == "EPOCH"
    cases = [
        Case(check, "accepted", accepts(row, path), strict),
        Case(check, "another detail_enum", refusals(row, lambda a: detail(a, detail_enum="OTHER"), path), strict),
    ]
    if row != "CAP_TTL":  # each run waits for a capability to expire
        cases += [
            Case(check, "another code", refusals(row, other_code, path), strict),
            Case(check, "another stage", refusals(row, lambda a: detail(a, stage="nowhere"), path), strict),
            Case(check, "no stage", refusals(row, lambda a: detail(a, stage=None), path), strict),
            Case(check, "another status", refusals(row, lambda a: replace(a, status=418), path), strict),
            Case(check, "no envelope", refusals(row, lambda a: replace(a, body=b"no"), path), strict),
        ]
    return cases


def latest(first: AdmissionStage | None = None, second: AdmissionStage | None = None) -> Breakage:
    """Report the last fault in the table instead of the first, for these two stages or all."""

    def make(forger: Forger) -> Handle:
        oracle = AdmissionOracle(forger.hub)

        def handle(call: Call) -> Answer:
            answer = call.ask()
            oracle.watch(call, answer)
            if call.path != SUBMIT or answer.status == 200:
                return answer
            found = answer.row() or ""
            others = [row for row in oracle.rows(call.body) if row != found]
            if first is not None:
                others = [row for row in others if (BY_DETAIL[found].stage, BY_DETAIL[row].stage) == (first, second)]
            return as_row(answer, others[-1]) if others else answer

        return handle

    return make


# Changed receipts, proofs, checkpoints and pages.


def flip(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def receipts_say(change: Callable[[Forger, Receipt], Receipt]) -> Breakage:
    return alter_answer(
        SUBMIT, SubmitResponse, lambda forger, response: replace(response, receipt=change(forger, response.receipt))
    )


def fetched_receipts_say(**changed: Callable[[Receipt], Any]) -> Breakage:
    def change(forger: Forger, response: ReceiptResponse) -> ReceiptResponse:
        wanted = {name: make(response.receipt) for name, make in changed.items()}
        return replace(response, receipt=forger.receipt(response.receipt, **wanted))

    return alter_answer("/v1/receipt", ReceiptResponse, change)


def counted(key: Callable[[Msg], bytes]) -> Breakage:
    """Let stream_seq count something other than the entries of a label."""

    def make(forger: Forger) -> Handle:
        count = Counter[bytes]()

        def handle(call: Call) -> Answer:
            answer = call.ask()
            if call.path != SUBMIT or answer.status != 200:
                return answer
            name = key(call.read(SubmitRequest).msg)
            count[name] += 1
            response = answer.read(SubmitResponse)
            return answer.write(replace(response, receipt=forger.receipt(response.receipt, stream_seq=count[name])))

        return handle

    return make


def proofs_say(path: str, change: Callable[[MmrProof], MmrProof]) -> Breakage:
    if path == "/v1/proof":
        return alter_answer(
            path, ProofResponse, lambda _, response: replace(response, mmr_proof=change(response.mmr_proof))
        )
    return alter_answer(
        path, ProofAtResponse, lambda _, response: replace(response, mmr_proof=change(response.mmr_proof))
    )


def other_sibling(proof: MmrProof) -> MmrProof:
    if not proof.path:
        return proof
    return replace(proof, path=(replace(proof.path[0], sib=flip(proof.path[0].sib)), *proof.path[1:]))


def peaks_reversed(proof: MmrProof) -> MmrProof:
    return replace(proof, peaks_after=proof.peaks_after[::-1])


def leaf_flipped(proof: MmrProof) -> MmrProof:
    return replace(proof, leaf_hash=flip(proof.leaf_hash))


def checkpoints_say(**changed: Callable[[Any], Any]) -> Breakage:
    def change(forger: Forger, response: CheckpointResponse) -> CheckpointResponse:
        wanted = {name: make(response.checkpoint) for name, make in changed.items()}
        return replace(response, checkpoint=forger.checkpoint(response.checkpoint, **wanted))

    return alter_answer("/v1/checkpoint", CheckpointResponse, change)


def random_witness(_: Forger, response: CheckpointResponse) -> CheckpointResponse:
    return replace(response, checkpoint=replace(response.checkpoint, witness_sigs=(secrets.token_bytes(64),)))


def bad_checkpoint_sig(_: Forger, response: CheckpointResponse) -> CheckpointResponse:
    return replace(response, checkpoint=replace(response.checkpoint, hub_sig=flip(response.checkpoint.hub_sig)))


def pages_say(change: Callable[[StreamResponse], StreamResponse]) -> Breakage:
    return alter_answer(STREAM, StreamResponse, lambda _, page: change(page))


def pages_for(change: Callable[[StreamRequest], StreamRequest]) -> Breakage:
    return alter_request(STREAM, StreamRequest, change)


def last_two_swapped(page: StreamResponse) -> StreamResponse:
    if len(page.items) < 2:
        return page
    *before, one, other = page.items
    return replace(page, items=(*before, replace(one, msg=other.msg), replace(other, msg=one.msg)))


def always_more(page: StreamResponse) -> StreamResponse:
    last = page.items[-1].stream_seq if page.items else page.from_seq
    return replace(page, next_cursor=last + 1)


def endless(page: StreamResponse) -> StreamResponse:
    return replace(page, items=(), next_cursor=page.from_seq + 1)


def skips_one(page: StreamResponse) -> StreamResponse:
    return replace(page, next_cursor=page.next_cursor + 1 if page.next_cursor else None)


def without_receipts(page: StreamResponse) -> StreamResponse:
    return replace(page, items=tuple(replace(item, receipt=None) for item in page.items))


def exclusive(request: StreamRequest) -> StreamRequest:
    return replace(request, to_seq=None if request.to_seq is None else max(request.to_seq, 1) - 1)


def no_empty_pages(forger: Forger) -> Handle:
    """Answer a range beyond the end with an error."""

    def handle(call: Call) -> Answer:
        answer = call.ask()
        if call.path == STREAM and answer.status == 200 and not answer.read(StreamResponse).items:
            return answer.error("E.NOT_FOUND")
        return answer

    return handle


# Other breakages.


def stranger(shown: dict[str, Any]) -> None:
    """A consistent status of another hub."""
    key = SigningKey.generate()
    record = hub_identity.create(key, valid_from=0)
    shown["identity"] = wire_json.to_json(record)
    shown["identity_sig"] = wire_json.to_json(hub_identity.sign(record, key))
    shown["hub_id"], shown["hub_pk"] = record.hub_id.hex(), key.public_key.hex()
    shown["key_id"] = record.newest.key_id.hex()


def backwards() -> Callable[[dict[str, Any]], object]:
    """Each status has an earlier time than the one before."""
    count = Counter[str]()

    def change(shown: dict[str, Any]) -> None:
        count["looks"] += 1
        shown["hub_ts"] -= 60 * count["looks"]  # more than can pass between two requests

    return change


def answers_status(path: str, status: int) -> Breakage:
    def make(forger: Forger) -> Handle:
        return lambda call: replace(call.ask(), status=status) if call.path == path else call.ask()

    return make


def refused_count(forger: Forger) -> Handle:
    """A rejection at commit uses up its client_seq."""
    burnt: set[bytes] = set()

    def handle(call: Call) -> Answer:
        answer = call.ask()
        if call.path == SUBMIT and not call.is_json:
            client = call.read(SubmitRequest).msg.client_id
            if answer.status == 200 and client in burnt:
                return as_row(answer, "CLIENT_SEQ")
            if answer.status != 200:
                burnt.add(client)
        return answer

    return handle


def narrow(forger: Forger) -> Handle:
    """Accept only labels of the current epoch."""
    tokens: dict[bytes, CapToken] = {}

    def handle(call: Call) -> Answer:
        answer = call.ask()
        if call.path == AUTHORIZE and answer.status == 200:
            token = token_of(decode_capability(call.body))
            tokens[token.auth_ref()] = token
        elif call.path == SUBMIT and answer.status == 200:
            message, rules = call.read(SubmitRequest).msg, forger.hub.service.rules
            now = rules.profile.epoch(int(forger.hub.clock()))
            streams = tokens[message.auth_ref or b""].allow.stream_ids
            if message.label not in {naming.label(rules.routing_key, stream, now) for stream in streams}:
                return as_row(answer, "EPOCH")
        return answer

    return handle


def no_capability_admits(forger: Forger) -> Handle:
    def handle(call: Call) -> Answer:
        answer = call.ask()
        if call.path == SUBMIT and answer.status == 200 and call.read(SubmitRequest).msg.auth_ref:
            return as_row(answer, "CAP_MISSING")
        return answer

    return handle


def renewed(forger: Forger) -> Handle:
    """A capability authorized again gets a later expiry."""
    count = Counter[str]()

    def change(_: Forger, response: AuthorizeResponse) -> AuthorizeResponse:
        count["shown"] += 1
        return replace(response, expires_at=response.expires_at + count["shown"])

    return alter_answer(AUTHORIZE, AuthorizeResponse, change)(forger)


def no_long_chains(forger: Forger) -> Handle:
    def handle(call: Call) -> Answer:
        answer = call.ask()
        if (
            call.path == AUTHORIZE
            and answer.status == 200
            and len(token_of(decode_capability(call.body)).sig_chain) > 1
        ):
            return as_row(answer, "CAP_INVALID")
        return answer

    return handle


def refusals_spend(forger: Forger) -> Handle:
    """Rejected messages use up rate, too."""
    refused = Counter[bytes | None]()

    def handle(call: Call) -> Answer:
        answer = call.ask()
        if call.path == SUBMIT and not call.is_json:
            auth_ref = call.read(SubmitRequest).msg.auth_ref
            refused[auth_ref] += answer.status != 200
            if answer.status == 200 and refused[auth_ref] > 1:
                return as_row(answer, "CAP_RATE")
        return answer

    return handle


def too_large_above(size: int) -> Breakage:
    def make(forger: Forger) -> Handle:
        def handle(call: Call) -> Answer:
            answer = call.ask()
            big = call.path == SUBMIT and len(call.body) > size
            return as_row(answer, "SIZE_PREFILTER") if big and answer.status == 200 else answer

        return handle

    return make


def takes_one_more(forger: Forger) -> Handle:
    """Accept one byte more than the size limit."""
    most = forger.hub.service.rules.limits.max_msg_bytes

    def handle(call: Call) -> Answer:
        answer = call.ask()
        one_more = call.path == SUBMIT and len(call.body) == most + 5
        return as_row(answer, "FIELD_SIZE") if one_more else answer

    return handle


def json_answers(change: Callable[[Answer], Answer]) -> Breakage:
    """Change every answer to a JSON request."""

    def make(forger: Forger) -> Handle:
        return lambda call: change(call.ask()) if call.is_json else call.ask()

    return make


def capital_digits(answer: Answer) -> Answer:
    body = re.sub(rb'"[0-9a-f]{64}"', lambda found: found[0].upper(), answer.body)
    return replace(answer, body=body)


def json_receipt_of_another_time(forger: Forger) -> Handle:
    def change(_: Forger, response: SubmitResponse) -> SubmitResponse:
        return replace(response, receipt=forger.receipt(response.receipt, hub_ts=response.receipt.hub_ts + 1))

    changed = alter_answer(SUBMIT, SubmitResponse, change)(forger)
    return lambda call: changed(call) if call.is_json else call.ask()


def batch_says(change: Callable[[bytes], bytes]) -> Breakage:
    def make(forger: Forger) -> Handle:
        def handle(call: Call) -> Answer:
            answer = call.ask()
            return replace(answer, body=change(answer.body)) if call.path == "/tooling/submit-batch" else answer

        return handle

    return make


def first_outcome_last(body: bytes) -> bytes:
    _, end = Receipt.read(body, 0, DeferredFaults())
    return body[end:] + body[:end]


def attachments_say(method: str, change: Callable[[Call, Answer], Answer]) -> Breakage:
    def make(forger: Forger) -> Handle:
        def handle(call: Call) -> Answer:
            answer = call.ask()
            applies = call.path.startswith("/tooling/attachments/") and call.method == method
            return change(call, answer) if applies else answer

        return handle

    return make


def rejects_after_damage(forger: Forger) -> Handle:
    """Reject everything after a damaged message."""
    hurt = Counter[str]()

    def handle(call: Call) -> Answer:
        answer = call.ask()
        if call.path == SUBMIT:
            hurt["times"] += answer.status == 400
            if answer.status == 200 and hurt["times"]:
                return answer.error("E.CONFLICT")
        return answer

    return handle
