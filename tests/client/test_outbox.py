"""The outbox: a place is used for one message, permanently, before any byte is sent."""

import threading
from dataclasses import replace

import pytest

from tests.client.ledger import NOW, Ledger, message, messages
from veen.client import ClientDir, Pending, StateConflict, WriterKey
from veen.client.writer_keys import WriterRequest
from veen.core import Malformed, Refused


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def writer_of(client: ClientDir, ledger: Ledger, now: int = NOW) -> WriterKey:
    return client.writer(WriterRequest(ledger.hub_id, ledger.label, ledger.stream_id, now=now))


def waiting(client: ClientDir, ledger: Ledger) -> tuple[Pending, ...]:
    return client.outbox.pending(ledger.hub_id, ledger.label)


def test_what_is_put_waits_in_order_and_byte_for_byte(client: ClientDir, ledger: Ledger) -> None:
    writer = writer_of(client, ledger)
    put = messages(writer, 3)
    after = client.outbox.put(writer, put)
    assert waiting(client, ledger) == tuple(put)
    assert client.outbox.pending(ledger.hub_id, ledger.label, 2) == tuple(put[:2])
    assert after.next_client_seq == 4
    assert after.room == writer.room - 3
    client.close()
    with ClientDir.open(client.path) as again:
        assert waiting(again, ledger) == tuple(put)
        assert writer_of(again, ledger).next_client_seq == 4


def test_more_than_can_wait_in_one_byte_comes_back_in_order(client: ClientDir, ledger: Ledger) -> None:
    writer = writer_of(client, ledger)
    put: list[Pending] = []
    for _ in range(6):
        batch = messages(writer, 50)
        writer = client.outbox.put(writer, batch)
        put += batch
    assert waiting(client, ledger) == tuple(put)


def test_labels_and_hubs_wait_apart(client: ClientDir) -> None:
    ledgers = [Ledger() for _ in range(3)]
    for number, ledger in enumerate(ledgers, 1):
        writer = writer_of(client, ledger)
        client.outbox.put(writer, messages(writer, number))
    assert [len(waiting(client, ledger)) for ledger in ledgers] == [1, 2, 3]
    assert client.outbox.places() == tuple(sorted((ledger.hub_id, ledger.label) for ledger in ledgers))
    ledgers[0].answer(client.state, waiting(client, ledgers[0]))
    assert client.outbox.places() == tuple(sorted((ledger.hub_id, ledger.label) for ledger in ledgers[1:]))


def test_an_empty_outbox_has_no_places(client: ClientDir, ledger: Ledger) -> None:
    assert client.outbox.places() == ()
    assert waiting(client, ledger) == ()


def test_a_place_is_taken_even_if_nothing_ever_comes_back(client: ClientDir, ledger: Ledger) -> None:
    writer = writer_of(client, ledger)
    client.outbox.put(writer, messages(writer, 2))
    client.close()
    with ClientDir.open(client.path) as again:
        assert writer_of(again, ledger).next_client_seq == 3


def test_only_one_of_two_writers_gets_the_same_places(client: ClientDir, ledger: Ledger) -> None:
    one, two = writer_of(client, ledger), writer_of(client, ledger)
    mine, theirs = messages(one, 2), messages(two, 2)
    client.outbox.put(one, mine)
    with pytest.raises(StateConflict, match="get a new writer"):
        client.outbox.put(two, theirs)
    assert waiting(client, ledger) == tuple(mine)


def test_concurrent_writers_get_different_places(client: ClientDir, ledger: Ledger) -> None:
    start = threading.Barrier(4)

    def send(count: int) -> None:
        start.wait()
        while count:
            writer = writer_of(client, ledger)
            try:
                client.outbox.put(writer, [message(writer)])
            except StateConflict:
                continue
            count -= 1

    threads = [threading.Thread(target=send, args=(25,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.msg.client_seq for each in waiting(client, ledger)] == list(range(1, 101))


@pytest.mark.parametrize("places", [[1], [0, 2], [0, 0], [1, 0], [0, 1, 3]])
def test_places_other_than_the_next_ones_are_an_error(client: ClientDir, ledger: Ledger, places: list[int]) -> None:
    writer = writer_of(client, ledger)
    with pytest.raises(ValueError, match="expected the writer's message with client_seq"):
        client.outbox.put(writer, [message(writer, place) for place in places])
    assert client.outbox.places() == ()


def test_a_message_of_another_label_or_key_is_an_error(client: ClientDir, ledger: Ledger) -> None:
    writer = writer_of(client, ledger)
    other = replace(writer, label=bytes(32)), replace(writer, key=client.identity.client_key(9))
    for wrong in other:
        with pytest.raises(ValueError, match="expected the writer's message with client_seq"):
            client.outbox.put(writer, [message(wrong)])


def test_an_empty_put_is_an_error(client: ClientDir, ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="got 0"):
        client.outbox.put(writer_of(client, ledger), [])


def test_prev_ack_never_goes_back(client: ClientDir, ledger: Ledger) -> None:
    writer = writer_of(client, ledger)
    with pytest.raises(ValueError, match="prev_ack decreases from 5 to 4"):
        client.outbox.put(writer, [message(writer, prev_ack=5), message(writer, 1, prev_ack=4)])
    after = client.outbox.put(writer, [message(writer, prev_ack=5)])
    assert after.used.last_prev_ack == 5
    lower = message(replace(after, used=replace(after.used, last_prev_ack=0)), prev_ack=4)
    with pytest.raises(ValueError, match="prev_ack decreases from 5 to 4"):
        client.outbox.put(after, [lower])


def test_an_answer_takes_out_what_it_answers_and_nothing_else(client: ClientDir, ledger: Ledger) -> None:
    writer = writer_of(client, ledger)
    put = messages(writer, 4)
    client.outbox.put(writer, put)
    ledger.answer(client.state, put[:3])
    assert waiting(client, ledger) == (put[3],)
    ledger.answer(client.state, put[3:])
    assert client.outbox.places() == ()


def test_the_place_of_an_abandoned_message_is_never_used_again(client: ClientDir, ledger: Ledger) -> None:
    writer = writer_of(client, ledger)
    put = messages(writer, 5)
    client.outbox.put(writer, put)
    ledger.answer(client.state, put[:1])
    gone = client.outbox.abandon(ledger.hub_id, ledger.label, writer.client_id, 3)
    assert gone == tuple(put[2:])
    assert waiting(client, ledger) == (put[1],)
    again = writer_of(client, ledger)
    assert again.client_id != writer.client_id
    assert again.next_client_seq == 1
    with pytest.raises(StateConflict):
        client.outbox.put(replace(writer, used=replace(writer.used, last_client_seq=2)), [message(writer, 2)])


def test_giving_up_under_one_label_leaves_the_key_to_the_others(client: ClientDir, ledger: Ledger) -> None:
    other = Ledger()
    writer, beside = writer_of(client, ledger), writer_of(client, other)
    client.outbox.put(writer, messages(writer, 1))
    client.outbox.put(beside, messages(beside, 1))
    client.outbox.abandon(ledger.hub_id, ledger.label, writer.client_id, 1)
    assert len(waiting(client, other)) == 1
    assert writer_of(client, other).client_id == beside.client_id
    assert writer_of(client, ledger).client_id != writer.client_id


def test_giving_up_what_is_not_there_closes_nothing(client: ClientDir, ledger: Ledger) -> None:
    writer = writer_of(client, ledger)
    put = messages(writer, 2)
    client.outbox.put(writer, put)
    for client_id, from_seq in ((writer.client_id, 3), (bytes(32), 1)):
        assert client.outbox.abandon(ledger.hub_id, ledger.label, client_id, from_seq) == ()
    assert waiting(client, ledger) == tuple(put)
    assert writer_of(client, ledger).client_id == writer.client_id


def test_messages_of_two_keys_wait_in_the_order_they_were_put(client: ClientDir, ledger: Ledger) -> None:
    old = writer_of(client, ledger)
    first = messages(old, 2)
    client.outbox.put(old, first)
    client.writers.retire(old.generation)
    new = writer_of(client, ledger)
    second = messages(new, 2)
    client.outbox.put(new, second)
    assert waiting(client, ledger) == (*first, *second)
    assert client.outbox.abandon(ledger.hub_id, ledger.label, old.client_id, 1) == tuple(first)
    assert waiting(client, ledger) == tuple(second)


def test_a_row_that_was_damaged_is_not_sent(client: ClientDir, ledger: Ledger) -> None:
    writer = writer_of(client, ledger)
    client.outbox.put(writer, [message(writer)])
    with client.state.tables.write() as rows:
        key, row = next(rows.scan("outbox"))
        rows.put(key, row[:-3], db=rows.db["outbox"])
    with pytest.raises(Malformed):
        waiting(client, ledger)


def test_a_refused_capability_is_not_a_rotation(client: ClientDir, ledger: Ledger) -> None:
    before = client.writers.history()
    with pytest.raises(Refused):
        client.writer(WriterRequest(ledger.hub_id, ledger.label, ledger.stream_id, now=NOW + 86_400, capability=True))
    assert client.writers.history() == before
