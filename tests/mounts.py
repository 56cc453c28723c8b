"""Small separate file systems for tests that fill them. A test is skipped if mounting is not allowed."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def tmpfs(place: Path, size: int) -> Iterator[Path]:
    """A tmpfs of this size."""
    with _mounted(place, "-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
        yield place


@contextmanager
def ext4(place: Path, size: int) -> Iterator[Path]:
    """An ext4 in a file next to `place`, through a loop device."""
    image = place.with_name(place.name + ".ext4")
    with image.open("wb") as file:
        file.truncate(size)
    _run("mkfs.ext4", "-q", "-m", "0", str(image))
    with _mounted(place, "-o", "loop", str(image)):
        yield place


@contextmanager
def _mounted(place: Path, *given: str) -> Iterator[None]:
    place.mkdir()
    _run("mount", *given, str(place))
    try:
        yield
    finally:
        # Lazily, so a test that failed with open files leaves no mount behind.
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"{command[0]} is not installed here")
    if done.returncode:
        pytest.skip(f"{command[0]} is not possible here: {done.stderr.strip()}")
