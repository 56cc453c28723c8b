"""`veen selftest`: try a hub against the specification."""

import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terminalface.command import Misuse, command, single
from veen.cli import output, values
from veen.cli.client.options import PassphraseFile
from veen.cli.options import JsonOption
from veen.cli.output import Marked, Tone

if TYPE_CHECKING:
    from veen.core import SigningKey
    from veen.selftest import Report, Result

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
    from veen.cli.client import pins
    from veen.cli.failures import FAILED_STATUS
    from veen.selftest import ALL

    _check_given(suite, (hub, issuer, pin), (hub2, pin2))
    chosen = secrets.randbits(_SEED_BITS) if seed is None else seed
    trying = _Trying(issuer, passphrase_file, chosen, count)
    anchors = pins.anchor(pin), pins.anchor(pin2)
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

    def one_hub(self, suite: str, url: str | None, anchor: bytes | None) -> "Report":
        """Claims about one hub, given or started for it."""
        from veen.selftest import run

        with (
            _hub(url, self.issuer, self.passphrase_file) as (where, key),
            output.tally(f"trying {suite}", "claims") as tell,
        ):

            def told(done: int, total: int, result: "Result") -> None:
                tell(done)

            return run(suite, where, issuer=key, pin=anchor, seed=self.seed, count=self.count, progress=told)

    def two_hubs(self, urls: tuple[str | None, str | None], anchors: tuple[bytes | None, bytes | None]) -> "Report":
        """Claims about the way from one hub to another, both given or both started for it; with one, none is tried."""
        from veen.selftest import Outcome, Report, airgap
        from veen.selftest import Result as Tried
        from veen.selftest.airgap.crossing import Zone

        if urls[0] is not None and urls[1] is None:
            why = "it takes two hubs: name the second with --hub2"
            skipped = (Tried(AIRGAP, one.id, one.claim, one.spec, Outcome.SKIP, why, 0.0) for one in airgap.CHECKS)
            return Report(AIRGAP, urls[0], anchors[0], self.seed, self.count, tuple(skipped))
        with (
            _hub(urls[0], self.issuer, self.passphrase_file, AIRGAP) as (online, first),
            _hub(urls[1], self.issuer, self.passphrase_file, AIRGAP) as (offline, second),
            output.tally(f"trying {AIRGAP}", "claims") as tell,
        ):
            zones = Zone(online, anchors[0], first), Zone(offline, anchors[1], second)

            def told(done: int, total: int, result: "Result") -> None:
                tell(done)

            return airgap.run(*zones, seed=self.seed, count=self.count, progress=told)


@contextmanager
def _hub(
    url: str | None, issuer: Path | None, passphrase_file: Path | None, suite: str = ""
) -> "Iterator[tuple[str, SigningKey | None]]":
    """Where to try, and whose capabilities count there."""
    from veen.cli.client import calling
    from veen.core import SigningKey

    if url is not None and issuer is None:
        yield url, None
    elif url is not None:
        with calling.opened(issuer, passphrase_file) as folder:
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

    from veen.cli.localhub import LocalHub
    from veen.core import Limits, Profile
    from veen.storage import directory
    from veen.storage.durable import Disk

    with tempfile.TemporaryDirectory(prefix="veen-selftest-") as name:
        folder = Path(name)
        directory.create(Disk(), folder / "hub", Profile(), Limits(), int(time.time()))
        options = ("--listen", "127.0.0.1:0", "--issuer", issuer_pk.hex(), *further)
        env = {**os.environ, "XDG_RUNTIME_DIR": name}  # nobody else need find it
        with LocalHub(folder / "hub", folder / "hub.log", *options, env=env) as hub:
            yield hub.url


def _show(report: "Report", as_json: bool) -> None:
    from veen.selftest import Outcome

    if as_json:
        output.document(report.to_json())
        return
    tones = {Outcome.PASS: Tone.GOOD, Outcome.FAIL: Tone.BAD, Outcome.SKIP: Tone.QUIET}
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


def _told(one: "Result") -> str:
    """What it claims, and what came of it where that says more."""
    return f"{one.claim}: {one.reason} ({one.spec})" if one.reason else one.claim
