"""Python and TypeScript give the same answers: for the vectors, for mutated files, and for strange signatures."""

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any, TypeAlias

import pytest

from tests.vectors_files import load
from tests.web.node_project import compiled, run
from vectors import query_results
from vectors.evidence_files import ALICE, NEW, OLD, READER, THIRD, WITNESS, Case, cases, outcome
from vectors.form import Doc
from veen.client.evidence import RESULT_KIND, Evidence, Tie, is_of_kind
from veen.core import (
    CapPresentation,
    CapToken,
    Checkpoint,
    Fault,
    Malformed,
    MmrProof,
    Msg,
    PayloadHdr,
    Profile,
    Receipt,
    envelopes,
    signing,
)
from veen.core.cbor import Wire
from veen.core.cosignature import WitnessPolicy
from veen.core.handover import HandOver, LabelSize, ProvedSize
from veen.core.recovery import Recovery, RecoveryStatement
from veen.core.retention import AttachmentTombstone, Manifest, Segment, Tombstone
from veen.query.result_evidence import ResultEvidence

Answer: TypeAlias = dict[str, Any]
OBJECTS: dict[str, type[Wire]] = {
    wire.LAYOUT.name.replace(" ", "_").replace("-", "_"): wire
    for wire in (
        *(Msg, Receipt, Checkpoint, PayloadHdr, Profile, MmrProof, CapToken, CapPresentation),
        *(envelopes.SubmitRequest, envelopes.SubmitResponse, envelopes.StreamRequest, envelopes.StreamResponse),
        *(envelopes.ReceiptRequest, envelopes.ReceiptResponse, envelopes.ProofRequest, envelopes.ProofResponse),
        *(envelopes.CheckpointRequest, envelopes.CheckpointResponse, envelopes.ErrorEnvelope),
        *(HandOver, LabelSize, ProvedSize, Recovery, RecoveryStatement),
        *(Segment, Manifest, Tombstone, AttachmentTombstone),
    )
}


def asked_of_typescript(questions: Iterable[Doc]) -> list[Any]:
    """The answers of one Node process, in order."""
    compiled()
    lines = [json.dumps(one, default=bytes.hex) for one in questions]
    done = run("node", "build/test/answers.js", stdin="".join(f"{line}\n" for line in lines))
    assert done.returncode == 0, done.stderr[-4000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(lines)
    return answers


def question(case: Case) -> Doc:
    known = case.knowledge
    record = None if known.record is None else known.record.encode()
    about = {"pin": case.pin, "reader": case.reader, "witnesses": sorted(known.witnesses), "hub_identity": record}
    threshold = known.policy.threshold if known.policy else None
    return {"cbor": case.file, **about, "threshold": threshold, "writers": [card.encode() for card in known.writers]}


def compare(changed: list[Case]) -> dict[str, int]:
    """How often each outcome occurred. Fails with the first file on which the two differ."""
    seen: dict[str, int] = {}
    for case, theirs in zip(changed, asked_of_typescript(map(question, changed)), strict=True):
        ours = json.loads(json.dumps(outcome(case.file, case.pin, case.reader, case.knowledge)))
        where = f"{case.name}: {json.dumps(question(case), default=bytes.hex)}"
        assert theirs == ours, where
        seen[ours["outcome"]] = seen.get(ours["outcome"], 0) + 1
    return seen


# Mutated files


@cache
def sound() -> list[Case]:
    return [*cases(), *query_results.cases()]


def mutated(count: int, seed: int) -> Iterator[Case]:
    rng = random.Random(seed)
    for number in range(count):
        case = rng.choice(sound())
        change = rng.choice(BYTE_CHANGES) if rng.random() < 0.5 else _change_fields
        known = replace(case, name=f"seed {seed}, file {number}, {case.name}", file=change(rng, case.file))
        yield _other_knowledge(rng, known) if rng.random() < 0.2 else known


def _other_knowledge(rng: random.Random, case: Case) -> Case:
    other = rng.choice(sound())
    named = sorted(rng.sample([key.public_key for key in (WITNESS, ALICE, OLD, NEW, THIRD)], rng.randrange(4)))
    policy = WitnessPolicy(rng.randrange(1, len(named) + 1), {key.hex(): key for key in named}) if named else None
    policy = rng.choice((None, policy))
    knowledge = replace(other.knowledge, witnesses=frozenset(named), policy=policy)
    reader = rng.choice([None, READER.public_key, ALICE.public_key])
    return replace(case, pin=rng.choice([None, case.pin, other.pin]), reader=reader, knowledge=knowledge)


def _flip_bit(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes((data[at] ^ 1 << rng.randrange(8),)) + data[at + 1 :]


def _set_byte(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + rng.choice((b"\x00", b"\xff", b"\xf6", b"\x18", b"\x80", b"\xa0", b"\x1b")) + data[at + 1 :]


def _cut(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.randrange(1, 80) :]


def _insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.randrange(1, 40)) + data[at:]


def _splice(rng: random.Random, data: bytes) -> bytes:
    other, length = rng.choice(sound()).file, rng.choice((1, 32, 64, 200))
    start, at = rng.randrange(len(other)), rng.randrange(len(data))
    return data[:at] + other[start : start + length] + data[at + length :]


BYTE_CHANGES: list[Callable[[random.Random, bytes], bytes]] = [_flip_bit, _flip_bit, _set_byte, _cut, _insert, _splice]


def _change_fields(rng: random.Random, data: bytes) -> bytes:
    """Change whole fields, so that the file still decodes and later checks decide."""
    if not is_of_kind(data, RESULT_KIND):
        return _change_evidence(rng, Evidence.decode(data)).encode()
    made, other = ResultEvidence.decode(data), ResultEvidence.decode(rng.choice(results()).file)
    parts = (_change_evidence(rng, made.parts[0]), *made.parts[1:])
    changed = [
        {"rows": other.rows},
        {"summary": other.summary},
        {"rows": other.rows, "summary": other.summary},
        {"parts": other.parts},
        {"parts": (*made.parts, *other.parts)},
        {"parts": made.parts[::-1]},
        {"parts": parts},
    ]
    return replace(made, **rng.choice(changed)).encode()  # type: ignore[arg-type]


@cache
def results() -> list[Case]:
    return [case for case in sound() if is_of_kind(case.file, RESULT_KIND)]


def _change_evidence(rng: random.Random, made: Evidence) -> Evidence:
    other = _evidence_in(rng.choice(sound()).file)
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice([field.name for field in fields(Evidence)])
        mine, theirs = getattr(made, name), getattr(other, name)
        changed: dict[str, Any] = {}
        if isinstance(mine, tuple) and isinstance(theirs, tuple | None):
            changed[name] = _change_list(rng, mine, theirs or ())
        elif rng.random() < 0.6:
            changed[name] = theirs
        made = replace(made, **changed)
    return made


def _evidence_in(data: bytes) -> Evidence:
    return ResultEvidence.decode(data).parts[0] if is_of_kind(data, RESULT_KIND) else Evidence.decode(data)


def _change_list(rng: random.Random, mine: tuple[Any, ...], theirs: tuple[Any, ...]) -> tuple[Any, ...]:
    items = [*mine, *rng.sample(theirs, rng.randrange(len(theirs) + 1))]
    rng.shuffle(items)
    items = items[: rng.randrange(len(items) + 1)] + items[: rng.randrange(2)]
    if items and isinstance(items[0], Tie):
        items[0] = replace(items[0], stream_seq=rng.randrange(1, 9), upto_seq=rng.choice((1, 5, 8, 2**64 - 1)))
    return tuple(items)


def test_both_give_the_same_answer_for_all_evidence_vectors() -> None:
    assert set(compare(sound())) == {"holds", "contradicted", "unverified", "malformed"}


def test_both_give_the_same_answer_for_mutated_files() -> None:
    seen = compare(list(mutated(400, seed=1)))
    assert min(seen.get(name, 0) for name in ("holds", "contradicted", "unverified", "malformed")) > 10, seen


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 22))
def test_both_give_the_same_answer_for_twenty_thousand_mutated_files(seed: int) -> None:
    compare(list(mutated(1000, seed)))


# Objects and signatures


def test_both_report_the_same_fault_for_mutated_statements() -> None:
    rng = random.Random(6)
    named, kept = load("statements.json"), load("retention.json")
    statements = [("hand_over", one["cbor"]) for one in (*named["handovers"], *named["unverified_handovers"])]
    statements += [("recovery_statement", one["cbor"]) for one in named["recoveries"]]
    statements += [("recovery", one["recovery"]) for one in named["recoveries"]]
    statements += [("label_size", one["cbor"]) for one in named["rows"]]
    statements += [("proved_size", one["cbor"]) for one in named["proofs"]]
    statements += [("segment", one["cbor"]) for one in kept["segments"]]
    statements += [("manifest", kept["manifest"]["cbor"]), ("attachment_tombstone", kept["attachment_tombstone"])]
    statements += [("tombstone", one["cbor"]) for one in kept["tombstones"]]
    questions: list[Doc] = []
    for name, digits in statements:
        valid = bytes.fromhex(digits)
        damaged = [rng.choice((_flip_bit, _set_byte, _cut, _insert))(rng, valid) for _ in range(60)]
        damaged += [valid[:2] + b"\x02" + valid[3:], valid[:-66] + b"\x58\x3f" + valid[-63:]]  # ver, last signature
        questions += [{"object": name, "cbor": data} for data in (valid, *damaged)]
    faults = set()
    for asked, theirs in zip(questions, asked_of_typescript(questions), strict=True):
        assert theirs == fault_of(OBJECTS[asked["object"]], asked["cbor"]), asked
        faults.add(theirs)
    assert faults == {"none", "CBOR", "SIZE", "VERSION"}


def test_both_report_the_same_fault_for_every_malformed_object_and_its_mutations() -> None:
    rng = random.Random(5)
    questions: list[Doc] = []
    for one in load("malformed.json")["objects"]:
        valid = bytes.fromhex(one["valid"])
        damaged = [valid]
        for case in one["malformed"]:
            at, skip = case["at"], case["remove"]
            damaged.append(valid[:at] + bytes.fromhex(case["insert"]) + valid[at + skip :])
        damaged += [rng.choice((_flip_bit, _set_byte, _cut, _insert))(rng, valid) for _ in range(60)]
        questions += [{"object": one["object"], "cbor": data} for data in damaged]
    for asked, theirs in zip(questions, asked_of_typescript(questions), strict=True):
        assert theirs == fault_of(OBJECTS[asked["object"]], asked["cbor"]), asked


def fault_of(wire: type[Wire], data: bytes) -> str:
    try:
        wire.decode(data)
    except Malformed as error:
        return Fault(error.fault).name
    return "none"


def test_both_accept_the_same_signatures() -> None:
    rng = random.Random(7)
    questions: list[Doc] = []
    for one in load("ed25519.json")["signatures"]:
        kept = {name: one[name] for name in ("public_key", "message", "signature")}
        signature = bytes.fromhex(one["signature"])
        questions += [kept, {**kept, "signature": _flip_bit(rng, signature).hex()}]
    for _ in range(100):
        key, message = signing.SigningKey(rng.randbytes(32)), rng.randbytes(32)
        sound_one = {"public_key": key.public_key.hex(), "message": message.hex(), "signature": key.sign(message).hex()}
        questions += [sound_one, {**sound_one, "public_key": _flip_bit(rng, key.public_key).hex()}]
    for asked, theirs in zip(questions, asked_of_typescript(questions), strict=True):
        parts = (bytes.fromhex(asked[name]) for name in ("public_key", "message", "signature"))
        assert theirs == signing.is_valid(*parts), asked
