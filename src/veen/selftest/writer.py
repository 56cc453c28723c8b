"""A client of one label with correct counters, which checks can override to send wrong messages."""

from dataclasses import dataclass, field
from typing import NamedTuple

from veen.core import DhKey, Msg, PayloadHdr, Place, Receipt, SigningKey, ciphertext, msg, naming
from veen.core.envelopes import SubmitResponse
from veen.selftest.hub_facts import HubFacts
from veen.selftest.probe import Probe

SCHEMA = naming.schema_id("veen.selftest.v1")


class AcceptedMessage(NamedTuple):
    """A message and its receipt."""

    msg: Msg
    receipt: Receipt


def _random_reader() -> bytes:
    """A reader key whose secret is discarded: the hub's behaviour must not depend on the content."""
    return DhKey.generate().public_key


@dataclass(slots=True)
class Writer:
    """One client key under one label."""

    probe: Probe
    facts: HubFacts
    stream_id: bytes
    label: bytes
    key: SigningKey
    auth_ref: bytes | None = None
    client_seq: int = 0
    prev_ack: int = 0
    reader_pk: bytes = field(default_factory=_random_reader)

    def message(
        self,
        body: bytes = b"selftest",
        *,
        client_seq: int | None = None,
        prev_ack: int | None = None,
        sealed: bytes | None = None,
    ) -> Msg:
        """The next message, optionally with other counters or with these sealed bytes."""
        place = Place(
            self.facts.profile.profile_id(),
            self.label,
            self.key.public_key,
            self.client_seq + 1 if client_seq is None else client_seq,
            self.prev_ack if prev_ack is None else prev_ack,
            self.auth_ref,
        )
        if sealed is None:
            sealed = ciphertext.seal(self.reader_pk, place, PayloadHdr(SCHEMA), body, self.facts.profile.pad_block)
        return msg.sign(
            self.key,
            profile_id=place.profile_id,
            label=place.label,
            client_seq=place.client_seq,
            prev_ack=place.prev_ack,
            auth_ref=place.auth_ref,
            ciphertext=sealed,
        )

    def send(self, body: bytes = b"selftest") -> AcceptedMessage:
        """Submit the next message; the hub must accept it."""
        return self.accept(self.message(body))

    def accept(self, message: Msg) -> AcceptedMessage:
        """Submit this message; the hub must accept it."""
        receipt = self.probe.submit(message).read(SubmitResponse).receipt
        self.client_seq, self.prev_ack = message.client_seq, receipt.stream_seq
        return AcceptedMessage(message, receipt)
