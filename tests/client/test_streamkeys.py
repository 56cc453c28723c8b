"""Stream keys: the two halves, and that a key is never replaced by accident."""

import pytest

from veen.client import ClientDir, ReaderKey, StreamKey
from veen.core import DhKey, Malformed, Unavailable, naming

NEWS = naming.stream_id("news")
KEY = DhKey(b"\7" * 32)


def test_an_unknown_stream_has_no_key(client: ClientDir) -> None:
    assert client.stream_keys.public(NEWS) is None
    assert client.stream_keys.secret(NEWS) is None
    assert client.stream_keys.all() == ()
    with pytest.raises(Unavailable, match="no reader key for stream 'news'"):
        client.stream_keys.export("news")


def test_a_created_key_has_both_halves_and_survives_reopening(client: ClientDir) -> None:
    key = client.stream_keys.create("news")
    client.close()
    with ClientDir.open(client.path) as again:
        assert again.stream_keys.public(NEWS) == key.public_key
        found = again.stream_keys.secret(NEWS)
        assert found is not None
        assert found.secret == key.secret
        assert again.stream_keys.all() == ((StreamKey("news", key.public_key), True),)


def test_a_stream_named_by_its_id_is_the_same_stream(client: ClientDir) -> None:
    key = client.stream_keys.create(NEWS.hex())
    assert client.stream_keys.public(NEWS) == key.public_key
    with pytest.raises(Unavailable, match="already has a key"):
        client.stream_keys.create("news")


def test_a_second_key_for_a_stream_is_refused_however_it_comes(client: ClientDir) -> None:
    first = client.stream_keys.create("news")
    with pytest.raises(Unavailable, match="already has a key"):
        client.stream_keys.create("news")
    with pytest.raises(Unavailable, match="already has another key"):
        client.stream_keys.import_secret("news", KEY)
    with pytest.raises(Unavailable, match="already has another key"):
        client.stream_keys.add_public("news", KEY.public_key)
    assert client.stream_keys.public(NEWS) == first.public_key


def test_a_writer_that_knows_the_public_half_cannot_read(client: ClientDir) -> None:
    client.stream_keys.add_public("news", KEY.public_key)
    assert client.stream_keys.public(NEWS) == KEY.public_key
    assert client.stream_keys.secret(NEWS) is None
    assert client.stream_keys.all() == ((StreamKey("news", KEY.public_key), False),)
    with pytest.raises(Unavailable, match="already has a key"):
        client.stream_keys.create("news")


def test_a_writer_becomes_a_reader_with_the_secret_half_of_the_key_it_knows(client: ClientDir) -> None:
    client.stream_keys.add_public("news", KEY.public_key)
    with pytest.raises(Unavailable, match="already has another key"):
        client.stream_keys.import_secret("news", DhKey(b"\6" * 32))
    client.stream_keys.import_secret("news", KEY)
    client.stream_keys.import_secret("news", KEY)
    assert client.stream_keys.all() == ((StreamKey("news", KEY.public_key), True),)


def test_two_readers_share_a_key_by_its_export(client: ClientDir) -> None:
    key = client.stream_keys.create("news")
    given = ReaderKey.decode(client.stream_keys.export("news").encode())
    with ClientDir.create(client.path.with_name("second"), b"passphrase", 1) as second:
        second.stream_keys.import_secret(given.name, DhKey(given.secret))
        assert second.stream_keys.public(NEWS) == key.public_key
    with ClientDir.open(client.path.with_name("second"), b"passphrase") as second:
        found = second.stream_keys.secret(NEWS)
        assert found is not None
        assert found.secret == key.secret


def test_an_exported_secret_does_not_show_when_printed(client: ClientDir) -> None:
    client.stream_keys.create("news")
    given = client.stream_keys.export("news")
    assert given.secret.hex() not in repr(given)
    assert repr(given.secret) not in repr(given)


def test_the_secret_half_alone_is_enough_after_a_crash_between_the_two(client: ClientDir) -> None:
    key = client.stream_keys.create("news")
    with client.state.tables.write() as rows:
        rows.delete(NEWS, db=rows.db["streams"])
    assert client.stream_keys.public(NEWS) == key.public_key
    assert client.stream_keys.all() == ((StreamKey("news", key.public_key), True),)
    client.stream_keys.import_secret("news", key)
    with pytest.raises(Unavailable, match="already has another key"):
        client.stream_keys.import_secret("news", KEY)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_public_key_of_another_length_is_refused(client: ClientDir, size: int) -> None:
    with pytest.raises(Malformed, match="not 32"):
        client.stream_keys.add_public("news", bytes(size))


@pytest.mark.parametrize("name", ["", "x" * 1_025, "ü" * 513])
def test_a_name_that_cannot_be_kept_is_refused_before_anything_is_written(client: ClientDir, name: str) -> None:
    with pytest.raises(Malformed, match="stream name"):
        client.stream_keys.create(name)
    with pytest.raises(Malformed, match="stream name"):
        client.stream_keys.add_public(name, KEY.public_key)
    assert client.stream_keys.all() == ()
