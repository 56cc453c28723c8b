"""Build the container image: the root file system, and an OCI archive of it.

python -m tools.image [FOLDER]               write the archive of the last commit to dist/, or to FOLDER
python -m tools.image --layer FILE [CACHE]   write only the root file system of this folder, as a tar archive

It needs neither a registry, a daemon, root nor Debian. Everything in the image is a file of this repository, or pinned
by hash: Debian packages in `requirements/image-debian.txt`, Python packages in `requirements/all.txt`. With --layer, as
in the Dockerfile, the time of the files is SOURCE_DATE_EPOCH.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from packaging.utils import canonicalize_name

import veen
from tools import debian_packages, lock_files
from tools.bill_of_materials import bill_of_materials
from tools.lock_files import Pin
from tools.oci_archive import Place, write_image, write_layer
from tools.release_files import run

ROOT = Path(__file__).parents[1]
CACHE = ROOT / "build" / "image"
# Not pkcs11 and airgap, which need devices, and not Spark.
EXTRAS = ("anchor", "recorder", "veil")
# The WebRTC lane: it needs all of FFmpeg, which is as large as everything else, for data channels.
LEFT_OUT = {"aiortc"}
PYTHON, LIBC = "3.13", (2, 41)
USER = 10_001
BOM = "/usr/share/veen/sbom.cdx.json"
PLACES = {"tmp": Place(0, 0o1777), "var/lib/veen": Place(USER, 0o700)}
EMPTY = ("dev", "etc/veen", "proc", "run", "sys", "tmp", "var/lib/veen")
LINKS = {
    "bin": "usr/bin",
    "etc/os-release": "../usr/lib/os-release",
    "lib": "usr/lib",
    "lib64": "usr/lib64",
    "sbin": "usr/bin",
    "usr/bin/python3": f"python{PYTHON}",
    "usr/lib/ssl/cert.pem": "/etc/ssl/certs/ca-certificates.crt",
}
# The shell and what the jobs of the Kubernetes profile copy keys with.
APPLETS = ("cat", "chmod", "cp", "env", "id", "ls", "mkdir", "mv", "rm", "sh", "sleep", "tar", "test")
FILES = {
    "etc/group": f"root:x:0:\nveen:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "etc/passwd": f"root:x:0:0:root:/:/bin/sh\nveen:x:{USER}:{USER}:veen:/var/lib/veen:/bin/sh\n",
}
LABELS: Mapping[str, str] = {
    "io.veen.sbom": BOM,
    "org.opencontainers.image.licenses": "Apache-2.0",
    "org.opencontainers.image.title": "veen",
}
CONFIG: Mapping[str, object] = {
    "User": f"{USER}:{USER}",
    "Env": ["HOME=/var/lib/veen", "LANG=C.UTF-8", "PATH=/usr/local/bin:/usr/bin", "PYTHONDONTWRITEBYTECODE=1"],
    "Cmd": ["veen", "--help"],
    "WorkingDir": "/",
    "Volumes": {"/var/lib/veen": {}},
    "Labels": LABELS,
}

_MULTIARCH = "x86_64-linux-gnu"
_LIBRARIES = f"usr/lib/{_MULTIARCH}"
_PACKAGES = f"usr/local/lib/python{PYTHON}/dist-packages"
_OF_DEBIAN = re.compile(
    rf"usr/bin/(python{PYTHON}|busybox)$|usr/lib64/|usr/lib/({_MULTIARCH}|python{PYTHON})/|usr/lib/os-release$|"
    rf"etc/python{PYTHON}/|usr/share/(ca-certificates/|common-licenses/|doc/[^/]+/copyright$)"
)
# Modules of Python whose libraries are left out, and parts that no program runs.
_UNUSED_OF_PYTHON: tuple[str, ...] = (
    *("ensurepip", "idlelib", "pydoc_data", "turtledemo", f"../{_MULTIARCH}/gconv"),
    *("lib-dynload/_curses*", "lib-dynload/_dbm*", "lib-dynload/readline*"),
)
# Sources and tests of packages. The second backend of zstandard is for other Pythons.
_UNUSED_OF_PACKAGES: tuple[str, ...] = (
    *("**/tests", "**/*.pyi", "**/*.[achi]", "**/*.pyx", "**/*.pxd", "**/*.cpp", "zstandard/_cffi.*"),
    *("bin", ".lock", "**/RECORD", "**/INSTALLER", "**/REQUESTED", "**/direct_url.json"),
)
_SCRIPT = """\
#!/usr/bin/python{python}
import sys
from {module} import {function}
sys.exit({function}())
"""


def pins() -> list[Pin]:
    """The pinned packages that the image needs: those of its extras, and what they need in turn."""
    machine = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{PYTHON}.5",
        "python_version": PYTHON,
        "sys_platform": "linux",
    }
    usable = {pin.name: pin for pin in lock_files.read("all") if pin.applies(machine) and pin.name not in LEFT_OUT}
    wanted = usable.keys() & {canonicalize_name(one.name) for one in lock_files.project_requirements(EXTRAS)}
    while more := {name for name, pin in usable.items() if wanted.intersection(pin.required_by)} - wanted:
        wanted |= more
    return [pin for name, pin in usable.items() if name in wanted]


def build_root(root: Path, cache: Path, scratch: Path, epoch: int) -> None:
    """Write all files of the image below an empty folder."""
    time, packages = debian_packages.read()
    for folder in EMPTY:
        (root / folder).mkdir(parents=True)
    for package in packages:
        data = debian_packages.download(package, time, cache)
        control = debian_packages.unpack(data, root, _OF_DEBIAN)
        _write(root / "var/lib/dpkg/status.d" / package.name, control)  # where scanners of images look
    for name, text in FILES.items():
        _write(root / name, text)
    for name, target in {**LINKS, **{f"usr/bin/{applet}": "busybox" for applet in APPLETS}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target)
    authorities = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    _write(root / "etc/ssl/certs/ca-certificates.crt", "".join(one.read_text("ascii") for one in authorities))
    shutil.rmtree(root / "usr/share/ca-certificates")
    _install(root / _PACKAGES, scratch, epoch)
    for name, entry in _scripts():
        module, _, function = entry.partition(":")
        _write(root / "usr/local/bin" / name, _SCRIPT.format(python=PYTHON, module=module, function=function), 0o755)
    _write(root / BOM.lstrip("/"), bill_of_materials([], pins(), EXTRAS, packages))
    _remove(root / f"usr/lib/python{PYTHON}", _UNUSED_OF_PYTHON)
    _remove(root / _PACKAGES, _UNUSED_OF_PACKAGES)
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            drop_symbols(path)
    _compile(root)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    path.chmod(mode)


def _scripts() -> Iterator[tuple[str, str]]:
    """The programs, and the module and function of each."""
    project = tomllib.loads(lock_files.PROJECT.read_text("utf-8"))["project"]
    yield from project["scripts"].items()


def _install(folder: Path, scratch: Path, epoch: int) -> None:
    """Install the pinned packages and ours."""
    listed, wheels = scratch / "requirements.txt", scratch / "wheels"
    listed.write_text("".join(map(_requirement, pins())), "utf-8")
    tags = [f"manylinux_{LIBC[0]}_{minor}_x86_64" for minor in range(LIBC[1], 4, -1)] + ["manylinux2014_x86_64"]
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    install += ["--root-user-action=ignore", "--no-deps", "--no-compile", "--only-binary=:all:", f"--target={folder}"]
    # Older versions of pip compare Requires-Python with the Python that runs pip.
    install += [
        "--ignore-requires-python",
        f"--python-version={PYTHON}",
        "--implementation=cp",
        *(f"--platform={tag}" for tag in tags),
    ]
    run([*install, "--require-hashes", "-r", str(listed)], ROOT, {})
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    run(build, ROOT, {"SOURCE_DATE_EPOCH": str(epoch)})
    run([*install, "--upgrade", *map(str, wheels.iterdir())], ROOT, {})


def _requirement(pin: Pin) -> str:
    return f"{pin.name}=={pin.version} {' '.join(f'--hash={digest}' for digest in pin.hashes)}\n"


def _remove(folder: Path, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        for path in list(folder.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def drop_symbols(path: Path) -> None:
    """Cut a library or program behind the last byte that is loaded: symbols for debuggers are half of the wheels.

    The loader reads program headers only, so the section headers, which are behind them, are not needed. The file
    stays as it is if it is no 64-bit ELF.
    """
    with path.open("rb") as file:
        if file.read(5) != b"\x7fELF\x02":
            return
    data = bytearray(path.read_bytes())
    number = partial(int.from_bytes, byteorder="little")
    at, size, count = number(data[32:40]), number(data[54:56]), number(data[56:58])
    end = at + size * count
    for header in range(at, end, size):
        end = max(end, number(data[header + 8 : header + 16]) + number(data[header + 32 : header + 40]))
    data[40:48] = bytes(8)  # where the section headers are
    data[58:64] = bytes(6)  # their size, their number, and which one has their names
    path.write_bytes(data[:end])


def _compile(root: Path) -> None:
    """Compile all modules with the Python of the image. Its pages are on a read-only file system."""
    loader = root / "usr/lib64/ld-linux-x86-64.so.2"
    python = [str(loader), "--library-path", str(root / _LIBRARIES), str(root / f"usr/bin/python{PYTHON}")]
    compile_all = ["-S", "-m", "compileall", "-q", "-s", str(root), "-p", "/", "--invalidation-mode", "unchecked-hash"]
    environment = {"PYTHONHOME": str(root / "usr"), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    folders = [str(root / f"usr/lib/python{PYTHON}"), str(root / _PACKAGES)]
    done = subprocess.run([*python, *compile_all, *folders], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"veen: error: the modules of the image cannot be compiled\n{done.stdout}{done.stderr}")


def build_layer(layer: Path, cache: Path, epoch: int) -> None:
    """Write the root file system, made of the files of this folder, to a tar archive."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch, "root")
        root.mkdir()
        build_root(root, cache, Path(scratch), epoch)
        write_layer(root, layer, PLACES, epoch)


def committed_layer(layer: Path, clone: Path, umask: int = -1, environment: Mapping[str, str] = {}) -> tuple[int, str]:
    """The same for the last commit, from a clone with its own tools. Returns the time of the commit and its hash."""
    run(["git", "clone", "--quiet", "--shared", str(ROOT), str(clone)], ROOT, {}, umask)
    commit, epoch = run(["git", "log", "-1", "--format=%H %ct"], clone, {}).split()
    settings = {**environment, "PYTHONPATH": str(clone / "src"), "SOURCE_DATE_EPOCH": epoch}
    run([sys.executable, "-m", "tools.image", "--layer", str(layer), str(CACHE)], clone, settings, umask)
    return int(epoch), commit


def unpacked_bytes(layer: Path) -> int:
    """The size of all files in a layer."""
    with tarfile.open(layer) as archive:
        return sum(one.size for one in archive)


def build(folder: Path) -> Path:
    """Build the archive of the last commit. Returns its path."""
    if run(["git", "status", "--porcelain"], ROOT, {}):
        print("veen: warning: uncommitted changes are not in the image", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"veen-{veen.__version__}-image.tar"
    with tempfile.TemporaryDirectory() as scratch:
        layer = Path(scratch, "layer.tar")
        epoch, commit = committed_layer(layer, Path(scratch, "clone"))
        labels = {"org.opencontainers.image.revision": commit, "org.opencontainers.image.version": veen.__version__}
        config = {**CONFIG, "Labels": {**LABELS, **labels}}
        time = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        write_image(layer, out, f"veen:{veen.__version__}", debian_packages.ARCHITECTURE, config, time)
        print(f"veen: {unpacked_bytes(layer) / 1e6:.1f} MB unpacked", file=sys.stderr)
    return out


if __name__ == "__main__":
    os.umask(0o022)
    try:
        if sys.argv[1:2] == ["--layer"]:
            cache = Path(sys.argv[3]) if sys.argv[3:] else CACHE
            build_layer(Path(sys.argv[2]), cache, int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
        else:
            print(build(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "dist"))
    except debian_packages.BadPackage as error:
        print(f"veen: error: {error}", file=sys.stderr)
        sys.exit("veen: hint: make image-lock pins newer versions; DEBIAN_MIRROR names another mirror")
