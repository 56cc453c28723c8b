"""The TypeScript project in `web/verify`. A test that needs it is skipped where it cannot be compiled."""

from pathlib import Path

import pytest

from tools import verifier_package
from tools.verifier_package import PROJECT, CannotRun, run

__all__ = ["PROJECT", "compiled", "run"]


def compiled() -> Path:
    """The folder of the project, installed and compiled once per run."""
    try:
        return verifier_package.compiled()
    except CannotRun as error:
        pytest.skip(str(error))
