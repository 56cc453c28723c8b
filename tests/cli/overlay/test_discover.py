"""`veen discover`: publishing, retiring, looking at any place and time, queries over a stream."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.overlay.people import KEEPER, People, people
from tests.cli.runner import Ran, Veen
from tests.cli.test_edges import COMMAND
from veen.core import naming
from veen.overlays.discovery import DirectoryQuery, ServiceFilter, overlay_id, request, service_id
from veen.overlays.rpc import CallRequest

HUBS, OVERLAYS, SERVICES, ASKED, ANSWERED = "disc.hubs.v1", "disc.overlays.v1", "disc.services.v1", "asked", "answered"
RPC_ID = overlay_id("rpc", "1").hex()
BILLING = service_id("billing").hex()


@pytest.fixture
def place(veen: Veen, tmp_path: Path) -> Iterator[People]:
    with people(veen, tmp_path, HUBS, OVERLAYS, SERVICES, ASKED, ANSWERED) as found:
        yield found


def publish_service(place: People, name: str = "billing", *more: object) -> Ran:
    given = ("--overlay", RPC_ID, "--method", "charge", "--on", ASKED, "--on", ANSWERED, *more)
    return place.does("discover", "publish", "service", name, *given, stream=None)


def listed(place: People, kind: str, *more: object, stream: str | None = None) -> list[dict[str, object]]:
    found = place.does("discover", "list", kind, *more, "--json", stream=stream).json()[f"{kind}s"]
    assert isinstance(found, list)
    return found


def test_a_hub_is_advertised_by_what_it_says_of_itself(place: People) -> None:
    given = ("--region", "x", "--tag", "public", "--tag", "fast", "--overlay", RPC_ID, "--ttl", 60)
    said = place.does("discover", "publish", "hub", *given, "--json", stream=None).json()
    assert (said["hub_id"], said["taken"]) == (place.town.hub_id, True)
    (found,) = listed(place, "hub")
    hub_metadata = place.town.hub.service.hub_metadata
    assert found["descriptor"] == {
        "hub_id": place.town.hub_id,
        "hub_pk": hub_metadata.identity.hub_keys[0].hub_pk.hex(),
        "profile_id": hub_metadata.profile.profile_id().hex(),
        "region": "x",
        "tags": ["public", "fast"],
        "endpoints": [{"kind": "http", "url": place.town.url}],
        "overlays": [RPC_ID],
        "ttl_sec": 60,
        "version": "0.0.1",
    }
    assert (found["state"], found["expires_at"]) == ("live", said["hub_ts"] + 60)


def test_an_overlay_is_advertised_with_the_schemas_it_has_here(place: People) -> None:
    place.does("discover", "publish", "overlay", "rpc", "--docs", "https://x", stream=None)
    (found,) = listed(place, "overlay")
    descriptor = found["descriptor"]
    assert isinstance(descriptor, dict)
    schemas = sorted(naming.schema_id(name).hex() for name in ("rpc.v1", "rpc.res.v1"))
    assert (descriptor["overlay_id"], descriptor["schemas"], descriptor["docs_url"]) == (RPC_ID, schemas, "https://x")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("overlay", "no.such"), "no overlay 'no.such' here"),
        (("service", "s", "--overlay", "zz", "--on", ASKED), "not the id of an overlay"),
        (("service", "s", "--overlay", RPC_ID, "--on", ASKED, "--issuer-service", RPC_ID), "services that take tokens"),
        (("hub", "--overlay", "12"), "not the id of an overlay"),
        (("hub", "--blind"), "without a look at the hub"),
        (("overlay", "big", "--schema", "s", "--docs", "x" * 17_000), "docs_url is longer than 16384 bytes"),
        (("overlay", "big", "--schema", "s", "--docs", "x" * 16_380), "at most 16384 bytes"),
        (("overlay", "big", "--schema", "s", *["--tag", "t"] * 257), "tags has 257 items"),
    ],
)
def test_what_cannot_be_advertised_is_refused_before_it_is_sent(
    place: People, arguments: tuple[str, ...], error: str
) -> None:
    ran = place.tries("discover", "publish", *arguments, stream=None)
    assert ran.status == 2
    assert error in ran.error
    assert listed(place, "overlay") == listed(place, "service") == listed(place, "hub") == []


def test_what_is_retired_is_not_listed_and_can_be_shown_as_it_was(place: People) -> None:
    publish_service(place)
    place.does("discover", "retire", "service", BILLING, "--reason", "moved", stream=None)
    assert listed(place, "service") == []
    (known,) = listed(place, "service", "--all")
    assert (known["state"], known["reason"]) == ("retired", "moved")
    (before,) = listed(place, "service", "--at", 1)
    assert before["state"] == "live"
    shown = place.does("discover", "show", "service", BILLING, stream=None).facts()
    assert (shown["state"], shown["reason"], shown["name"]) == ("retired", "moved", "billing")


def test_a_second_retirement_and_one_of_nothing_are_not_sent(place: People) -> None:
    publish_service(place)
    place.does("discover", "retire", "service", BILLING, stream=None)
    again = place.tries("discover", "retire", "service", BILLING, stream=None)
    assert again.status == 5
    assert "already retired" in again.error
    never = place.tries("discover", "retire", "service", RPC_ID, stream=None)
    assert never.status == 6
    assert "ever advertised" in never.error
    assert place.does("discover", "list", "service", "--json", stream=None).json()["at"]["stream_seq"] == 2


def test_what_has_expired_is_not_listed_at_any_time_after(place: People) -> None:
    said = place.does("discover", "publish", "hub", "--ttl", 10, "--json", stream=None).json()
    ends = said["hub_ts"] + 10
    assert [one["state"] for one in listed(place, "hub", "--when", ends)] == ["live"]
    assert listed(place, "hub", "--when", ends + 1) == []
    assert [one["state"] for one in listed(place, "hub", "--all", "--when", ends + 1)] == ["expired"]
    assert [one["state"] for one in listed(place, "hub", "--at", 1)] == ["live"]


def test_an_answer_is_proved_and_verifies_elsewhere(place: People, tmp_path: Path) -> None:
    publish_service(place)
    publish_service(place, "mail")
    file = tmp_path / "billing.evidence"
    shown = place.does("discover", "show", "service", BILLING, "--prove", "--out", file, "--json", stream=None).json()
    assert [one["stream_seq"] for one in shown["evidence"]["entries"]] == [1]
    place.town.veen.done("evidence", "verify", file, "--pin", place.town.hub_id)
    both = place.does("discover", "list", "service", "--prove", "--json", stream=None).json()
    assert [one["stream_seq"] for one in both["evidence"]["entries"]] == [1, 2]


def test_a_data_directory_tells_the_same_as_its_hub(place: People) -> None:
    place.does("discover", "publish", "hub", "--region", "x", stream=None)
    place.does("discover", "publish", "hub", "--region", "y", stream=None)
    folder = place.town.hub.data_dir
    for more in ((), ("--at", 1), ("--prove",)):
        asked = ("discover", "list", "hub", *more, "--json")
        here, there = place.does(*asked, stream=HUBS).json(), place.reads(folder, *asked, stream=HUBS).json()
        assert here["hubs"] == there["hubs"]
        assert here["mmr_root"] == there["mmr_root"]
    found = place.reads(folder, "discover", "query", "hub", "--region", "x", "--json", stream=HUBS).json()
    assert (found["results"], found["more"]) == ([], False)


def test_only_pinned_publishers_count_where_they_are_named(place: People) -> None:
    publish_service(place)
    own = place.does("discover", "show", "service", BILLING, "--json", stream=None).json()["publisher"]
    assert len(listed(place, "service", "--publisher", own)) == 1
    assert len(listed(place, "service", "--publisher", place.town.root / KEEPER)) == 1
    assert listed(place, "service", "--publisher", place.town.root / "writer") == []


def test_a_query_filters_and_pages(place: People) -> None:
    for name in ("billing", "billing2", "mail"):
        publish_service(place, name, "--tag", name, "--region", "x")
    query = ("discover", "query", "service")

    def found(*more: object) -> list[str]:
        ran = place.does(*query, *more, "--json", stream=None).json()
        return [one["name"] for one in ran["results"]]

    in_order = sorted(("billing", "billing2", "mail"), key=service_id)
    assert found() == in_order
    assert sorted(found("--name", "bill")) == ["billing", "billing2"]
    assert found("--tag", "mail", "--method", "charge", "--overlay", RPC_ID, "--region", "x") == ["mail"]
    assert found("--method", "other") == []
    assert found("--limit", 1, "--offset", 1) == in_order[1:2]
    ran = place.does(*query, "--limit", 2, stream=None)
    assert len(ran.out.splitlines()) == 2
    assert "there is more" in ran.err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("hub", "--method", "m"), "not found by its method"),
        (("overlay", "--region", "x"), "not found by its region"),
        (("service", "--schema", "s"), "not found by its schema"),
        (("printer",), "printer"),
        (("hub", "--overlay", "x"), "not the id of an overlay"),
        (("hub", "--ask", ASKED, "--at", "1"), "looks at its own directory"),
    ],
)
def test_a_query_that_means_nothing_is_misuse(place: People, arguments: tuple[str, ...], error: str) -> None:
    ran = place.tries("discover", "query", *arguments, stream=None)
    assert ran.status == 2
    assert error in ran.err


@contextmanager
def serving(place: People, *more: object) -> Iterator[None]:
    """A server of queries in a process of its own, from before the first query until after the last."""
    town = place.town
    given = ("--client", town.root / "server", "--hub", town.url, "--pin", town.hub_id, "--stream", ASKED)
    command = [*COMMAND, "discover", "serve", *map(str, (*given, *more))]
    env = town.veen.shell_env(os.environ)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as server:
        try:
            yield
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate()


def server_folder(place: People, *streams: str) -> None:
    from veen.client import ClientDir

    root = place.town.root
    with ClientDir.open(root / KEEPER) as keeper, ClientDir.create(root / "server", None, 1) as server:
        for stream in streams:
            key = keeper.stream_keys.secret(naming.stream_id(stream))
            assert key is not None
            server.stream_keys.import_secret(stream, key)


def test_a_server_answers_queries_from_its_own_fold(place: People) -> None:
    publish_service(place)
    server_folder(place, SERVICES, ASKED)
    with serving(place):
        ask = ("discover", "query", "service", "--ask", ASKED, "--timeout", 60)
        first = place.does(*ask, "--name", "bill", "--json", stream=None).json()
        assert [one["name"] for one in first["results"]] == ["billing"]
        publish_service(place, "mail")
        second = place.does(*ask, "--json", stream=None).json()
        assert sorted(one["name"] for one in second["results"]) == ["billing", "mail"]
        local = place.does("discover", "query", "service", "--json", stream=None).json()
        assert local["results"] == second["results"]


def test_a_query_that_nobody_answers_fails_in_time(place: People) -> None:
    late = place.tries("discover", "query", "service", "--ask", ASKED, "--timeout", 0.2, stream=None)
    assert late.status == 6
    assert "nobody answered within 0.2 seconds" in late.error


def test_what_is_asked_already_is_answered_once_and_where_it_asks_for_it(place: People, tmp_path: Path) -> None:
    publish_service(place)
    server_folder(place, SERVICES, ASKED, ANSWERED)
    query = DirectoryQuery.of(ServiceFilter(name_prefix="bill"))
    elsewhere, nowhere = naming.stream_id(ANSWERED), bytes(32)
    requests = [
        request(query),
        CallRequest("other", b"\xf6"),
        request(query, reply_to=elsewhere),
        request(query, reply_to=nowhere),
    ]
    for number, one in enumerate(requests):
        (tmp_path / str(number)).write_bytes(one.encode())
        place.does("send", "--schema", "rpc.v1", "--body", f"@{tmp_path / str(number)}", stream=ASKED)
    given = ("--client", place.town.root / "server", "--hub", place.town.url, "--pin", place.town.hub_id)
    serve = ("discover", "serve", "--stream", ASKED, "--once", *given, "--json")
    first = place.town.veen.done(*serve)
    assert first.json() == {"answered": 2}
    assert "entry 4 wants its answer on a stream whose key is not here" in first.err
    assert place.town.veen.done(*serve).json() == {"answered": 0}


def test_a_server_without_the_key_of_any_directory_says_so(place: People) -> None:
    server_folder(place, ASKED)
    given = ("--client", place.town.root / "server", "--hub", place.town.url, "--pin", place.town.hub_id)
    ran = place.town.veen("discover", "serve", "--stream", ASKED, "--once", *given)
    assert ran.status == 6
    assert "no reader key" in ran.error


def test_what_is_not_there_is_told_with_a_hint(place: People) -> None:
    ran = place.tries("discover", "show", "hub", "00" * 32, stream=None)
    assert ran.status == 6
    assert "ever advertised" in ran.error
    assert place.tries("discover", "show", "hub", "zz", stream=None).status == 2
