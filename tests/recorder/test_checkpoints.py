"""Checkpoints: content, schedule, and detection of changes to the log."""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hub.client import Clock
from tests.recorder.recorder_fixture import LOGIN, PLAN, WEB, RecorderSetup, event, recorder_setup
from veen.client import ClientDir
from veen.client.client import Client
from veen.core import Malformed, Profile, SigningKey, Unverified
from veen.core.signing import SIGNATURE_BYTES
from veen.overlays.record import CHANGES, RecorderProfile
from veen.recorder import CheckpointFolder, CheckpointVerdict, RecorderCheckpoint, SpoolFeed, SpoolWriter, make, verify
from veen.recorder.recorder_checkpoint import is_due, make_when_due, root_of, sign
from veen.state import DirectorySource, HubSource
from veen.storage.paths import Folders


def ship(recorder: RecorderSetup, *numbers: int, event_type: str = "http.request") -> None:
    folder = recorder.root / "spool"
    writer = SpoolWriter(folder)
    writer.append([event(number, event_type) for number in numbers])
    writer.close()
    recorder.ship("shop", SpoolFeed(folder, "shop", follow=False))


def made(recorder: RecorderSetup, previous: RecorderCheckpoint | None = None) -> RecorderCheckpoint:
    return recorder.does("admin", lambda client: make(client, previous))


def verified(recorder: RecorderSetup, checkpoint: RecorderCheckpoint, *, full: bool = True) -> CheckpointVerdict:
    return recorder.does("admin", lambda client: verify(HubSource(client), checkpoint, full=full))


def verified_in(
    recorder: RecorderSetup, data_dir: Path, checkpoint: RecorderCheckpoint, *, full: bool = True
) -> CheckpointVerdict:
    with ClientDir.open(recorder.root / "admin") as folder:
        source = DirectorySource(data_dir, folder)
        return asyncio.run(verify(source, checkpoint, full=full))


def test_a_checkpoint_has_the_fields_of_the_specification(recorder: RecorderSetup) -> None:
    ship(recorder, 1, 2, 3)
    found = made(recorder)
    assert {one.stream: one.last_seq for one in found.positions}[WEB] == 3
    assert LOGIN in found.empty
    assert found.hub_pk == recorder.hub.hub_pk
    assert found.log_root == root_of(found.positions)
    assert found.created_at > 1_700_000_000_000
    verdict = verified(recorder, found)
    assert verdict.profile is not None
    assert (found.profile_id, found.streams) == (verdict.profile.profile_id(), verdict.profile.streams)
    assert {one.stream: one.read for one in verdict.held}[WEB] == 3
    assert RecorderCheckpoint.decode(found.encode()) == found


def test_a_checkpoint_names_its_predecessor_and_stays_valid_while_the_log_grows(recorder: RecorderSetup) -> None:
    ship(recorder, 1)
    first = made(recorder)
    ship(recorder, 2, 3)
    second = made(recorder, first)
    second.check_follows(first)
    assert (first.last_seq(WEB), second.last_seq(WEB), second.last_seq("record/app/none")) == (1, 3, 0)
    assert second.previous == first.hash()
    for one in (first, second):
        verified(recorder, one)
    assert verified(recorder, first).held != verified(recorder, second).held
    with pytest.raises(Unverified):
        first.check_follows(second)


def _resigned(key: SigningKey, checkpoint: RecorderCheckpoint, **changed: object) -> RecorderCheckpoint:
    other = replace(checkpoint, **changed)  # type: ignore[arg-type]
    return replace(other, sig=key.sign(other.digest()))


TAMPERED: list[tuple[str, Callable[[SigningKey, RecorderCheckpoint], RecorderCheckpoint]]] = [
    ("cap_token|recorder checkpoint", lambda key, one: replace(one, sig=bytes(SIGNATURE_BYTES))),
    ("recorder checkpoint", lambda key, one: replace(one, created_at=one.created_at + 1)),
    ("log_root", lambda key, one: _resigned(key, one, log_root=bytes(32))),
    ("log_root", lambda key, one: _resigned(key, one, positions=one.positions[1:])),
    ("belongs to hub", lambda key, one: _resigned(key, one, hub_id=bytes(32))),
    ("hub_pk", lambda key, one: _resigned(key, one, hub_pk=bytes(32))),
    ("no profile", lambda key, one: _resigned(key, one, profile_id=bytes(32))),
    ("streams differ from those", lambda key, one: _resigned(key, one, empty=one.empty[1:])),
    (
        "streams differ from those",
        lambda key, one: _resigned(key, one, positions=one.positions[1:], log_root=root_of(one.positions[1:])),
    ),
]


@pytest.mark.parametrize(("reason", "tamper"), TAMPERED)
def test_a_tampered_checkpoint_is_rejected(
    recorder: RecorderSetup, reason: str, tamper: Callable[[SigningKey, RecorderCheckpoint], RecorderCheckpoint]
) -> None:
    ship(recorder, 1)
    with ClientDir.open(recorder.root / "admin") as folder:
        key = folder.identity.id_sign
    wrong = tamper(key, made(recorder))
    with pytest.raises(Unverified, match=reason):
        verified(recorder, wrong)


def test_a_position_that_the_hub_did_not_sign_is_rejected(recorder: RecorderSetup) -> None:
    ship(recorder, 1)
    found = made(recorder)
    with ClientDir.open(recorder.root / "admin") as folder:
        key = folder.identity.id_sign
    word = found.positions[0].checkpoint
    for changed in (replace(word, hub_sig=bytes(64)), replace(word, mmr_root=bytes(32)), replace(word, upto_seq=99)):
        positions = (replace(found.positions[0], checkpoint=changed), *found.positions[1:])
        wrong = _resigned(key, found, positions=positions, log_root=root_of(positions))
        with pytest.raises(Unverified):
            verified(recorder, wrong)
    swapped = tuple(
        replace(one, stream=other.stream) for one, other in zip(found.positions, found.positions[::-1], strict=True)
    )
    listed = tuple(sorted(swapped, key=lambda one: one.order))
    with pytest.raises(Unverified):
        verified(recorder, _resigned(key, found, positions=listed, log_root=root_of(listed)))


def test_another_administrator_cannot_sign_for_this_recorder(recorder: RecorderSetup) -> None:
    ship(recorder, 1)
    found = made(recorder)
    stranger = sign(
        SigningKey.generate(),
        hub_id=found.hub_id,
        hub_pk=found.hub_pk,
        profile_id=found.profile_id,
        created_at=found.created_at,
        positions=found.positions,
        empty=found.empty,
    )
    stranger.verify()
    with pytest.raises(Unverified, match="administrator"):
        verified(recorder, stranger)


def test_positions_out_of_order_do_not_decode(recorder: RecorderSetup) -> None:
    ship(recorder, 1)
    ship(recorder, 2, event_type="login")
    found = made(recorder)
    good = found.encode()
    first, second = (one.encode() for one in found.positions[:2])
    with pytest.raises(Malformed):
        RecorderCheckpoint.decode(good.replace(first + second, second + first))


def test_i2_a_log_that_lost_or_changed_an_entry_under_a_checkpoint_is_noticed(place: Path) -> None:
    """Neither an older copy of the log nor one with a changed entry matches the checkpoint."""
    with recorder_setup(place) as recorder:
        ship(recorder, 1, 2)
        recorder.hub.stop()
        shutil.copytree(recorder.data_dir, place / "older")
        recorder.hub.start()
        ship(recorder, 3)
        found = made(recorder)
        label = recorder.hub.label(WEB)
    assert verified_in(recorder, recorder.data_dir, found).held
    with pytest.raises(Unverified, match="missing"):
        verified_in(recorder, place / "older", found)
    for path in Folders(recorder.data_dir).log.glob(f"chunk-{label.hex()}*"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with pytest.raises((Unverified, Malformed)):
        verified_in(recorder, recorder.data_dir, found)


def test_the_safe_window_ends_before_the_first_second_not_fully_covered(place: Path) -> None:
    clock = Clock(1_800_000_000)
    with recorder_setup(place, clock=clock) as recorder:
        clock.now += 10
        ship(recorder, 1)
        found = made(recorder)
        assert verified(recorder, found).safe_until == 1_800_000_010
        ship(recorder, 2)  # in the same second, which is then no longer fully covered
        assert verified(recorder, found).safe_until == 1_800_000_009
        clock.now += 10
        ship(recorder, 3, event_type="login")
        assert verified(recorder, made(recorder, found)).safe_until == 1_800_000_020


PROFILE = RecorderProfile(bytes(32), bytes(32), (WEB, CHANGES), 100, 1, 300, 10)


@pytest.mark.parametrize(
    ("profile", "age_ms", "written", "due"),
    [
        (PROFILE, 0, 0, False),
        (PROFILE, 10**9, 0, False),
        (PROFILE, 0, 9, False),
        (PROFILE, 0, 10, True),
        (PROFILE, 299_999, 1, False),
        (PROFILE, 300_000, 1, True),
        (replace(PROFILE, every_events=None), 0, 10**6, False),
        (replace(PROFILE, every_events=None), 300_000, 1, True),
        (replace(PROFILE, every_sec=None), 10**9, 9, False),
        (replace(PROFILE, every_sec=None), 0, 10, True),
    ],
)
def test_a_checkpoint_is_due_by_time_or_by_volume(
    profile: RecorderProfile, age_ms: int, written: int, due: bool
) -> None:
    last = sign(
        SigningKey.generate(),
        hub_id=bytes(32),
        hub_pk=bytes(32),
        profile_id=bytes(32),
        created_at=1_000,
        positions=(),
        empty=(WEB,),
    )
    assert is_due(profile, last, 1_000 + age_ms, {WEB: written}, 0) is due
    assert is_due(profile, None, 0, {WEB: written}, 0) is (written > 0)


def test_checkpoints_are_made_by_volume_in_the_background(place: Path) -> None:
    with recorder_setup(place, plan=replace(PLAN, every_sec=None, every_events=10)) as recorder:

        async def watch(client: Client) -> list[RecorderCheckpoint]:
            folder, found = CheckpointFolder.of(client), []
            async for one in make_when_due(client, folder):
                found.append(one)
                assert folder.latest() == one
                if len(found) == 2:
                    break
                await asyncio.to_thread(ship, recorder, *range(10))
            return found

        first, second = recorder.does("admin", watch)
    second.check_follows(first)
    assert second.last_seq(WEB) == first.last_seq(WEB) + 10


def test_with_epochs_a_checkpoint_has_a_position_for_each_open_epoch(place: Path) -> None:
    clock = Clock(1_800_000_000)
    with recorder_setup(place, clock=clock, profile=Profile(epoch_sec=3_600)) as recorder:
        ship(recorder, 1, 2)
        first = made(recorder)
        clock.now += 3_600
        recorder.does("admin", lambda client: client.status())
        ship(recorder, 3)
        second = made(recorder, first)
        second.check_follows(first)
        found = [(one.checkpoint.epoch, one.last_seq) for one in second.positions if one.stream == WEB]
        assert found == [(500_000, 2), (500_001, 1)]
        verified(recorder, second)
