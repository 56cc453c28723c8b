"""Reads over real HTTP: pages, receipts, proofs, checkpoints, in CBOR and in JSON. Spec §10.4, §10.5."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from tests.hub.client import Hub, Writer, make_dir, running, until
from tests.hub.disks import QuickDisk
from veen.core import Limits, Mmr, Msg, Receipt, Unverified, naming, proof, wire_json
from veen.core.cbor import Wire
from veen.core.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
    StreamItem,
    StreamRequest,
    StreamResponse,
)
from veen.core.hashing import U64_MAX
from veen.core.limits import MAX_PAGE_BYTES, MAX_PAGE_ITEMS, SERVER_VERSION
from veen.hub import read_api

COUNT = 21
INTERVAL = 8  # so that some entries are in closed chunks, some in the open one, some only in the journal
W = TypeVar("W", bound=Wire)


@dataclass
class Filled:
    """A hub with one label, and its entries."""

    hub: Hub
    writer: Writer
    messages: list[Msg]
    receipts: list[Receipt]

    @property
    def label(self) -> bytes:
        return self.writer.label

    def page(self, from_seq: int = 1, **given: Any) -> StreamResponse:
        return both(self.hub, "/v1/stream", StreamRequest(self.label, from_seq, **given), StreamResponse)

    def seqs(self, from_seq: int = 1, **given: Any) -> list[int]:
        return [item.stream_seq for item in self.page(from_seq, **given).items]


def both(hub: Hub, path: str, request: Wire, cls: type[W]) -> W:
    """Send a request in CBOR and in JSON: the answers are equal and canonically encoded."""
    plain, shown = hub.post(path, request), hub.post_json(path, request)
    answer = plain.read(cls)
    assert shown.read(cls) == answer
    assert plain.body == answer.encode()
    assert shown.body == wire_json.encode(answer)
    assert (plain.headers["content-type"], shown.headers["content-type"]) == ("application/cbor", "application/json")
    return answer


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    data_dir = make_dir(tmp_path_factory.mktemp("plane"), limits=Limits(max_checkpoint_interval=INTERVAL))
    with running(data_dir) as hub:
        writer = hub.writer()
        messages, receipts = [], []
        for number in range(COUNT):
            if number == COUNT - 2:
                # A stop moves all entries to the log; the last two stay in the journal.
                hub.stop()
                hub.start()
            messages.append(writer.message(b"%d" % number))
            receipts.append(hub.submit(messages[-1]).receipt())
            writer.accepted(messages[-1])
        yield Filled(hub, writer, messages, receipts)


# Pages.


def test_a_page_holds_what_was_sent_in_order(filled: Filled) -> None:
    page = filled.page()
    assert [item.msg for item in page.items] == filled.messages
    assert [item.stream_seq for item in page.items] == list(range(1, COUNT + 1))
    assert all(item.receipt is None for item in page.items)
    assert (page.label, page.from_seq, page.to_seq, page.next_cursor) == (filled.label, 1, None, None)
    assert page.mmr_proof is None


def test_the_bytes_of_a_page_are_those_of_the_object(filled: Filled) -> None:
    request = StreamRequest(filled.label, 3, to_seq=9, max_items=4, with_receipts=True, with_mmr_proof=True)
    body = filled.hub.post("/v1/stream", request).body
    items = tuple(StreamItem(n, filled.messages[n - 1], filled.receipts[n - 1]) for n in range(3, 7))
    found = StreamResponse.decode(body)
    assert body == StreamResponse(filled.label, 3, 9, items, 7, found.mmr_proof, SERVER_VERSION).encode()


@pytest.mark.parametrize("from_seq", [0, 1])
def test_reading_starts_at_one_and_the_lower_bound_is_echoed(filled: Filled, from_seq: int) -> None:
    page = filled.page(from_seq, max_items=2)
    assert (page.from_seq, [item.stream_seq for item in page.items]) == (1, [1, 2])


def test_cursor_wins_over_from_seq(filled: Filled) -> None:
    page = filled.page(2, cursor=10, max_items=3)
    assert ([item.stream_seq for item in page.items], page.from_seq, page.next_cursor) == ([10, 11, 12], 10, 13)
    assert filled.seqs(20, cursor=4, max_items=1) == [4]
    assert filled.seqs(20, cursor=0, max_items=1) == [1]


def test_both_bounds_are_inclusive(filled: Filled) -> None:
    page = filled.page(5, to_seq=7)
    assert ([item.stream_seq for item in page.items], page.to_seq, page.next_cursor) == ([5, 6, 7], 7, None)
    assert filled.seqs(5, to_seq=5) == [5]


def test_a_cursor_stays_within_to_seq(filled: Filled) -> None:
    page = filled.page(1, to_seq=7, cursor=6)
    assert ([item.stream_seq for item in page.items], page.next_cursor) == ([6, 7], None)


def test_next_cursor_is_there_only_while_there_is_more(filled: Filled) -> None:
    assert filled.page(1, max_items=COUNT - 1).next_cursor == COUNT
    assert filled.page(1, max_items=COUNT).next_cursor is None
    assert filled.page(1, to_seq=6, max_items=5).next_cursor == 6
    assert filled.page(1, to_seq=5, max_items=5).next_cursor is None


def test_a_page_of_no_items_still_says_that_there_is_more(filled: Filled) -> None:
    page = filled.page(4, max_items=0)
    assert (page.items, page.next_cursor) == ((), 4)
    assert filled.page(COUNT + 1, max_items=0).next_cursor is None


@pytest.mark.parametrize("max_items", [1, 2, 5, COUNT, 10_000])
def test_following_the_cursor_reads_everything_once(filled: Filled, max_items: int) -> None:
    seqs, cursor = [], 1
    while True:
        page = filled.page(0, cursor=cursor, max_items=max_items)
        seqs += [item.stream_seq for item in page.items]
        if page.next_cursor is None:
            break
        assert page.next_cursor == seqs[-1] + 1
        cursor = page.next_cursor
    assert seqs == list(range(1, COUNT + 1))


@pytest.mark.parametrize(
    ("from_seq", "given"),
    [(COUNT + 1, {}), (U64_MAX, {}), (5, {"to_seq": 4}), (1, {"to_seq": 0}), (1, {"cursor": U64_MAX})],
)
def test_an_empty_range_is_an_empty_page(filled: Filled, from_seq: int, given: dict[str, int]) -> None:
    page = filled.page(from_seq, with_mmr_proof=True, **given)
    assert (page.items, page.next_cursor, page.mmr_proof) == ((), None, None)


def test_to_seq_beyond_the_end_reads_to_the_end(filled: Filled) -> None:
    assert filled.seqs(COUNT, to_seq=U64_MAX) == [COUNT]


def test_an_unknown_label_is_not_found(filled: Filled) -> None:
    unknown = bytes(32)
    requests: list[tuple[str, Wire]] = [
        ("/v1/stream", StreamRequest(unknown, 1)),
        ("/v1/receipt", ReceiptRequest(unknown, 1)),
        ("/v1/proof", ProofRequest(unknown, 1)),
        ("/v1/checkpoint", CheckpointRequest(unknown, 1)),
    ]
    for path, request in requests:
        for reply in (filled.hub.post(path, request), filled.hub.post_json(path, request)):
            error = reply.error()
            assert (reply.status, error.code) == (404, "E.NOT_FOUND")
            assert (error.detail or {})["label"] == unknown.hex()


def test_receipts_come_along_when_asked_for(filled: Filled) -> None:
    page = filled.page(with_receipts=True)
    assert [item.receipt for item in page.items] == filled.receipts
    assert all(item.receipt is None for item in filled.page(with_receipts=False).items)


@pytest.mark.parametrize("last", [1, 2, INTERVAL, INTERVAL + 1, COUNT - 2, COUNT - 1, COUNT])
def test_a_page_proves_its_last_item(filled: Filled, last: int) -> None:
    page = filled.page(1, to_seq=last, with_mmr_proof=True, with_receipts=True)
    receipt = page.items[-1].receipt
    assert receipt is not None
    assert receipt.stream_seq == last
    assert page.mmr_proof is not None
    proof.verify_in_receipt(page.mmr_proof, receipt)


def test_a_page_is_no_larger_than_the_hub_allows(tmp_path: Path) -> None:
    with running(make_dir(tmp_path)) as hub:
        writer = hub.writer()
        large, count = bytes(1_000_000), MAX_PAGE_BYTES // 1_000_000 + 2
        for _ in range(count):
            writer.send(large)
        reply = hub.post("/v1/stream", StreamRequest(writer.label, 1))
        page = reply.read(StreamResponse)
        assert len(reply.body) <= MAX_PAGE_BYTES
        assert page.next_cursor == len(page.items) + 1 <= count
        rest = hub.post("/v1/stream", StreamRequest(writer.label, 1, cursor=page.next_cursor)).read(StreamResponse)
        assert len(page.items) + len(rest.items) == count


def test_max_items_is_capped_by_the_hub(tmp_path: Path) -> None:
    with running(make_dir(tmp_path)) as hub:
        writer = hub.writer()
        batch = b""
        for _ in range(MAX_PAGE_ITEMS):
            message = writer.message()
            writer.accepted(message)
            batch += message.encode()
        assert hub.post("/tooling/submit-batch", batch).status == 200
        assert writer.send().stream_seq == MAX_PAGE_ITEMS + 1
        for most in (None, MAX_PAGE_ITEMS, MAX_PAGE_ITEMS + 1, U64_MAX):
            request = StreamRequest(writer.label, 1, max_items=most)
            page = hub.post("/v1/stream", request).read(StreamResponse)
            assert (len(page.items), page.next_cursor) == (MAX_PAGE_ITEMS, MAX_PAGE_ITEMS + 1)


# Receipts, proofs, checkpoints.


def test_every_receipt_can_be_fetched_again(filled: Filled) -> None:
    for receipt in filled.receipts:
        request = ReceiptRequest(filled.label, receipt.stream_seq)
        answer = both(filled.hub, "/v1/receipt", request, ReceiptResponse)
        assert answer == ReceiptResponse(receipt, SERVER_VERSION)
        receipt.verify_signature(filled.hub.hub_pk)
        receipt.check_binds(filled.messages[receipt.stream_seq - 1])


def test_every_receipt_signs_the_root_of_its_own_tree(filled: Filled) -> None:
    tree = Mmr()
    for message, receipt in zip(filled.messages, filled.receipts, strict=True):
        tree.append(message.leaf_hash())
        assert receipt.mmr_root == tree.root()


def test_every_proof_verifies_against_its_receipt_and_no_other(filled: Filled) -> None:
    for receipt in filled.receipts:
        answer = both(filled.hub, "/v1/proof", ProofRequest(filled.label, receipt.stream_seq), ProofResponse)
        proof.verify_in_receipt(answer.mmr_proof, receipt)
        other = replace(receipt, mmr_root=bytes(32))
        with pytest.raises(Unverified):
            proof.verify_in_receipt(answer.mmr_proof, other)


@pytest.mark.parametrize("path", ["receipt", "proof", "checkpoint"])
@pytest.mark.parametrize("seq", [0, COUNT + 1, U64_MAX])
def test_a_place_beyond_the_log_is_not_found(filled: Filled, path: str, seq: int) -> None:
    request = {"receipt": ReceiptRequest, "proof": ProofRequest, "checkpoint": CheckpointRequest}[path]
    reply = filled.hub.post(f"/v1/{path}", request(filled.label, seq))
    assert (reply.status, reply.error().code) == (404, "E.NOT_FOUND")
    assert (reply.error().detail or {})["stream_seq"] == seq


@pytest.mark.parametrize("upto", [1, 2, INTERVAL, INTERVAL + 3, COUNT - 2, COUNT])
def test_a_checkpoint_of_any_prefix_verifies(filled: Filled, upto: int) -> None:
    request = CheckpointRequest(filled.label, upto)
    found = both(filled.hub, "/v1/checkpoint", request, CheckpointResponse).checkpoint
    service = filled.hub.service
    assert (found.label_prev, found.label_curr, found.upto_seq) == (filled.label, filled.label, upto)
    assert found.mmr_root == filled.receipts[upto - 1].mmr_root
    service.hub_metadata.identity.verify_checkpoint(found, service.rules.profile)
    found.check_labels(service.rules.profile, service.rules.routing_key, naming.stream_id("s"))


def test_a_checkpoint_of_the_same_prefix_has_the_same_bytes_later(tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path)
    with running(data_dir) as hub:
        writer = hub.writer()
        writer.send_many(3)
        request = CheckpointRequest(writer.label, 3)
        first = hub.post("/v1/checkpoint", request).body
        writer.send_many(3)
        assert hub.post("/v1/checkpoint", request).body == first
    with running(data_dir) as hub:
        assert hub.post("/v1/checkpoint", request).body == first


def test_labels_do_not_see_each_other(tmp_path: Path) -> None:
    with running(make_dir(tmp_path)) as hub:
        writers = [hub.writer(name) for name in "abc"]
        for turn in range(3):
            for writer in writers:
                assert writer.send().stream_seq == turn + 1
        for writer in writers:
            page = hub.post("/v1/stream", StreamRequest(writer.label, 1)).read(StreamResponse)
            assert {item.msg.label for item in page.items} == {writer.label}
            assert len(page.items) == 3


# Clients that do not read.


@pytest.mark.parametrize("protocol", ["1.1", "2"])
def test_pages_that_are_not_read_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    size, most = 1_000_000, 4_000_000
    monkeypatch.setattr(read_api, "MAX_PAGE_MEMORY_BYTES", most)
    with running(make_dir(tmp_path), disk=QuickDisk()) as hub:
        writer = hub.writer()
        for _ in range(4):
            writer.send(bytes(size))
        pages, asked = hub.service.app.pages, StreamRequest(writer.label, 1)
        whole = hub.post("/v1/stream", asked)
        until(lambda: pages.held == 0)
        with unread(hub, asked.encode(), protocol):
            until(lambda: pages.held > most)
            reply = hub.post("/v1/stream", asked)
            assert (reply.status, reply.error().code, reply.headers["retry-after"]) == (503, "E.UNAVAILABLE", "1")
            assert pages.held <= most + 4 * len(whole.body)
            # Small requests are still answered, and messages are still accepted.
            assert hub.post("/v1/receipt", ReceiptRequest(writer.label, 1)).status == 200
            writer.send()
        # A page or two may still be built for clients that are already gone.
        until(lambda: hub.post("/v1/stream", asked).status == 200)
        until(lambda: pages.held == 0)


@contextmanager
def unread(hub: Hub, body: bytes, protocol: str) -> Iterator[None]:
    """A client that requests the same page repeatedly and reads none of it."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", hub.port))
        if protocol == "1.1":
            head = f"POST /v1/stream HTTP/1.1\r\nhost: hub\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            connection.sendall((head + body) * 40)
        else:
            client = H2Connection(H2Configuration(client_side=True))
            client.initiate_connection()
            for stream_id in range(1, 80, 2):
                fields = [(":method", "POST"), (":path", "/v1/stream"), (":scheme", "http"), (":authority", "hub")]
                client.send_headers(stream_id, fields)
                client.send_data(stream_id, body, end_stream=True)
            connection.sendall(client.data_to_send())
        yield
