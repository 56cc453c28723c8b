"""Run a command in a root file system as a container runtime would: read-only, as uid 10001, without capabilities.

python -m tests.container_box ROOT DATA COMMAND...    as pid 1 of new namespaces (tests.namespaces)
"""

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.image import USER

PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
LAST_CAPABILITY = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
DEVICES = ("full", "null", "random", "urandom", "zero")


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def enter(root: str, data: str) -> None:
    place = tempfile.mkdtemp()
    mount("--make-rprivate", "/")
    mount("--bind", root, place)
    for folder in ("tmp", "dev"):
        mount("-t", "tmpfs", "tmpfs", f"{place}/{folder}")
    mount("-t", "proc", "proc", f"{place}/proc")
    mount("--bind", data, f"{place}/var/lib/veen")
    for device in DEVICES:
        Path(place, "dev", device).touch()
        mount("--bind", f"/dev/{device}", f"{place}/dev/{device}")
    mount("-o", "remount,bind,ro", place)
    os.chroot(place)
    os.chdir("/")
    for capability in range(LAST_CAPABILITY + 1):
        prctl(PR_CAPBSET_DROP, capability)
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    prctl(PR_SET_NO_NEW_PRIVS, 1)


if __name__ == "__main__":
    enter(*sys.argv[1:3])
    environment = {"HOME": "/var/lib/veen", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin"}
    os.execvpe(sys.argv[3], sys.argv[3:], environment)
