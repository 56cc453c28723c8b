"""The files of a node, and the parcels of the file lane, after a fault at any call: nothing is lost or half visible."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lab.sweep import Extent, StoreCase, sweep
from plumbing.background import Tasks
from plumbing.durable import PRIVATE_FILE, replace_file
from tests.veil.lane_fixture import ALICE, BOB
from veil import VeilError
from veil.encryption import Group, GroupSecret
from veil.lanes import Endpoint, file_lane
from veil.lanes.certificate import Certificate
from veil.lanes.file_lane import SUFFIX, FileLane
from veil.lanes.lane import Session
from veil.runtime.data_directory import DataDirectory, Settings, load_settings, save_settings
from veil.runtime.groups import Keyring, NamedGroup, load_keyring, save_keyring

EXTENTS = [Extent.SAMPLE, pytest.param(Extent.ALL, marks=pytest.mark.slow)]


def secrets(ring: Keyring) -> tuple[object, ...]:
    return ring.signing.seed, ring.delivery.secret, ring.name, ring.groups


class Configuring(StoreCase):
    """Creates a node, changes its settings and joins a group, as the commands do."""

    errors = (VeilError, OSError)

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.token: str | None = None
        self.settings: list[Settings] = []  # the last two that may be stored; one if the last was confirmed
        self.rings: list[Keyring] = []

    @property
    def directory(self) -> DataDirectory:
        return DataDirectory(self.root / "node")

    def operate(self) -> None:
        self._create()
        self._configure(Settings(listen=("quic://127.0.0.1:4433",)))
        self._adopt(self.rings[-1].with_group(NamedGroup("doors", Group((GroupSecret.create(),)))))
        self._configure(replace(self.settings[-1], relay_all=True))

    def check(self) -> None:
        directory = self.directory
        assert directory.exists() or self.token is None, "the node is lost"
        if directory.exists():
            assert load_settings(directory) in self.settings
            assert secrets(load_keyring(directory)) in map(secrets, self.rings)
            assert self.token in (None, directory.token())
            assert directory.certificate.exists()
            Certificate.load_or_make(directory.certificate)
        else:
            self._create()
        self._configure(Settings(stun=("stun:127.0.0.1",)))
        assert load_settings(directory) == self.settings[-1]
        for path in directory.path.iterdir():
            assert path.stat().st_mode & 0o777 == PRIVATE_FILE or path.suffix == ".draft"
            assert path.suffix != ".json" or isinstance(json.loads(path.read_bytes()), dict)

    def _create(self) -> None:
        directory = self.directory
        directory.make()
        self._configure(Settings())
        Certificate.load_or_make(directory.certificate)
        self._adopt(Keyring.generate("ada"))
        self.token = directory.token()

    def _configure(self, settings: Settings) -> None:
        self.settings = [*self.settings[-1:], settings]
        save_settings(self.directory, settings)
        self.settings = [settings]

    def _adopt(self, ring: Keyring) -> None:
        self.rings = [*self.rings[-1:], ring]
        save_keyring(self.directory, ring)
        self.rings = [ring]


ROUNDS, AT_ONCE = 2, 2


class Carrying(StoreCase):
    """Alice puts parcels into a folder. Bob takes them out, and commits their frames to a file."""

    errors = (VeilError, OSError)

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.sent: list[bytes] = []  # a lane asks for more frames only after it stored the last
        self.undecided: list[bytes] = []
        self.committed: list[bytes] = []

    @property
    def folder(self) -> Path:
        return self.root / "stick"

    @property
    def store(self) -> Path:
        return self.root / "bob"

    def prepare(self) -> None:
        self.folder.mkdir()

    def operate(self) -> None:
        for number in range(ROUNDS):
            self._send([b"frame %d of round %d" % (at, number) for at in range(AT_ONCE)])
            self._receive()

    def check(self) -> None:
        inbox = self.folder / BOB.public_key.hex()
        parcels = [path.read_bytes() for path in inbox.glob(f"*{SUFFIX}")] if inbox.exists() else []
        visible = {frame for data in parcels for frame in file_lane.unpack(data, BOB.public_key).frames}
        stored = set(self._stored())
        assert set(self.committed) <= stored, "a frame that was committed is lost"
        assert set(self.sent) <= visible | stored, "a frame of a stored parcel is lost"
        assert visible | stored <= {*self.sent, *self.undecided}
        self._send([b"the last"])
        self._receive()
        assert set(self._stored()) >= {*self.sent, b"the last"}
        assert list(inbox.glob(f"*{SUFFIX}")) == []

    def _stored(self) -> list[bytes]:
        return [bytes.fromhex(line) for line in self.store.read_text().split()] if self.store.exists() else []

    def _send(self, frames: Sequence[bytes]) -> None:
        waiting = [tuple(frames)]

        async def work() -> None:
            tasks = Tasks()
            session = await FileLane(ALICE).dial(Endpoint("file", path=str(self.folder)), BOB.public_key, None)

            def pull(_: int) -> tuple[bytes, ...]:
                self.sent, self.undecided = self.sent + self.undecided, []
                if waiting:
                    self.undecided = list(waiting[-1])
                    return waiting.pop()
                tasks.start(session.close())
                return ()

            await session.run(pull, lambda frame: None)

        self.undecided = []  # the frames of a failed round are gone, or visible
        asyncio.run(work())

    def _receive(self) -> None:
        frames = self._stored()

        def settle() -> None:
            replace_file(self.store, "\n".join(frame.hex() for frame in frames).encode())
            self.committed = list(frames)

        async def work() -> None:
            lane, sessions, tasks = FileLane(BOB, self.folder, settle), list[Session](), Tasks()
            lane._accept = sessions.append
            lane.scan()
            for session in sessions:

                def pull(_: int, session: Session = session) -> tuple[bytes, ...]:
                    tasks.start(session.close())
                    return ()

                await session.run(pull, frames.append)

        asyncio.run(work())


@pytest.mark.parametrize("extent", EXTENTS)
def test_a_node_keeps_its_keys_and_settings_after_a_fault_at_any_call(extent: Extent, tmp_path: Path) -> None:
    report = sweep(Configuring, tmp_path, extent)
    assert report.points >= report.calls > 20


@pytest.mark.parametrize("extent", EXTENTS)
def test_the_file_lane_loses_no_frame_after_a_fault_at_any_call(extent: Extent, tmp_path: Path) -> None:
    report = sweep(Carrying, tmp_path, extent)
    assert report.points >= report.calls > 20
