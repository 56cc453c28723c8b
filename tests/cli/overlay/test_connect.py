"""`veen connect`: the four phases and calls, at a hub that requires a capability."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from threading import Thread

import pytest

from tests.cli.overlay.state_fixture import KEEPER, StateFixture, state_hub
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
def directory_hub(veen: Veen, tmp_path: Path) -> Iterator[StateFixture]:
    with state_hub(veen, tmp_path, HUBS, OVERLAYS, SERVICES, ASKED, ANSWERED, DESK) as found:
        yield found


def does(directory_hub: StateFixture, *arguments: object) -> Ran:
    return directory_hub.run(*arguments, stream=None)


def expect_failure(directory_hub: StateFixture, status: int, error: str, *arguments: object) -> None:
    ran = directory_hub.attempt(*arguments, stream=None)
    assert ran.status == status, ran.err
    assert error in ran.error


def advertise(directory_hub: StateFixture, *policy: object, tags: tuple[str, ...] = ("public",)) -> None:
    tagged = [word for tag in tags for word in ("--tag", tag)]
    does(directory_hub, "discover", "publish", "hub", "--region", "x", *tagged)
    does(directory_hub, "discover", "publish", "overlay", "rpc")
    given = ("--overlay", RPC_ID, "--method", "charge", "--on", ASKED, "--on", ANSWERED, *policy, *tagged)
    does(directory_hub, "discover", "publish", "service", "billing", *given)


def status(directory_hub: StateFixture, *more: object) -> dict[str, object]:
    (found,) = does(directory_hub, "connect", "status", *more, "--json").json()["connections"]
    assert isinstance(found, dict)
    return found


def connected(directory_hub: StateFixture) -> None:
    """Bind a connection to a service that needs no capability."""
    advertise(directory_hub, "--auth", "none")
    does(directory_hub, "connect", "hub", "work")
    does(directory_hub, "connect", "service", "work", "--method", "charge")
    does(directory_hub, "connect", "cap", "work")
    does(directory_hub, "connect", "bind", "work")


def test_four_phases_lead_to_a_service(directory_hub: StateFixture) -> None:
    advertise(directory_hub, "--auth", "none")
    chosen = does(directory_hub, "connect", "hub", "work", "--region", "x", "--json")
    assert (chosen.json()["hub_id"], chosen.json()["trusted"]) == (directory_hub.town.hub_id, True)
    assert "created the key of stream connect" in chosen.err
    assert does(directory_hub, "connect", "service", "work", "--json").json()["service_id"] == BILLING
    planned = does(directory_hub, "connect", "cap", "work", "--json").json()
    assert (planned["route"], planned["next"]) == ("none", "veen connect bind work")
    does(directory_hub, "connect", "bind", "work")
    found = status(directory_hub)
    assert (found["phase"], found["usable"], found["lapsed"]) == ("bound", True, [])
    assert found["bound"] == {
        "request_streams": [naming.stream_id(ASKED).hex()],
        "reply_streams": [naming.stream_id(ANSWERED).hex()],
    }
    phases = [status(directory_hub, "--at", seq)["phase"] for seq in (1, 2, 3, 4)]
    assert phases == ["hub", "service", "planned", "bound"]


def test_a_connection_can_be_proved_and_read_from_a_data_directory(directory_hub: StateFixture) -> None:
    connected(directory_hub)
    proved = does(directory_hub, "connect", "status", "work", "--prove", "--json").json()
    assert [one["stream_seq"] for one in proved["evidence"]["entries"]] == [1, 2, 3, 4]
    there = directory_hub.run_offline(
        directory_hub.town.hub.data_dir, "connect", "status", "work", "--json", stream="connect"
    ).json()
    assert there["connections"] == proved["connections"]


def test_a_phase_out_of_order_is_not_sent(directory_hub: StateFixture) -> None:
    advertise(directory_hub)
    expect_failure(directory_hub, 6, "no reader key", "connect", "service", "work")
    does(directory_hub, "connect", "hub", "work")
    expect_failure(directory_hub, 6, "has no service", "connect", "cap", "work")
    expect_failure(directory_hub, 6, "has no service", "connect", "bind", "work")
    expect_failure(directory_hub, 5, "choose a hub first", "connect", "service", "other")
    does(directory_hub, "connect", "service", "work")
    expect_failure(directory_hub, 5, "there is no authorization plan yet", "connect", "bind", "work")
    expect_failure(directory_hub, 5, "service, not bound", "connect", "call", "work", "charge")
    assert status(directory_hub)["phase"] == "service"


def advertise_another(directory_hub: StateFixture, tmp_path: Path, **given: object) -> str:
    """Advertise a hub that this client has no record of."""
    fields = {
        "hub_id": b"\x07" * 32,
        "hub_pk": b"\x08" * 32,
        "profile_id": Profile().profile_id(),
        "region": "y",
        "tags": (),
        "endpoints": (ServiceEndpoint("http", directory_hub.town.url),),
        "overlays": (),
        "ttl_sec": 3600,
        "version": "",
    }
    made = HubAdvertise(**{**fields, **given})  # type: ignore[arg-type]
    (tmp_path / "hub.cbor").write_bytes(made.encode())
    directory_hub.run("send", "--schema", "disc.hub.advertise.v1", "--body", f"@{tmp_path / 'hub.cbor'}", stream=HUBS)
    return made.hub_id.hex()


def test_no_capability_is_presented_to_an_untrusted_hub(directory_hub: StateFixture, tmp_path: Path) -> None:
    advertise(directory_hub, "--auth", "cap_token")
    other = advertise_another(directory_hub, tmp_path)
    chosen = does(directory_hub, "connect", "hub", "work", "--id", other)
    assert chosen.facts()["trusted"] == "no"
    assert "key is not trusted" in chosen.err
    does(directory_hub, "connect", "service", "work")
    expect_failure(directory_hub, 5, "key is not trusted", "connect", "cap", "work", "--token", issued(directory_hub))


def test_a_hub_whose_key_is_not_the_one_in_the_directory_is_refused(
    directory_hub: StateFixture, tmp_path: Path
) -> None:
    advertise(directory_hub, "--auth", "cap_token")
    wrong = advertise_another(directory_hub, tmp_path, hub_id=bytes.fromhex(directory_hub.town.hub_id))
    does(directory_hub, "connect", "hub", "work", "--id", wrong, "--trust", wrong)
    does(directory_hub, "connect", "service", "work")
    expect_failure(
        directory_hub,
        4,
        "does not have the key that the directory names",
        "connect",
        "cap",
        "work",
        "--token",
        issued(directory_hub),
    )
    other = advertise_another(directory_hub, tmp_path)
    does(directory_hub, "connect", "hub", "play", "--id", other, "--trust", other)
    does(directory_hub, "connect", "service", "play")
    expect_failure(
        directory_hub,
        4,
        "it is not the hub that was entered",
        "connect",
        "cap",
        "play",
        "--token",
        issued(directory_hub, "2.cap"),
    )


@pytest.mark.parametrize("how", ["id", "folder", "fingerprint"])
def test_trust_accepts_an_id_a_fingerprint_and_an_identity_file(
    directory_hub: StateFixture, how: str, tmp_path: Path
) -> None:
    advertise(directory_hub)
    advertise_another(directory_hub, tmp_path)
    town = directory_hub.town
    key = town.hub.service.hub_metadata.identity.hub_keys[0].hub_pk
    named = {"id": town.hub_id, "folder": town.hub.data_dir, "fingerprint": hashing.h(key).hex()}[how]
    proposed = does(directory_hub, "connect", "hubs", "--trust", named, "--json").json()
    assert [one["descriptor"]["hub_id"] for one in proposed["candidates"]] == [town.hub_id]
    assert [one["reason"] for one in proposed["left_out"]] == ["it is not the hub that --trust names"]
    assert does(directory_hub, "connect", "hub", "work", "--trust", named, "--json").json()["hub_id"] == town.hub_id
    expect_failure(
        directory_hub, 6, "no hub in the directory meets the criteria", "connect", "hub", "work", "--trust", "ab" * 32
    )


def test_hubs_are_proposed_by_region_and_restricted_tags_are_excluded(
    directory_hub: StateFixture, tmp_path: Path
) -> None:
    advertise(directory_hub, tags=("test",))
    other = advertise_another(directory_hub, tmp_path)
    found = does(directory_hub, "connect", "hubs", "--region", "x", "--json").json()
    assert [one["descriptor"]["hub_id"] for one in found["candidates"]] == [other]
    assert [one["reason"] for one in found["left_out"]] == ["it is tagged test, which was not requested"]
    both = does(directory_hub, "connect", "hubs", "--tag", "test", "--json").json()
    assert [one["descriptor"]["hub_id"] for one in both["candidates"]] == [directory_hub.town.hub_id]
    expect_failure(
        directory_hub,
        6,
        "no hub in the directory meets the criteria",
        "connect",
        "hub",
        "work",
        "--id",
        directory_hub.town.hub_id,
    )
    assert (
        does(directory_hub, "connect", "hub", "work", "--tag", "test", "--max-latency", 3000).facts()["trusted"]
        == "yes"
    )


def test_a_hub_that_exceeds_the_latency_limit_is_excluded(directory_hub: StateFixture, tmp_path: Path) -> None:
    advertise_another(directory_hub, tmp_path, endpoints=(ServiceEndpoint("http", "http://127.0.0.1:1"),))
    expect_failure(
        directory_hub, 6, "no hub in the directory meets the criteria", "connect", "hub", "work", "--max-latency", 3000
    )


def test_a_service_whose_overlay_has_other_schemas_is_not_proposed(directory_hub: StateFixture) -> None:
    advertise(directory_hub)
    does(directory_hub, "discover", "publish", "overlay", "rpc", "--schema", "rpc.v1")
    found = does(directory_hub, "connect", "services", "--json").json()
    assert found["candidates"] == []
    assert [one["reason"] for one in found["left_out"]] == ["its overlay was not verified"]
    does(directory_hub, "connect", "hub", "work")
    expect_failure(directory_hub, 6, "no service in the directory meets the criteria", "connect", "service", "work")
    does(directory_hub, "discover", "publish", "overlay", "rpc")
    assert (
        len(does(directory_hub, "connect", "services", "--overlay", "rpc", "--prove", "--json").json()["candidates"])
        == 1
    )
    assert does(directory_hub, "connect", "services", "--overlay", "kv", "--json").json()["candidates"] == []


def issued(directory_hub: StateFixture, name: str = "work.cap", stream: str = ASKED, subject: str = KEEPER) -> Path:
    """Issue a capability as the operator."""
    town = directory_hub.town
    given = ("--issuer", town.root / "operator", "--subject", town.root / subject, "--stream", stream, "--ttl", 3600)
    town.veen.done("cap", "issue", *given, "--hub", town.hub_id, "--out", town.root / name)
    return town.root / name


def test_a_capability_is_planned_presented_and_renewed(directory_hub: StateFixture) -> None:
    advertise(
        directory_hub, "--auth", "cap_token", "--requires", "write", "--org", "Example", "--contact", "ops@example.org"
    )
    does(directory_hub, "connect", "hub", "work")
    does(directory_hub, "connect", "service", "work")
    planned = does(directory_hub, "connect", "cap", "work", "--wait", 600, "--json").json()
    assert (planned["route"], planned["required_caps"], planned["operator"]["contact"]) == (
        "operator",
        ["write"],
        "ops@example.org",
    )
    assert planned["stream_ids"] == [naming.stream_id(ASKED).hex()]
    expect_failure(directory_hub, 5, "has not accepted a capability", "connect", "bind", "work")
    expect_failure(
        directory_hub,
        4,
        "does not allow stream",
        "connect",
        "cap",
        "work",
        "--token",
        issued(directory_hub, "1.cap", ANSWERED),
    )
    expect_failure(
        directory_hub,
        4,
        "for another client",
        "connect",
        "cap",
        "work",
        "--token",
        issued(directory_hub, "2.cap", ASKED, "writer"),
    )
    taken = does(directory_hub, "connect", "cap", "work", "--token", issued(directory_hub), "--json").json()
    does(directory_hub, "connect", "bind", "work")
    assert status(directory_hub)["usable"] is True
    kept = status(directory_hub)["authorized"]
    assert kept == {"auth_ref": taken["auth_ref"], "expires_at": taken["expires_at"]}
    ends = taken["expires_at"]
    late = status(directory_hub, "--when", ends + 1)
    assert (late["usable"], late["lapsed"]) == (
        False,
        [
            "the hub's advertisement has expired",
            "the service's advertisement has expired",
            "the capability has expired",
        ],
    )
    again = does(directory_hub, "connect", "cap", "work", "--token", issued(directory_hub, "3.cap"), "--json").json()
    assert again["taken"] is True
    assert status(directory_hub)["phase"] == "bound"


@contextmanager
def answering(
    directory_hub: StateFixture, answer: Callable[[cbor.Value], Reply], on: str = ASKED
) -> Iterator[list[object]]:
    """Serve one method in a thread until it has answered one call."""
    town, asked = directory_hub.town, list[object]()
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


def test_a_call_returns_the_answer_of_the_service(directory_hub: StateFixture) -> None:
    connected(directory_hub)
    with answering(directory_hub, lambda args: success({"charged": 5})) as asked:
        ran = does(
            directory_hub, "connect", "call", "work", "charge", '{"amount": 5}', "--timeout", 60, "--json"
        ).json()
    assert ran["result"] == {"charged": 5}
    assert asked == [{"amount": 5}]
    expect_failure(directory_hub, 5, "no method steal", "connect", "call", "work", "steal")
    expect_failure(
        directory_hub, 6, "there was no reply within", "connect", "call", "work", "charge", "1", "--timeout", 0.2
    )
    for text in ("{", "1.5", "NaN", "[1, 2.0]"):
        expect_failure(directory_hub, 2, "cannot be sent", "connect", "call", "work", "charge", text)


def test_an_error_of_a_service_is_shown_with_its_code(directory_hub: StateFixture) -> None:
    connected(directory_hub)
    with answering(directory_hub, lambda args: Reply(False, error=RpcError("NO.MONEY", "none left"))):
        expect_failure(directory_hub, 5, "none left", "connect", "call", "work", "charge", "--timeout", 60)


def test_a_capability_is_requested_from_the_issuing_service(directory_hub: StateFixture) -> None:
    advertise(directory_hub, "--auth", "cap_token", "--issuer-service", service_id("desk").hex())
    desk = ("--overlay", RPC_ID, "--method", "cap.issue.v1", "--on", DESK)
    does(directory_hub, "discover", "publish", "service", "desk", *desk)
    does(directory_hub, "connect", "hub", "work")
    does(directory_hub, "connect", "service", "work", "--id", BILLING)
    planned = does(directory_hub, "connect", "cap", "work", "--json").json()
    assert (planned["route"], planned["issuer_service"]) == ("service", service_id("desk").hex())

    def issue(args: cbor.Value) -> Reply:
        assert isinstance(args, dict)
        with ClientDir.open(directory_hub.town.root / "operator") as operator:
            key = operator.identity.id_sign
            token = cap_token.mint(key, args["subject_pk"], args["stream_ids"], args["ttl"])
            return success(cap_token.present(key, token, args["hub_id"], 9_999_999_999).encode())

    with answering(directory_hub, issue, DESK):
        taken = does(directory_hub, "connect", "cap", "work", "--ask", "--ttl", 600, "--timeout", 60, "--json").json()
    assert taken["expires_at"] <= taken["hub_ts"] + 600
    does(directory_hub, "connect", "bind", "work")
    assert status(directory_hub)["usable"] is True
    expect_failure(directory_hub, 2, "contradict each other", "connect", "cap", "work", "--ask", "--token", "x")


def test_ask_fails_for_a_service_without_an_issuer(directory_hub: StateFixture) -> None:
    advertise(directory_hub, "--auth", "cap_token")
    does(directory_hub, "connect", "hub", "work")
    does(directory_hub, "connect", "service", "work")
    expect_failure(directory_hub, 6, "names no issuing service", "connect", "cap", "work", "--ask")


def test_a_phase_that_was_not_applied_is_listed_with_its_reason(directory_hub: StateFixture, tmp_path: Path) -> None:
    advertise(directory_hub)
    does(directory_hub, "connect", "hub", "work")
    (tmp_path / "bound").write_bytes(ServiceBound("work", (bytes(32),), ()).encode())
    directory_hub.run("send", "--schema", "connect.bind.v1", "--body", f"@{tmp_path / 'bound'}", stream="connect")
    (fault,) = directory_hub.run("connect", "faults", "--json", stream=None).json()["faults"]
    assert (fault["stream_seq"], fault["kind"], fault["reason"]) == (2, "refused", "there is no authorization plan yet")
    assert directory_hub.run("discover", "faults", "--json", stream=HUBS).json()["faults"] == []


def test_an_ended_connection_cannot_be_used(directory_hub: StateFixture) -> None:
    connected(directory_hub)
    does(directory_hub, "connect", "end", "work", "--reason", "done")
    assert status(directory_hub)["phase"] == "ended"
    expect_failure(directory_hub, 5, "ended, not bound", "connect", "call", "work", "charge")
    expect_failure(directory_hub, 6, "has no service", "connect", "bind", "work")
    expect_failure(directory_hub, 5, "choose a hub first", "connect", "end", "work")
    expect_failure(directory_hub, 6, "no connection 'play'", "connect", "status", "play")
    expect_failure(directory_hub, 2, "longer than 256 bytes", "connect", "end", "n" * 257)
    expect_failure(directory_hub, 2, "needs to read the connection", "connect", "hub", "work", "--blind")
