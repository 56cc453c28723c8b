"""The examples run and show what they claim."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_first_proof_verifies_and_rejects() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / "first_proof.py"], capture_output=True, text=True, check=True
    )
    lines = [line.split() for line in run.stdout.splitlines()]
    assert sum(line[:1] == ["verified"] for line in lines) == 2
    assert sum(line[:1] == ["refused"] for line in lines) == 5
    assert run.stderr == ""
