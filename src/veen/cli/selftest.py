"""`veen selftest`: try a hub against the specification."""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbing.cli.command import Misuse, command, single
from veen.cli.kit import output, values
from veen.cli.kit.client_options import PassphraseFile
from veen.cli.kit.common_options import JsonOption
from veen.cli.kit.output import Marked, Tone
from veen.core import Unavailable

if TYPE_CHECKING:
    from veen.core import SigningKey
    from veen.selftest import CheckResult, SelftestReport


_VOICE = "veen: "
_STOP_S = 30.0


class LocalHub:
    """One run of a hub on a data directory, from start to stop."""

    def __init__(self, data_dir: Path, log: Path, *options: str, env: Mapping[str, str] | None = None) -> None:
        """Returns when it serves; raises `Unavailable` with the hub's words where it never does."""
        reader, writer = os.pipe()
        command = [sys.executable, "-m", "veen.cli", "hub", "start", "--foreground", "--data-dir", str(data_dir)]
        try:
            with log.open("ab") as kept:
                self._process = subprocess.Popen(
                    [*command, *options, "--ready-fd", str(writer)],
                    stdin=subprocess.DEVNULL,
                    stdout=kept,
                    stderr=kept,
                    pass_fds=[writer],
                    env=env,
                )
        finally:
            os.close(writer)
        with open(reader, "rb") as answer:
            try:
                self.url = answer.read().decode()  # there once the hub has closed its end: it serves, or has ended
            except BaseException:
                self.stop()
                raise
        if not self.url:
            self.stop()
            said = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(_VOICE)]
            raise Unavailable(f"the hub did not start: {' '.join(said) or 'it said nothing'}")

    def __enter__(self) -> "LocalHub":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ask it to end, and wait until it has; one that does not is killed."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


app = single("selftest")

AIRGAP = "airgap"  # takes two hubs, where all else takes one
_COUNT = 200
_SEED_BITS = 32


def _suites(incomplete: str) -> list[str]:
    from veen.selftest import ALL, SUITES

    return [name for name in (*SUITES, AIRGAP, ALL) if name.startswith(incomplete)]


@command(
    app,
    "selftest",
    "veen selftest core",
    "veen selftest all --hub https://hub.example --issuer operator --pin 5f1c8a…",
    "veen selftest fuzz --seed 7 --count 5000 --json",
    "veen selftest recorder --hub https://hub.example --issuer operator",
    "veen selftest airgap",
)
def selftest(
    suite: Annotated[
        str,
        typer.Argument(
            metavar="SUITE", help="core, props, fuzz, recorder, airgap, or all of them", autocompletion=_suites
        ),
    ],
    hub: Annotated[
        str | None,
        typer.Option(
            "--hub", metavar="URL", help="the hub to try; else one is started and removed again", parser=values.url
        ),
    ] = None,
    issuer: Annotated[
        Path | None,
        typer.Option("--issuer", metavar="DIR", help="a client directory whose capabilities that hub takes"),
    ] = None,
    pin: Annotated[
        str | None, typer.Option("--pin", metavar="HEX|PATH", help="who it must be: its id, a fingerprint, or a file")
    ] = None,
    hub2: Annotated[
        str | None,
        typer.Option("--hub2", metavar="URL", help="for airgap: the hub that events come to", parser=values.url),
    ] = None,
    pin2: Annotated[str | None, typer.Option("--pin2", metavar="HEX|PATH", help="who that must be")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, help="the same choices again", show_default="by chance")
    ] = None,
    count: Annotated[
        int, typer.Option("--count", metavar="N", min=1, help="messages of props, damaged inputs of each fuzz check")
    ] = _COUNT,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Try a hub, ours or not, against the specification.

    Only its public API is used. Everything is written to streams of the run's own, under keys made for it; what needs a
    capability is skipped without --issuer, and what needs a second hub without --hub2. The exit status is 10 where a
    claim does not hold.
    """
    from veen.cli.kit import pinning
    from veen.cli.kit.exit_status import FAILED_STATUS
    from veen.selftest import ALL

    _check_given(suite, (hub, issuer, pin), (hub2, pin2))
    chosen = secrets.randbits(_SEED_BITS) if seed is None else seed
    trying = _Trying(issuer, passphrase_file, chosen, count)
    anchors = pinning.pinned_key(pin), pinning.pinned_key(pin2)
    found = [] if suite == AIRGAP else [trying.one_hub(suite, hub, anchors[0])]
    if suite in (AIRGAP, ALL):
        found.append(trying.two_hubs((hub, hub2), anchors))
    report = replace(found[0], results=tuple(result for one in found for result in one.results))
    _show(report, as_json)
    if not report.ok:
        raise typer.Exit(FAILED_STATUS)


def _check_given(suite: str, first: tuple[object, object, object], second: tuple[object, object]) -> None:
    """Refuse a suite that there is not, and options that do not go together."""
    from veen.selftest import ALL

    if suite not in _suites(""):
        raise Misuse(f"there is no suite {suite!r}", f"there are: {', '.join(_suites(''))}")
    if first[0] is None and first[1:] != (None, None):
        raise Misuse("--issuer and --pin are about a hub of yours", "name it with --hub URL")
    one, other = first[0] is not None, second[0] is not None
    uneven = (other and not one) or (second[1] is not None and not other) or (suite == AIRGAP and one and not other)
    if uneven or (suite not in (AIRGAP, ALL) and second != (None, None)):
        raise Misuse("airgap takes two hubs, and nothing else does", "give --hub URL and --hub2 URL, or neither")


@dataclass(frozen=True, slots=True)
class _Trying:
    """How claims are tried, of whichever suite."""

    issuer: Path | None
    passphrase_file: Path | None
    seed: int
    count: int

    def one_hub(self, suite: str, url: str | None, anchor: bytes | None) -> "SelftestReport":
        """Claims about one hub, given or started for it."""
        from veen.selftest import run

        with (
            _hub(url, self.issuer, self.passphrase_file) as (where, key),
            output.tally(f"trying {suite}", "claims") as tell,
        ):

            def told(done: int, total: int, result: "CheckResult") -> None:
                tell(done)

            return run(suite, where, issuer=key, pin=anchor, seed=self.seed, count=self.count, progress=told)

    def two_hubs(
        self, urls: tuple[str | None, str | None], anchors: tuple[bytes | None, bytes | None]
    ) -> "SelftestReport":
        """Claims about the way from one hub to another, both given or both started for it; with one, none is tried."""
        from veen.selftest import CheckOutcome, SelftestReport, airgap
        from veen.selftest import CheckResult as Tried
        from veen.selftest.airgap.two_hubs import Zone

        if urls[0] is not None and urls[1] is None:
            why = "it takes two hubs: name the second with --hub2"
            skipped = (Tried(AIRGAP, one.id, one.claim, one.spec, CheckOutcome.SKIP, why, 0.0) for one in airgap.CHECKS)
            return SelftestReport(AIRGAP, urls[0], anchors[0], self.seed, self.count, tuple(skipped))
        with (
            _hub(urls[0], self.issuer, self.passphrase_file, AIRGAP) as (online, first),
            _hub(urls[1], self.issuer, self.passphrase_file, AIRGAP) as (offline, second),
            output.tally(f"trying {AIRGAP}", "claims") as tell,
        ):
            zones = Zone(online, anchors[0], first), Zone(offline, anchors[1], second)

            def told(done: int, total: int, result: "CheckResult") -> None:
                tell(done)

            return airgap.run(*zones, seed=self.seed, count=self.count, progress=told)


@contextmanager
def _hub(
    url: str | None, issuer: Path | None, passphrase_file: Path | None, suite: str = ""
) -> "Iterator[tuple[str, SigningKey | None]]":
    """Where to try, and whose capabilities count there."""
    from veen.cli.kit import open_session
    from veen.core import SigningKey

    if url is not None and issuer is None:
        yield url, None
    elif url is not None:
        with open_session.open_client_dir(issuer, passphrase_file) as folder:
            key = folder.identity.id_sign
        yield url, key
    else:
        key = SigningKey.generate()
        with _own_hub(key.public_key, () if suite != AIRGAP else ("--admission", "capability")) as own:
            yield own, key


@contextmanager
def _own_hub(issuer_pk: bytes, further: tuple[str, ...] = ()) -> Iterator[str]:
    import os
    import tempfile
    import time

    from veen.core import Limits, Profile
    from veen.storage import metadata
    from veen.storage.durable import Disk

    with tempfile.TemporaryDirectory(prefix="veen-selftest-") as name:
        folder = Path(name)
        metadata.create(Disk(), folder / "hub", Profile(), Limits(), int(time.time()))
        options = ("--listen", "127.0.0.1:0", "--issuer", issuer_pk.hex(), *further)
        env = {**os.environ, "XDG_RUNTIME_DIR": name}  # nobody else need find it
        with LocalHub(folder / "hub", folder / "hub.log", *options, env=env) as hub:
            yield hub.url


def _show(report: "SelftestReport", as_json: bool) -> None:
    from veen.selftest import CheckOutcome

    if as_json:
        output.document(report.to_json())
        return
    tones = {CheckOutcome.PASS: Tone.GOOD, CheckOutcome.FAIL: Tone.BAD, CheckOutcome.SKIP: Tone.QUIET}
    rows: list[tuple[output.Value, ...]] = [
        (Marked(str(one.outcome), tones[one.outcome]), one.id, _told(one), f"{one.seconds * 1e3:.0f} ms")
        for one in report.results
    ]
    output.table(("outcome", "claim", "what", "time"), rows, as_json)
    if sys.stdout.isatty():
        sys.stdout.write("\n")
    counts = {str(outcome): count for outcome, count in report.counts.items()}
    summary: dict[str, output.Value] = {
        "verdict": Marked("it keeps what was tried", Tone.GOOD) if report.ok else Marked("it does not hold", Tone.BAD),
        **counts,
        "seed": report.seed,
        "hub": report.url,
    }
    output.facts(summary, as_json)
    if not report.ok:
        output.remark(f"hint: veen selftest {report.suite} --seed {report.seed} --count {report.count} tries the same")


def _told(one: "CheckResult") -> str:
    """What it claims, and what came of it where that says more."""
    return f"{one.claim}: {one.reason} ({one.spec})" if one.reason else one.claim
