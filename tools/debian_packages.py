"""The Debian packages of the container image: pinned in `requirements/image-debian.txt`, downloaded and unpacked.

python -m tools.debian_packages    pin the newest versions; needs Debian with gpgv, dpkg and debian-archive-keyring

The file has one line per package: name, version, path at a mirror, SHA-256. Downloads need no Debian: a file with
another hash is rejected, so any mirror will do.
"""

import lzma
import os
import re
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
PINS = ROOT / "requirements" / "image-debian.txt"
RELEASE, ARCHITECTURE = "trixie", "amd64"
# Archives at a mirror, and the suite of each.
SUITES = {"debian": RELEASE, "debian-security": f"{RELEASE}-security"}
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MIRROR = os.environ.get("DEBIAN_MIRROR", "https://deb.debian.org")
# It keeps the versions that the mirrors have dropped.
SNAPSHOT = "https://snapshot.debian.org/archive"

# Python, the libraries that its modules load, and a shell with cp, which the jobs of the Kubernetes profile need.
# Without ncurses, readline and Berkeley DB, which no program of ours uses.
PACKAGES = (
    "base-files",
    "busybox",
    "ca-certificates",
    "gcc-14-base",
    "libbz2-1.0",
    "libc6",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libpython3.13-minimal",
    "libpython3.13-stdlib",
    "libsqlite3-0",
    "libssl3t64",
    "libstdc++6",
    "libuuid1",
    "libzstd1",
    "python3.13-minimal",
    "zlib1g",
)
HEAD = """\
# Written by `make image-lock`; docs/supply-chain.md says how to update it.
# It names no mirror: the image is built with these files from any mirror, or not at all.
"""
_FIELD = re.compile(r"^([A-Za-z0-9-]+): (.*)$", re.MULTILINE)
_AR_MAGIC, _AR_HEAD = b"!<arch>\n", 60


class BadPackage(Exception):
    """A package is not the pinned one, or is no package."""


@dataclass(frozen=True, slots=True)
class DebianPackage:
    """One pinned package."""

    name: str
    version: str
    path: str
    digest: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} {self.path} sha256:{self.digest}"


def read() -> tuple[str, tuple[DebianPackage, ...]]:
    """The time of the pins, for the snapshot archive, and the packages."""
    first, *lines = [line for line in PINS.read_text("utf-8").splitlines() if not line.startswith("#")]
    packages = []
    for line in lines:
        name, version, path, digest = line.split(" ")
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            raise ValueError(f"no SHA-256 hash: {line}")
        packages.append(DebianPackage(name, version, path, digest.removeprefix("sha256:")))
    return first.removeprefix("snapshot "), tuple(packages)


def download(package: DebianPackage, time: str, folder: Path) -> bytes:
    """The file of a package, from the folder or else from a mirror. BadPackage if every copy has another hash."""
    archive, _, rest = package.path.partition("/")
    kept = folder / f"{package.digest}.deb"
    if kept.exists() and (data := kept.read_bytes()) and sha256(data).hexdigest() == package.digest:
        return data
    faults = []
    for url in (f"{MIRROR}/{package.path}", f"{SNAPSHOT}/{archive}/{time}/{rest}"):
        try:
            data = get(url)
        except OSError as error:
            faults.append(f"{url}: {error}")
            continue
        if sha256(data).hexdigest() == package.digest:
            folder.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(data)
            return data
        faults.append(f"{url}: its SHA-256 is {sha256(data).hexdigest()}, not {package.digest}")
    raise BadPackage("; ".join(faults))


def get(url: str) -> bytes:
    with urllib.request.urlopen(url) as response:
        found: bytes = response.read()
        return found


def unpack(data: bytes, root: Path, kept: re.Pattern[str]) -> str:
    """Unpack the files whose paths match into a folder. Returns the control file."""
    members = dict(_members(data))
    with _tar(members, "data.tar") as archive:
        for member in archive:
            member.name = member.name.removeprefix("./")
            if kept.match(member.name) and not member.isdir():
                archive.extract(member, root, filter="tar", set_attrs=True)
    with _tar(members, "control.tar") as archive:
        control = archive.extractfile("./control")
        assert control is not None, "every package has a control file"
        return control.read().decode()


def _members(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The files of an ar archive, which a package is."""
    if not data.startswith(_AR_MAGIC):
        raise BadPackage("it is no ar archive")
    at = len(_AR_MAGIC)
    while at < len(data):
        head = data[at : at + _AR_HEAD]
        size = int(head[48:58])
        at += _AR_HEAD
        yield head[:16].decode().strip().rstrip("/"), data[at : at + size]
        at += size + size % 2


def _tar(members: Mapping[str, bytes], name: str) -> tarfile.TarFile:
    if f"{name}.xz" not in members:
        raise BadPackage(f"it has no {name}.xz but {', '.join(members)}")
    return tarfile.open(fileobj=BytesIO(members[f"{name}.xz"]), mode="r:xz")


def lock() -> None:
    """Pin the newest version of every package."""
    found: dict[str, DebianPackage] = {}
    for archive, suite in SUITES.items():
        base, listed = f"{archive}/dists/{suite}", f"main/binary-{ARCHITECTURE}/Packages.xz"
        release = _verified(get(f"{MIRROR}/{base}/InRelease"))
        digest = re.search(rf"^ ([0-9a-f]{{64}}) +\d+ {re.escape(listed)}$", release, re.MULTILINE)
        packages = get(f"{MIRROR}/{base}/{listed}")
        if digest is None or sha256(packages).hexdigest() != digest[1]:
            raise BadPackage(f"{listed} of {suite} is not the one that InRelease lists; a mirror may just be updating")
        for stanza in lzma.decompress(packages).decode().split("\n\n"):
            fields = dict(_FIELD.findall(stanza))
            if fields.get("Package") in PACKAGES:
                path = f"{archive}/{fields['Filename']}"
                one = DebianPackage(fields["Package"], fields["Version"], path, fields["SHA256"])
                if one.name not in found or _is_newer(one.version, found[one.name].version):
                    found[one.name] = one
        time = re.search(r"^Date: (.*)$", release, re.MULTILINE)
    assert time is not None, "every InRelease has a date"
    if missing := set(PACKAGES) - found.keys():
        raise BadPackage(f"not in {RELEASE}: {', '.join(sorted(missing))}")
    lines = "".join(f"{found[name]}\n" for name in PACKAGES)
    PINS.write_text(f"{HEAD}snapshot {_stamp(time[1])}\n{lines}", "utf-8")


def _verified(signed: bytes) -> str:
    """The signed text of an InRelease file."""
    with TemporaryDirectory() as scratch:
        file, out = Path(scratch, "InRelease"), Path(scratch, "Release")
        file.write_bytes(signed)
        done = subprocess.run(["gpgv", "--keyring", str(KEYRING), "--output", str(out), str(file)], capture_output=True)
        if done.returncode:
            raise BadPackage(f"the signature of InRelease is invalid: {done.stderr.decode()}")
        return out.read_text("utf-8")


def _is_newer(version: str, other: str) -> bool:
    return subprocess.run(["dpkg", "--compare-versions", version, "gt", other]).returncode == 0


def _stamp(date: str) -> str:
    """`Tue, 17 Nov 2026 22:33:40 UTC` as the snapshot archive writes it."""
    from email.utils import parsedate_to_datetime

    return parsedate_to_datetime(date.replace("UTC", "+0000")).strftime("%Y%m%dT%H%M%SZ")


if __name__ == "__main__":
    try:
        lock()
    except (BadPackage, OSError) as error:
        sys.exit(f"veen: error: {PINS.name} was not written: {error}")
