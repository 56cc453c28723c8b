"""The golden states hold: by our folds, and by a second implementation that is none of ours."""

import json
from hashlib import sha256
from typing import Any

import cbor2
import pytest

from tests.overlays.oracle import Oracle
from vectors.form import render
from vectors.overlays.generate import FOLDER, GENERATED
from vectors.overlays.histories import MINE
from veen.core import PayloadHdr
from veen.overlays import AnyOverlay, FoldEntry, encode_states, fold, registry, state_hash
from veen.overlays.event import FaultKind
from veen.overlays.wallet import Wallets

LEAST_ENTRIES = {"identity.json": 33, "wallet.json": 27, "queue.json": 15, "rpc.json": 12}
NAMES = sorted(GENERATED)


def load(name: str) -> dict[str, Any]:
    found = json.loads((FOLDER / name).read_bytes())
    assert isinstance(found, dict)
    assert len(found["entries"]) >= LEAST_ENTRIES.get(name, 6)
    return found


def overlay_of(found: dict[str, Any]) -> AnyOverlay:
    overlay = registry().of_class(found["class"])
    assert overlay is not None
    return Wallets(only=MINE) if isinstance(overlay, Wallets) else overlay


def entries_of(found: dict[str, Any]) -> list[FoldEntry]:
    entries = []
    for one in found["entries"]:
        header = one["payload_hdr"]
        opened: tuple[PayloadHdr | None, bytes | None] = (None, None)
        if header is not None:
            parent = header.get("parent_id")
            parent_id = None if parent is None else bytes.fromhex(parent)
            said = PayloadHdr(bytes.fromhex(header["schema"]), parent_id, expires_at=header.get("expires_at"))
            opened = (said, bytes.fromhex(one["body"]))
        fixed = (bytes.fromhex(found["label"]), 0, one["stream_seq"], one["hub_ts"], bytes.fromhex(one["client_id"]))
        entry = FoldEntry(*fixed, None, bytes.fromhex(one["msg_id"]), *opened)
        assert entry.encode().hex() == one["cbor"]
        entries.append(entry)
    return entries


def test_every_file_is_generated_and_listed_in_the_readme() -> None:
    readme = (FOLDER / "README.md").read_text("utf-8")
    assert {path.name for path in FOLDER.glob("*.json")} == set(GENERATED)
    assert [name for name in NAMES if f"`{name}`" not in readme] == []


def test_every_overlay_of_ours_has_golden_states() -> None:
    from veen.overlays.registry import BUILTIN

    assert {load(name)["class"] for name in NAMES} == {overlay.CLASS for overlay in BUILTIN}


@pytest.mark.parametrize("name", NAMES)
def test_generating_a_file_again_gives_the_bytes_on_disk(name: str) -> None:
    assert render(GENERATED[name]()) == (FOLDER / name).read_bytes(), f"{name}: run the generator, look at the diff"


@pytest.mark.parametrize("name", NAMES)
def test_our_fold_produces_each_state_and_each_fault(name: str) -> None:
    found = load(name)
    overlay, entries = overlay_of(found), entries_of(found)
    assert [state["upto_seq"] for state in found["states"]] == list(range(len(entries) + 1))
    for state in found["states"]:
        states = fold(overlay, entries[: state["upto_seq"]]).states
        assert encode_states(overlay, states).hex() == state["state"]
        assert state_hash(overlay, states).hex() == state["state_hash"]
    faults = fold(overlay, entries).faults
    assert [(fault.stream_seq, fault.kind) for fault in faults] == [
        (fault["stream_seq"], fault["kind"]) for fault in found["faults"]
    ]
    assert [fault.reason for fault in faults if fault.kind == FaultKind.REFUSED] == [
        fault["reason"] for fault in found["faults"] if fault["kind"] == FaultKind.REFUSED
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_second_implementation_produces_each_state(name: str) -> None:
    found = load(name)
    oracle = Oracle(found["class"])
    faulty = {fault["stream_seq"] for fault in found["faults"]}
    states = iter(found["states"])
    assert next(states)["state"] == oracle.encoded().hex()
    for entry, state in zip(found["entries"], states, strict=True):
        assert oracle.add(entry) is (entry["stream_seq"] not in faulty), entry["note"]
        assert oracle.encoded().hex() == state["state"], entry["note"]
        tag = f"veen/state-{found['class']}".encode() + b"\0"
        assert sha256(tag + oracle.encoded()).hexdigest() == state["state_hash"]


def test_each_kind_of_fault_is_golden_somewhere() -> None:
    assert {fault["kind"] for name in NAMES for fault in load(name)["faults"]} == set(FaultKind)


def test_a_state_is_plain_cbor_for_any_reader() -> None:
    wallet = load("wallet.json")["states"][-1]
    ((part, state),) = cbor2.loads(bytes.fromhex(wallet["state"]))
    assert part == MINE
    assert list(state)[:4] == ["exists", "closed", "balance", "frozen"]
