"""`veen hub limits lower`: what the operator sees, and that every reader accepts the entries from before."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.runner import Veen
from tests.hub.client import START, TOKEN, Clock, Hub, make_dir, running, until
from veen.core import Limits
from veen.storage.metadata import read_metadata
from veen.storage.paths import Folders

OPERATOR = {"VEEN_OPERATOR_TOKEN": TOKEN}
LARGE = bytes(2000)
LIMITS = Limits(max_body_bytes=3000, max_checkpoint_interval=4)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hub(tmp_path: Path, clock: Clock) -> Iterator[Hub]:
    with running(make_dir(tmp_path, limits=LIMITS), clock) as found:
        yield found


def at(hub: Hub) -> tuple[str, str]:
    return "--hub", f"http://127.0.0.1:{hub.port}"


def test_lower_logs_the_change_and_audits_accept_earlier_entries(veen: Veen, clock: Clock, tmp_path: Path) -> None:
    data_dir = make_dir(tmp_path, limits=LIMITS)
    with running(data_dir, clock) as hub:
        writer = hub.writer()
        for _ in range(6):
            writer.send(LARGE)
        limits = ("max_body_bytes=1000", "max_cap_rate_burst=5")
        shown = veen.done("hub", "limits", "lower", *limits, *at(hub), "--json", env=OPERATOR).json()
        assert (shown["max_body_bytes"], shown["max_cap_rate_burst"]) == (1000, 5)
        assert (shown["hub_ts"], shown["stream_seq"]) == (START, 1)
        clock.now += 1
        assert hub.submit(writer.message(LARGE)).refusal()[1] == "E.SIZE"
        writer.send()
        until(lambda: bool(hub.status()) and read_metadata(Folders(data_dir)).limits.max_body_bytes == 1000)
    audit = ("audit", "run", data_dir, "--workers", "1")
    assert veen(*audit).status == 0
    assert veen("fsck", data_dir).status == 0
    Folders(data_dir).limit_history.unlink()
    assert veen(*audit).status == 8, "without the history the earlier entries are above the limits"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("max_body_bytes=3001", "max_body_bytes is 3000 and can only be lowered, not set to 3001"),
        ("max_chunk_bytes=4096", "max_chunk_bytes is fixed when the data directory is created; it is 67108864"),
        ("max_body_bytes=3000", "no limit would change"),
        ("max_bodies=1", "there is no limit 'max_bodies'"),
        ("max_msg_bytes=1", "limits: max_msg_bytes is 1, not within 512..1048576"),
    ],
)
def test_a_limit_that_cannot_be_lowered_is_refused_with_the_ones_that_can(
    veen: Veen, hub: Hub, given: str, error: str
) -> None:
    ran = veen("hub", "limits", "lower", given, *at(hub), env=OPERATOR)
    assert (ran.status, ran.error) == (2, error)
    assert "lowered" in ran.err.splitlines()[-1]
    assert hub.status()["entries"] == 0


def test_lower_needs_a_running_hub_and_its_token(veen: Veen, hub: Hub, tmp_path: Path) -> None:
    ran = veen("hub", "limits", "lower", "max_body_bytes=1", *at(hub), env={"VEEN_OPERATOR_TOKEN": "wrong"})
    assert (ran.status, hub.status()["entries"]) == (5, 0)
    assert "token" in ran.error
    stopped = make_dir(tmp_path / "other")
    for env in (OPERATOR, {}):
        ran = veen("hub", "limits", "lower", "max_body_bytes=1", "--data-dir", stopped, env=env)
        assert ran.status == 6
        assert "veen hub start" in ran.err
