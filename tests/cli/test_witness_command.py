"""`veen witness cosign|show`, checkpoints that clients order, and the policy of a context."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.hub_fixture import STREAM, HubFixture, hub_fixture
from tests.cli.runner import Veen
from tests.cli.test_hub_lifecycle import background
from tests.witness.witness_fixture import RunningWitness, witnesses
from veen.core import Checkpoint
from veen.hub.admission_rules import Admission
from veen.storage.metadata import read_metadata
from veen.storage.paths import Folders


class Cosigned:
    """A hub with three entries, and a witness without an address that asks it."""

    def __init__(self, veen: Veen, root: Path) -> None:
        self.veen = veen
        self.root = root
        self.data_dir = root / "hub"
        self.witness_pk = veen.done("witness", "init", "--dir", root / "w", "--no-passphrase", "--json").json()[
            "witness_pk"
        ]
        self.hub_id = veen.done("hub", "init", "--data-dir", self.data_dir, "--no-root", "--json").json()["hub_id"]

    def grow(self, data_dir: Path, who: str, *bodies: str) -> None:
        """Let a new client write to a copy of the hub, and the witness cosign what it has then."""
        client = ("--client", self.root / who)
        self.veen.done("keygen", "--out", self.root / who, "--no-passphrase")
        self.veen.done("stream-key", "create", STREAM, *client)
        with background(self.veen, data_dir, "--admission", "open", "--witness", self.witness_pk) as shown:
            at = ("--hub", shown["url"], "--pin", self.hub_id, "--stream", STREAM)
            for body in bodies:
                self.veen.done("send", *at, *client, "--body", body)
            self.ran = self.veen("witness", "cosign", "--dir", self.root / "w", *at, "--json")


@pytest.fixture
def cosigned(veen: Veen, tmp_path: Path) -> Cosigned:
    made = Cosigned(veen, tmp_path)
    made.grow(made.data_dir, "alice", "1")
    assert made.ran.json()["hub"] == "stored the cosignature"
    return made


def test_a_witness_that_meets_a_fork_says_so_and_keeps_the_evidence(cosigned: Cosigned) -> None:
    veen, root = cosigned.veen, cosigned.root
    shutil.copytree(cosigned.data_dir, root / "fork")
    cosigned.grow(cosigned.data_dir, "bob", "2")
    assert (cosigned.ran.status, cosigned.ran.json()["upto_seq"]) == (0, 2)
    cosigned.grow(root / "fork", "carol", "another 2")
    ran = cosigned.ran
    assert (ran.status, "cosigned another root of the label at upto_seq 2" in ran.err) == (11, True)
    assert "it signed two histories" in ran.err
    assert f"veen witness show --dir {root / 'w'} --evidence DIR" in ran.err
    assert "before sending again" not in ran.err
    shown = veen.done("witness", "show", "--dir", root / "w", "--evidence", root / "found", "--json")
    assert [row["size"] for row in shown.json()] == [2]
    assert "signed two roots of label" in shown.err
    (file,) = (root / "found").iterdir()
    verified = veen("evidence", "verify", file, "--pin", cosigned.hub_id)
    assert (verified.status, "the hub contradicts itself" in verified.out) == (11, True)
    assert veen("evidence", "verify", file, "--pin", "00" * 32).status == 4


def test_a_witness_refuses_an_older_copy_with_advice(cosigned: Cosigned) -> None:
    veen, root = cosigned.veen, cosigned.root
    shutil.copytree(cosigned.data_dir, root / "older")
    cosigned.grow(cosigned.data_dir, "bob", "2", "3")
    cosigned.grow(root / "older", "carol", "2")
    assert (cosigned.ran.status, "compare the hub with its witnesses" in cosigned.ran.err) == (5, True)
    assert "veen explain E.CONFLICT describes" in cosigned.ran.err
    assert veen("explain", "E.CONFLICT").status == 0
    assert "fork" not in veen.done("witness", "show", "--dir", root / "w").err


def test_the_policy_of_a_context_is_enforced(cosigned: Cosigned) -> None:
    veen, root = cosigned.veen, cosigned.root
    policies = {"trusted": cosigned.witness_pk, "strangers": "11" * 32}
    for name, key in policies.items():
        (root / name).write_text(f'threshold = 1\n[witnesses]\nw = "{key}"\n')
    with background(veen, cosigned.data_dir, "--admission", "open", "--witness", cosigned.witness_pk) as shown:
        for name in policies:
            added = ("--hub", shown["url"], "--client", root / "alice", "--stream", STREAM, "--policy", root / name)
            veen.done("context", "add", name, *added)
        veen.done("context", "use", "trusted")
        assert veen.done("verify", "--pin", cosigned.hub_id, "--json").json()["cosigned_by"] == "w"
        file = root / "doors.checkpoint"
        veen.done("checkpoint", "--out", file)
        veen.done("context", "use", "strangers")
        for asked in ((), (file,)):
            ran = veen("verify", *asked)
            assert (ran.status, "the policy requires 1 of 1 witnesses" in ran.err) == (4, True)
        veen.done("verify", "--policy", root / "trusted")


@pytest.fixture
def strict(veen: Veen, tmp_path: Path) -> Iterator[tuple[HubFixture, RunningWitness]]:
    """A hub with capability admission that asks a witness, with one entry."""
    with (
        witnesses(tmp_path, 1) as (witness,),
        hub_fixture(veen, tmp_path, admission=Admission.CAPABILITY, witness_addresses=(witness.address,)) as found,
    ):
        given = ("--issuer", tmp_path / "operator", "--subject", tmp_path / "writer", "--hub", tmp_path / "hub")
        veen.done("cap", "issue", *given, "--stream", STREAM, "--ttl", 3600, "--out", tmp_path / "write.cap")
        yield found, witness


def test_a_client_with_a_capability_orders_a_checkpoint(strict: tuple[HubFixture, RunningWitness]) -> None:
    place, witness = strict
    cap, file = ("--cap", place.root / "write.cap"), place.root / "ordered"
    who = ("--client", place.root / "writer", "--hub", place.url, "--pin", place.hub_id, "--stream", STREAM)
    refused = place.veen("checkpoint", "--cosign", *who)
    assert refused.status == 5, refused.err
    place.veen.done("send", *who, *cap, "--body", "1")
    ordered = place.veen.done("checkpoint", "--cosign", *who, *cap, "--out", file, "--json").json()
    assert (ordered["upto_seq"], ordered["witnesses"]) == (1, 1)
    made = Checkpoint.decode(file.read_bytes())
    identity = read_metadata(Folders(place.root / "hub")).identity
    identity.verify_checkpoint(made, read_metadata(Folders(place.root / "hub")).profile)
    assert made.witness_sigs == (witness.key.sign(made.signing_digest()),)
    again = place.veen.done("checkpoint", "--cosign", *who, "--json").json()
    assert again["checkpoint"] == ordered["checkpoint"], "the same prefix gives the same bytes"
    witness.stop()
    place.veen.done("send", *who, "--body", "2")
    alone = place.veen.done("checkpoint", "--cosign", *who, "--json")
    assert (alone.json()["upto_seq"], alone.json()["witnesses"]) == (2, 0)
    assert "warning: no witness cosigned this checkpoint" in alone.err
    stranger = ("--client", place.root / "reader", "--hub", place.url, "--pin", place.hub_id, "--stream", STREAM)
    assert place.veen("checkpoint", "--cosign", *stranger, *cap).status == 5
    assert place.veen("checkpoint", "--cosign", "--upto", 1, *who).status == 2
    assert place.veen("checkpoint", *cap, *who).status == 2
