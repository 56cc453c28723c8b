"""The capabilities of a client: verified when added, and selected when writing."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.ledger import NOW
from veen.client import CapabilityStore, ClientDir
from veen.client.capabilities import (
    MAX_FILE_BYTES,
    at_hub,
    check_presentable,
    issue,
    read_capabilities,
    tokens_of,
)
from veen.core import (
    CapPresentation,
    CapToken,
    Malformed,
    Rate,
    Refused,
    SigningKey,
    Unavailable,
    Unverified,
    cap_token,
    naming,
)
from veen.core.cap_token import Capability

ISSUER = SigningKey.generate()
ME, OTHER = SigningKey.generate().public_key, SigningKey.generate().public_key
HUB, HUB2 = b"\1" * 32, b"\2" * 32
NEWS, LOGS = naming.stream_id("news"), naming.stream_id("logs")


def token(subject: bytes = ME, streams: tuple[bytes, ...] = (NEWS,), ttl: int = 600) -> CapToken:
    return cap_token.mint(ISSUER, subject, streams, ttl)


def forged() -> CapToken:
    return replace(token(), subject_pk=OTHER)


def test_an_empty_store_has_no_token(client: ClientDir) -> None:
    assert list(client.caps) == []
    assert client.caps.for_writer(ME, NEWS, NOW, HUB) is None


def test_a_token_is_there_again_after_reopening(client: ClientDir) -> None:
    client.caps.add(token())
    client.close()
    with ClientDir.open(client.path) as again:
        assert list(again.caps) == [token()]
        assert again.caps.for_writer(ME, NEWS, NOW, HUB) == token()


def test_a_token_is_for_its_key_and_its_streams_only(client: ClientDir) -> None:
    client.caps.add(token())
    assert client.caps.for_writer(ME, LOGS, NOW, HUB) is None
    assert client.caps.for_writer(OTHER, NEWS, NOW, HUB) is None


def test_a_file_of_many_tokens_is_kept_whole(client: ClientDir) -> None:
    tokens = [token(bytes((n,)) * 32) for n in range(8)]
    assert client.caps.add_all(b"".join(each.encode() for each in tokens)) == tuple(tokens)
    assert len(list((client.path / "caps").iterdir())) == 1
    client.close()
    with ClientDir.open(client.path) as again:
        assert sorted(map(CapToken.encode, again.caps)) == sorted(each.encode() for each in tokens)


def test_adding_a_token_again_changes_nothing(client: ClientDir) -> None:
    client.caps.add(token())
    client.caps.add(token())
    assert len(list(client.caps)) == 1
    assert len(list((client.path / "caps").iterdir())) == 1


def test_a_file_with_one_bad_token_is_rejected_whole(client: ClientDir) -> None:
    with pytest.raises(Unverified, match="capabilities"):
        client.caps.add_all(token().encode() + forged().encode())
    assert list(client.caps) == []
    assert list((client.path / "caps").iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"\x00", token().encode()[:-1], token().encode() + b"\xa5", b"not cbor at all"])
def test_bytes_that_are_not_tokens_are_rejected(client: ClientDir, data: bytes) -> None:
    with pytest.raises(Malformed):
        client.caps.add_all(data)
    assert list(client.caps) == []


def test_a_bad_file_in_the_folder_is_named_when_the_client_is_opened(client: ClientDir) -> None:
    client.close()
    for data, kind in ((b"rubbish", Malformed), (forged().encode(), Unverified), (b"", Malformed)):
        (client.path / "caps" / "bad.cbor").write_bytes(data)
        with pytest.raises(kind, match=r"bad\.cbor"):
            ClientDir.open(client.path)
    (client.path / "caps" / "bad.cbor").unlink()
    ClientDir.open(client.path).close()


def test_a_file_copied_into_the_folder_is_used(client: ClientDir) -> None:
    client.close()
    (client.path / "caps" / "given.cbor").write_bytes(token().encode())
    (client.path / "caps" / "notes.txt").write_text("not a token")
    with ClientDir.open(client.path) as again:
        assert list(again.caps) == [token()]


def test_an_issuer_gives_one_token_for_each_key_on_a_card(client: ClientDir) -> None:
    tokens = tokens_of(issue(ISSUER, client.card, iter([NEWS, LOGS]), 600, Rate(5, 10)))
    assert [each.subject_pk for each in tokens] == list(client.card.client_ids)
    assert {(each.allow.ttl, each.allow.rate, each.allow.stream_ids) for each in tokens} == {
        (600, Rate(5, 10), tuple(sorted((NEWS, LOGS))))
    }
    client.caps.add_all(b"".join(each.encode() for each in tokens))
    for client_id in client.card.client_ids:
        assert client.caps.for_writer(client_id, NEWS, NOW, HUB) is not None


def test_an_issuer_gives_nothing_for_a_card_that_does_not_hold(client: ClientDir) -> None:
    with pytest.raises(Unverified):
        issue(ISSUER, replace(client.card, client_ids=(ME,)), [NEWS], 600)


def test_a_file_too_long_for_tokens_is_not_read(place: Path) -> None:
    path = place / "long.cbor"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(Unavailable, match="is longer than"):
        read_capabilities(path)


def chosen(caps: CapabilityStore, now: int = NOW, hub: bytes = HUB) -> int | None:
    """The ttl of the selected token, which identifies it."""
    found = caps.for_writer(ME, NEWS, now, hub)
    return found.allow.ttl if found else None


def test_the_longest_of_the_tokens_unknown_to_a_hub_is_chosen(client: ClientDir) -> None:
    for ttl in (600, 900, 300):
        client.caps.add(token(ttl=ttl))
    assert chosen(client.caps) == 900


def test_a_token_the_hub_knows_is_chosen_before_one_it_does_not(client: ClientDir) -> None:
    for ttl in (600, 900):
        client.caps.add(token(ttl=ttl))
    short = token(ttl=600)
    assert client.caps.granted(HUB, short.auth_ref()) is None
    client.caps.put_granted(HUB, short.auth_ref(), NOW + 600)
    assert client.caps.granted(HUB, short.auth_ref()) == NOW + 600
    assert chosen(client.caps) == 600
    assert chosen(client.caps, hub=HUB2) == 900


def test_an_unused_token_is_preferred_to_an_expired_one(client: ClientDir) -> None:
    for ttl in (600, 500):
        client.caps.add(token(ttl=ttl))
    client.caps.put_granted(HUB, token(ttl=600).auth_ref(), NOW + 600)
    assert chosen(client.caps, NOW + 600) == 600
    assert chosen(client.caps, NOW + 601) == 500
    client.caps.put_granted(HUB, token(ttl=500).auth_ref(), NOW + 700)
    assert chosen(client.caps, NOW + 700) == 500
    assert chosen(client.caps, NOW + 701) is None


def test_what_a_hub_granted_survives_reopening(client: ClientDir) -> None:
    client.caps.add(token())
    client.caps.put_granted(HUB, token().auth_ref(), NOW + 5)
    client.close()
    with ClientDir.open(client.path) as again:
        assert again.caps.granted(HUB, token().auth_ref()) == NOW + 5
        assert chosen(again.caps, NOW + 6) is None


# Presentations.


def presented(hub: bytes = HUB, not_after: int = NOW + 50, one: CapToken | None = None) -> CapPresentation:
    return cap_token.present(ISSUER, one or token(), hub, not_after)


def test_a_file_may_mix_tokens_and_presentations(client: ClientDir) -> None:
    mixed = (token(ttl=1), presented(), presented(HUB2), token(ttl=2))
    assert client.caps.add_all(b"".join(each.encode() for each in mixed)) == mixed
    client.close()
    with ClientDir.open(client.path) as again:
        assert sorted(map(repr, again.caps.all())) == sorted(map(repr, mixed))
        assert len(list(again.caps)) == 3
        assert again.caps.shown_at(HUB, token().auth_ref()) == presented()
        assert again.caps.shown_at(HUB2, token().auth_ref()) == presented(HUB2)
        assert again.caps.shown_at(HUB2, token(ttl=1).auth_ref()) == token(ttl=1)


def test_a_presentation_is_for_its_hub_only(client: ClientDir) -> None:
    client.caps.add(presented())
    assert client.caps.for_writer(ME, NEWS, NOW, HUB) == token()
    assert client.caps.for_writer(ME, NEWS, NOW, HUB2) is None
    refused = client.caps.reason_unusable(ME, NEWS, HUB2)
    assert refused is not None
    assert HUB.hex() in refused.message
    assert HUB2.hex() in refused.message
    assert client.caps.reason_unusable(ME, LOGS, HUB2) is None


def test_a_presentation_is_used_up_to_its_last_second(client: ClientDir) -> None:
    client.caps.add(presented())
    assert client.caps.for_writer(ME, NEWS, NOW + 50, HUB) == token()
    assert client.caps.for_writer(ME, NEWS, NOW + 51, HUB) is None
    client.caps.put_granted(HUB, token().auth_ref(), NOW + 90)  # bound by an earlier presentation with a later date
    assert client.caps.for_writer(ME, NEWS, NOW + 90, HUB) == token()


def test_the_presentation_with_the_later_date_is_kept(client: ClientDir) -> None:
    for not_after in (NOW + 5, NOW + 50, NOW + 20):
        client.caps.add(presented(not_after=not_after))
    assert client.caps.shown_at(HUB, token().auth_ref()) == presented(not_after=NOW + 50)
    client.close()
    with ClientDir.open(client.path) as again:
        assert again.caps.shown_at(HUB, token().auth_ref()) == presented(not_after=NOW + 50)


def test_a_token_with_a_presentation_is_preferred_to_a_bare_one(client: ClientDir) -> None:
    client.caps.add(token(ttl=900))
    client.caps.add(presented(one=token(ttl=5)))
    assert chosen(client.caps) == 5
    assert chosen(client.caps, hub=HUB2) == 900


@pytest.mark.parametrize("bad", [replace(presented(), not_after=NOW + 51), replace(presented(), hub_id=HUB2)])
def test_an_altered_presentation_is_rejected(client: ClientDir, bad: CapPresentation) -> None:
    with pytest.raises(Unverified, match="capabilities"):
        client.caps.add(bad)


def test_a_hub_that_is_older_than_presentations_gets_the_token() -> None:
    assert [check_presentable(token(), HUB, bare, NOW) for bare in (None, True)] == [token()] * 2
    found = [check_presentable(presented(), HUB, bare, NOW) for bare in (None, True, False)]
    assert found == [token(), presented(), presented()]


@pytest.mark.parametrize(
    ("shown", "hub", "bare", "now"),
    [(presented(), HUB2, None, NOW), (presented(), HUB, None, NOW + 51), (token(), HUB, False, NOW)],
)
def test_a_capability_that_a_hub_would_reject_is_not_sent(
    shown: Capability, hub: bytes, bare: bool | None, now: int
) -> None:
    with pytest.raises(Refused):
        check_presentable(shown, hub, bare, now)


def test_only_the_capabilities_for_a_hub_are_shown_to_it() -> None:
    assert at_hub([token(), presented(), presented(HUB2)], HUB) == (token(), presented())
    assert at_hub([], HUB) == ()
    with pytest.raises(Refused, match=HUB.hex()):
        at_hub([presented()], HUB2)


def test_an_issuer_presents_each_token_to_each_hub(client: ClientDir) -> None:
    made = issue(ISSUER, client.card, [NEWS], 600, hub_ids=(HUB, HUB2, HUB), not_after=NOW)
    assert len(made) == 2 * len(client.card.client_ids)
    assert {(one.hub_id, one.not_after) for one in made if isinstance(one, CapPresentation)} == {
        (HUB, NOW),
        (HUB2, NOW),
    }
    assert tokens_of(made) == issue(ISSUER, client.card, [NEWS], 600)
