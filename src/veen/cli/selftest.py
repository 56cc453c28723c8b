"""`veen selftest`: test a hub against the specification."""

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from plumbing.cli.command import Misuse, argument, command, option, single
from plumbing.durable import Disk
from veen.cli.hub import hub_process
from veen.cli.hub.hub_process import StartFailed
from veen.cli.hub.hub_settings import OPERATOR_TOKEN
from veen.cli.kit import open_session, output, pinning, values
from veen.cli.kit.common_options import JsonOption, PassphraseFile
from veen.cli.kit.exit_status import FAILED_STATUS
from veen.cli.kit.output import Marked, Tone
from veen.core import Limits, Profile, SigningKey, Unavailable
from veen.selftest import ALL, SUITES, CheckOutcome, CheckResult, SelftestReport, airgap, run
from veen.selftest.airgap import Zone
from veen.storage import metadata

_STOP_TIMEOUT_S = 30.0
app = single("selftest")

AIRGAP = "airgap"  # the only suite that needs two hubs
_COUNT = 200
_SEED_BITS = 32
_EPOCH_SEC = 86_400


def _suites(incomplete: str) -> list[str]:
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
        str, argument("SUITE", "core, props, fuzz, recorder, airgap, or all of them", autocompletion=_suites)
    ],
    hub: Annotated[
        str | None, option("--hub URL", "the hub to test; else a temporary one is started", parser=values.url)
    ] = None,
    issuer: Annotated[Path | None, option("--issuer DIR", "client directory of an issuer that the hub trusts")] = None,
    pin: Annotated[str | None, option("--pin HEX|PATH", "the expected hub: its id, a fingerprint or a file")] = None,
    hub2: Annotated[
        str | None, option("--hub2 URL", "for airgap: the hub that receives events", parser=values.url)
    ] = None,
    pin2: Annotated[str | None, option("--pin2 HEX|PATH", "the expected second hub")] = None,
    seed: Annotated[int | None, option("--seed N", "repeat a run with this seed", min=0, show_default="random")] = None,
    count: Annotated[int, option("--count N", "messages in props, damaged inputs in each fuzz check", min=1)] = _COUNT,
    passphrase_file: PassphraseFile = None,
    as_json: JsonOption = False,
) -> None:
    """Test any hub against the specification.

    The test uses only the public API. It writes to streams of its own under new keys. Checks that need a capability are
    skipped without --issuer, and checks that need a second hub without --hub2. If the hub has open admission and
    epochs, the streams are registered with the operator token in VEEN_OPERATOR_TOKEN, if there is one. The token is
    sent only if the hub has the identity that --pin names, and only over TLS or to this machine. The exit status is 10
    if a check fails.
    """
    _check_options(suite, (hub, issuer, pin), (hub2, pin2))
    chosen = secrets.randbits(_SEED_BITS) if seed is None else seed
    runner = _SuiteRunner(issuer, passphrase_file, chosen, count)
    anchors = pinning.pinned_key(pin), pinning.pinned_key(pin2)
    found = [] if suite == AIRGAP else [runner.one_hub(suite, hub, anchors[0])]
    if suite in (AIRGAP, ALL):
        found.append(runner.two_hubs((hub, hub2), anchors))
    report = replace(found[0], results=tuple(result for one in found for result in one.results))
    _show(report, as_json)
    if not report.ok:
        raise typer.Exit(FAILED_STATUS)


def _check_options(suite: str, first: tuple[object, object, object], second: tuple[object, object]) -> None:
    """Reject unknown suites and contradictory options."""
    if suite not in _suites(""):
        raise Misuse(f"there is no suite {suite!r}", f"the suites are: {', '.join(_suites(''))}")
    if first[0] is None and first[1:] != (None, None):
        raise Misuse("--issuer and --pin need --hub", "name the hub with --hub URL")
    one, other = first[0] is not None, second[0] is not None
    uneven = (other and not one) or (second[1] is not None and not other) or (suite == AIRGAP and one and not other)
    if uneven or (suite not in (AIRGAP, ALL) and second != (None, None)):
        raise Misuse("airgap needs two hubs, all other suites one", "give --hub URL and --hub2 URL, or neither")


@dataclass(frozen=True, slots=True)
class _SuiteRunner:
    issuer: Path | None
    passphrase_file: Path | None
    seed: int
    count: int

    def one_hub(self, suite: str, url: str | None, anchor: bytes | None) -> SelftestReport:
        """Run a suite against the given hub, or a temporary one."""
        with (
            _hub(url, self.issuer, self.passphrase_file) as (where, key, token, own),
            output.tally(f"running {suite}", "checks") as progress,
        ):
            return run(
                suite,
                where,
                issuer=key,
                operator=token,
                pin=own or anchor,
                seed=self.seed,
                count=self.count,
                progress=progress,
            )

    def two_hubs(
        self, urls: tuple[str | None, str | None], anchors: tuple[bytes | None, bytes | None]
    ) -> SelftestReport:
        """Run airgap between two given hubs or two temporary ones. With only one given hub, all checks are skipped."""
        if urls[0] is not None and urls[1] is None:
            why = "needs two hubs; name the second with --hub2"
            skipped = (
                CheckResult(AIRGAP, one.id, one.claim, one.spec, CheckOutcome.SKIP, why, 0.0) for one in airgap.CHECKS
            )
            return SelftestReport(AIRGAP, urls[0], anchors[0], self.seed, self.count, tuple(skipped))
        with (
            _hub(urls[0], self.issuer, self.passphrase_file, AIRGAP) as (online, first, *_),
            _hub(urls[1], self.issuer, self.passphrase_file, AIRGAP) as (offline, second, *_),
            output.tally(f"running {AIRGAP}", "checks") as progress,
        ):
            zones = Zone(online, anchors[0], first), Zone(offline, anchors[1], second)
            return airgap.run(*zones, seed=self.seed, count=self.count, progress=progress)


@contextmanager
def _hub(
    url: str | None, issuer: Path | None, passphrase_file: Path | None, suite: str = ""
) -> Iterator[tuple[str, SigningKey | None, str | None, bytes | None]]:
    """The URL of the hub to test, the key of an issuer that it trusts, its operator's token, the id of our own hub."""
    token = os.environ.get(OPERATOR_TOKEN) or None
    if url is not None and issuer is None:
        yield url, None, token, None
    elif url is not None:
        with open_session.open_client_dir(issuer, passphrase_file) as folder:
            key = folder.identity.id_sign
        yield url, key, token, None
    else:
        key, token = SigningKey.generate(), secrets.token_hex()
        with _temporary_hub(key.public_key, token, has_epochs=suite != AIRGAP) as (own_url, hub_id):
            yield own_url, key, token, hub_id


@contextmanager
def _temporary_hub(issuer_pk: bytes, token: str, *, has_epochs: bool) -> Iterator[tuple[str, bytes]]:
    """A hub with epochs is open, so that both ways of registering streams are used; another requires capabilities."""
    with tempfile.TemporaryDirectory(prefix="veen-selftest-") as name:
        folder = Path(name)
        profile = Profile(epoch_sec=_EPOCH_SEC if has_epochs else 0)
        limits = Limits(max_epoch_skew_sec=_EPOCH_SEC)  # the next epoch need not begin during the test
        made = metadata.create(Disk(), folder / "hub", profile, limits, int(time.time()))
        admission = ("--admission", "open" if has_epochs else "capability")
        options = ("--listen", "127.0.0.1:0", "--issuer", issuer_pk.hex(), *admission)
        # Keep it out of the user's list of running hubs.
        env = {**os.environ, "XDG_RUNTIME_DIR": name, OPERATOR_TOKEN: token}
        command = ["hub", "start", "--data-dir", str(folder / "hub"), *options]
        try:
            hub, url = hub_process.start_process(command, folder / "hub.log", env, detached=False)
        except StartFailed as failed:
            raise Unavailable(f"the hub did not start: {' '.join(failed.errors) or 'it printed no error'}") from None
        try:
            yield url, made.identity.hub_id
        finally:
            _stop(hub)


def _stop(hub: subprocess.Popen[bytes]) -> None:
    hub.terminate()
    try:
        hub.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        hub.kill()
        hub.wait()


def _show(report: SelftestReport, as_json: bool) -> None:
    if as_json:
        output.document(report.to_json())
        return
    tones = {CheckOutcome.PASS: Tone.GOOD, CheckOutcome.FAIL: Tone.BAD, CheckOutcome.SKIP: Tone.QUIET}
    rows: list[tuple[output.Value, ...]] = [
        (Marked(str(one.outcome), tones[one.outcome]), one.id, _description(one), f"{one.seconds * 1e3:.0f} ms")
        for one in report.results
    ]
    output.table(("outcome", "claim", "what", "time"), rows, as_json)
    if sys.stdout.isatty():
        sys.stdout.write("\n")
    counts = {str(outcome): count for outcome, count in report.counts.items()}
    summary: dict[str, output.Value] = {
        "verdict": Marked("no check failed", Tone.GOOD) if report.ok else Marked("a check failed", Tone.BAD),
        **counts,
        "seed": report.seed,
        "hub": report.url,
    }
    output.facts(summary, as_json)
    if not report.ok:
        output.remark(f"hint: veen selftest {report.suite} --seed {report.seed} --count {report.count} repeats it")


def _description(one: CheckResult) -> str:
    return f"{one.claim}: {one.reason} ({one.spec})" if one.reason else one.claim
