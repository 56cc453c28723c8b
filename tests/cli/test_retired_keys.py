"""A stolen retired key: what `veen verify` and `veen evidence verify` say about what it signs."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.cli.runner import Veen
from tests.cli.test_hub_lifecycle import background
from tests.pipeline.forks import Forks
from veen.bridge.anchor_backends import FileLog
from veen.bridge.anchors import Anchored, AnchorStatement, AnchorStore, anchor_publish
from veen.bridge.bundle import BundleSource
from veen.cli.kit.output_files import read_statements
from veen.client.evidence import make_evidence
from veen.client.trust import HubRecord
from veen.core import Checkpoint, Limits, Profile, Receipt, SigningKey, checkpoint, naming, receipt
from veen.core.handover import Cover
from veen.core.proof import decode_head
from veen.core.signing import DigestSigner
from veen.storage import metadata
from veen.storage.paths import Folders

STOLEN = "or the key was stolen"


class Rotated:
    """A hub that rotated after two entries, and a thief who has the old seed. The hub has destroyed it."""

    def __init__(self, veen: Veen, place: Path, url: str, old: DigestSigner) -> None:
        self.veen = veen
        self.place = place
        self.old = old
        self.hub = ("--hub", url, "--client", place / "alice")
        found = metadata.read_metadata(Folders(place / "hub"))
        self.hub_id = found.identity.hub_id
        self.record = HubRecord(found.identity, found.signature, Profile(), Limits())

    def forge(self, name: str, label: bytes, upto_seq: int) -> Path:
        """A checkpoint of another history, signed with the stolen key."""
        path = self.place / name
        path.write_bytes(self.forged(label, upto_seq).encode())
        return path

    def forged(self, label: bytes, upto_seq: int) -> Checkpoint:
        made = {"label_prev": label, "label_curr": label, "upto_seq": upto_seq, "mmr_root": b"\x07" * 32, "epoch": 0}
        return checkpoint.sign(self.old, **made)  # type: ignore[arg-type]


@pytest.fixture
def rotated(veen: Veen, tmp_path: Path) -> Iterator[Rotated]:
    passphrase = tmp_path / "passphrase"
    passphrase.write_text("secret\n")
    data_dir, alice = tmp_path / "hub", ("--client", tmp_path / "alice")
    shown = veen.done("hub", "init", "--data-dir", data_dir, "--passphrase-file", passphrase, "--json").json()
    veen.done("keygen", "--out", tmp_path / "alice", "--no-passphrase")
    veen.done("stream-key", "create", "doors", *alice)
    with background(veen, data_dir, "--admission", "open") as started:
        for body in ("1", "2"):
            sent = ("--stream", "doors", "--body", body, "--pin", shown["hub_id"])
            veen.done("send", "--hub", started["url"], *alice, *sent)
    identity = metadata.read_metadata(Folders(data_dir)).identity
    old = metadata.read_signing_key(Folders(data_dir), identity.newest.key_id)
    root = ("--root", tmp_path / "hub.root", "--passphrase-file", passphrase)
    veen.done("hub", "rotate-key", "--data-dir", data_dir, *root, "--destroy-old")
    with background(veen, data_dir, "--admission", "open") as started:
        veen.done("send", "--hub", started["url"], *alice, "--stream", "doors", "--body", "3", "--pin", shown["hub_id"])
        yield Rotated(veen, tmp_path, str(started["url"]), old)


def test_a_receipt_of_the_old_key_is_saved_with_its_cover(rotated: Rotated) -> None:
    veen, file = rotated.veen, rotated.place / "2.receipt"
    veen.done("receipt", 2, "--stream", "doors", "--out", file, *rotated.hub)
    (row,) = veen.done("verify", file, *rotated.hub, "--json").json()
    assert (row["held_by"], row["coverage"]) == ("key 1 of the hub", "covered")
    bare = rotated.place / "bare.receipt"
    bare.write_bytes(Receipt.decode(_first(file)).encode())
    (row,) = veen.done("verify", bare, *rotated.hub, "--json").json()
    assert row["coverage"] == "uncovered"


def _first(file: Path) -> bytes:
    return read_statements(file)[0].encode()


def test_a_future_that_the_thief_signs_is_uncovered_and_beyond_the_hand_over(rotated: Rotated) -> None:
    veen, file = rotated.veen, rotated.place / "2.receipt"
    veen.done("receipt", 2, "--stream", "doors", "--out", file, *rotated.hub)
    label = decode_head(_first(file))
    assert isinstance(label, Receipt)
    future = rotated.forge("future.checkpoint", label.label, 1000)
    (row,) = veen.done("verify", future, *rotated.hub, "--json").json()
    assert row["coverage"] == "uncovered"
    ran = veen("verify", file, future, *rotated.hub)
    assert ran.status == 11
    assert STOLEN in ran.err
    assert "handed over only 2 entries" in ran.err


def test_an_innocent_hub_is_not_convicted_by_its_stolen_key(rotated: Rotated) -> None:
    veen, file = rotated.veen, rotated.place / "2.receipt"
    veen.done("receipt", 2, "--stream", "doors", "--out", file, *rotated.hub)
    true = decode_head(_first(file))
    assert isinstance(true, Receipt)
    framed = rotated.place / "framed.evidence"
    framed.write_bytes(make_evidence(rotated.record, "", (true, rotated.forged(true.label, 2))).encode())
    for pin in (rotated.hub_id.hex(), rotated.place / "hub"):
        ran = veen("evidence", "verify", framed, "--pin", pin)
        assert ran.status == 11
        assert "contradiction under a retired key: the hub forked before " in ran.out
        assert STOLEN in ran.out
        assert "the hub contradicts itself" not in ran.out
    ran = veen("verify", file, rotated.forge("two.checkpoint", true.label, 2), *rotated.hub)
    assert (ran.status, STOLEN in ran.err, "evidence: " in ran.err) == (11, True, True)
    veen.done("send", "--stream", "doors", "--body", "4", *rotated.hub)


def test_a_witness_turns_it_into_a_contradiction(rotated: Rotated) -> None:
    veen, file = rotated.veen, rotated.place / "2.receipt"
    veen.done("receipt", 2, "--stream", "doors", "--out", file, *rotated.hub)
    true, cover = read_statements(file)
    assert isinstance(true, Receipt)
    assert isinstance(cover, Cover)
    witness = SigningKey.generate()
    forged = rotated.forged(true.label, 2).witnessed(witness)
    framed = rotated.place / "witnessed.evidence"
    framed.write_bytes(make_evidence(rotated.record, "", (true, forged), covers=[cover]).encode())
    ran = veen("evidence", "verify", framed, "--pin", rotated.hub_id.hex())
    assert (ran.status, STOLEN in ran.out) == (11, True)
    ran = veen("evidence", "verify", framed, "--pin", rotated.hub_id.hex(), "--witness", witness.public_key.hex())
    assert (ran.status, "it holds, and the hub contradicts itself" in ran.out) == (11, True)


Publish: TypeAlias = Callable[[Checkpoint, BundleSource, bytes, int], tuple[object, ...]]


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Anchors a checkpoint in a file at a given time. Returns the options that name the anchor."""
    log = FileLog(tmp_path / "anchors.log")

    def run(checkpoint: Checkpoint, source: BundleSource, stream_id: bytes, at: int) -> tuple[object, ...]:
        statement = AnchorStatement.of(checkpoint, at)
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: at)
            ref = asyncio.run(anchor_publish(log, statement.root, statement.epoch, statement.ts, statement.nonce))
        path = AnchorStore(tmp_path / "anchors").put(Anchored(source, stream_id, checkpoint, ref))
        return "--anchor", path, "--anchored-in", f"file:{log.path}"

    return run


def test_an_anchor_from_before_the_hand_over_turns_it_into_a_contradiction(rotated: Rotated, publish: Publish) -> None:
    veen, file = rotated.veen, rotated.place / "2.receipt"
    veen.done("receipt", 2, "--stream", "doors", "--out", file, *rotated.hub)
    true, cover = read_statements(file)
    assert isinstance(true, Receipt)
    assert isinstance(cover, Cover)
    forged, at = rotated.forged(true.label, 2), cover.handover.hub_ts
    framed = rotated.place / "anchored.evidence"
    framed.write_bytes(make_evidence(rotated.record, "", (true, forged), covers=[cover]).encode())
    source = BundleSource.of(rotated.record)
    verify = ("evidence", "verify", framed, "--pin", rotated.hub_id.hex())
    doors = naming.stream_id("doors")
    ran = veen(*verify, *publish(forged, source, doors, at - 1))
    assert (ran.status, "it holds, and the hub contradicts itself" in ran.out) == (11, True)
    late = publish(forged, source, doors, at)
    ran = veen(*verify, *late)
    assert (ran.status, STOLEN in ran.out) == (11, True)
    ran = veen(*verify, *late[:2])
    assert (ran.status, "give --anchored-in" in ran.err) == (2, True)
    (rotated.place / "anchors.log").write_text("")
    ran = veen(*verify, *late)
    assert (ran.status, "has 0 lines" in ran.err) == (4, True)


def test_an_anchored_root_that_a_thief_signs_for_another_size_does_not_convict_the_hub(
    rotated: Rotated, publish: Publish
) -> None:
    veen = rotated.veen
    (_, one, cover), (_, two, _) = (_saved(rotated, seq) for seq in (1, 2))
    signed = {"label_prev": one.label, "label_curr": one.label, "mmr_root": two.mmr_root, "epoch": 0}
    true, forged = (checkpoint.sign(rotated.old, upto_seq=size, **signed) for size in (2, 1))  # type: ignore[arg-type]
    framed = rotated.place / "size.evidence"
    framed.write_bytes(make_evidence(rotated.record, "", (one, forged), covers=[cover]).encode())
    anchor = publish(true, BundleSource.of(rotated.record), naming.stream_id("doors"), cover.handover.hub_ts - 1)
    ran = veen("evidence", "verify", framed, "--pin", rotated.hub_id.hex(), *anchor)
    assert (ran.status, STOLEN in ran.out, "the hub contradicts itself" in ran.out) == (11, True, False)


def _saved(rotated: Rotated, seq: int) -> tuple[Path, Receipt, Cover]:
    """A receipt of the old key that the hub gives out, and its cover."""
    file = rotated.place / f"{seq}.receipt"
    rotated.veen.done("receipt", seq, "--stream", "doors", "--out", file, *rotated.hub)
    true, cover = read_statements(file)
    assert isinstance(true, Receipt)
    assert isinstance(cover, Cover)
    return file, true, cover


def test_an_entry_of_the_next_key_that_a_thief_signs_again_does_not_convict_the_hub(rotated: Rotated) -> None:
    """`veen verify` compares receipts; entry 3 was made under the new key."""
    veen, (file, _, cover) = rotated.veen, _saved(rotated, 2)
    third = rotated.place / "3.receipt"
    veen.done("receipt", 3, "--stream", "doors", "--out", third, *rotated.hub)
    true = decode_head(_first(third))
    assert isinstance(true, Receipt)
    fields = {"label": true.label, "stream_seq": 3, "leaf_hash": true.leaf_hash, "mmr_root": true.mmr_root}
    again = receipt.sign(rotated.old, hub_ts=cover.handover.hub_ts - 1, **fields)  # type: ignore[arg-type]
    framed = rotated.place / "again.evidence"
    framed.write_bytes(make_evidence(rotated.record, "", (true, again), covers=[cover]).encode())
    ran = veen("evidence", "verify", framed, "--pin", rotated.hub_id.hex())
    assert (ran.status, STOLEN in ran.out, "the hub contradicts itself" in ran.out) == (11, True, False)
    forged = rotated.place / "again.receipt"
    forged.write_bytes(again.encode())
    ran = veen("verify", file, third, forged, *rotated.hub)
    assert (ran.status, STOLEN in ran.err, "handed over only 2 entries" in ran.err) == (11, True, True)


def test_an_audit_convicts_a_hub_that_forked_before_its_hand_over(veen: Veen, tmp_path: Path, publish: Publish) -> None:
    forks, witness = Forks(tmp_path), SigningKey.generate()
    audit = ("audit", *forks.roots, "--workers", 1)
    ran = veen(*audit)
    assert (ran.status, STOLEN in ran.out) == (11, True)
    forks.cosign(forks.fork, 14, witness)
    ran = veen(*audit, "--witness", witness.public_key.hex(), "--json")
    assert (ran.status, ran.json()["verdict"]) == (11, "equivocated")
    ran = veen(*audit, "--witness", forks.old.public_key.hex(), "--json")
    assert (ran.status, STOLEN in ran.json()["verdict"]) == (11, True)
    hub, label = forks.hub.hub_metadata, forks.fork.labels[0]
    source = BundleSource(hub.identity, hub.signature, hub.profile)
    anchor = forks.checkpoint(forks.fork, label, 14), source, naming.stream_id("stream 0")
    shown = veen(*audit, *publish(*anchor, forks.made.hub_ts - 1), "--json").json()
    assert {row["label"]: "retired" in row for row in shown["equivocations"]} == {
        one.hex(): one != label for one in forks.hub.labels
    }
    assert shown["verdict"] == "equivocated"
    assert STOLEN in veen(*audit, *publish(*anchor, forks.made.hub_ts)).out
