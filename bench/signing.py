"""The cost of the signer process: groups of receipts signed by it, with seeds and with a PKCS#11 token of SoftHSM."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.call_times import Action, per_call
from plumbing.durable import Disk
from veen.bench.bench_report import BenchReport, BenchRow
from veen.core import Limits, Profile, SigningKey
from veen.hub.signer import RemoteKey, Signer
from veen.storage import metadata
from veen.storage.paths import Folders
from veen.storage.secret_keys import KeySource, PlainSource, TokenSource

MODULE = Path("/usr/lib/softhsm/libsofthsm2.so")
GROUPS = (1, 16, 256)


def measure() -> BenchReport:
    local, rows, notes = SigningKey.generate(), [], []
    for name, source in _sources():
        with tempfile.TemporaryDirectory() as folder, _key(Path(folder), source) as remote:
            actions: dict[str, Action] = {}
            for count in GROUPS:
                digests = [os.urandom(32) for _ in range(count)]
                actions[f"in the process, {count}"] = partial(local.sign_many, digests)
                actions[f"{name}, {count}"] = partial(remote.sign_many, digests)
            times = per_call(actions, rounds=20, calls=5)
        for count in GROUPS:
            own, other = times[f"in the process, {count}"], times[f"{name}, {count}"]
            rows.append(BenchRow.of(f"{name}: a receipt in a group of {count}", [other / count * 1e6], "µs"))
            rows.append(BenchRow.of(f"{name}: a group of {count}", [other / own], "of signing without a process"))
    if not MODULE.exists():
        notes.append("SoftHSM is not installed, so no token was measured")
    return BenchReport("signing", tuple(rows), tuple(notes))


def _sources() -> Iterator[tuple[str, KeySource]]:
    yield "signer process", PlainSource()
    program = shutil.which("softhsm2-util")
    if program and MODULE.exists():
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "tokens").mkdir()
            (place / "softhsm2.conf").write_text(f"directories.tokendir = {place / 'tokens'}\n")
            (place / "pin").touch(0o600)
            (place / "pin").write_text("4711\n")
            os.environ["SOFTHSM2_CONF"] = str(place / "softhsm2.conf")
            command = [program, "--init-token", "--free", "--label", "veen", "--pin", "4711", "--so-pin", "4711"]
            subprocess.run(command, check=True, capture_output=True)
            yield "signer process with a token", TokenSource(MODULE, "veen", place / "pin")


@contextmanager
def _key(folder: Path, source: KeySource) -> Iterator[RemoteKey]:
    """The key of a new hub whose secrets are in `source`."""
    made = metadata.create(Disk(), folder / "hub", Profile(), Limits(), 1, source=source)
    signer = Signer(Folders(folder / "hub"), made.identity)
    try:
        yield signer.at(1)
    finally:
        signer.close()
