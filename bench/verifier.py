"""What the TypeScript verifier costs, in units of the bare checks of the same signatures."""

import json
import tempfile
from pathlib import Path
from typing import Any

from tools.verifier_package import CannotRun, compiled, run
from vectors.evidence_files import OLD, READER, YOUNG, Log, record
from veen.bench.bench_report import BenchReport, BenchRow
from veen.client.evidence import Exhibit, Opening, make_evidence
from veen.core import Unavailable

MOST = 1.3  # of the bare checks; proofs of disclosed content are extra, because they are no signatures
SIZES = (1, 10, 100)


def evidence_of(entries: int, *, disclose: bool) -> bytes:
    """Evidence of all entries of a log, with their proofs, under the only key of a hub."""
    log = Log("cost", tuple(b"door %d opened" % number for number in range(entries)))
    shown = range(1, entries + 1)
    receipts = [log.sign(OLD, seq, YOUNG.hub_keys[0].valid_from + seq) for seq in shown]
    messages = [log.messages[seq - 1] for seq in shown]
    made = make_evidence(
        record(YOUNG, OLD),
        "",
        [*receipts, log.checkpoint(entries, OLD)],
        ties=[log.tie(seq, entries) for seq in shown],
        exhibits=[
            Exhibit(seq, message, Opening.of(READER, message) if disclose else None)
            for seq, message in zip(shown, messages, strict=True)
        ],
    )
    return made.encode()


def cost_of(data: bytes) -> dict[str, Any]:
    """The figures of `bench/cost.js` for a file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cost.evidence"
        file.write_bytes(data)
        done = run("node", "build/bench/cost.js", str(file), YOUNG.hub_id.hex())
    if done.returncode:
        raise AssertionError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(sizes: tuple[int, ...] = SIZES) -> BenchReport:
    try:
        compiled()
    except CannotRun as error:
        raise Unavailable("bench", str(error)) from None
    rows = []
    for disclose in (False, True):
        for size in sizes:
            entries = f"{size} {'entry' if size == 1 else 'entries'}, {'disclosed' if disclose else 'sealed'}"
            rounds = cost_of(evidence_of(size, disclose=disclose))["rounds"]
            rows.append(BenchRow.of(f"{entries}: bare checks", rounds["bare"], "ms"))
            rows.append(BenchRow.of(f"{entries}: verification", rounds["whole"], "ms"))
            if disclose:
                rows.append(BenchRow.of(f"{entries}: proofs of content", rounds["proofs"], "ms"))
                with_proofs = rounds["ratio_with_proofs"]
                rows.append(BenchRow.of(f"{entries}: of the bare checks, with the proofs", with_proofs, ""))
            rows.append(BenchRow.of(f"{entries}: of the bare checks", rounds["ratio"], "", most=MOST))
    notes = ("CPU time of Node; each round starts without key tables. Proofs of content are left out of the last row",)
    return BenchReport("verifier", tuple(rows), notes)
