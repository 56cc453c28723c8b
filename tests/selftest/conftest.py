"""Two real hubs, each behind a proxy that forwards unchanged until a test breaks something."""

import time
from collections.abc import Iterator

import pytest

from tests.hub.client import make_dir, running
from tests.hub.disks import QuickDisk
from tests.selftest.broken_hub import BrokenHub, proxied
from veen.core import Limits, Profile
from veen.hub.admission_rules import Admission

# Short epochs, so a test can see one end; a window of several, so no check outlasts its label.
EPOCHS = Profile(epoch_sec=2)
LIMITS = Limits(max_msg_bytes=4096, max_checkpoint_interval=4, max_epoch_skew_sec=60)


def _born() -> int:
    return int(time.time()) - 60


@pytest.fixture(scope="session")
def open_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokenHub]:
    """Open admission, no epochs, default limits."""
    with (
        running(make_dir(tmp_path_factory.mktemp("open"), now=_born()), time.time, QuickDisk()) as hub,
        proxied(hub) as proxy,
    ):
        yield proxy


@pytest.fixture(scope="session")
def strict_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokenHub]:
    """Every rule active: capabilities, epochs, small messages."""
    data_dir = make_dir(tmp_path_factory.mktemp("strict"), EPOCHS, LIMITS, now=_born())
    with running(data_dir, time.time, QuickDisk(), admission=Admission.CAPABILITY) as hub, proxied(hub) as proxy:
        yield proxy
