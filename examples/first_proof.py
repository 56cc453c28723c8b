"""A first proof: a writer, a hub and a reader in one process, and a stranger who trusts none of them.

All bytes are those that a real client and hub exchange; only the network is missing.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from veen.core import (
    CapToken,
    Checkpoint,
    DhKey,
    Leaf,
    Limits,
    Mmr,
    MmrProof,
    Msg,
    PayloadHdr,
    Place,
    Profile,
    ProofStep,
    Receipt,
    SigningKey,
    Unverified,
    admission,
    cap_token,
    checkpoint,
    ciphertext,
    hub_identity,
    msg,
    naming,
    proof,
    receipt,
)
from veen.core.cosignature import WitnessPolicy

MESSAGES = 1000
SHOWN = 137
NOW = 1_760_000_000
BODIES = [f"door {number % 7} opened" for number in range(1, MESSAGES + 1)]

_COLOUR = sys.stdout.isatty()


def bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if _COLOUR else text


def short(data: bytes) -> str:
    return f"{data.hex()[:16]}…"


@contextmanager
def step(title: str) -> Iterator[None]:
    """One step of the example, with its duration."""
    print(f"\n{bold(title)}")
    start = time.perf_counter()
    yield
    print(f"  {'':<16}{(time.perf_counter() - start) * 1000:.1f} ms")


def show(name: str, value: object) -> None:
    print(f"  {name:<16}{value}")


class Hub:
    """Orders messages and signs the order. It has no key that opens them."""

    def __init__(self, token: CapToken) -> None:
        self.token = token
        self.key = SigningKey.generate()
        self.identity = hub_identity.create(self.key, valid_from=NOW)
        self.routing_key = naming.routing_key(self.identity.hub_id)
        self.tree = Mmr()
        self.nodes: list[bytes] = []
        self.log: list[Msg] = []

    def submit(self, encoded: bytes) -> Receipt:
        message = Msg.decode(encoded)
        message.check_ct_hash()
        message.verify_signature()
        labels = [naming.label(self.routing_key, stream, epoch=0) for stream in self.token.allow.stream_ids]
        if message.auth_ref != self.token.auth_ref() or message.client_id != self.token.subject_pk:
            raise admission.BY_DETAIL["CAP_MISSING"].refused("this key has no capability")
        if message.label not in labels:
            raise admission.BY_DETAIL["AUTH_REF"].refused("the capability is for other streams")
        if message.client_seq != self.tree.size + 1:
            raise admission.BY_DETAIL["CLIENT_SEQ"].refused(f"{self.tree.size + 1} is next")
        self.nodes += self.tree.append(message.leaf_hash())
        self.log.append(message)
        return receipt.sign(
            self.key,
            label=message.label,
            stream_seq=self.tree.size,
            leaf_hash=message.leaf_hash(),
            mmr_root=self.tree.root(),
            hub_ts=NOW + self.tree.size,
        )

    def checkpoint(self, label: bytes) -> Checkpoint:
        root = self.tree.root()
        return checkpoint.sign(
            self.key, label_prev=label, label_curr=label, upto_seq=self.tree.size, mmr_root=root, epoch=0
        )

    def prove(self, stream_seq: int) -> MmrProof:
        return proof.prove(self.nodes.__getitem__, stream_seq, self.tree.size)


def send_all(hub: Hub, writer: SigningKey, reader_pk: bytes, auth_ref: bytes, profile: Profile) -> list[Receipt]:
    """Seal, sign, submit, and verify every receipt before the next message is sent."""
    label = naming.label(hub.routing_key, naming.stream_id("doors"), epoch=0)
    header = PayloadHdr(naming.schema_id("door.event.v1"), cap_ref=auth_ref)
    mine = Mmr()  # the writer keeps its own tree and compares roots: the hub cannot drop or reorder unnoticed
    receipts = []
    for client_seq, text in enumerate(BODIES, 1):
        place = Place(profile.profile_id(), label, writer.public_key, client_seq, client_seq - 1, auth_ref)
        sealed = ciphertext.seal(reader_pk, place, header, text.encode(), profile.pad_block)
        message = msg.sign(
            writer,
            profile_id=place.profile_id,
            label=label,
            client_seq=client_seq,
            prev_ack=place.prev_ack,
            auth_ref=auth_ref,
            ciphertext=sealed,
        )
        answer = hub.submit(message.encode())
        hub.identity.verify_receipt(answer)
        answer.check_binds(message)
        mine.append(message.leaf_hash())
        if mine.root() != answer.mmr_root:
            raise Unverified("receipt", "the hub's tree differs from the writer's own")
        receipts.append(answer)
    return receipts


def lies(found: MmrProof, message: Msg) -> Iterator[tuple[str, MmrProof, bytes, int]]:
    """False proofs that a dishonest hub might offer."""
    leaf = message.leaf_hash()
    first, *rest = found.path
    flipped = bytes((first.sib[0] ^ 1,)) + first.sib[1:]
    yield "a proof with one bit changed", replace(found, path=(ProofStep(first.dir, flipped), *rest)), leaf, SHOWN
    yield "another message in its place", found, replace(message, client_seq=SHOWN + 1).leaf_hash(), SHOWN
    yield "the message at another place", found, leaf, SHOWN + 1
    yield "a proof with its siblings swapped", replace(found, path=found.path[::-1]), leaf, SHOWN
    yield "a proof with a peak left out", replace(found, peaks_after=found.peaks_after[1:]), leaf, SHOWN


def main() -> None:
    profile, reader = Profile(), DhKey.generate()
    operator, writer = SigningKey.generate(), SigningKey.generate()

    with step("The operator permits the writer to write to one stream, for an hour"):
        token = cap_token.mint(operator, writer.public_key, [naming.stream_id("doors")], ttl=3600)
        token.verify()
        hub = Hub(token)
        show("hub", short(hub.identity.hub_id))
        show("capability", short(token.auth_ref()))

    with step(f"The writer seals, signs and sends {MESSAGES} messages, and verifies {MESSAGES} receipts"):
        receipts = send_all(hub, writer, reader.public_key, token.auth_ref(), profile)
        show("last root", short(receipts[-1].mmr_root))

    with step(f"The reader opens message {SHOWN}; the hub sees only the ciphertext"):
        message = hub.log[SHOWN - 1]
        show("hub sees", short(message.ciphertext))
        payload = ciphertext.open_sealed(reader, Place.of(message), message.ciphertext, Limits())
        show("reader sees", payload.body.decode())

    with step("The hub signs a checkpoint, and a witness signs it too"):
        witness = SigningKey.generate()
        head = hub.checkpoint(message.label).witnessed(witness)
        show("checkpoint", f"{len(head.encode())} bytes, up to message {head.upto_seq}")

    with step("A stranger who knows the hub's id checks the proof, offline"):
        pinned, encoded = hub.identity.hub_id, hub.prove(SHOWN).encode()
        record, signature = hub.identity, hub_identity.sign(hub.identity, hub.key)
        record.verify(signature, pinned)
        record.verify_checkpoint(head, profile)
        found = MmrProof.decode(encoded)
        WitnessPolicy(1, {"alpha": witness.public_key}).check(head, record)
        proof.verify_inclusion(found, Leaf.of_msg(message, SHOWN), head)
        show("proof", f"{len(encoded)} bytes: {len(found.path)} siblings, {len(found.peaks_after)} other peaks")
        show("verified", f"message {SHOWN} is in the log of {head.upto_seq}, at that place")

    with step("The log only grew: an early receipt and the checkpoint are consistent"):
        proof.verify_consistency(hub.prove(SHOWN), receipts[SHOWN - 1], head)
        show("verified", f"the tree at {SHOWN} is a prefix of the tree at {head.upto_seq}")

    with step("False proofs are rejected"):
        for lie, bad, leaf_hash, stream_seq in lies(found, message):
            try:
                proof.verify_inclusion(bad, Leaf(message.label, leaf_hash, stream_seq), head)
            except Unverified as refused:
                show("refused", f"{lie}: {refused.reason}")
            else:
                raise AssertionError(f"accepted {lie}")


if __name__ == "__main__":
    main()
