"""Back up a hub under full load: `python -m bench.backup [ENTRIES] [MESSAGES] [ROUNDS]`.

It fills a real hub with ENTRIES entries in two streams, and then sends rounds of MESSAGES messages over many
connections: in turn without and with `veen hub backup` running beside it, again and again until the round is over. It
prints the p99 of the submits of both kinds of rounds, and then verifies: each backup has all entries that were
acknowledged before it began, the last one verifies with `veen fsck`, a backup of the unchanged log reads no closed
chunk, and the restored directory is clean. With `--nice` the backups run with the lowest priority.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Event, Thread

from plumbing.durable import Disk
from veen.bench.hub_process import HubProcess, Round, run_round
from veen.bench.load import MessageWriters
from veen.core import Limits, Profile
from veen.storage import metadata

_CONNECTIONS = 64
_BATCH = 200
_CHUNK_ENTRIES = 5_000
_VEEN = (sys.executable, "-m", "veen.cli")


def veen(*arguments: object, nice: bool = False, wanted: int = 0) -> dict[str, object]:
    """Run a command and return its JSON."""
    command = [*(("nice", "-n", "19") if nice else ()), *_VEEN, *map(str, arguments), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == wanted, (command, ran.returncode, ran.stderr)
    return dict(json.loads(ran.stdout))


def back_up(hub: HubProcess, to: Path, *, nice: bool = False) -> dict[str, object]:
    return veen("hub", "backup", "--data-dir", hub.data_dir, "--to", to, "--with-keys", nice=nice)


class Backups:
    """Makes one backup after the other while a round runs, and checks that none lacks an acknowledged entry."""

    def __init__(self, hub: HubProcess, to: Path, *, nice: bool) -> None:
        self._hub, self._to, self._nice = hub, to, nice
        self.seconds: list[float] = []
        self.lost = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        over = Event()
        thread = Thread(target=self._run, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _run(self, over: Event) -> None:
        while not over.is_set():
            acknowledged, began = self._hub.entries(), time.perf_counter()
            made = back_up(self._hub, self._to, nice=self._nice)
            self.seconds.append(time.perf_counter() - began)
            self.lost = max(self.lost, acknowledged - int(str(made["entries"])))


def p99_ms(found: list[Round]) -> float:
    return median(one.load.percentile(0.99) for one in found) * 1000


def main(entries: int, messages: int, rounds: int, folder: Path, *, nice: bool) -> None:
    data_dir = folder / "hub"
    limits = Limits(max_checkpoint_interval=_CHUNK_ENTRIES)
    metadata.create(Disk(), data_dir, Profile(), limits, int(time.time()))
    with HubProcess(data_dir) as hub:
        filler = MessageWriters(hub.target, 4, ("one", "two"))
        run_round(hub, filler.plan(entries, _BATCH), entries)
        writers = MessageWriters(hub.target, _CONNECTIONS, ("one", "two"))
        run_round(hub, writers.plan(messages), messages)  # warm up
        backups = Backups(hub, folder / "to", nice=nice)
        normal, loaded = list[Round](), list[Round]()
        for _ in range(rounds):
            normal.append(run_round(hub, writers.plan(messages), messages))
            loaded.append(run_round(hub, writers.plan(messages), messages, backups.running()))
        last, again = back_up(hub, folder / "to"), back_up(hub, folder / "to")
        total = hub.entries()
    for name, found in (("without backups", normal), ("with backups", loaded)):
        rates = ", ".join(f"{one.rate:.0f}" for one in found)
        shown = ", ".join(f"{one.load.percentile(0.99) * 1000:.1f}" for one in found)
        print(f"{name}: messages/s {rates}; p99 ms {shown}")
    with_backups, without = p99_ms(loaded), p99_ms(normal)
    print(f"p99, median of rounds: {with_backups:.1f} ms / {without:.1f} ms = {with_backups / without:.2f}")
    print(
        f"backups during load: {len(backups.seconds)}, {min(backups.seconds):.1f} to {max(backups.seconds):.1f} s each"
    )
    print(f"acknowledged entries that a backup lacked: {max(0, backups.lost)}")
    print(f"last backup: {last['entries']} of {total} entries; chunks read {last['chunks_read']}")
    print(f"backup of the unchanged log: chunks read {again['chunks_read']}, shared {again['chunks_shared']}")
    checked = veen("fsck", again["backup"], wanted=7)  # the index is missing
    counts = checked["counts"]
    assert isinstance(counts, dict)
    print(f"fsck of the backup: {checked['entries']} entries, damaged {counts['damaged']}")
    restored = veen("hub", "restore", "--from", folder / "to", "--data-dir", folder / "restored")
    clean = veen("fsck", folder / "restored")
    print(f"restored: {restored['entries']} entries, fsck {clean['verdict']}")


if __name__ == "__main__":
    given = [int(one) for one in sys.argv[1:] if one != "--nice"]
    entries, messages, rounds = (*given, *(100_000, 20_000, 3)[len(given) :])
    with tempfile.TemporaryDirectory(prefix="veen-bench-") as folder:
        main(entries, messages, rounds, Path(folder), nice="--nice" in sys.argv)
