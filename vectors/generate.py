"""Write every generated vector file: `python -m vectors.generate`. The same code gives the same bytes."""

from collections.abc import Callable
from pathlib import Path

from vectors.bundles import bundles
from vectors.capabilities import captokens, scenario_d
from vectors.evidence_files import evidence_files
from vectors.form import Doc, render
from vectors.identities import identities
from vectors.malformed import malformed
from vectors.query_results import query_results
from vectors.reads import reads
from vectors.retention import retention
from vectors.scenarios import scenario_a, scenario_b, scenario_c
from vectors.sealing import ciphertexts
from vectors.signatures import signatures
from vectors.statements import statements
from vectors.trees import trees
from vectors.uploads import uploads

FOLDER = Path(__file__).parent

# `known-answers.json` is not here: its figures are copied by hand, so our code cannot change them.
GENERATED: dict[str, Callable[[], Doc]] = {
    "bundle.json": bundles,
    "captoken.json": captokens,
    "ciphertext.json": ciphertexts,
    "ed25519.json": signatures,
    "evidence.json": evidence_files,
    "identity.json": identities,
    "malformed.json": malformed,
    "mmr.json": trees,
    "query-results.json": query_results,
    "retention.json": retention,
    "scenario-a.json": scenario_a,
    "scenario-b.json": scenario_b,
    "scenario-c.json": scenario_c,
    "scenario-d.json": scenario_d,
    "statements.json": statements,
    "upload.json": uploads,
    "read.json": reads,
}


def main() -> None:
    for name, make in GENERATED.items():
        (FOLDER / name).write_bytes(render(make()))


if __name__ == "__main__":
    main()
