"""`veen hub status|health|metrics|key|rotate-key|checkpoint|verify|fork` with a real hub and with other servers."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.canned_server import Answers, canned_server
from tests.cli.runner import Ran, Veen
from tests.hub.client import START, Clock, Hub, make_dir, own_port, running
from veen.cli.kit.hub_api import HubApi
from veen.core import Checkpoint, Malformed, Profile, SigningKey, checkpoint, naming, strict_json, wire_json
from veen.core.admission import BY_DETAIL
from veen.core.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    EpochList,
    ErrorEnvelope,
    ReceiptRequest,
    StreamEpoch,
)
from veen.core.hashing import h
from veen.core.signing import DigestSigner
from veen.hub.admission_rules import Admission
from veen.hub.conditions import Reason
from veen.storage.metadata import read_metadata
from veen.storage.paths import Folders

JSON, CBOR = "application/json", "application/cbor"


@pytest.fixture
def hub(data_dir: Path) -> Iterator[Hub]:
    """A hub with some entries under two labels."""
    with running(data_dir, time.time) as found:
        found.writer("doors").send_many(5)
        found.writer("windows").send_many(2)
        yield found


def url(hub: Hub) -> str:
    return f"http://127.0.0.1:{hub.port}"


def test_status_shows_the_answer_of_the_hub(veen: Veen, hub: Hub) -> None:
    shown = veen.done("hub", "status", "--hub", url(hub)).facts()
    assert (shown["state"], shown["labels"], shown["entries"], shown["admission"]) == ("ready", "2", "7", "open")
    assert shown["hub_id"] == hub.service.hub_metadata.identity.hub_id.hex()
    shown = veen.done("hub", "status", "--hub", url(hub), "--json").json()
    assert {name: shown[name] for name in ("labels", "limits")} == {"labels": 2, "limits": hub.status()["limits"]}
    assert shown["state"] == "ready"


def test_the_status_of_a_stopped_hub_is_that_of_its_directory(veen: Veen, data_dir: Path) -> None:
    before = veen.done("hub", "status", "--data-dir", data_dir, "--json").json()
    assert (before["state"], before["labels"], before["entries"]) == ("stopped", 0, 0)
    with running(data_dir, time.time) as found:
        found.writer().send_many(3)
    after = veen.done("hub", "status", "--data-dir", data_dir, "--json").json()
    assert (after["state"], after["labels"], after["entries"]) == ("stopped", 1, 3)
    assert after["hub_id"] == before["hub_id"]


def test_the_status_of_a_folder_that_is_not_a_data_directory_is_an_error(veen: Veen, tmp_path: Path) -> None:
    ran = veen("hub", "status", "--data-dir", tmp_path)
    assert ran.status == 6
    assert ran.error == f"{tmp_path} is not a hub's data directory"


def test_health_of_a_ready_hub_succeeds(veen: Veen, hub: Hub) -> None:
    expected = {"url": url(hub), "ready": True, "bad_states": []}
    assert veen.done("hub", "health", "--hub", url(hub), "--json").json() == expected


def test_health_and_status_show_a_bad_state_in_which_the_hub_accepts(veen: Veen, hub: Hub) -> None:
    damage = Malformed("nodes", f"{hub.data_dir}/index/nodes/x is damaged")
    hub.loop.call_soon_threadsafe(hub.service.conditions.enter, Reason.DAMAGE, damage)
    assert veen.done("hub", "health", "--hub", url(hub)).facts()["bad_states"] == "damage"
    assert veen.done("hub", "status", "--hub", url(hub)).facts()["trouble"] == "stored data of the hub is damaged"
    shown = veen.done("hub", "status", "--hub", url(hub), "--json").json()
    assert shown["state"] == "ready"
    assert shown["bad_states"] == [{"reason": "damage", "text": "stored data of the hub is damaged", "refused": 1}]


def test_a_hub_that_does_not_accept_says_why(veen: Veen, hub: Hub) -> None:
    answers = {path: (200, JSON, hub.get(path).body) for path in ("/healthz", "/tooling/status")}
    answers["/readyz"] = (503, JSON, b'{"ready":false,"reason":"the disk is full"}')
    with canned_server(answers) as where:
        ran = veen("hub", "health", "--hub", where)
        assert ran.status == 6
        assert ran.error == f"{where} is alive but rejects messages: the disk is full"
        assert veen.done("hub", "status", "--hub", where).facts()["state"] == "the disk is full"


def test_an_unreachable_hub_is_unavailable(veen: Veen) -> None:
    with own_port() as port:  # no process listens on it
        for command in ("status", "health", "metrics", "key"):
            ran = veen("hub", command, "--hub", f"http://127.0.0.1:{port}")
            assert ran.status == 6
            assert ran.error == f"no hub answers at http://127.0.0.1:{port}: connection refused"


def test_metrics_are_printed_unchanged(veen: Veen, hub: Hub) -> None:
    text = veen.done("hub", "metrics", "--hub", url(hub)).out
    assert "veen_submit_ok_total 7.0" in text.splitlines()
    rows = veen.done("hub", "metrics", "--hub", url(hub), "--json").json()
    assert {"name": "veen_submit_ok_total", "labels": {}, "value": 7.0} in rows


OK_STATUS = strict_json.encode(
    {"hub_id": "00", "hub_pk": "00", "identity": {}, "labels": 0, "entries": 0, "epoch": 0, "profile": {}}
)
OTHER_SERVERS: list[tuple[str, Answers, str]] = [
    ("health", {}, "HTTP status 404"),
    (
        "health",
        {"/healthz": (200, JSON, b"{}"), "/readyz": (200, JSON, b"nonsense")},
        "its response is not a JSON object",
    ),
    ("health", {"/healthz": (200, JSON, b"{}"), "/readyz": (500, "text/html", b"x")}, "HTTP status 500"),
    ("key", {"/tooling/status": (200, JSON, b"[]")}, "its response is not a JSON object"),
    ("key", {"/tooling/status": (200, JSON, b"{}")}, "fields are missing from its status"),
    ("key", {"/tooling/status": (502, "text/html", b"<h1>bad gateway</h1>")}, "HTTP status 502"),
    ("metrics", {}, "HTTP status 404"),
]


@pytest.mark.parametrize(("command", "answers", "why"), OTHER_SERVERS)
def test_a_server_that_is_not_a_hub_is_an_error(command: str, answers: Answers, why: str, veen: Veen) -> None:
    with canned_server(answers) as where:
        ran = veen("hub", command, "--hub", where)
    assert ran.status == 3
    assert ran.error == f"{where}: the response is not from a hub: {why}"


def test_a_hub_without_a_valid_identity_is_rejected(veen: Veen) -> None:
    with canned_server({"/tooling/status": (200, JSON, OK_STATUS)}) as where:
        assert veen("hub", "key", "--hub", where).status == 3


def test_an_invalid_key_chain_is_rejected(veen: Veen, hub: Hub) -> None:
    status = hub.status()
    status["identity"]["hub_id"] = "00" * 32
    with canned_server({"/tooling/status": (200, JSON, strict_json.encode(status))}) as where:
        ran = veen("hub", "key", "--hub", where)
    assert ran.status == 4
    assert ran.error == "hub identity: hub_id is not derived from the first key"


@pytest.mark.parametrize("kind", [JSON, CBOR])
def test_a_refusal_of_the_hub_is_shown_with_its_code_and_hint(kind: str, veen: Veen) -> None:
    envelope = ErrorEnvelope.of(BY_DETAIL["CAP_RATE"].refused("slow down", retry_after=1))
    body = wire_json.encode(envelope) if kind == JSON else envelope.encode()
    with canned_server({"/metrics": (429, kind, body)}) as where:
        ran = veen("hub", "metrics", "--hub", where)
    assert ran.status == 5
    assert ran.error == "E.RATE/CAP_RATE: slow down"
    assert "veen: hint: wait retry_after seconds\n" in ran.err


def test_the_keys_of_a_hub_are_shown_with_their_fingerprints(veen: Veen, hub: Hub, data_dir: Path) -> None:
    hub_pk = hub.service.hub_metadata.identity.newest.hub_pk
    for place in (["--hub", url(hub)], ["--data-dir", data_dir]):
        shown = veen.done("hub", "key", *place, "--json").json()
        assert [key["hub_pk"] for key in shown["keys"]] == [hub_pk.hex()]
        assert shown["keys"][0]["fingerprint"] == h(hub_pk).hex()
        assert shown["keys"][0]["valid_until"] is None
    assert veen.done("hub", "key", "--data-dir", data_dir).facts()["key 1"] == hub_pk.hex()


def test_a_rotated_key_is_valid_after_the_last_entry(veen: Veen, data_dir: Path) -> None:
    with running(data_dir, time.time) as found:
        receipt = found.writer().send_many(2)[-1]
    shown = veen.done("hub", "rotate-key", "--data-dir", data_dir, "--json").json()
    identity = read_metadata(Folders(data_dir)).identity
    assert shown["new_hub_pk"] == identity.newest.hub_pk.hex()
    assert shown["valid_from"] > receipt.hub_ts
    identity.verify_receipt(receipt)
    assert identity.hub_id.hex() == shown["hub_id"]
    assert veen.done("fsck", data_dir).facts()["verdict"] == "clean"
    with running(data_dir, Clock(int(shown["valid_from"]))) as found:
        later = found.writer("other").send()
    assert identity.verify_receipt(later).hub_pk.hex() == shown["new_hub_pk"]


def test_a_rotation_considers_entries_that_are_only_in_the_journal(veen: Veen, data_dir: Path) -> None:
    ahead = time.time() + 1000
    found = Hub(data_dir, Clock(ahead), None, {"admission": Admission.OPEN}).start()
    try:
        receipt = found.writer().send()
    finally:
        found.abandon()
    shown = veen.done("hub", "rotate-key", "--data-dir", data_dir, "--json").json()
    assert shown["valid_from"] == receipt.hub_ts + 1
    read_metadata(Folders(data_dir)).identity.verify_receipt(receipt)


def test_the_old_key_stays_valid_during_the_overlap(veen: Veen, data_dir: Path) -> None:
    shown = veen.done("hub", "rotate-key", "--data-dir", data_dir, "--overlap-sec", 60, "--json").json()
    assert shown["old_valid_until"] == shown["valid_from"] + 60


def test_keys_rotated_within_a_second_have_increasing_start_times(veen: Veen, data_dir: Path) -> None:
    starts = [veen.done("hub", "rotate-key", "--data-dir", data_dir, "--json").json()["valid_from"] for _ in range(3)]
    assert starts == sorted(set(starts))
    assert len(read_metadata(Folders(data_dir)).identity.hub_keys) == 4


def test_the_key_of_a_running_hub_is_not_rotated(veen: Veen, hub: Hub, data_dir: Path) -> None:
    ran = veen("hub", "rotate-key", "--data-dir", data_dir)
    assert ran.status == 6
    assert "veen hub stop" in ran.err
    assert len(read_metadata(Folders(data_dir)).identity.hub_keys) == 1


def test_a_rotation_without_an_index_fails_with_a_hint(veen: Veen, data_dir: Path) -> None:
    with running(data_dir, time.time) as found:
        found.writer().send()
    for path in (data_dir / "index").glob("*.mdb"):
        path.unlink()
    ran = veen("hub", "rotate-key", "--data-dir", data_dir)
    assert ran.status == 6
    assert f"veen fsck {data_dir} --repair" in ran.err
    assert len(read_metadata(Folders(data_dir)).identity.hub_keys) == 1


@pytest.mark.parametrize("entries", [1, 2, 3, 4, 7, 8, 9])
def test_the_size_of_a_label_is_found_with_receipt_requests(entries: int, data_dir: Path) -> None:
    with running(data_dir, time.time) as found:
        found.writer("doors").send_many(entries)
        with HubApi(url(found)) as api:
            assert api.size(found.label("doors")) == entries
            assert api.size(found.label("other")) == 0


@pytest.mark.parametrize(
    ("listed", "following"),
    [([0, 1], 1 << 63), ([1, 1], None), ([3, 2], None), ([1 << 63], None), ([2], 2), ([], 0)],
)
def test_a_list_of_epochs_ascends_and_ends(listed: list[int], following: int | None, tmp_path: Path) -> None:
    stream_id = naming.stream_id("doors")
    with running(make_dir(tmp_path, Profile(epoch_sec=86_400))) as found:
        status = found.get("/tooling/status").body
    rows = tuple(StreamEpoch(epoch, bytes(32), 1) for epoch in listed)
    path = f"/tooling/epochs?stream={stream_id.hex()}&epoch_min=0"
    answers = {
        "/tooling/status": (200, "application/json", status),
        path: (200, "application/cbor", EpochList(stream_id, rows, following).encode()),
    }
    with (
        canned_server(answers) as server,
        HubApi(server) as api,
        pytest.raises(Malformed, match=r"the hub lists|the list goes on"),
    ):
        api.epochs(stream_id)


def test_a_checkpoint_is_verified_and_saved(veen: Veen, hub: Hub, tmp_path: Path) -> None:
    out = tmp_path / "doors.checkpoint"
    shown = veen.done("hub", "checkpoint", "--hub", url(hub), "--stream", "doors", "--out", out, "--json").json()
    assert (shown["upto_seq"], shown["label"]) == (5, hub.label("doors").hex())
    kept = Checkpoint.decode(out.read_bytes())
    kept.verify_signature(hub.hub_pk)
    assert shown["checkpoint"] == kept.encode().hex()
    assert shown["checkpoint_hash"] == h(kept.encode()).hex()


def test_a_checkpoint_of_a_prefix_by_its_label(veen: Veen, hub: Hub) -> None:
    label = hub.label("doors").hex()
    shown = veen.done("hub", "checkpoint", "--hub", url(hub), "--label", label, "--upto", 3).facts()
    assert shown["upto_seq"] == "3"


def test_a_checkpoint_takes_hub_and_stream_from_the_context(veen: Veen, hub: Hub) -> None:
    veen.done("context", "add", "home", "--hub", url(hub), "--stream", "windows")
    assert veen.done("hub", "checkpoint").facts()["upto_seq"] == "2"


def test_a_checkpoint_of_missing_entries_is_an_error(veen: Veen, hub: Hub) -> None:
    nothing = veen("hub", "checkpoint", "--hub", url(hub), "--stream", "nowhere")
    assert (nothing.status, nothing.error) == (2, "the label has no entries")
    beyond = veen("hub", "checkpoint", "--hub", url(hub), "--stream", "doors", "--upto", 6)
    assert beyond.status == 5
    assert beyond.error.startswith("E.NOT_FOUND: ")
    unnamed = veen("hub", "checkpoint", "--hub", url(hub))
    assert (unnamed.status, unnamed.error) == (2, "missing --stream NAME")


def ask_hostile_server(
    veen: Veen, hub: Hub, key: DigestSigner, made: Checkpoint, *options: object, receipt_at: int = 5
) -> Ran:
    """Fetch a checkpoint of five entries from a server with the hub's status and receipts, but its own checkpoint."""
    signed = checkpoint.sign(
        key,
        label_prev=made.label_prev,
        label_curr=made.label_curr,
        upto_seq=made.upto_seq,
        mmr_root=made.mmr_root,
        epoch=made.epoch,
    )
    answers: Answers = {
        "/tooling/status": (200, JSON, hub.get("/tooling/status").body),
        "/v1/checkpoint": (200, CBOR, CheckpointResponse(signed).encode()),
        "/v1/receipt": (200, CBOR, hub.post("/v1/receipt", ReceiptRequest(hub.label("doors"), receipt_at)).body),
    }
    with canned_server(answers) as where:
        return veen("hub", "checkpoint", "--hub", where, "--upto", 5, *(options or ("--stream", "doors")))


def test_a_checkpoint_that_fails_verification_is_rejected(veen: Veen, hub: Hub) -> None:
    label, other, key = hub.label("doors"), hub.label("windows"), hub.service.signer.at(int(time.time()))
    true = hub.post("/v1/checkpoint", CheckpointRequest(label, 5)).read(CheckpointResponse).checkpoint
    forged = ask_hostile_server(veen, hub, SigningKey.generate(), true)
    assert (forged.status, forged.error) == (
        4,
        "checkpoint: no key of the hub that was active at that time signed it",
    )
    for place in ({"upto_seq": 4}, {"label_curr": other, "label_prev": other}):
        swapped = ask_hostile_server(veen, hub, key, replace(true, **place))
        assert (swapped.status, swapped.error) == (4, "checkpoint: it is for another place than requested")
    for ran in (
        ask_hostile_server(veen, hub, key, replace(true, mmr_root=bytes(32))),
        ask_hostile_server(veen, hub, key, true, receipt_at=4),
    ):
        assert (ran.status, ran.error) == (4, "checkpoint: its mmr_root differs from the receipt at the same place")
    assert ask_hostile_server(veen, hub, key, true).status == 0


def test_a_checkpoint_with_a_wrong_epoch_or_previous_label_is_rejected(veen: Veen, hub: Hub) -> None:
    label, key = hub.label("doors"), hub.service.signer.at(int(time.time()))
    true = hub.post("/v1/checkpoint", CheckpointRequest(label, 5)).read(CheckpointResponse).checkpoint
    by_label = ("--label", label.hex())
    for wrong in ({"epoch": 1}, {"label_prev": hub.label("windows")}):
        for asked in (("--stream", "doors"), by_label):
            ran = ask_hostile_server(veen, hub, key, replace(true, **wrong), *asked)
            assert (ran.status, ran.error.split(":")[0]) == (4, "checkpoint"), (wrong, asked)
    other = ask_hostile_server(veen, hub, key, true, *by_label, "--stream", "windows")
    assert (other.status, other.error) == (4, "checkpoint: label_curr is not the stream's label in that epoch")
    assert ask_hostile_server(veen, hub, key, true, *by_label).status == 0


def test_with_epochs_the_labels_of_a_checkpoint_are_checked_against_its_stream(veen: Veen, tmp_path: Path) -> None:
    with running(make_dir(tmp_path, Profile(epoch_sec=3600)), Clock()) as hub:
        hub.register(naming.stream_id("doors"))
        hub.writer("doors").send_many(5)
        label, key = hub.label("doors"), hub.service.signer.at(START)
        by_label = ["hub", "checkpoint", "--hub", url(hub), "--label", label.hex()]
        unchecked = veen.done(*by_label)
        assert "the labels were not checked" in unchecked.err
        for asked in ([*by_label, "--stream", "doors"], ["hub", "checkpoint", "--hub", url(hub), "--stream", "doors"]):
            checked = veen.done(*asked)
            assert checked.err == ""
            assert checked.facts()["label_prev"] == hub.label("doors", START // 3600 - 1).hex()
        true = hub.post("/v1/checkpoint", CheckpointRequest(label, 5)).read(CheckpointResponse).checkpoint
        by_both = ("--label", label.hex(), "--stream", "doors")
        ran = ask_hostile_server(veen, hub, key, replace(true, label_prev=bytes(32)), *by_both)
        assert ran.error == "checkpoint: label_prev is not the stream's label in the epoch before"


def test_verify_changes_nothing(veen: Veen, data_dir: Path) -> None:
    with running(data_dir, time.time) as found:
        found.writer().send_many(3)
        ran = veen("hub", "verify", "--data-dir", data_dir)
        assert ran.status == 6
    before = {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()}
    assert veen.done("hub", "verify", "--data-dir", data_dir, "--json").json()["entries"] == 3
    assert {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()} == before


def test_a_fork_keeps_a_prefix_under_a_new_hub_id(veen: Veen, data_dir: Path, tmp_path: Path) -> None:
    with running(data_dir, time.time) as found:
        found.writer("doors").send_many(5)
        found.writer("windows").send_many(2)
        label = found.label("doors")
    everything = veen.done(
        "hub", "fork", "--data-dir", data_dir, "--into", tmp_path / "all", "--no-root", "--json"
    ).json()
    assert (everything["labels"], everything["entries"]) == (2, 7)
    some = veen.done(
        "hub",
        "fork",
        "--data-dir",
        data_dir,
        "--into",
        tmp_path / "some",
        "--no-root",
        "--upto",
        f"{label.hex()}:3",
        "--json",
    ).json()
    assert (some["labels"], some["entries"]) == (1, 3)
    original = read_metadata(Folders(data_dir)).identity.hub_id.hex()
    assert len({original, everything["hub_id"], some["hub_id"]}) == 3
    for place in (data_dir, tmp_path / "all", tmp_path / "some"):
        assert veen.done("fsck", place).facts()["verdict"] == "clean"


def test_a_fork_with_invalid_arguments_fails(veen: Veen, data_dir: Path, tmp_path: Path) -> None:
    with running(data_dir, time.time) as found:
        found.writer("doors").send()
        label = found.label("doors").hex()
        assert veen("hub", "fork", "--data-dir", data_dir, "--into", tmp_path / "f", "--no-root").status == 6
    into = ["hub", "fork", "--data-dir", data_dir, "--into", tmp_path / "f", "--no-root"]
    assert veen(*into, "--upto", f"{label}:2").status == 6
    assert veen(*into, "--upto", f"{'00' * 32}:1").status == 6
    assert veen(*into, "--upto", f"{label}:1", "--upto", f"{label}:1").error == "--upto names a label twice"
    assert veen("hub", "fork", "--data-dir", tmp_path / "none", "--into", tmp_path / "f", "--no-root").status == 6
    assert (
        veen("hub", "fork", "--data-dir", data_dir, "--into", data_dir, "--no-root").error == f"{data_dir} is not empty"
    )


def test_an_invalid_url_is_a_usage_error(veen: Veen) -> None:
    ran = veen("hub", "status", env={"VEEN_HUB": "ftp://x"})
    assert ran.status == 2
    assert "is not the address of a hub" in ran.error


def test_json_is_one_document_on_one_line(veen: Veen, hub: Hub) -> None:
    out = veen.done("hub", "status", "--hub", url(hub), "--json").out
    assert out.count("\n") == 1
    assert json.loads(out)


def test_status_shows_how_far_the_log_was_read_again_and_what_is_damaged(veen: Veen, hub: Hub) -> None:
    assert veen.done("hub", "status", "--hub", url(hub)).facts()["scrub"] == "no full pass yet"
    scrub = {"pass_entries": 3, "last_pass_age_s": 7300, "damaged": {"chunk": 0, "checkpoint_index": 0}}
    damaged = scrub | {"damaged": {"chunk": 2, "checkpoint_index": 1}}
    expected = "42 % of this pass, last full pass 2 h ago"
    for shown, text in ((scrub, expected), (damaged, "damaged: 2 chunk, 1 checkpoint index; see the hub's log, …")):
        answers = {path: (200, JSON, hub.get(path).body) for path in ("/healthz", "/readyz")}
        answers["/tooling/status"] = (200, JSON, json.dumps(hub.status() | {"scrub": shown}).encode())
        with canned_server(answers) as where:
            row = veen.done("hub", "status", "--hub", where).facts()["scrub"]
            assert row.startswith(text.removesuffix("…"))
