"""`veen connect`: from a directory to a call that is answered, with a hub that asks for a capability."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from threading import Thread

import pytest

from tests.cli.overlay.people import KEEPER, People, people
from tests.cli.runner import Ran, Veen
from veen.client import ClientDir
from veen.client.client import Client
from veen.client.trust import Pin
from veen.core import Profile, cap_token, cbor, hashing, naming
from veen.overlays.connect import ServiceBound
from veen.overlays.discovery import HubAdvertise, ServiceEndpoint, overlay_id, service_id
from veen.overlays.rpc import CallRequest, Reply, RpcError, success

DESK = "desk"
HUBS, OVERLAYS, SERVICES, ASKED, ANSWERED = "disc.hubs.v1", "disc.overlays.v1", "disc.services.v1", "asked", "answered"
RPC_ID = overlay_id("rpc", "1").hex()
BILLING = service_id("billing").hex()


@pytest.fixture
def place(veen: Veen, tmp_path: Path) -> Iterator[People]:
    with people(veen, tmp_path, HUBS, OVERLAYS, SERVICES, ASKED, ANSWERED, DESK) as found:
        yield found


def does(place: People, *arguments: object) -> Ran:
    return place.does(*arguments, stream=None)


def fails(place: People, status: int, error: str, *arguments: object) -> None:
    ran = place.tries(*arguments, stream=None)
    assert ran.status == status, ran.err
    assert error in ran.error


def advertise(place: People, *policy: object, tags: tuple[str, ...] = ("public",)) -> None:
    tagged = [word for tag in tags for word in ("--tag", tag)]
    does(place, "discover", "publish", "hub", "--region", "x", *tagged)
    does(place, "discover", "publish", "overlay", "rpc")
    given = ("--overlay", RPC_ID, "--method", "charge", "--on", ASKED, "--on", ANSWERED, *policy, *tagged)
    does(place, "discover", "publish", "service", "billing", *given)


def status(place: People, *more: object) -> dict[str, object]:
    (found,) = does(place, "connect", "status", *more, "--json").json()["connections"]
    assert isinstance(found, dict)
    return found


def connected(place: People) -> None:
    """A connection to a service that lets anyone in."""
    advertise(place, "--auth", "none")
    does(place, "connect", "hub", "work")
    does(place, "connect", "service", "work", "--method", "charge")
    does(place, "connect", "cap", "work")
    does(place, "connect", "bind", "work")


def test_four_phases_lead_to_a_service(place: People) -> None:
    advertise(place, "--auth", "none")
    chosen = does(place, "connect", "hub", "work", "--region", "x", "--json")
    assert (chosen.json()["hub_id"], chosen.json()["trusted"]) == (place.town.hub_id, True)
    assert "made the key of stream connect" in chosen.err
    assert does(place, "connect", "service", "work", "--json").json()["service_id"] == BILLING
    planned = does(place, "connect", "cap", "work", "--json").json()
    assert (planned["route"], planned["next"]) == ("none", "veen connect bind work")
    does(place, "connect", "bind", "work")
    found = status(place)
    assert (found["phase"], found["usable"], found["lapsed"]) == ("bound", True, [])
    assert found["bound"] == {
        "request_streams": [naming.stream_id(ASKED).hex()],
        "reply_streams": [naming.stream_id(ANSWERED).hex()],
    }
    phases = [status(place, "--at", seq)["phase"] for seq in (1, 2, 3, 4)]
    assert phases == ["hub", "service", "planned", "bound"]


def test_a_connection_can_be_proved_and_read_from_a_data_directory(place: People) -> None:
    connected(place)
    proved = does(place, "connect", "status", "work", "--prove", "--json").json()
    assert [one["stream_seq"] for one in proved["evidence"]["entries"]] == [1, 2, 3, 4]
    there = place.reads(place.town.hub.data_dir, "connect", "status", "work", "--json", stream="connect").json()
    assert there["connections"] == proved["connections"]


def test_a_step_out_of_its_turn_is_not_sent(place: People) -> None:
    advertise(place)
    fails(place, 6, "no reader key", "connect", "service", "work")
    does(place, "connect", "hub", "work")
    fails(place, 6, "has no service yet", "connect", "cap", "work")
    fails(place, 6, "has no service yet", "connect", "bind", "work")
    fails(place, 5, "choose a hub first", "connect", "service", "other")
    does(place, "connect", "service", "work")
    fails(place, 5, "no capability is planned", "connect", "bind", "work")
    fails(place, 5, "service, not bound", "connect", "call", "work", "charge")
    assert status(place)["phase"] == "service"


def advertise_another(place: People, tmp_path: Path, **given: object) -> str:
    """A hub that this client has never met, as anyone may advertise one."""
    fields = {
        "hub_id": b"\x07" * 32,
        "hub_pk": b"\x08" * 32,
        "profile_id": Profile().profile_id(),
        "region": "y",
        "tags": (),
        "endpoints": (ServiceEndpoint("http", place.town.url),),
        "overlays": (),
        "ttl_sec": 3600,
        "version": "",
    }
    made = HubAdvertise(**{**fields, **given})  # type: ignore[arg-type]
    (tmp_path / "hub.cbor").write_bytes(made.encode())
    place.does("send", "--schema", "disc.hub.advertise.v1", "--body", f"@{tmp_path / 'hub.cbor'}", stream=HUBS)
    return made.hub_id.hex()


def test_a_hub_that_nobody_vouched_for_is_shown_no_token(place: People, tmp_path: Path) -> None:
    advertise(place, "--auth", "cap_token")
    other = advertise_another(place, tmp_path)
    chosen = does(place, "connect", "hub", "work", "--id", other)
    assert chosen.facts()["trusted"] == "no"
    assert "not trusted yet" in chosen.err
    does(place, "connect", "service", "work")
    fails(place, 5, "not trusted yet", "connect", "cap", "work", "--token", issued(place))


def test_a_hub_whose_key_is_not_the_one_in_the_directory_is_refused(place: People, tmp_path: Path) -> None:
    advertise(place, "--auth", "cap_token")
    wrong = advertise_another(place, tmp_path, hub_id=bytes.fromhex(place.town.hub_id))
    does(place, "connect", "hub", "work", "--id", wrong, "--trust", wrong)
    does(place, "connect", "service", "work")
    fails(place, 4, "does not have the key that the directory says", "connect", "cap", "work", "--token", issued(place))
    other = advertise_another(place, tmp_path)
    does(place, "connect", "hub", "play", "--id", other, "--trust", other)
    does(place, "connect", "service", "play")
    fails(place, 4, "not the one that is pinned", "connect", "cap", "play", "--token", issued(place, "2.cap"))


@pytest.mark.parametrize("how", ["id", "folder", "fingerprint"])
def test_a_hub_is_trusted_by_whatever_names_it(place: People, how: str, tmp_path: Path) -> None:
    advertise(place)
    advertise_another(place, tmp_path)
    town = place.town
    key = town.hub.service.hub_metadata.identity.hub_keys[0].hub_pk
    named = {"id": town.hub_id, "folder": town.hub.data_dir, "fingerprint": hashing.h(key).hex()}[how]
    proposed = does(place, "connect", "hubs", "--trust", named, "--json").json()
    assert [one["descriptor"]["hub_id"] for one in proposed["candidates"]] == [town.hub_id]
    assert [one["reason"] for one in proposed["left_out"]] == ["it is not the one that --trust names"]
    assert does(place, "connect", "hub", "work", "--trust", named, "--json").json()["hub_id"] == town.hub_id
    fails(place, 6, "proposes no such hub", "connect", "hub", "work", "--trust", "ab" * 32)


def test_hubs_are_proposed_by_region_and_what_is_not_for_everyone_is_left_out(place: People, tmp_path: Path) -> None:
    advertise(place, tags=("test",))
    other = advertise_another(place, tmp_path)
    found = does(place, "connect", "hubs", "--region", "x", "--json").json()
    assert [one["descriptor"]["hub_id"] for one in found["candidates"]] == [other]
    assert [one["reason"] for one in found["left_out"]] == ["it is tagged test, which was not asked for"]
    both = does(place, "connect", "hubs", "--tag", "test", "--json").json()
    assert [one["descriptor"]["hub_id"] for one in both["candidates"]] == [place.town.hub_id]
    fails(place, 6, "proposes no such hub", "connect", "hub", "work", "--id", place.town.hub_id)
    assert does(place, "connect", "hub", "work", "--tag", "test", "--max-latency", 3000).facts()["trusted"] == "yes"


def test_a_hub_that_does_not_answer_in_time_is_left_out(place: People, tmp_path: Path) -> None:
    advertise_another(place, tmp_path, endpoints=(ServiceEndpoint("http", "http://127.0.0.1:1"),))
    fails(place, 6, "proposes no such hub", "connect", "hub", "work", "--max-latency", 3000)


def test_a_service_whose_overlay_this_client_reads_otherwise_is_not_proposed(place: People) -> None:
    advertise(place)
    does(place, "discover", "publish", "overlay", "rpc", "--schema", "rpc.v1")
    found = does(place, "connect", "services", "--json").json()
    assert found["candidates"] == []
    assert [one["reason"] for one in found["left_out"]] == ["its overlay is not one that was verified"]
    does(place, "connect", "hub", "work")
    fails(place, 6, "proposes no such service", "connect", "service", "work")
    does(place, "discover", "publish", "overlay", "rpc")
    assert len(does(place, "connect", "services", "--overlay", "rpc", "--prove", "--json").json()["candidates"]) == 1
    assert does(place, "connect", "services", "--overlay", "kv", "--json").json()["candidates"] == []


def issued(place: People, name: str = "work.cap", stream: str = ASKED, subject: str = KEEPER) -> Path:
    """A capability of the operator's."""
    town = place.town
    given = ("--issuer", town.root / "operator", "--subject", town.root / subject, "--stream", stream, "--ttl", 3600)
    town.veen.done("cap", "issue", *given, "--out", town.root / name)
    return town.root / name


def test_a_capability_is_planned_shown_to_the_hub_and_renewed(place: People) -> None:
    advertise(place, "--auth", "cap_token", "--requires", "write", "--org", "Example", "--contact", "ops@example.org")
    does(place, "connect", "hub", "work")
    does(place, "connect", "service", "work")
    planned = does(place, "connect", "cap", "work", "--wait", 600, "--json").json()
    assert (planned["route"], planned["required_caps"], planned["operator"]["contact"]) == (
        "operator",
        ["write"],
        "ops@example.org",
    )
    assert planned["stream_ids"] == [naming.stream_id(ASKED).hex()]
    fails(place, 5, "has not taken a capability", "connect", "bind", "work")
    fails(place, 4, "does not allow stream", "connect", "cap", "work", "--token", issued(place, "1.cap", ANSWERED))
    fails(place, 4, "for another client", "connect", "cap", "work", "--token", issued(place, "2.cap", ASKED, "writer"))
    taken = does(place, "connect", "cap", "work", "--token", issued(place), "--json").json()
    does(place, "connect", "bind", "work")
    assert status(place)["usable"] is True
    kept = status(place)["authorized"]
    assert kept == {"auth_ref": taken["auth_ref"], "expires_at": taken["expires_at"]}
    ends = taken["expires_at"]
    late = status(place, "--when", ends + 1)
    assert (late["usable"], late["lapsed"]) == (
        False,
        [
            "the hub's advertisement has expired",
            "the service's advertisement has expired",
            "the capability has expired",
        ],
    )
    again = does(place, "connect", "cap", "work", "--token", issued(place, "3.cap"), "--json").json()
    assert again["taken"] is True
    assert status(place)["phase"] == "bound"


@contextmanager
def answering(place: People, answer: Callable[[cbor.Value], Reply], on: str = ASKED) -> Iterator[list[object]]:
    """A server of one method, which answers one call, in a thread of its own."""
    town, asked = place.town, list[object]()
    with ClientDir.open(town.root / KEEPER) as keeper, ClientDir.create(town.root / "server", None, 1) as folder:
        for stream in {ASKED, ANSWERED, on}:
            key = keeper.stream_keys.secret(naming.stream_id(stream))
            assert key is not None
            folder.stream_keys.import_secret(stream, key)

    async def serve() -> None:
        with ClientDir.open(town.root / "server") as folder:
            async with (
                Client(town.url, folder, pin=Pin(key=bytes.fromhex(town.hub_id))) as client,
                aclosing(client.read(on, follow=True)) as entries,
            ):
                entry = await anext(entries)
                request = CallRequest.decode(entry.body or b"")
                asked.append(cbor.decode(request.args))
                made = answer(cbor.decode(request.args))
                schema, parent = Reply.SCHEMA, entry.receipt.leaf_hash
                await client.send(request.reply_to or on, made.encode(), schema=schema, parent_id=parent)

    server = Thread(target=lambda: asyncio.run(serve()))
    server.start()
    try:
        yield asked
    finally:
        server.join()


def test_a_call_goes_to_the_service_and_its_answer_comes_back(place: People) -> None:
    connected(place)
    with answering(place, lambda args: success({"charged": 5})) as asked:
        ran = does(place, "connect", "call", "work", "charge", '{"amount": 5}', "--timeout", 60, "--json").json()
    assert ran["result"] == {"charged": 5}
    assert asked == [{"amount": 5}]
    fails(place, 5, "no method steal", "connect", "call", "work", "steal")
    fails(place, 6, "nobody answered", "connect", "call", "work", "charge", "1", "--timeout", 0.2)
    for text in ("{", "1.5", "NaN", "[1, 2.0]"):
        fails(place, 2, "cannot be sent", "connect", "call", "work", "charge", text)


def test_what_a_service_refuses_is_told_with_its_code(place: People) -> None:
    connected(place)
    with answering(place, lambda args: Reply(False, error=RpcError("NO.MONEY", "none left"))):
        fails(place, 5, "none left", "connect", "call", "work", "charge", "--timeout", 60)


def test_a_capability_is_asked_of_the_service_that_issues_it(place: People) -> None:
    advertise(place, "--auth", "cap_token", "--issuer-service", service_id("desk").hex())
    desk = ("--overlay", RPC_ID, "--method", "cap.issue.v1", "--on", DESK)
    does(place, "discover", "publish", "service", "desk", *desk)
    does(place, "connect", "hub", "work")
    does(place, "connect", "service", "work", "--id", BILLING)
    planned = does(place, "connect", "cap", "work", "--json").json()
    assert (planned["route"], planned["issuer_service"]) == ("service", service_id("desk").hex())

    def issue(args: cbor.Value) -> Reply:
        assert isinstance(args, dict)
        with ClientDir.open(place.town.root / "operator") as operator:
            key = operator.identity.id_sign
            return success(cap_token.mint(key, args["subject_pk"], args["stream_ids"], args["ttl"]).encode())

    with answering(place, issue, DESK):
        taken = does(place, "connect", "cap", "work", "--ask", "--ttl", 600, "--timeout", 60, "--json").json()
    assert taken["expires_at"] <= taken["hub_ts"] + 600
    does(place, "connect", "bind", "work")
    assert status(place)["usable"] is True
    fails(place, 2, "two ways to the same", "connect", "cap", "work", "--ask", "--token", "x")


def test_a_service_without_an_issuer_has_nobody_to_ask(place: People) -> None:
    advertise(place, "--auth", "cap_token")
    does(place, "connect", "hub", "work")
    does(place, "connect", "service", "work")
    fails(place, 6, "names no service that issues", "connect", "cap", "work", "--ask")


def test_a_step_that_changed_nothing_is_listed_with_its_reason(place: People, tmp_path: Path) -> None:
    advertise(place)
    does(place, "connect", "hub", "work")
    (tmp_path / "bound").write_bytes(ServiceBound("work", (bytes(32),), ()).encode())
    place.does("send", "--schema", "connect.bind.v1", "--body", f"@{tmp_path / 'bound'}", stream="connect")
    (fault,) = place.does("connect", "faults", "--json", stream=None).json()["faults"]
    assert (fault["stream_seq"], fault["kind"], fault["reason"]) == (2, "refused", "no capability is planned")
    assert place.does("discover", "faults", "--json", stream=HUBS).json()["faults"] == []


def test_an_ended_connection_is_over(place: People) -> None:
    connected(place)
    does(place, "connect", "end", "work", "--reason", "done")
    assert status(place)["phase"] == "ended"
    fails(place, 5, "ended, not bound", "connect", "call", "work", "charge")
    fails(place, 6, "no service yet", "connect", "bind", "work")
    fails(place, 5, "choose a hub first", "connect", "end", "work")
    fails(place, 6, "no connection 'play'", "connect", "status", "play")
    fails(place, 2, "longer than 256 bytes", "connect", "end", "n" * 257)
    fails(place, 2, "without a look", "connect", "hub", "work", "--blind")
