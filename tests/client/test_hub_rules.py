"""Hubs that require proof of work, limit client keys or belong to a realm: what the client does automatically."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.client.pair import NOW, QUICK, STREAM, Pair, bodies, pair, read_all, send_all
from tests.client.test_sending import meet
from tests.client.test_transport import answering, http, refused
from tests.hub.client import ISSUER, START, Clock, Hub, make_dir, running
from tests.hub.realms import REALM, REVOCATIONS, Admin
from veen.client import KeyBounds
from veen.client.sender import Draft
from veen.core import Limits, Malformed, Receipt, Refused, SigningKey, admin, cap_token
from veen.core.admission import BY_DETAIL
from veen.core.envelopes import SubmitResponse
from veen.core.proof_of_work import PowCookie, challenge_of
from veen.hub.admission_rules import Admission

BITS = 6
EASY = replace(QUICK, most_pow_bits=BITS)
HUB_ID = b"\x21" * 32
MESSAGE = b"encoded"
BODY = b"\xa2\x01\x01\x02" + MESSAGE
Work = Callable[[Hub, Pair], Coroutine[Any, Any, None]]


def at_a_hub(place: Path, work: Work, limits: Limits | None = None, realm: bytes | None = None, **given: Any) -> None:
    data_dir = make_dir(place, limits=limits, now=NOW, realm_id=realm)
    with pair(place) as people, running(data_dir, **given) as hub:
        asyncio.run(work(hub, meet(people, hub)))


def turned_away(hub: Hub) -> int:
    """The number of submits that were rejected for missing work."""
    sign = b'veen_submit_err_total{code="E.AUTH",detail_enum="PREFILTER_REJECT"} '
    found = hub.get("/metrics").body.partition(sign)[2]
    return int(float(found.split(b"\n")[0])) if found else 0


# Proof of work.


def test_work_is_done_on_demand_and_in_advance_from_then_on(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer(retry_policy=EASY) as writer, people.reader() as reader:
            for number in range(4):
                await writer.send(STREAM, b"%d" % number)
            assert turned_away(hub) == 1
            assert bodies(await read_all(reader)) == [b"0", b"1", b"2", b"3"]

    at_a_hub(place, work, pow_difficulty=BITS)


def test_a_batch_that_would_be_too_much_work_at_once_goes_one_by_one(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer(retry_policy=EASY) as writer:
            sent = await send_all(writer, *(b"%d" % number for number in range(40)))
        assert [one.stream_seq for one in sent] == list(range(1, 41))

    at_a_hub(place, work, pow_difficulty=BITS)


def test_work_is_done_for_a_batch_within_the_limit(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer(retry_policy=replace(QUICK, most_pow_bits=BITS + 8)) as writer:
            sent = await send_all(writer, *(b"%d" % number for number in range(40)))
        assert [one.stream_seq for one in sent] == list(range(1, 41))
        assert turned_away(hub) <= 3  # once per batch, not once per message

    at_a_hub(place, work, pow_difficulty=BITS)


def test_work_above_the_limit_is_not_done(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer(retry_policy=replace(QUICK, most_pow_bits=BITS - 1)) as writer:
            with pytest.raises(Refused) as caught:
                await writer.send(STREAM, b"1")
        assert caught.value.detail_enum == "PREFILTER_REJECT"
        assert hub.status()["entries"] == 0

    at_a_hub(place, work, pow_difficulty=BITS)


def demand(**changes: int | str) -> Refused:
    detail: dict[str, int | str] = {
        "challenge": challenge_of(HUB_ID, BODY).hex(),
        "difficulty": BITS,
        "hub_id": HUB_ID.hex(),
        **changes,
    }
    return replace_detail(BY_DETAIL["PREFILTER_REJECT"].refused("work"), detail)


def replace_detail(refusal: Refused, detail: dict[str, int | str]) -> Refused:
    return Refused(refusal.code, refusal.message, stage=refusal.stage, detail_enum=refusal.detail_enum, detail=detail)


def cookies(asked: list[bytes]) -> list[PowCookie | None]:
    shown = [head.lower().partition(b"veen-pow: ")[2].partition(b"\r\n")[0].decode() for head in asked]
    return [PowCookie.from_header(text) if text else None for text in shown]


def receipt() -> Receipt:
    return Receipt(bytes(32), 1, bytes(32), bytes(32), START, bytes(64))


TAKEN = http(200, SubmitResponse(receipt()).encode())


def test_the_cookie_that_is_sent_answers_the_challenge() -> None:
    async def work() -> None:
        async with answering(refused(demand(), 403), TAKEN) as (link, asked):
            assert await link.submit(MESSAGE) == receipt()
        first, second = cookies(asked)
        assert first is None
        assert second is not None
        second.verify(challenge_of(HUB_ID, BODY), BITS)

    asyncio.run(work())


def test_a_hub_that_raises_the_difficulty_after_a_solution_gets_none() -> None:
    """The client solves one challenge per request, so a hub cannot raise the difficulty step by step."""

    async def work() -> None:
        async with answering(refused(demand(), 403)) as (link, asked):
            outcome = await link.submit(MESSAGE)
        assert isinstance(outcome, Refused)
        assert len(asked) == 2

    asyncio.run(work())


@pytest.mark.parametrize(
    "changes",
    [
        {"challenge": bytes(32).hex()},
        {"challenge": "work"},
        {"challenge": 7},
        {"challenge": challenge_of(HUB_ID, b"something else").hex()},
        {"hub_id": bytes(32).hex()},
        {"hub_id": "here"},
    ],
)
def test_no_work_is_done_for_the_challenge_of_another_request(changes: dict[str, int | str]) -> None:
    async def work() -> None:
        async with answering(refused(demand(**changes), 403), TAKEN) as (link, asked):
            with pytest.raises(Malformed, match="challenge"):
                await link.submit(MESSAGE)
        assert len(asked) == 1

    asyncio.run(work())


@pytest.mark.parametrize("refusal", [demand(difficulty="six"), BY_DETAIL["PREFILTER_REJECT"].refused("not you")])
def test_a_rejection_without_a_challenge_is_returned(refusal: Refused) -> None:
    async def work() -> None:
        async with answering(refused(refusal, 403), TAKEN) as (link, asked):
            outcome = await link.submit(MESSAGE)
        assert isinstance(outcome, Refused)
        assert len(asked) == 1

    asyncio.run(work())


# Limits of a hub.


def test_keys_are_changed_as_often_as_the_hub_wants(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await send_all(writer, *(b"%d" % number for number in range(7)))
            entries = await read_all(reader)
        assert [entry.msg.client_seq for entry in entries] == [1, 2, 3, 1, 2, 3, 1]
        assert len({entry.msg.client_id for entry in entries}) == 3

    at_a_hub(place, work, Limits(max_msgs_per_client_id_per_label=3))


def test_keys_are_changed_when_they_are_as_old_as_the_hub_allows(place: Path) -> None:
    clock = Clock(NOW + 10)

    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await writer.send(STREAM, b"1")
            clock.now += 101
            await writer.session.refresh()
            await writer.send(STREAM, b"2")
            entries = await read_all(reader)
        assert [entry.msg.client_seq for entry in entries] == [1, 1]

    at_a_hub(place, work, Limits(max_client_id_lifetime_sec=100), clock=clock)


@pytest.mark.parametrize(
    ("limits", "bounds"),
    [
        (None, (60, 10)),
        (Limits(), (60, 10)),
        (Limits(max_client_id_lifetime_sec=59), (59, 10)),
        (Limits(max_client_id_lifetime_sec=61), (60, 10)),
        (Limits(max_msgs_per_client_id_per_label=9), (60, 9)),
        (Limits(max_msgs_per_client_id_per_label=11), (60, 10)),
    ],
)
def test_the_stricter_of_two_bounds_applies(limits: Limits | None, bounds: tuple[int, int]) -> None:
    assert KeyBounds(60, 10).within(limits) == KeyBounds(*bounds)


# A realm.


def test_admin_streams_of_an_open_hub_need_a_capability(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        victim = SigningKey.generate()
        event = admin.Revocation("client-id", victim.public_key, None, START)
        draft = Draft(event.encode(), schema=event.SCHEMA)
        stream = REVOCATIONS.hex()
        folder = people.writer_dir
        folder.stream_keys.add_public(stream, admin.reader_key(REVOCATIONS).public_key)
        async with people.writer() as writer:
            with pytest.raises(Refused) as caught:
                await writer.sender(stream).put(draft)
            assert caught.value.detail_enum == "CAP_MISSING"
            client_id = folder.writers.current().client_id
            folder.caps.add(hub.presented(cap_token.mint(ISSUER, client_id, [REVOCATIONS], 1000)))
            await writer.sender(stream).put(draft)
            await writer.send(STREAM, b"anyone may")
        assert hub.submit(hub.writer("s", victim).message()).refusal()[3] == "AUTH_REF"

    at_a_hub(place, work, realm=REALM)


def test_a_revoked_client_is_rejected_and_its_entries_stay(place: Path) -> None:
    async def work(hub: Hub, people: Pair) -> None:
        async with people.writer() as writer, people.reader() as reader:
            await writer.send(STREAM, b"1")
            Admin(hub).revokes_key(people.writer_dir.writers.current().client_id)
            with pytest.raises(Refused, match="revoked") as caught:
                await writer.send(STREAM, b"2")
            assert caught.value.detail_enum == "AUTH_REF"
            assert bodies(await read_all(reader)) == [b"1"]

    at_a_hub(place, work, realm=REALM, admission=Admission.OPEN)
