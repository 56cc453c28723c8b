"""Scenarios A to C: one writer, several writers, and the end of an epoch."""

from dataclasses import replace

from vectors.form import Doc, signer_doc, signing_key
from vectors.hub import ModelHub
from vectors.recorder import SCHEMA, Draft, Scenario
from veen.core import Checkpoint, Msg, PayloadHdr, Profile, SigningKey, checkpoint, mmr, msg, naming
from veen.core.hashing import h

START = 1_700_000_000
EPOCH_SEC = 60


def _flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def scenario_a() -> Doc:
    hub = ModelHub(signing_key("hub"), Profile(epoch_sec=0, pad_block=256), routing=bytes(32))
    run = Scenario("a", "One writer appends to one label; then everything that is wrong with a message by itself.", hub)
    label = hub.open_label(h(b"test"))
    first = run.submit("the first message, with an empty body", Draft("alice", label, 1, 0), START)
    parent = PayloadHdr(SCHEMA, parent_id=first.leaf_hash(), expires_at=START + 3600)
    run.submit("a reply, with optional header fields", Draft("alice", label, 2, 1, b"second", header=parent), START + 1)
    for seq in range(3, 8):
        body = f"message {seq}".encode() * seq
        run.submit("one more", Draft("alice", label, seq, seq - 1, body), START + seq)
    _wrong_by_itself(run, label)
    run.submit("what was refused left no trace", Draft("alice", label, 8, 7, b"last"), START + 20)
    return run.document()


def _wrong_by_itself(run: Scenario, label: bytes) -> None:
    good, _ = run.compose(Draft("alice", label, 8, 7, b"spoiled"))
    data = good.encode()
    other_profile = Profile(epoch_sec=0, pad_block=0).profile_id()
    short_ct = bytes(39)  # one byte shorter than enc and the two lengths
    spoiled: list[tuple[str, bytes]] = [
        ("a byte after the end", data + b"\0"),
        ("the last byte missing", data[:-1]),
        ("not CBOR at all", b"\xff" + data[1:]),
        ("version 2", data[:1] + b"\x02" + data[2:]),
        ("a profile_id of 31 bytes", data[:2] + b"\x58\x1f" + data[4:35] + data[36:]),
        ("a ciphertext too short for its lengths", _resigned(good, ciphertext=short_ct)),
        ("another profile", _resigned(good, profile_id=other_profile)),
        ("ct_hash is not that of the ciphertext", _flipped(data, len(data) - 67)),
        ("the signature altered", _flipped(data, len(data) - 1)),
        ("signed by another client", replace(good, client_id=signing_key("bob").public_key).encode()),
        ("prev_ack ahead of the log", _resigned(good, prev_ack=8)),
        ("client_seq skips one", _resigned(good, client_seq=9)),
        ("client_seq 0", _resigned(good, client_seq=0)),
        ("a client_seq that was used, with another ciphertext", _resigned(good, client_seq=7)),
        ("wrong signature and wrong client_seq: the signature is judged first", replace(good, client_seq=9).encode()),
    ]
    for note, bytes_sent in spoiled:
        run.submit_bytes(note, bytes_sent, START + 10)


def _resigned(
    good: Msg,
    *,
    profile_id: bytes | None = None,
    ciphertext: bytes | None = None,
    client_seq: int | None = None,
    prev_ack: int | None = None,
) -> bytes:
    """Alice's message with other content and a valid signature."""
    return msg.sign(
        signing_key("alice"),
        profile_id=profile_id or good.profile_id,
        label=good.label,
        client_seq=good.client_seq if client_seq is None else client_seq,
        prev_ack=good.prev_ack if prev_ack is None else prev_ack,
        auth_ref=good.auth_ref,
        ciphertext=ciphertext or good.ciphertext,
    ).encode()


def scenario_b() -> Doc:
    hub = ModelHub(signing_key("hub"), Profile(epoch_sec=0, pad_block=0))
    run = Scenario("b", "Two writers take turns on one label, a third comes late; each message counts once.", hub)
    label, other = hub.open_label(h(b"room")), hub.open_label(h(b"hall"))
    sent: list[Msg] = []
    for seq, ack in ((1, 0), (2, 2), (3, 2)):
        for name in ("alice", "bob"):
            note = f"{name}'s message {seq}"
            sent.append(run.submit(note, Draft(name, label, seq, ack, note.encode()), START + len(sent)))
    run.submit("alice's first on another label: both counts start anew", Draft("alice", other, 1, 0), START + 6)
    run.submit_bytes("replay of alice's latest", sent[4].encode(), START + 10)
    run.submit_bytes("replay of bob's second, whose prev_ack still stands", sent[3].encode(), START + 10)
    late = {"other_detail_enum": "PREV_ACK"}
    run.submit_bytes("replay of alice's first, whose prev_ack is behind", sent[0].encode(), START + 10, **late)
    run.submit_bytes("alice's first, moved to the other label", replace(sent[0], label=other).encode(), START + 10)
    run.submit("carol joins, with bob's client_seq", Draft("carol", label, 4, 6), START + 11)
    run.submit("carol joins, with her own", Draft("carol", label, 1, 6, b"hello"), START + 12)
    run.submit("bob goes on after the refusals", Draft("bob", label, 4, 7, b"welcome"), START + 13)
    run.submit_bytes(
        "bob's prev_ack goes back",
        run.compose(Draft("bob", label, 5, 6, b"lost my place"))[0].encode(),
        START + 14,
        may_accept=True,
    )
    return run.document()


def scenario_c() -> Doc:
    hub = ModelHub(signing_key("hub"), Profile(epoch_sec=EPOCH_SEC, pad_block=256))
    run = Scenario("c", "A stream moves to the label of the next epoch; checkpoints tie the two.", hub)
    stream, epoch = h(b"shift"), START // EPOCH_SEC
    old, new, far = (hub.open_label(stream, epoch + step) for step in range(3))
    begin, turn = epoch * EPOCH_SEC, (epoch + 1) * EPOCH_SEC
    for seq in range(1, 6):
        run.submit("within the epoch", Draft("alice", old, seq, seq - 1, bytes((seq,)) * 40), begin + seq)
    run.submit("two epochs ahead", Draft("alice", far, 1, 0), turn - 1)
    run.submit("one epoch ahead: the window allows it", Draft("bob", new, 1, 0, b"early"), turn - 1)
    run.submit("the first second of the next epoch", Draft("alice", new, 1, 1, b"turned"), turn)
    run.submit("late for the old label, within the window", Draft("bob", old, 1, 5, b"late"), turn + EPOCH_SEC - 1)
    run.submit("too late for the old label", Draft("alice", old, 6, 6), turn + EPOCH_SEC)
    run.submit("the new label goes on", Draft("alice", new, 2, 2, b"on"), turn + EPOCH_SEC)
    return run.document(stream_id=stream, **_checkpoints(hub, stream, epoch, old, new))


def _checkpoints(hub: ModelHub, stream: bytes, epoch: int, old: bytes, new: bytes) -> Doc:
    witnesses = {name: signing_key(name) for name in ("witness-1", "witness-2")}

    def signed(label_prev: bytes, label_curr: bytes, upto_seq: int, at: int, *by: SigningKey) -> Checkpoint:
        peaks = hub.logs[label_curr].peaks(upto_seq)
        made = checkpoint.sign(
            hub.key,
            label_prev=label_prev,
            label_curr=label_curr,
            upto_seq=upto_seq,
            mmr_root=mmr.root_of(peaks),
            epoch=at,
        )
        return made.witnessed(*by) if by else made

    valid = [
        ("three messages into the epoch", signed(old, old, 3, epoch)),
        ("the whole old label, with two witnesses", signed(old, old, 6, epoch, *witnesses.values())),
        ("the new label, which names the old as label_prev", signed(old, new, 2, epoch + 1)),
        ("the new label further on, no rotation to tell of", signed(new, new, 3, epoch + 1, witnesses["witness-1"])),
    ]
    stranger = naming.label(hub.routing_key, h(b"another stream"), epoch)
    invalid = [
        ("the epoch is not label_curr's", signed(new, new, 3, epoch)),
        ("label_prev is not the epoch before", signed(new, old, 3, epoch)),
        ("label_prev belongs to another stream", signed(stranger, new, 3, epoch + 1)),
        ("epoch 0 has none before it", signed(old, new, 3, 0)),
    ]
    return {
        "witnesses": {name: signer_doc(key) for name, key in witnesses.items()},
        "checkpoints": [_checkpoint(hub, note, made) for note, made in valid],
        "invalid_checkpoints": [{"note": note, "cbor": made.encode()} for note, made in invalid],
        "contradicting_checkpoints": [
            {"note": "behind the accepted one", "accepted": valid[1][1].encode(), "cbor": valid[0][1].encode()},
            {
                "note": "another root at the same upto_seq",
                "accepted": valid[1][1].encode(),
                "cbor": checkpoint.sign(
                    hub.key, label_prev=old, label_curr=old, upto_seq=6, mmr_root=h(b"another root"), epoch=epoch
                ).encode(),
            },
        ],
    }


def _checkpoint(hub: ModelHub, note: str, made: Checkpoint) -> Doc:
    log, size = hub.logs[made.label_curr], made.upto_seq
    return {
        "note": note,
        "cbor": made.encode(),
        "label_prev": made.label_prev,
        "label_curr": made.label_curr,
        "upto_seq": size,
        "mmr_root": made.mmr_root,
        "epoch": made.epoch,
        "signing_digest": made.signing_digest(),
        "hub_sig": made.hub_sig,
        "witness_sigs": made.witness_sigs,
        "peaks": log.peaks(size),
        "proofs": [log.proof(seq, size).encode() for seq in range(1, size + 1)],
    }
