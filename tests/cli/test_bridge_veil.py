"""`veen bridge veil` between two clients that were shown different histories, or the same one."""

import asyncio
import json
from pathlib import Path

from tests.bridge.gossip_fixture import STREAM, Side, between
from tests.cli.runner import Ran, Veen
from veen.cli.kit.exit_status import CONTRADICTED_STATUS, FAILED_STATUS


class Person:
    """A client at the command line."""

    def __init__(self, veen: Veen, side: Side) -> None:
        self.veen = veen
        self.side = side
        side.folder.close()
        token = side.inbox.with_name(f"{side.inbox.name}.token")
        token.write_text(side.node.token + "\n")
        self.node = ("--node", side.node.url, "--token-file", token)
        self.hub: tuple[object, ...] = ("--client", side.folder.path, "--hub", f"http://127.0.0.1:{side.hub.port}")

    async def run(self, *arguments: object) -> Ran:
        return await asyncio.to_thread(self.veen, *arguments)

    async def publish(self, *what: object) -> Ran:
        return await self.run("bridge", "veil", "publish", *what, *self.node, *self.hub)

    async def receive(self, *options: object) -> Ran:
        return await self.run("bridge", "veil", "receive", "--inbox", self.side.inbox, *options, *self.node, *self.hub)


def test_two_clients_with_different_histories_detect_and_prove_the_fork(veen: Veen, tmp_path: Path) -> None:
    async def work(one: Side, two: Side) -> None:
        await one.write(b"for alice")
        await two.write(b"for bob", b"and more")
        alice, bob = Person(veen, one), Person(veen, two)
        published = await bob.publish(STREAM, "--json")
        assert [(row["what"], row["of"], row["upto_seq"]) for row in published.json()] == [("checkpoint", STREAM, 5)]
        await one.wait_received(1)
        ran = await alice.receive("--json")
        assert ran.status == FAILED_STATUS
        assert [row["standing"] for row in ran.json()["undecided"]] == ["unshown"]
        assert "not proved yet" in ran.err
        assert (await alice.publish(STREAM)).status == 0
        await two.wait_received(1)
        ran = await bob.receive("--json")
        assert ran.status == CONTRADICTED_STATUS
        (proof,) = ran.json()["contradictions"]
        shown = await bob.run("evidence", "verify", proof["file"], "--pin", two.hub_id.hex(), "--json")
        assert shown.status == CONTRADICTED_STATUS
        assert shown.json()["contradictions"] == [proof["reason"]]
        await one.wait_received(2)
        ran = await alice.receive("--follow", "--json")  # exits once the fork is proved
        assert ran.status == CONTRADICTED_STATUS
        assert "THE HUB SIGNED TWO HISTORIES" in ran.err
        last = [json.loads(line) for line in ran.out.splitlines()][-1]
        assert (last["what"], last["standing"]) == ("evidence", "forked")
        shown = await alice.run("evidence", "verify", last["file"], "--pin", one.hub_id.hex())
        assert shown.status == CONTRADICTED_STATUS
        again = await alice.receive("--json")
        assert (again.status, again.json()["received"]) == (CONTRADICTED_STATUS, [])

    between(tmp_path, work, forked=True)


def test_two_clients_with_the_same_history_agree(veen: Veen, tmp_path: Path) -> None:
    async def work(one: Side, two: Side) -> None:
        await one.read()
        await two.read()
        alice, bob = Person(veen, one), Person(veen, two)
        assert (await alice.publish(STREAM)).status == 0
        await one.put(b"junk")
        await two.wait_received(2)
        ran = await bob.receive("--offline", "--json")
        assert ran.status == 0, ran.err
        assert sorted((row["result"], row["standing"]) for row in ran.json()["received"]) == [
            ("refused", None),
            ("taken", "agrees"),
        ]
        assert ran.json()["counts"] == {"checkpoints": 1, "refused malformed": 1}
        bob.hub = ("--client", two.folder.path, "--hub", "http://127.0.0.1:1", "--pin", two.hub_id.hex())
        ran = await bob.receive()
        assert ran.status == 6
        assert "--offline" in ran.err

    between(tmp_path, work, forked=False)


def test_invalid_options_are_rejected(veen: Veen, tmp_path: Path) -> None:
    hub = ("--client", tmp_path / "none", "--hub", "http://127.0.0.1:1")
    publish, receive = ("bridge", "veil", "publish"), ("bridge", "veil", "receive", "--inbox", tmp_path / "in")
    assert "nothing to publish" in veen(*publish, "--node", tmp_path, *hub).error
    assert "--every needs a stream" in veen(*publish, "--evidence", "x", "--every", 1, "--node", tmp_path, *hub).error
    veen.done("keygen", "--out", tmp_path / "none", "--no-passphrase")
    ran = veen(*receive, "--offline", "--node", tmp_path, *hub)
    assert "the client directory has no record of the hub" in ran.error
    assert not (tmp_path / "in").exists()


def test_a_node_that_is_unreachable_or_remote_is_an_error(veen: Veen, tmp_path: Path) -> None:
    async def work(one: Side, two: Side) -> None:
        await two.read()
        bob = Person(veen, two)
        receive = ("bridge", "veil", "receive", "--inbox", two.inbox, "--offline", *bob.hub)
        for node, message in (
            (("--node", tmp_path), "is not running"),
            (("--node", "http://192.0.2.1:80"), "not on this machine"),
            (("--node", two.node.url), "missing --token-file"),
            (("--node", tmp_path, "--token-file", tmp_path / "x"), "--token-file needs a URL"),
        ):
            assert message in (await bob.run(*receive, *node)).error
        (tmp_path / "wrong").write_text("wrong")
        ran = await bob.run(*receive, "--node", two.node.url, "--token-file", tmp_path / "wrong")
        assert (ran.status, "rejected the request (401)" in ran.err) == (6, True)
        assert not two.inbox.exists()

    between(tmp_path, work, forked=False, entries=1)
