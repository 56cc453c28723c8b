"""A bundle is verified from its bytes and a trusted hub id alone, and every change is detected."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import NamedTuple

import pytest

from tests.bridge.bridge_fixture import EXPORT, zones
from tests.hub.client import hub_key
from veen.bridge import bundle as bundles
from veen.bridge.bundle import Bundle, BundleCode, BundleFault, Contents
from veen.bridge.bundle_export import ExportRange, build
from veen.core import Malformed, Receipt, SigningKey
from veen.core.hashing import h

SAMPLES, SEED = 400, 20_261


class Made(NamedTuple):
    """A bundle of entries 3 to 5 of six, its hub, and related bundles."""

    data: bytes
    later: bytes  # the same events under a later checkpoint
    before: bytes  # entries 1 to 2
    other: bytes  # the same bodies at another hub
    small: bytes  # one entry alone
    hub_id: bytes
    other_id: bytes
    key: SigningKey


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    async def run() -> tuple[bytes, ...]:
        await at.produce(*(b"body %d" % number for number in range(6)))
        async with at.client("exporter", at.online) as client:
            again = [await build(client, EXPORT, ExportRange(0, 3, 5)) for _ in range(2)]
            assert again[0].encode() == again[1].encode()
            later = await build(client, EXPORT, ExportRange(0, 3, 5), upto_seq=6)
            before = await build(client, EXPORT, ExportRange(0, 1, 2))
            small = await build(client, EXPORT, ExportRange(0, 6, 6))
        async with at.client("producer", at.offline) as client:
            for number in range(6):
                await client.send(EXPORT, b"body %d" % number)
        async with at.client("analyst", at.offline) as client:
            other = await build(client, EXPORT, ExportRange(0, 3, 5))
        return tuple(one.encode() for one in (again[0], later, before, other, small))

    with zones(tmp_path_factory.mktemp("zones")) as at:
        data, later, before, other, small = asyncio.run(run())
        key = hub_key(at.online)
        yield Made(data, later, before, other, small, at.source_id, at.target_id, key)


def fault(data: bytes, *trusted: bytes) -> BundleFault:
    with pytest.raises(BundleFault) as caught:
        bundles.verify(data, trusted)
    return caught.value


def test_a_bundle_verifies_offline(made: Made) -> None:
    for data in (made.data, made.later, made.before, made.small):
        found = bundles.verify(data, {made.hub_id})
        assert found.bundle.encode() == data
        assert found.bundle_hash == h(data)
    shown = found.to_json()
    assert (shown["export_seq_from"], shown["export_seq_to"], shown["export_stream"]) == (6, 6, EXPORT)


def test_a_bundle_is_named_by_its_contents(made: Made) -> None:
    found = Bundle.decode(made.data)
    assert found.name == f"{found.contents.bundle_id().hex()}.bundle"
    assert bundles.claimed_id(made.data) == found.bundle_id
    assert Bundle.decode(made.later).bundle_id != found.bundle_id


@pytest.mark.parametrize("data", [b"", b"\xa4", b"\xa4\x01\x6eveen.bundle.v1\x02\x01\x03\x58\x20short"])
def test_other_files_are_identified_by_their_hash(data: bytes) -> None:
    assert bundles.claimed_id(data) == h(data)
    assert fault(data).code is BundleCode.MALFORMED


def test_only_bundles_of_trusted_hubs_verify(made: Made) -> None:
    assert fault(made.data).code is BundleCode.SOURCE
    assert fault(made.data, made.other_id).code is BundleCode.SOURCE
    assert fault(made.other, made.hub_id).code is BundleCode.SOURCE


def test_an_oversized_bundle_is_rejected() -> None:
    with pytest.raises(Malformed):
        bundles.decode(bytes(bundles.MAX_BUNDLE_BYTES + 1))


def flipped(data: bytes, bit: int) -> bytes:
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def test_any_flipped_bit_is_detected(made: Made) -> None:
    chance = Random(SEED)
    for bit in chance.sample(range(8 * len(made.data)), SAMPLES):
        assert fault(flipped(made.data, bit), made.hub_id).code in (BundleCode.MALFORMED, BundleCode.BUNDLE_ID), bit


@pytest.mark.slow
def test_every_flipped_bit_of_a_small_bundle_is_detected(made: Made) -> None:
    for bit in range(8 * len(made.small)):
        assert fault(flipped(made.small, bit), made.hub_id).code in (BundleCode.MALFORMED, BundleCode.BUNDLE_ID), bit


@pytest.mark.parametrize("cut", [1, 33, 200])
def test_truncated_and_extended_bundles_are_rejected(made: Made, cut: int) -> None:
    assert fault(made.data[:-cut], made.hub_id).code is BundleCode.MALFORMED
    assert fault(made.data + bytes(cut), made.hub_id).code is BundleCode.MALFORMED


# An attacker who changes a bundle and recomputes its id.

Change = Callable[[Contents, Made], Contents]


def _events(change: Callable[[list[bundles.BundleEvent]], object]) -> Change:
    def changed(contents: Contents, made: Made) -> Contents:
        events = list(contents.events)
        change(events)
        return replace(contents, events=tuple(events))

    return changed


def _header(**fields: object) -> Change:
    return lambda contents, made: replace(contents, header=replace(contents.header, **fields))  # type: ignore[arg-type]


def _upto(**fields: object) -> Change:
    def changed(contents: Contents, made: Made) -> Contents:
        return replace(contents, export_checkpoint=replace(contents.export_checkpoint, **fields))  # type: ignore[arg-type]

    return changed


def _proof(**fields: object) -> Change:
    return lambda contents, made: replace(contents, proof=replace(contents.proof, **fields))  # type: ignore[arg-type]


def _shorter(contents: Contents, made: Made) -> Contents:
    """Without the last event, with a matching header."""
    last = contents.events[-2].receipt
    header = replace(contents.header, export_seq_to=last.stream_seq, export_time_to=last.hub_ts)
    return replace(contents, header=header, events=contents.events[:-1])


def _swap(events: list[bundles.BundleEvent]) -> None:
    events[0], events[1] = events[1], events[0]


def _swap_receipts(events: list[bundles.BundleEvent]) -> None:
    first, second = events[0], events[1]
    events[0], events[1] = replace(first, receipt=second.receipt), replace(second, receipt=first.receipt)


def _of_another_hub(contents: Contents, made: Made) -> Contents:
    return replace(contents, source=Bundle.decode(made.other).contents.source)


def _checkpoint_of_another_hub(contents: Contents, made: Made) -> Contents:
    return replace(contents, export_checkpoint=Bundle.decode(made.other).contents.export_checkpoint)


def _earlier_checkpoint(contents: Contents, made: Made) -> Contents:
    return replace(contents, export_checkpoint=Bundle.decode(made.before).contents.export_checkpoint)


def _proof_of_another(contents: Contents, made: Made) -> Contents:
    return replace(contents, proof=Bundle.decode(made.later).contents.proof)


def _signed_by_a_stranger(contents: Contents, made: Made) -> Contents:
    upto = contents.export_checkpoint
    checkpoint = replace(upto.checkpoint, hub_sig=SigningKey.generate().sign(upto.checkpoint.signing_digest()))
    return replace(contents, export_checkpoint=replace(upto, checkpoint=checkpoint))


def _message_unsigned(events: list[bundles.BundleEvent]) -> None:
    event = events[1]
    events[1] = replace(event, msg=replace(event.msg, sig=bytes(64)))


def _message_changed(events: list[bundles.BundleEvent]) -> None:
    event = events[1]
    events[1] = replace(event, msg=replace(event.msg, ciphertext=flipped(event.msg.ciphertext, 900)))


def _receipt_redated(events: list[bundles.BundleEvent]) -> None:
    event = events[1]
    events[1] = replace(event, receipt=replace(event.receipt, hub_ts=event.receipt.hub_ts + 1))


def _signed_at(receipt: Receipt, hub_ts: int, made: Made) -> Receipt:
    dated = replace(receipt, hub_ts=hub_ts)
    return replace(dated, hub_sig=made.key.sign(dated.signing_digest()))


def _time_falls(contents: Contents, made: Made) -> Contents:
    """The hub itself signed an earlier time for the second event than for the first."""
    first, second, *rest = contents.events
    receipt = _signed_at(second.receipt, first.receipt.hub_ts - 1, made)
    return replace(contents, events=(first, replace(second, receipt=receipt), *rest))


def _time_falls_after_the_events(contents: Contents, made: Made) -> Contents:
    """The entry of the export checkpoint has an earlier time than the last event before it."""
    upto = Bundle.decode(made.later).contents.export_checkpoint
    hub_ts = contents.events[-1].receipt.hub_ts - 1
    dated = replace(upto, receipt=_signed_at(upto.receipt, hub_ts, made), timestamp=hub_ts)
    return replace(contents, export_checkpoint=dated, proof=Bundle.decode(made.later).contents.proof)


def _unsigned_identity(contents: Contents, made: Made) -> Contents:
    source = contents.source
    return replace(contents, source=replace(source, signature=replace(source.signature, sig=bytes(64))))


CHANGES: dict[str, tuple[Change, BundleCode, int | None]] = {
    "another hub is named": (
        lambda contents, made: _header(source_hub_id=made.other_id)(contents, made),
        BundleCode.SOURCE,
        None,
    ),
    "the papers of another hub": (_of_another_hub, BundleCode.SOURCE, None),
    "papers that nobody signed": (_unsigned_identity, BundleCode.SOURCE, None),
    "an earlier beginning": (_header(export_seq_from=1), BundleCode.HEADER, None),
    "a later end": (_header(export_seq_to=6), BundleCode.HEADER, None),
    "another time": (_header(export_time_from=1), BundleCode.HEADER, None),
    "another epoch": (_header(epoch=1), BundleCode.CHECKPOINT, None),
    "another stream": (_header(export_stream="export/x", export_stream_id=h(b"export/x")), BundleCode.CHECKPOINT, None),
    "an event dropped": (_events(lambda events: events.pop(1)), BundleCode.ORDER, None),
    "an event doubled": (_events(lambda events: events.insert(1, events[0])), BundleCode.ORDER, None),
    "two events swapped": (_events(_swap), BundleCode.HEADER, None),
    "two receipts swapped": (_events(_swap_receipts), BundleCode.HEADER, None),
    "the last event cut off": (_shorter, BundleCode.PROOF, None),
    "a message unsigned": (_events(_message_unsigned), BundleCode.SIGNATURE, 2),
    "a message changed": (_events(_message_changed), BundleCode.RECEIPT, 2),
    "a receipt redated": (_events(_receipt_redated), BundleCode.RECEIPT, 2),
    "a time that falls": (_time_falls, BundleCode.ORDER, 2),
    "a time that falls after the events": (_time_falls_after_the_events, BundleCode.ORDER, None),
    "another root": (_upto(root=bytes(32)), BundleCode.CHECKPOINT, None),
    "another last number": (_upto(last_seq=6), BundleCode.CHECKPOINT, None),
    "another key": (_upto(hub_public=bytes(32)), BundleCode.CHECKPOINT, None),
    "another moment": (_upto(timestamp=1), BundleCode.CHECKPOINT, None),
    "a checkpoint that a stranger signed": (_signed_by_a_stranger, BundleCode.CHECKPOINT, None),
    "a checkpoint of another hub": (_checkpoint_of_another_hub, BundleCode.CHECKPOINT, None),
    "a checkpoint before the events": (_earlier_checkpoint, BundleCode.CHECKPOINT, None),
    "other peaks": (_proof(peaks_before=(bytes(32),)), BundleCode.PROOF, 1),
    "too few peaks": (_proof(peaks_before=()), BundleCode.PROOF, None),
    "the proof of another checkpoint": (_proof_of_another, BundleCode.PROOF, None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_bundle_with_a_matching_id_is_rejected_for_the_change(made: Made, name: str) -> None:
    change, code, position = CHANGES[name]
    forged = Bundle.of(change(Bundle.decode(made.data).contents, made)).encode()
    found = fault(forged, made.hub_id)
    assert (found.code, found.position) == (code, position), str(found)


def test_a_wrong_stream_id_does_not_decode(made: Made) -> None:
    name = EXPORT.encode()
    assert made.data.count(name) == 1
    found = fault(made.data.replace(name, name[:-1] + b"x"), made.hub_id)
    assert (found.code, "export_stream_id" in str(found)) == (BundleCode.MALFORMED, True)


def test_every_code_of_bundle_verification_is_reached() -> None:
    alone = {code for _, code, _ in CHANGES.values()} | {BundleCode.MALFORMED, BundleCode.BUNDLE_ID}
    later = {
        BundleCode.MAPPING,
        BundleCode.SEALED,
        BundleCode.ATTACHMENT,
        BundleCode.DUPLICATE,
        BundleCode.OVERLAP,
        BundleCode.PARTIAL,
        BundleCode.REFUSED,
    }
    assert alone | later == set(BundleCode)
