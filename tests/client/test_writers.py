"""The writer keys: client_ids rotate when due, and under a capability only to a key that has one."""

from pathlib import Path

import pytest

from tests.client.ledger import NOW, STREAM, Ledger, messages
from veen.client import ClientDir, KeyBounds, WriterKey
from veen.client.writer_keys import WriterRequest
from veen.core import CapToken, Refused, SigningKey, cap_token

DAY = 86_400
ISSUER = SigningKey.generate()
BOUNDS = KeyBounds(max_client_id_lifetime_sec=100, max_msgs_per_client_id_per_label=5)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def writer_of(client: ClientDir, ledger: Ledger, now: int = NOW, epoch: int = 0, capability: bool = False) -> WriterKey:
    return client.writer(
        WriterRequest(ledger.hub_id, ledger.label, ledger.stream_id, now=now, epoch=epoch, capability=capability)
    )


def bounded(place: Path) -> ClientDir:
    return ClientDir.create(place / "bounded", None, NOW, bounds=BOUNDS)


def token(client_id: bytes, stream_id: bytes = STREAM, ttl: int = 600) -> CapToken:
    return cap_token.mint(ISSUER, client_id, [stream_id], ttl)


def test_the_defaults_are_the_recommended_bounds() -> None:
    assert KeyBounds() == KeyBounds(86_400, 65_536)


@pytest.mark.parametrize("bounds", [(0, 1), (1, 0), (-1, 1)])
def test_bounds_that_allow_nothing_are_an_error(bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least one second and one message"):
        KeyBounds(*bounds)


def test_a_new_client_begins_with_generation_zero(client: ClientDir, ledger: Ledger) -> None:
    writer = writer_of(client, ledger)
    assert writer.generation == 0
    assert writer.client_id == client.identity.client_key(0).public_key == client.card.client_ids[0]
    assert (writer.next_client_seq, writer.room, writer.cap) == (1, 65_536, None)


@pytest.mark.parametrize(
    ("age", "generation"), [(0, 0), (DAY - 1, 0), (DAY, 1), (5 * DAY, 1), (-DAY + 1, 0), (-DAY, 1)]
)
def test_a_key_is_replaced_when_it_is_a_day_old_by_either_clock(
    client: ClientDir, ledger: Ledger, age: int, generation: int
) -> None:
    assert writer_of(client, ledger, NOW + age).generation == generation


def test_the_next_key_lives_from_when_it_came_into_use(client: ClientDir, ledger: Ledger) -> None:
    assert writer_of(client, ledger, NOW + 3 * DAY).generation == 1
    assert writer_of(client, ledger, NOW + 4 * DAY - 1).generation == 1
    assert writer_of(client, ledger, NOW + 4 * DAY).generation == 2
    history = client.writers.history()
    assert [(use.generation, use.created_at) for use in history] == [(0, NOW), (1, NOW + 3 * DAY), (2, NOW + 4 * DAY)]
    assert [use.client_id for use in history] == [client.identity.client_key(n).public_key for n in range(3)]


def test_a_key_is_replaced_when_it_has_written_enough_under_a_label(place: Path, ledger: Ledger) -> None:
    with bounded(place) as client:
        writer = writer_of(client, ledger)
        assert writer.room == 5
        writer = client.outbox.put(writer, messages(writer, 4))
        assert writer_of(client, ledger).generation == 0
        writer = client.outbox.put(writer, messages(writer, 1))
        assert writer.room == 0
        # A label with room left does not keep the key in use.
        assert writer_of(client, Ledger()).generation == 1
        assert writer_of(client, ledger).generation == 1


@pytest.mark.parametrize("count", [6, 7, 100])
def test_no_more_is_put_than_the_key_has_room_for(place: Path, ledger: Ledger, count: int) -> None:
    with bounded(place) as client:
        writer = writer_of(client, ledger)
        with pytest.raises(ValueError, match="expected 1 to 5 messages"):
            client.outbox.put(writer, messages(writer, count))


def test_lowered_bounds_apply_at_once(place: Path, ledger: Ledger) -> None:
    with ClientDir.create(place / "client", None, NOW) as client:
        writer = writer_of(client, ledger)
        client.outbox.put(writer, messages(writer, 6))
    with ClientDir.open(place / "client", bounds=BOUNDS) as client:
        assert writer_of(client, ledger).generation == 1


def test_a_key_is_replaced_once_per_epoch_of_a_hub(client: ClientDir, ledger: Ledger) -> None:
    assert writer_of(client, ledger, epoch=7).generation == 0
    assert writer_of(client, ledger, epoch=7).generation == 0
    assert writer_of(client, ledger, epoch=8).generation == 1
    assert writer_of(client, ledger, epoch=8).generation == 1
    # A retry with the label of the previous epoch does not cause a rotation.
    assert writer_of(client, ledger, epoch=7).generation == 1
    assert writer_of(client, ledger, epoch=10).generation == 2


def test_the_epochs_of_two_hubs_are_counted_apart(client: ClientDir, ledger: Ledger) -> None:
    other = Ledger()
    assert writer_of(client, ledger, epoch=3).generation == 0
    assert writer_of(client, other, epoch=900).generation == 0
    assert writer_of(client, ledger, epoch=3).generation == 0
    assert writer_of(client, other, epoch=901).generation == 1
    assert writer_of(client, ledger, epoch=3).generation == 1


def test_a_rotation_survives_reopening(client: ClientDir, ledger: Ledger) -> None:
    writer_of(client, ledger, NOW + DAY)
    client.close()
    with ClientDir.open(client.path) as again:
        assert writer_of(again, ledger, NOW + DAY).generation == 1
        assert again.card.generation == 1


def test_a_retired_key_is_not_used_again(client: ClientDir, ledger: Ledger) -> None:
    client.writers.retire(0)
    assert writer_of(client, ledger).generation == 1
    client.writers.retire(0)
    assert writer_of(client, ledger).generation == 1


def test_retiring_a_key_that_was_never_used_does_nothing(client: ClientDir, ledger: Ledger) -> None:
    client.writers.retire(1)
    assert writer_of(client, ledger).generation == 0
    client.writers.retire(0)
    assert writer_of(client, ledger).generation == 1
    assert writer_of(client, ledger).generation == 1


def test_after_a_rotation_the_card_lists_the_keys_from_there_on(client: ClientDir, ledger: Ledger) -> None:
    before = client.card
    writer_of(client, ledger, NOW + DAY)
    assert client.card.generation == 1
    assert client.card.client_ids[:-1] == before.client_ids[1:]
    client.card.verify()


def test_a_card_that_is_renewed_without_sending_still_gets_new_prekeys(client: ClientDir) -> None:
    assert client.renew_card(NOW + DAY - 1).prekeys[0] == client.card.prekeys[0]
    assert client.card.generation == 0
    card = client.renew_card(NOW + 30 * DAY)
    assert card.generation == 1
    assert card.seal_to(NOW + 30 * DAY).number == 1


def test_with_a_capability_the_writer_names_it(client: ClientDir, ledger: Ledger) -> None:
    mine = token(client.card.client_ids[0])
    client.caps.add(mine)
    writer = writer_of(client, ledger, capability=True)
    assert writer.cap == mine
    assert messages(writer, 1)[0].msg.auth_ref == mine.auth_ref()


def test_without_a_capability_for_the_key_the_error_says_whose_and_what_to_do(
    client: ClientDir, ledger: Ledger
) -> None:
    with pytest.raises(Refused) as caught:
        writer_of(client, ledger, capability=True)
    assert (caught.value.code, caught.value.detail_enum) == ("E.CAP", "CAP_MISSING")
    assert client.card.client_ids[0].hex() in str(caught.value)
    assert STREAM.hex() in str(caught.value)
    assert "card.cbor" in str(caught.value)
    assert caught.value.detail == {"client_id": client.card.client_ids[0].hex(), "stream_id": STREAM.hex()}


def test_a_rotation_without_a_capability_for_the_next_key_is_refused_and_names_that_key(
    client: ClientDir, ledger: Ledger
) -> None:
    client.caps.add(token(client.card.client_ids[0]))
    writer_of(client, ledger, capability=True)
    with pytest.raises(Refused) as caught:
        writer_of(client, ledger, NOW + DAY, capability=True)
    assert caught.value.detail["client_id"] == client.card.client_ids[1].hex()
    # The card lists the next key, so an issuer can issue a token for it, and nothing has rotated.
    assert client.writers.current().generation == 0
    client.caps.add(token(client.card.client_ids[1]))
    assert writer_of(client, ledger, NOW + DAY, capability=True).generation == 1


def test_tokens_for_a_whole_card_cover_all_its_rotations(client: ClientDir, ledger: Ledger) -> None:
    card = client.card
    client.caps.add_all(b"".join(token(client_id).encode() for client_id in card.client_ids))
    for number, client_id in enumerate(card.client_ids):
        writer = writer_of(client, ledger, NOW + number * DAY, capability=True)
        assert (writer.client_id, writer.generation) == (client_id, number)
        assert writer.cap is not None
        assert writer.cap.subject_pk == client_id
    with pytest.raises(Refused):
        writer_of(client, ledger, NOW + len(card.client_ids) * DAY, capability=True)


def test_an_open_hub_is_written_to_without_any_capability(client: ClientDir, ledger: Ledger) -> None:
    client.caps.add(token(client.card.client_ids[0]))
    assert writer_of(client, ledger).cap is None
