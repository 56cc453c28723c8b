"""A watched folder: paths that cannot be bundles do not block others and are moved aside."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bridge.bridge_fixture import Zones, zones
from veen.bridge import bundle, bundle_import
from veen.bridge.bundle_export import BundleSizes
from veen.bridge.bundle_import import Importer, ProcessedFile
from veen.overlays.bridge_logs import BundleImported


def endless(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(bundle.MAX_BUNDLE_BYTES + 1)


def folder(path: Path) -> None:
    path.mkdir()
    (path / "x").write_bytes(b"x")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


BAD: dict[str, Callable[[Path], None]] = {
    "an endless file": endless,
    "a folder": folder,
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a link round in circles": loop,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize("bad", BAD)
def test_paths_that_cannot_be_bundles_come_last(tmp_path: Path, bad: str) -> None:
    BAD[bad](tmp_path / "0.bundle")
    (tmp_path / "1.bundle").write_bytes(b"junk")
    assert [path.name for path in bundle_import.waiting(tmp_path)] == ["0.bundle", "1.bundle"]


async def _swept(at: Zones) -> list[ProcessedFile]:
    async with at.client("importer", at.offline) as client:
        importer = Importer(client, {at.source_id}, operator="test")
        return [one async for one in bundle_import.sweep(importer, at.drop)]


def test_bundles_are_imported_despite_other_paths_with_their_suffix(place: Path) -> None:
    async def run() -> None:
        await at.produce(b"a", b"b")
        await at.export(sizes=BundleSizes(events=1))
        for number, make in enumerate(BAD.values()):
            make(at.drop / f"0{number}.bundle")
        found = await _swept(at)
        assert [one.outcome.ok for one in found] == [True] * 2 + [False] * len(BAD)
        assert [one.outcome.fault and one.outcome.fault.code for one in found[2:]] == ["malformed"] * len(BAD)
        assert [entry.body for entry in await at.imported()] == [b"a", b"b"]
        assert [path.name for path in sorted(at.drop.iterdir())] == ["imported", "refused"]
        assert len(list((at.drop / "refused").iterdir())) == len(BAD)
        said = [entry for entry in await at.audit_entries() if entry.schema == BundleImported.SCHEMA]
        assert len(said) == 2
        assert await _swept(at) == []

    with zones(place) as at:
        asyncio.run(run())


def test_a_folder_moved_aside_before_is_not_overwritten(place: Path) -> None:
    async def run() -> None:
        for make in (folder, folder, lambda path: path.write_bytes(b"junk")):
            make(at.drop / "x.bundle")
            (dealt,) = await _swept(at)
            assert not dealt.outcome.ok
        kept = sorted((at.drop / "refused").iterdir())
        assert sorted(path.is_dir() for path in kept) == [False, True, True]

    with zones(place) as at:
        asyncio.run(run())
