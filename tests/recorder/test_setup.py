"""Setup: roles are separate, each type has one stream, and all settings are in the log."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hub.client import make_dir, running
from tests.recorder.recorder_fixture import LOGIN, ORIGIN, PLAN, TYPES, WEB, RecorderSetup, event, recorder_setup
from tests.recorder.test_checkpoints import ship
from veen.client import ClientDir
from veen.client.client import Client
from veen.core import Limits, Refused, Unverified, admin, naming
from veen.overlays.record import CHANGES, producer_of, profile_of, stream_of
from veen.overlays.stream_catalog import LABEL_CLASSES, class_of
from veen.recorder import (
    Enrolment,
    NotRecorded,
    ProducerKit,
    SpoolFeed,
    SpoolWriter,
    enrol,
    init,
    map_type,
    move,
    routes_of,
)
from veen.recorder.replay import audit
from veen.recorder.routes import read_states
from veen.recorder.setup import LONG_TERM_SEC, OWN_STREAM, SetupResult
from veen.state import EventRefused, HubSource, StateView


async def set_up(client: Client, **changed: object) -> SetupResult:
    return await init(client, replace(PLAN, **changed), client.dir.identity.id_sign)  # type: ignore[arg-type]


async def enrolled(client: Client, who: Enrolment) -> ProducerKit:
    return await enrol(client, who, client.dir.identity.id_sign)


def test_the_map_the_profile_and_the_producers_are_in_the_log(recorder: RecorderSetup) -> None:
    states = recorder.does("admin", read_states)
    assert {one: stream_of(states, one) for one in TYPES} == TYPES
    profile = profile_of(states)
    assert profile is not None
    assert profile.streams == (WEB, CHANGES, OWN_STREAM, LOGIN)
    with ClientDir.open(recorder.root / "shop") as folder:
        found = producer_of(states, folder.writers.current().client_id)
    assert found is not None
    assert (found.name, found.origins) == ("shop", (ORIGIN,))


def test_labels_of_record_streams_are_kept_for_the_long_term(recorder: RecorderSetup) -> None:
    async def work(client: Client) -> list[int | None]:
        stream_id = admin.label_class_stream(admin.GLOBAL_REALM)
        async with StateView.of(client, stream_id, LABEL_CLASSES, cached=False) as view, view.reading() as reading:
            found = [class_of(reading.states, client.label(stream)) for stream in (WEB, LOGIN, CHANGES, OWN_STREAM)]
            return [one.retention_hint if one else None for one in found]

    assert recorder.does("admin", work) == [LONG_TERM_SEC] * 4


def test_repeating_the_setup_adds_only_new_settings(recorder: RecorderSetup) -> None:
    assert recorder.does("admin", set_up).events == ()
    done = recorder.does("admin", lambda client: set_up(client, types={**TYPES, "job": "record/app/jobs"}))
    assert len(done.events) == 3  # the profile, the type, the class of the new label
    assert "record/app/jobs" in done.profile.streams


def test_a_type_cannot_get_a_second_stream_by_setup_or_mapping(recorder: RecorderSetup) -> None:
    with pytest.raises(Refused, match="is mapped to record/app/web"):
        recorder.does("admin", lambda client: set_up(client, types={"http.request": LOGIN}))
    with pytest.raises(EventRefused, match="use a migration to move it"):
        recorder.does("admin", lambda client: map_type(client, "http.request", LOGIN))
    with pytest.raises(Refused, match="is not a stream of this recorder"):
        recorder.does("admin", lambda client: map_type(client, "new", "record/app/unknown"))


def test_a_rename_and_a_split_are_logged_and_applied(recorder: RecorderSetup) -> None:
    recorder.does("admin", lambda client: map_type(client, "http.slow", WEB))
    ship(recorder, 1)
    recorder.does("admin", lambda client: move(client, WEB, LOGIN, ["http.slow"], "too slow"))
    ship(recorder, 2)
    ship(recorder, 3, event_type="http.slow")
    recorder.does("admin", lambda client: move(client, WEB, LOGIN, [], None))
    ship(recorder, 4)
    assert (recorder.numbers(WEB), recorder.numbers(LOGIN)) == ([1, 2], [3, 4])
    with pytest.raises(Refused, match="nothing to move"):
        recorder.does("admin", lambda client: move(client, WEB, LOGIN, [], None))
    with pytest.raises(EventRefused, match="is mapped to no stream"):
        recorder.does("admin", lambda client: move(client, LOGIN, WEB, ["unheard"], None))


def test_a_producer_cannot_write_to_another_stream_whatever_its_program_does(recorder: RecorderSetup) -> None:
    recorder.enrol("bank", "bank", streams=(LOGIN,))
    with ClientDir.open(recorder.root / "bank") as folder, ClientDir.open(recorder.root / "shop") as shop:
        key = shop.stream_keys.public(naming.stream_id(WEB))
        assert key is not None
        folder.stream_keys.add_public(WEB, key)
    for stream in (WEB, CHANGES):
        with pytest.raises(Refused, match=r"E\.(CAP|AUTH)"):
            recorder.does("bank", lambda client, stream=stream: client.send(stream, event(1).encode()))  # type: ignore[misc]


def test_a_producer_reads_the_map_and_no_events(recorder: RecorderSetup) -> None:
    ship(recorder, 1)
    with ClientDir.open(recorder.root / "shop") as folder:
        assert folder.stream_keys.secret(naming.stream_id(CHANGES)) is not None
        assert [folder.stream_keys.secret(naming.stream_id(one)) for one in (WEB, LOGIN, OWN_STREAM)] == [None] * 3


def test_an_identity_cannot_be_administrator_and_producer(recorder: RecorderSetup) -> None:
    with ClientDir.open(recorder.root / "admin") as folder:
        own = Enrolment("admin", folder.card, (ORIGIN,), (WEB,), 60)
    with pytest.raises(Refused, match="an administrator cannot be a producer"):
        recorder.does("admin", lambda client: enrolled(client, own))
    with pytest.raises(Refused, match="an administrator cannot be a producer"):
        recorder.does("admin", routes_of)
    with pytest.raises(Refused, match="a producer cannot be the administrator"):
        recorder.does("shop", set_up)


def test_a_second_administrator_is_rejected(recorder: RecorderSetup) -> None:
    ClientDir.create(recorder.root / "rival", None, 1).close()
    with pytest.raises(Refused, match="another recorder is set up"):
        recorder.does("rival", set_up)


def test_a_key_belongs_to_one_producer(recorder: RecorderSetup) -> None:
    with ClientDir.open(recorder.root / "shop") as folder:
        other = Enrolment("other", folder.card, ("other",), (WEB,), 60)
    with pytest.raises(EventRefused, match="belongs to producer shop"):
        recorder.does("admin", lambda client: enrolled(client, other))


def test_a_producer_for_an_unknown_stream_is_rejected(recorder: RecorderSetup) -> None:
    with ClientDir.open(recorder.root / "shop") as folder:
        who = Enrolment("shop", folder.card, (ORIGIN,), ("record/app/unknown",), 60)
    with pytest.raises(Refused, match="is not a stream of this recorder"):
        recorder.does("admin", lambda client: enrolled(client, who))


def test_a_kit_is_for_one_identity_and_has_one_encoding(recorder: RecorderSetup) -> None:
    with ClientDir.create(recorder.root / "guest", None, 1) as guest:
        who = Enrolment("guest", guest.card, ("guest",), (WEB,), 60)
        kit = recorder.does("admin", lambda client: enrolled(client, who))
        assert ProducerKit.decode(kit.encode()) == kit
        kit.join(guest)
        kit.join(guest)
    with ClientDir.open(recorder.root / "shop") as shop, pytest.raises(Unverified, match="another identity"):
        kit.join(shop)
    with ClientDir.open(recorder.root / "admin") as folder, pytest.raises(Refused, match="cannot be a producer"):
        kit.join(folder)


def test_a_hub_with_open_admission_is_rejected_unless_allowed(place: Path) -> None:
    data_dir = make_dir(place, now=int(time.time()) - 60)
    ClientDir.create(place / "admin", None, 1).close()
    with running(data_dir, time.time) as hub:
        recorder = RecorderSetup(place, hub)
        with pytest.raises(Refused, match="lets anyone write"):
            recorder.does("admin", set_up)
        recorder.does("admin", lambda client: set_up(client, open_admission=True))
        recorder.enrol("shop", ORIGIN)
        ship(recorder, 1)
        assert recorder.numbers() == [1]


def test_a_payload_limit_above_the_hubs_is_rejected(place: Path) -> None:
    refused = pytest.raises(Refused, match="body limit of 2000 bytes")
    with recorder_setup(place, limits=Limits(max_body_bytes=2_000)) as recorder, refused:
        recorder.does("admin", lambda client: set_up(client, max_payload_bytes=2_001))


def test_unrecordable_events_are_set_aside_and_do_not_block_others(recorder: RecorderSetup) -> None:
    folder = recorder.root / "spool"
    writer = SpoolWriter(folder)
    large = replace(event(2), content='"' + "x" * 70_000 + '"')
    writer.append([event(1), event(1, "unheard.of"), large, event(3, origin="bank"), event(4)])
    writer.close()
    count = recorder.ship("shop", SpoolFeed(folder, "shop", follow=False))
    assert (count.sent, count.refused) == (2, 3)
    assert recorder.numbers() == [1, 4]
    aside = (recorder.root / "shop.refused").read_text()
    for reason in ("not mapped to a stream", "the limit is 65536", "is not an origin of producer shop"):
        assert reason in aside


def test_a_type_mapped_while_a_producer_runs_is_used_at_once(recorder: RecorderSetup) -> None:
    routes = recorder.does("shop", routes_of)
    with pytest.raises(NotRecorded):
        routes.stream(event(1, "later"))
    recorder.does("admin", lambda client: map_type(client, "later", WEB))
    ship(recorder, 1, event_type="later")
    assert recorder.numbers() == [1]


def test_i3_an_event_that_the_settings_do_not_allow_is_found(recorder: RecorderSetup) -> None:
    ship(recorder, 1)
    forged = event(2, origin="bank")  # by a program that ignores the map
    recorder.does("shop", lambda client: client.send(WEB, forged.encode(), schema=forged.SCHEMA))
    recorder.does("shop", lambda client: client.send(LOGIN, b"what is this"))
    found = recorder.does("admin", lambda client: audit(HubSource(client)))
    assert {(one.stream, one.stream_seq) for one in found.strays} == {(WEB, 2), (LOGIN, 1)}
    assert {(one.producer, one.origin, one.events) for one in found.uses} == {("shop", ORIGIN, 1), ("shop", "bank", 1)}


def test_a_copy_in_the_log_counts_once(recorder: RecorderSetup) -> None:
    copied = replace(event(1), source="s", position=1)
    for _ in range(2):
        recorder.does("shop", lambda client: client.send(WEB, copied.encode(), schema=copied.SCHEMA))
    found = recorder.does("admin", lambda client: audit(HubSource(client)))
    assert (found.copies, found.strays) == (1, ())
