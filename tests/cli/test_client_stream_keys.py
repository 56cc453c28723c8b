"""`veen stream-key`: create, show, export and import."""

import stat
from pathlib import Path

import pytest

from tests.cli.runner import Veen
from veen.client import StreamKey
from veen.core import DhKey


@pytest.fixture
def pair(veen: Veen, tmp_path: Path) -> tuple[Path, Path]:
    """Two clients."""
    for name in ("a", "b"):
        veen.done("keygen", "--out", tmp_path / name, "--no-passphrase")
    return tmp_path / "a", tmp_path / "b"


def test_the_public_half_permits_writing_and_the_secret_half_reading(veen: Veen, pair: tuple[Path, Path]) -> None:
    a, b = pair
    made = veen.done("stream-key", "create", "doors", "--client", a, "--json").json()
    public, secret = a.parent / "public", a.parent / "secret"
    veen.done("stream-key", "export", "doors", "--public", "--out", public, "--client", a)
    taken = veen.done("stream-key", "import", public, "--client", b, "--json").json()
    assert (taken["public_key"], taken["reads"]) == (made["public_key"], False)
    exported = veen("stream-key", "export", "doors", "--out", secret, "--client", b)
    assert exported.status == 6
    assert "--public exports that" in exported.err
    veen.done("stream-key", "export", "doors", "--out", secret, "--client", a)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert veen.done("stream-key", "import", secret, "--client", b, "--json").json()["reads"] is True
    shown = veen.done("stream-key", "show", "doors", "--client", b, "--json").json()
    assert shown == {**made, "reads": True}


def test_a_stream_has_one_key(veen: Veen, pair: tuple[Path, Path]) -> None:
    a, b = pair
    for client in (a, b):
        veen.done("stream-key", "create", "doors", "--client", client)
    again = veen("stream-key", "create", "doors", "--client", a)
    assert again.status == 6
    assert "already has a key" in again.error
    for half in ("--public", None):
        out = a.parent / f"key{half}"
        veen.done("stream-key", "export", "doors", *([half] if half else []), "--out", out, "--client", a)
        other = veen("stream-key", "import", out, "--client", b)
        assert other.status == 6
        assert "already has another key" in other.error


def test_an_unknown_stream_gets_a_hint_to_create_or_import_its_key(veen: Veen, pair: tuple[Path, Path]) -> None:
    a, _ = pair
    for arguments in (["show", "doors"], ["export", "doors", "--out", a.parent / "x"]):
        ran = veen("stream-key", *arguments, "--client", a)
        assert ran.status == 6
        assert "veen stream-key create doors" in ran.err
    assert not (a.parent / "x").exists()
    empty = veen.done("stream-key", "show", "--client", a)
    assert empty.out == ""
    assert "veen stream-key create NAME" in empty.err


@pytest.mark.parametrize(
    "content", [b"", b"doors", DhKey(b"\x07" * 32).secret, StreamKey("x", bytes(32)).encode()[:-1]]
)
def test_a_file_that_is_not_a_key_is_not_imported(content: bytes, veen: Veen, pair: tuple[Path, Path]) -> None:
    a, _ = pair
    (a.parent / "bad").write_bytes(content)
    ran = veen("stream-key", "import", a.parent / "bad", "--client", a)
    assert ran.status == 3
    assert "not a stream key file" in ran.error


def test_control_characters_in_a_name_are_escaped(veen: Veen, pair: tuple[Path, Path]) -> None:
    a, _ = pair
    (a.parent / "key").write_bytes(StreamKey("\x1b[2Jdoors", DhKey.generate().public_key).encode())
    ran = veen.done("stream-key", "import", a.parent / "key", "--client", a)
    assert ran.facts()["stream"] == "\\x1b[2Jdoors"
    assert "\x1b" not in veen.done("stream-key", "show", "--client", a).out


@pytest.mark.parametrize("name", ["", "n" * 5000])
def test_an_empty_or_too_long_name_is_rejected(name: str, veen: Veen, pair: tuple[Path, Path]) -> None:
    ran = veen("stream-key", "create", name, "--client", pair[0])
    assert ran.status == 3
    assert "stream name" in ran.error
