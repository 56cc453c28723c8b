"""Checkpoints, witnesses, and proofs of a hub's own contradictions, over real HTTP."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha512
from pathlib import Path
from urllib.parse import quote

import pytest
from nacl import bindings

from tests.hub.client import START, WITNESS, Hub, Reply, Writer, hub_key, make_dir, running
from tests.hub.disks import QuickDisk
from veen.core import Checkpoint, Limits, Receipt, SigningKey, receipt, signing
from veen.core.cosignature import WitnessPolicy
from veen.core.envelopes import (
    CheckpointList,
    Equivocation,
    EquivocationList,
    ReceiptRequest,
    ReceiptResponse,
    WitnessRequest,
)
from veen.core.hashing import h
from veen.hub import witness_records
from veen.storage import checkpoint_files, fsck
from veen.storage.paths import Folders

INTERVAL = 4
LIMITS = Limits(max_checkpoint_interval=INTERVAL)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with running(make_dir(tmp_path, limits=LIMITS), disk=QuickDisk()) as found:
        yield found


def code_of(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.error().code


def listed(hub: Hub, label: bytes) -> tuple[Checkpoint, ...]:
    as_json = hub.get(f"/tooling/checkpoints?label={label.hex()}", accept="application/json")
    plain = hub.get(f"/tooling/checkpoints?label={label.hex()}")
    found = plain.read(CheckpointList)
    assert as_json.is_json
    # The first answer may have fewer: the log catches up in between.
    before = as_json.read(CheckpointList).checkpoints
    assert found.checkpoints[: len(before)] == before
    assert found.label == label
    return found.checkpoints


@pytest.fixture
def checkpointed(tmp_path: Path) -> Iterator[tuple[Hub, Writer, list[Receipt]]]:
    """A hub whose log has two regular checkpoints."""
    data_dir = make_dir(tmp_path, limits=LIMITS)
    with running(data_dir) as hub:
        writer = hub.writer()
        receipts = writer.send_many(2 * INTERVAL + 1)
    with running(data_dir) as hub:
        writer.hub = hub
        yield hub, writer, receipts


def test_regular_checkpoints_are_listed_and_verify(checkpointed: tuple[Hub, Writer, list[Receipt]]) -> None:
    hub, writer, receipts = checkpointed
    found = listed(hub, writer.label)
    assert [checkpoint.upto_seq for checkpoint in found] == [INTERVAL, 2 * INTERVAL]
    for checkpoint in found:
        checkpoint.verify_signature(hub.hub_pk)
        assert checkpoint.mmr_root == receipts[checkpoint.upto_seq - 1].mmr_root
    assert listed(hub, bytes(32)) == ()
    assert code_of(hub.get("/tooling/checkpoints?label=x")) == (400, "E.BAD_REQUEST")
    assert code_of(hub.get("/tooling/checkpoints")) == (400, "E.BAD_REQUEST")


def test_a_witness_signature_is_kept_with_its_checkpoint(checkpointed: tuple[Hub, Writer, list[Receipt]]) -> None:
    hub, writer, _ = checkpointed
    first = listed(hub, writer.label)[0]
    sig = WITNESS.sign(first.signing_digest())
    request = WitnessRequest(writer.label, INTERVAL, WITNESS.public_key, sig)
    answer = hub.post("/tooling/witness", request).read(Checkpoint)
    signing.verify(WITNESS.public_key, answer.signing_digest(), (answer.witness_sigs or ())[0], "cosignature")
    assert hub.post_json("/tooling/witness", request).read(Checkpoint) == answer
    assert listed(hub, writer.label)[0] == answer
    assert answer.witness_sigs == (sig,)


def test_concurrent_witness_signatures_are_all_stored(tmp_path: Path) -> None:
    witnesses = [SigningKey.generate() for _ in range(12)]
    data_dir = make_dir(tmp_path, limits=LIMITS)
    with running(data_dir) as hub:
        writer = hub.writer()
        writer.send_many(INTERVAL)
    with running(data_dir, witnesses=frozenset(key.public_key for key in witnesses)) as hub:
        digest = listed(hub, writer.label)[0].signing_digest()

        def sign(key: SigningKey) -> int:
            request = WitnessRequest(writer.label, INTERVAL, key.public_key, key.sign(digest))
            return hub.post("/tooling/witness", request).status

        with ThreadPoolExecutor(len(witnesses)) as pool:
            assert set(pool.map(sign, witnesses)) == {200}
        kept = listed(hub, writer.label)[0]
        policy = WitnessPolicy(len(witnesses), {str(at): key.public_key for at, key in enumerate(witnesses)})
        policy.check(kept, hub.service.hub_metadata.identity)


def test_a_witness_is_known_and_signs_what_is_there(checkpointed: tuple[Hub, Writer, list[Receipt]]) -> None:
    hub, writer, _ = checkpointed
    digest = listed(hub, writer.label)[0].signing_digest()
    stranger = SigningKey.generate()
    unknown = WitnessRequest(writer.label, INTERVAL, stranger.public_key, stranger.sign(digest))
    assert code_of(hub.post("/tooling/witness", unknown)) == (403, "E.FORBIDDEN")
    wrong = WitnessRequest(writer.label, INTERVAL, WITNESS.public_key, WITNESS.sign(b"something else"))
    assert code_of(hub.post("/tooling/witness", wrong)) == (403, "E.FORBIDDEN")
    elsewhere = WitnessRequest(writer.label, INTERVAL - 1, WITNESS.public_key, WITNESS.sign(digest))
    assert code_of(hub.post("/tooling/witness", elsewhere)) == (403, "E.FORBIDDEN")
    nowhere = WitnessRequest(writer.label, 1 << 40, WITNESS.public_key, WITNESS.sign(digest))
    assert code_of(hub.post("/tooling/witness", nowhere)) == (404, "E.NOT_FOUND")
    assert all(checkpoint.witness_sigs is None for checkpoint in listed(hub, writer.label))


def contradiction(hub: Hub, key: SigningKey, seq: int = 1) -> Equivocation:
    """Two receipts for one place, signed by one key."""
    label = hub.label("s")
    one, two = (
        receipt.sign(key, label=label, stream_seq=seq, leaf_hash=h(name), mmr_root=h(name), hub_ts=START)
        for name in (b"one", b"two")
    )
    return Equivocation(one, two)


def test_proof_of_the_hubs_own_fault_is_kept_and_shown(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir) as hub:
        assert hub.status()["equivocations"] == 0
        found = contradiction(hub, hub_key(hub))
        assert hub.post("/tooling/equivocation", found).read(Equivocation) == found
        assert hub.post_json("/tooling/equivocation", found).read(Equivocation) == found
        assert hub.status()["equivocations"] == 1
        hub.post("/tooling/equivocation", contradiction(hub, hub_key(hub), seq=2))
        assert hub.status()["equivocations"] == 2
    with running(data_dir) as hub:
        assert hub.status()["equivocations"] == 2
    kept = {path.read_bytes() for path in Folders(data_dir).evidence.iterdir()}
    assert kept & {found.encode(), Equivocation(found.second, found.first).encode()}


def test_a_logged_receipt_and_a_contradicting_one_are_evidence(hub: Hub) -> None:
    writer = hub.writer()
    told = writer.send()
    logged = hub.post("/v1/receipt", ReceiptRequest(writer.label, 1)).read(ReceiptResponse).receipt
    assert logged == told
    other = contradiction(hub, hub_key(hub)).second
    assert hub.post("/tooling/equivocation", Equivocation(logged, other)).status == 200
    assert hub.status()["equivocations"] == 1


def test_what_another_hub_signed_is_no_evidence_here(hub: Hub) -> None:
    ours, theirs = contradiction(hub, hub_key(hub)), contradiction(hub, SigningKey.generate())
    for found in (theirs, Equivocation(ours.first, theirs.second), Equivocation(theirs.first, ours.second)):
        assert code_of(hub.post("/tooling/equivocation", found)) == (403, "E.FORBIDDEN")
    assert hub.status()["equivocations"] == 0


def test_receipts_that_agree_are_no_evidence(hub: Hub) -> None:
    told = hub.writer().send()
    body = b"\xa3\x01\x01\x02" + told.encode() + b"\x03" + told.encode()
    assert code_of(hub.post("/tooling/equivocation", body)) == (400, "E.BAD_REQUEST")
    assert hub.status()["equivocations"] == 0


def test_either_order_proves_the_same(hub: Hub) -> None:
    found = contradiction(hub, hub_key(hub))
    for order in (found, Equivocation(found.second, found.first)):
        assert hub.post("/tooling/equivocation", order).read(Equivocation) == order
    assert hub.status()["equivocations"] == 1


def test_evidence_can_be_fetched_by_anyone_in_both_forms(hub: Hub) -> None:
    assert hub.get("/tooling/equivocation").read(EquivocationList).equivocations == ()
    made = [contradiction(hub, hub_key(hub), seq=seq) for seq in (1, 2, 3)]
    for found in made:
        hub.post("/tooling/equivocation", found)
    plain = hub.get("/tooling/equivocation").read(EquivocationList)
    as_json = hub.get("/tooling/equivocation", accept="application/json")
    assert as_json.is_json
    assert as_json.read(EquivocationList) == plain
    assert {(one.first.stream_seq, one.second.stream_seq) for one in plain.equivocations} == {(1, 1), (2, 2), (3, 3)}


def test_evidence_is_bounded(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness_records, "MAX_EVIDENCE", 2)
    made = [contradiction(hub, hub_key(hub), seq=seq) for seq in (1, 2, 3)]
    assert [hub.post("/tooling/equivocation", found).status for found in made] == [200, 200, 413]
    assert hub.post("/tooling/equivocation", made[0]).status == 200
    assert hub.status()["equivocations"] == 2


def other_signature(key: SigningKey, digest: bytes) -> bytes:
    """Another valid signature: a signer may choose any Ed25519 nonce."""
    order = 2**252 + 27742317777372353535851937790883648493
    expanded = bytearray(sha512(key.seed).digest()[:32])
    expanded[0] &= 248
    expanded[31] = expanded[31] & 127 | 64
    secret, nonce = int.from_bytes(expanded, "little"), int.from_bytes(sha512(b"another nonce").digest(), "little")
    point = bindings.crypto_scalarmult_ed25519_base_noclamp((nonce % order).to_bytes(32, "little"))
    challenge = int.from_bytes(sha512(point + key.public_key + digest).digest(), "little")
    return point + ((nonce + challenge * secret) % order).to_bytes(32, "little")


def test_one_signature_per_witness_is_stored(checkpointed: tuple[Hub, Writer, list[Receipt]]) -> None:
    hub, writer, _ = checkpointed
    digest = listed(hub, writer.label)[0].signing_digest()
    first, second = WITNESS.sign(digest), other_signature(WITNESS, digest)
    assert first != second
    assert signing.is_valid(WITNESS.public_key, digest, second)
    for sig in (first, second):
        request = WitnessRequest(writer.label, INTERVAL, WITNESS.public_key, sig)
        assert hub.post("/tooling/witness", request).read(Checkpoint).witness_sigs == (first,)


def test_a_checkpoint_carries_so_many_witnesses_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness_records, "MAX_WITNESS_SIGS", 2)
    keys = [SigningKey.generate() for _ in range(3)]
    data_dir = make_dir(tmp_path, limits=LIMITS)
    with running(data_dir) as hub:
        writer = hub.writer()
        writer.send_many(INTERVAL)
    with running(data_dir, witnesses=frozenset(key.public_key for key in keys)) as hub:
        digest = listed(hub, writer.label)[0].signing_digest()
        asked = [WitnessRequest(writer.label, INTERVAL, key.public_key, key.sign(digest)) for key in keys]
        assert [hub.post("/tooling/witness", one).status for one in asked] == [200, 200, 413]
        assert hub.post("/tooling/witness", asked[0]).status == 200


def test_witness_signatures_survive_a_restart_and_fsck(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path, limits=LIMITS)
    with running(data_dir) as hub:
        writer = hub.writer()
        writer.send_many(INTERVAL)
    with running(data_dir) as hub:
        digest = listed(hub, writer.label)[0].signing_digest()
        request = WitnessRequest(writer.label, INTERVAL, WITNESS.public_key, WITNESS.sign(digest))
        witnessed = hub.post("/tooling/witness", request).read(Checkpoint)
    with running(data_dir) as hub:
        assert listed(hub, writer.label) == (witnessed,)
    assert fsck.check(data_dir).verdict is fsck.FsckVerdict.CLEAN


def witness_request(hub: Hub, writer: Writer) -> WitnessRequest:
    digest = listed(hub, writer.label)[0].signing_digest()
    return WitnessRequest(writer.label, INTERVAL, WITNESS.public_key, WITNESS.sign(digest))


def keys_of(writer: Writer) -> checkpoint_files.WitnessKeys:
    return checkpoint_files.WitnessKeys(writer.label, INTERVAL, (WITNESS.public_key,))


def test_the_key_of_a_witness_is_kept_so_that_a_wrong_bit_of_its_signature_is_found(
    checkpointed: tuple[Hub, Writer, list[Receipt]],
) -> None:
    hub, writer, _ = checkpointed
    hub.post("/tooling/witness", witness_request(hub, writer)).read(Checkpoint)
    folders = Folders(hub.data_dir)
    hub.stop()
    assert checkpoint_files.read_witnesses(folders, writer.label, INTERVAL) == keys_of(writer)
    assert fsck.check(hub.data_dir, isolated=False).findings == []
    path = folders.checkpoint(writer.label, INTERVAL)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    assert fsck.check(hub.data_dir, isolated=False).verdict is fsck.FsckVerdict.DAMAGED
    hub.start()


def test_a_witness_without_a_stored_key_can_repeat_its_signature(
    checkpointed: tuple[Hub, Writer, list[Receipt]],
) -> None:
    hub, writer, _ = checkpointed
    request, folders = witness_request(hub, writer), Folders(hub.data_dir)
    first = hub.post("/tooling/witness", request).read(Checkpoint)
    folders.witnesses_of(writer.label, INTERVAL).unlink()
    hub.stop()
    assert [one.severity for one in fsck.check(hub.data_dir, isolated=False).findings] == [fsck.Severity.NOTICE]
    hub.start()
    assert hub.post("/tooling/witness", request).read(Checkpoint) == first
    assert checkpoint_files.read_witnesses(folders, writer.label, INTERVAL) == keys_of(writer)


def test_witness_keys_that_are_damaged_are_not_written_over(checkpointed: tuple[Hub, Writer, list[Receipt]]) -> None:
    hub, writer, _ = checkpointed
    request, path = witness_request(hub, writer), Folders(hub.data_dir).witnesses_of(writer.label, INTERVAL)
    path.parent.mkdir()
    path.write_bytes(b"rotten")
    assert code_of(hub.post("/tooling/witness", request)) == (500, "E.UNAVAILABLE")
    assert path.read_bytes() == b"rotten"
    assert listed(hub, writer.label)[0].witness_sigs is None


def test_what_only_lies_among_the_evidence_is_neither_counted_nor_shown(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir) as hub:
        found = contradiction(hub, hub_key(hub))
        hub.post("/tooling/equivocation", found)
        other = contradiction(hub, hub_key(hub), seq=2).encode()
    evidence = Folders(data_dir).evidence
    for name, data in ((h(b"x").hex(), b"x"), (h(b"").hex(), b""), (h(b"other").hex(), other)):
        (evidence / f"equivocation-{name}.cbor").write_bytes(data)
    with running(data_dir) as hub:
        assert hub.status()["equivocations"] == 1
        (shown,) = hub.get("/tooling/equivocation").read(EquivocationList).equivocations
        assert {shown.first, shown.second} == {found.first, found.second}


def test_checkpoints_are_listed_from_a_place_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data_dir = make_dir(tmp_path, limits=LIMITS)
    with running(data_dir) as hub:
        writer = hub.writer()
        writer.send_many(5 * INTERVAL)
    monkeypatch.setattr(witness_records, "MAX_PAGE_ITEMS", 2)
    with running(data_dir) as hub:

        def seqs(query: str) -> list[int]:
            page = hub.get(f"/tooling/checkpoints?label={writer.label.hex()}{query}").read(CheckpointList)
            return [one.upto_seq for one in page.checkpoints]

        assert seqs("") == [16, 20]
        assert seqs("&from=1") == seqs("&from=4") == [4, 8]
        assert seqs("&from=5") == [8, 12]
        assert seqs("&from=20") == [20]
        assert seqs("&from=21") == []
        assert seqs(f"&from={(1 << 64) - 1}") == []


LABEL = "0" * 64


@pytest.mark.parametrize(
    "query",
    [
        *("", "label=", "label", f"label={LABEL}&from=", f"label={LABEL}&from=0", f"label={LABEL}&from=-1"),
        *(f"label={LABEL}&from=1_0", f"label={LABEL}&from=+1", f"label={LABEL}&from=%20" + "1"),
        *(f"label={LABEL}&from=18446744073709551616", f"label={LABEL}&from=" + "9" * 5000),
        *(f"label={LABEL}&other=1", f"label={LABEL}&label={LABEL}", f"from=1&label={LABEL[1:]}", "from=1&from=2"),
        *(f"label={LABEL}&from=1;x", f"label={LABEL}&from=1&from=2&from=3", f"label={LABEL}&from=\u0661"),
    ],
)
def test_a_query_that_names_no_place_is_refused(hub: Hub, query: str) -> None:
    assert code_of(hub.get(f"/tooling/checkpoints?{quote(query, safe='=&%+')}")) == (400, "E.BAD_REQUEST")
