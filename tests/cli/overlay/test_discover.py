"""`veen discover`: publish, retire, list at any place and time, and query over a stream."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.overlay.state_fixture import KEEPER, StateFixture, state_hub
from tests.cli.runner import Ran, Veen
from tests.cli.test_edges import COMMAND
from veen.core import naming
from veen.overlays.discovery import overlay_id, service_id
from veen.overlays.discovery_query import DirectoryQuery, ServiceFilter, request
from veen.overlays.rpc import CallRequest

HUBS, OVERLAYS, SERVICES, ASKED, ANSWERED = "disc.hubs.v1", "disc.overlays.v1", "disc.services.v1", "asked", "answered"
RPC_ID = overlay_id("rpc", "1").hex()
BILLING = service_id("billing").hex()


@pytest.fixture
def directory_hub(veen: Veen, tmp_path: Path) -> Iterator[StateFixture]:
    with state_hub(veen, tmp_path, HUBS, OVERLAYS, SERVICES, ASKED, ANSWERED) as found:
        yield found


def publish_service(directory_hub: StateFixture, name: str = "billing", *more: object) -> Ran:
    given = ("--overlay", RPC_ID, "--method", "charge", "--on", ASKED, "--on", ANSWERED, *more)
    return directory_hub.run("discover", "publish", "service", name, *given, stream=None)


def listed(directory_hub: StateFixture, kind: str, *more: object, stream: str | None = None) -> list[dict[str, object]]:
    found = directory_hub.run("discover", "list", kind, *more, "--json", stream=stream).json()[f"{kind}s"]
    assert isinstance(found, list)
    return found


def test_a_hub_is_advertised_with_its_own_identity(directory_hub: StateFixture) -> None:
    given = ("--region", "x", "--tag", "public", "--tag", "fast", "--overlay", RPC_ID, "--ttl", 60)
    sent = directory_hub.run("discover", "publish", "hub", *given, "--json", stream=None).json()
    assert (sent["hub_id"], sent["taken"]) == (directory_hub.town.hub_id, True)
    (found,) = listed(directory_hub, "hub")
    hub_metadata = directory_hub.town.hub.service.hub_metadata
    assert found["descriptor"] == {
        "hub_id": directory_hub.town.hub_id,
        "hub_pk": hub_metadata.identity.hub_keys[0].hub_pk.hex(),
        "profile_id": hub_metadata.profile.profile_id().hex(),
        "region": "x",
        "tags": ["public", "fast"],
        "endpoints": [{"kind": "http", "url": directory_hub.town.url}],
        "overlays": [RPC_ID],
        "ttl_sec": 60,
        "version": "0.0.1",
    }
    assert (found["state"], found["expires_at"]) == ("live", sent["hub_ts"] + 60)


def test_an_overlay_is_advertised_with_its_built_in_schemas(directory_hub: StateFixture) -> None:
    directory_hub.run("discover", "publish", "overlay", "rpc", "--docs", "https://x", stream=None)
    (found,) = listed(directory_hub, "overlay")
    descriptor = found["descriptor"]
    assert isinstance(descriptor, dict)
    schemas = sorted(naming.schema_id(name).hex() for name in ("rpc.v1", "rpc.res.v1"))
    assert (descriptor["overlay_id"], descriptor["schemas"], descriptor["docs_url"]) == (RPC_ID, schemas, "https://x")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("overlay", "no.such"), "no built-in overlay 'no.such'"),
        (("service", "s", "--overlay", "zz", "--on", ASKED), "not the id of an overlay"),
        (("service", "s", "--overlay", RPC_ID, "--on", ASKED, "--issuer-service", RPC_ID), "needs --auth cap_token"),
        (("hub", "--overlay", "12"), "not the id of an overlay"),
        (("hub", "--blind"), "needs to read the hub's status"),
        (("overlay", "big", "--schema", "s", "--docs", "x" * 17_000), "docs_url is longer than 16384 bytes"),
        (("overlay", "big", "--schema", "s", "--docs", "x" * 16_380), "above the limit of 16384"),
        (("overlay", "big", "--schema", "s", *["--tag", "t"] * 257), "tags has 257 items"),
    ],
)
def test_an_invalid_advertisement_is_not_sent(
    directory_hub: StateFixture, arguments: tuple[str, ...], error: str
) -> None:
    ran = directory_hub.attempt("discover", "publish", *arguments, stream=None)
    assert ran.status == 2
    assert error in ran.error
    assert listed(directory_hub, "overlay") == listed(directory_hub, "service") == listed(directory_hub, "hub") == []


def test_a_retired_advertisement_is_not_listed_and_is_shown_with_at(directory_hub: StateFixture) -> None:
    publish_service(directory_hub)
    directory_hub.run("discover", "retire", "service", BILLING, "--reason", "moved", stream=None)
    assert listed(directory_hub, "service") == []
    (known,) = listed(directory_hub, "service", "--all")
    assert (known["state"], known["reason"]) == ("retired", "moved")
    (before,) = listed(directory_hub, "service", "--at", 1)
    assert before["state"] == "live"
    shown = directory_hub.run("discover", "show", "service", BILLING, stream=None).facts()
    assert (shown["state"], shown["reason"], shown["name"]) == ("retired", "moved", "billing")


def test_a_second_retirement_and_one_without_advertisement_are_not_sent(directory_hub: StateFixture) -> None:
    publish_service(directory_hub)
    directory_hub.run("discover", "retire", "service", BILLING, stream=None)
    again = directory_hub.attempt("discover", "retire", "service", BILLING, stream=None)
    assert again.status == 5
    assert "already retired" in again.error
    never = directory_hub.attempt("discover", "retire", "service", RPC_ID, stream=None)
    assert never.status == 6
    assert "ever advertised" in never.error
    assert directory_hub.run("discover", "list", "service", "--json", stream=None).json()["at"]["stream_seq"] == 2


def test_an_expired_advertisement_is_not_listed(directory_hub: StateFixture) -> None:
    sent = directory_hub.run("discover", "publish", "hub", "--ttl", 10, "--json", stream=None).json()
    ends = sent["hub_ts"] + 10
    assert [one["state"] for one in listed(directory_hub, "hub", "--when", ends)] == ["live"]
    assert listed(directory_hub, "hub", "--when", ends + 1) == []
    assert [one["state"] for one in listed(directory_hub, "hub", "--all", "--when", ends + 1)] == ["expired"]
    assert [one["state"] for one in listed(directory_hub, "hub", "--at", 1)] == ["live"]


def test_evidence_of_an_answer_verifies_offline(directory_hub: StateFixture, tmp_path: Path) -> None:
    publish_service(directory_hub)
    publish_service(directory_hub, "mail")
    file = tmp_path / "billing.evidence"
    shown = directory_hub.run(
        "discover", "show", "service", BILLING, "--prove", "--out", file, "--json", stream=None
    ).json()
    assert [one["stream_seq"] for one in shown["evidence"]["entries"]] == [1]
    directory_hub.town.veen.done("evidence", "verify", file, "--pin", directory_hub.town.hub_id)
    both = directory_hub.run("discover", "list", "service", "--prove", "--json", stream=None).json()
    assert [one["stream_seq"] for one in both["evidence"]["entries"]] == [1, 2]


def test_a_data_directory_gives_the_same_answers_as_its_hub(directory_hub: StateFixture) -> None:
    directory_hub.run("discover", "publish", "hub", "--region", "x", stream=None)
    directory_hub.run("discover", "publish", "hub", "--region", "y", stream=None)
    folder = directory_hub.town.hub.data_dir
    for more in ((), ("--at", 1), ("--prove",)):
        asked = ("discover", "list", "hub", *more, "--json")
        here, there = (
            directory_hub.run(*asked, stream=HUBS).json(),
            directory_hub.run_offline(folder, *asked, stream=HUBS).json(),
        )
        assert here["hubs"] == there["hubs"]
        assert here["mmr_root"] == there["mmr_root"]
    found = directory_hub.run_offline(folder, "discover", "query", "hub", "--region", "x", "--json", stream=HUBS).json()
    assert (found["results"], found["more"]) == ([], False)


def test_publisher_restricts_the_directory_to_the_named_publishers(directory_hub: StateFixture) -> None:
    publish_service(directory_hub)
    own = directory_hub.run("discover", "show", "service", BILLING, "--json", stream=None).json()["publisher"]
    assert len(listed(directory_hub, "service", "--publisher", own)) == 1
    assert len(listed(directory_hub, "service", "--publisher", directory_hub.town.root / KEEPER)) == 1
    assert listed(directory_hub, "service", "--publisher", directory_hub.town.root / "writer") == []


def test_a_query_filters_and_pages(directory_hub: StateFixture) -> None:
    for name in ("billing", "billing2", "mail"):
        publish_service(directory_hub, name, "--tag", name, "--region", "x")
    query = ("discover", "query", "service")

    def found(*more: object) -> list[str]:
        ran = directory_hub.run(*query, *more, "--json", stream=None).json()
        return [one["name"] for one in ran["results"]]

    in_order = sorted(("billing", "billing2", "mail"), key=service_id)
    assert found() == in_order
    assert sorted(found("--name", "bill")) == ["billing", "billing2"]
    assert found("--tag", "mail", "--method", "charge", "--overlay", RPC_ID, "--region", "x") == ["mail"]
    assert found("--method", "other") == []
    assert found("--limit", 1, "--offset", 1) == in_order[1:2]
    ran = directory_hub.run(*query, "--limit", 2, stream=None)
    assert len(ran.out.splitlines()) == 2
    assert "there are more results" in ran.err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("hub", "--method", "m"), "--method does not apply to hubs"),
        (("overlay", "--region", "x"), "--region does not apply to overlays"),
        (("service", "--schema", "s"), "--schema does not apply to services"),
        (("printer",), "printer"),
        (("hub", "--overlay", "x"), "not the id of an overlay"),
        (("hub", "--ask", ASKED, "--at", "1"), "--ask cannot be combined with"),
    ],
)
def test_an_invalid_query_is_misuse(directory_hub: StateFixture, arguments: tuple[str, ...], error: str) -> None:
    ran = directory_hub.attempt("discover", "query", *arguments, stream=None)
    assert ran.status == 2
    assert error in ran.err


@contextmanager
def serving(directory_hub: StateFixture, *more: object) -> Iterator[None]:
    """Run `veen discover serve` in a subprocess while the block runs."""
    town = directory_hub.town
    given = ("--client", town.root / "server", "--hub", town.url, "--pin", town.hub_id, "--stream", ASKED)
    command = [*COMMAND, "discover", "serve", *map(str, (*given, *more))]
    env = town.veen.shell_env(os.environ)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as server:
        try:
            yield
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate()


def server_folder(directory_hub: StateFixture, *streams: str) -> None:
    from veen.client import ClientDir

    root = directory_hub.town.root
    with ClientDir.open(root / KEEPER) as keeper, ClientDir.create(root / "server", None, 1) as server:
        for stream in streams:
            key = keeper.stream_keys.secret(naming.stream_id(stream))
            assert key is not None
            server.stream_keys.import_secret(stream, key)


def test_a_server_answers_queries_from_its_own_fold(directory_hub: StateFixture) -> None:
    publish_service(directory_hub)
    server_folder(directory_hub, SERVICES, ASKED)
    with serving(directory_hub):
        ask = ("discover", "query", "service", "--ask", ASKED, "--timeout", 60)
        first = directory_hub.run(*ask, "--name", "bill", "--json", stream=None).json()
        assert [one["name"] for one in first["results"]] == ["billing"]
        publish_service(directory_hub, "mail")
        second = directory_hub.run(*ask, "--json", stream=None).json()
        assert sorted(one["name"] for one in second["results"]) == ["billing", "mail"]
        local = directory_hub.run("discover", "query", "service", "--json", stream=None).json()
        assert local["results"] == second["results"]


def test_an_unanswered_query_fails_after_its_timeout(directory_hub: StateFixture) -> None:
    late = directory_hub.attempt("discover", "query", "service", "--ask", ASKED, "--timeout", 0.2, stream=None)
    assert late.status == 6
    assert "there was no reply within 0.2 seconds" in late.error


def test_pending_queries_are_answered_once_on_their_reply_stream(directory_hub: StateFixture, tmp_path: Path) -> None:
    publish_service(directory_hub)
    server_folder(directory_hub, SERVICES, ASKED, ANSWERED)
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
        directory_hub.run("send", "--schema", "rpc.v1", "--body", f"@{tmp_path / str(number)}", stream=ASKED)
    given = (
        "--client",
        directory_hub.town.root / "server",
        "--hub",
        directory_hub.town.url,
        "--pin",
        directory_hub.town.hub_id,
    )
    serve = ("discover", "serve", "--stream", ASKED, "--once", *given, "--json")
    first = directory_hub.town.veen.done(*serve)
    assert first.json() == {"answered": 2}
    assert "cannot answer entry 4: it names a reply stream whose key is missing" in first.err
    assert directory_hub.town.veen.done(*serve).json() == {"answered": 0}


def test_serve_fails_without_the_key_of_a_directory(directory_hub: StateFixture) -> None:
    server_folder(directory_hub, ASKED)
    given = (
        "--client",
        directory_hub.town.root / "server",
        "--hub",
        directory_hub.town.url,
        "--pin",
        directory_hub.town.hub_id,
    )
    ran = directory_hub.town.veen("discover", "serve", "--stream", ASKED, "--once", *given)
    assert ran.status == 6
    assert "no reader key" in ran.error


def test_an_unknown_id_is_an_error_with_a_hint(directory_hub: StateFixture) -> None:
    ran = directory_hub.attempt("discover", "show", "hub", "00" * 32, stream=None)
    assert ran.status == 6
    assert "ever advertised" in ran.error
    assert directory_hub.attempt("discover", "show", "hub", "zz", stream=None).status == 2
