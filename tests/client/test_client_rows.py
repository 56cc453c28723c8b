"""Every stored object has one encoding: other bytes do not decode, or encode to themselves."""

import sys
from random import Random

import pytest

from tests.client.ledger import NOW, STREAM, Ledger, message
from tests.client.test_identity_card import CARD, ME
from tests.client.test_keystore import SECRETS
from tests.core.wire_strategies import mutate
from veen.client import LabelState, ReaderKey, StreamKey, WriterKey
from veen.client.client_state import CaughtRow
from veen.client.portable import FileEntry, PortableManifest, Routing, StateRow, SyncState
from veen.client.writer_keys import ClientKeyUse, WriterState
from veen.core import Malformed, naming
from veen.core.cbor import Wire
from veen.core.hashing import u64be

MUTATIONS = 500
MODULES = (
    "client_identity",
    "keystore",
    "portable",
    "client_state",
    "writer_keys",
)


def _samples() -> list[Wire]:
    ledger = Ledger()
    writer = WriterKey(ledger.hub_id, ledger.label, 0, ME.client_key(0), WriterState(), 9, None)
    ledger.take(message(writer).msg)
    use = ClientKeyUse(3, b"\3" * 32, NOW, retired=True)
    files = FileEntry("card.cbor", 7, b"\1" * 32), FileEntry("keystore.enc", 70_000, b"\2" * 32)
    return [
        CARD,
        CARD.prekeys[0],
        SECRETS,
        SECRETS.streams[0],
        ledger.state(),
        CaughtRow("root", "the root signed for entry 2", NOW, "evidence/2.evidence"),
        use,
        WriterState(70_000, 300, closed=True),
        StreamKey("news", b"\4" * 32),
        ReaderKey("news", b"\5" * 32),
        files[0],
        PortableManifest(ME.id_sign.public_key, NOW, files, bytes(64)),
        Routing(ledger.hub_id, naming.routing_key(ledger.hub_id)),
        SyncState(ledger.hub_id, STREAM, ledger.state()),
        SyncState(ledger.hub_id, STREAM),
        StateRow("generations", u64be(3), use.encode()),
        StateRow("urls", b"https://hub.example", ledger.hub_id),
    ]


SAMPLES = _samples()


def test_every_object_of_these_modules_has_a_sample() -> None:
    named = {
        thing
        for module in MODULES
        for thing in vars(sys.modules[f"veen.client.{module}"]).values()
        if isinstance(thing, type) and issubclass(thing, Wire) and thing.__module__ == f"veen.client.{module}"
    }
    assert named == {type(sample) for sample in SAMPLES}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_an_object_reads_back_as_it_was(sample: Wire) -> None:
    assert type(sample).decode(sample.encode()) == sample


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_damaged_bytes_are_refused_or_are_the_encoding_of_what_they_give(sample: Wire) -> None:
    rng, whole = Random(1), sample.encode()
    refused = 0
    for _ in range(MUTATIONS):
        data = mutate(rng, whole, whole)
        try:
            assert type(sample).decode(data).encode() == data
        except Malformed:
            refused += 1
    assert refused > MUTATIONS // 4
    for end in range(len(whole)):
        with pytest.raises(Malformed):
            type(sample).decode(whole[:end])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (StateRow("labels", bytes(64), b""), "not part of a portable set"),
        (StateRow("ladders", bytes(64), b""), "not part of a portable set"),
        (StateRow("outbox", bytes(72), b""), "not part of a portable set"),
        (StateRow("generations", bytes(7), b""), "8 bytes"),
        (StateRow("generations", bytes(8), b"\x80"), "client key use"),
        (StateRow("eras", bytes(40), bytes(7)), "8 bytes"),
        (StateRow("writers", bytes(96), b""), "writer state"),
        (StateRow("hubs", bytes(32), b"\xa0"), "hub record"),
        (StateRow("urls", b"https://x", bytes(31)), "32 bytes"),
        (StateRow("streams", bytes(33), b""), "32 bytes"),
        (StateRow("grants", bytes(63), bytes(8)), "64 bytes"),
    ],
)
def test_a_row_that_its_table_would_not_hold_has_no_encoding(row: StateRow, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        row.encode()


def test_a_label_state_of_no_entries_has_no_encoding() -> None:
    with pytest.raises(ValueError, match=r"size|root"):
        LabelState(bytes(32), 0, bytes(32), (), b"").encode()
