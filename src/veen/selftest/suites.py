"""The suites by name. A suite is a row here: its checks use the hub's public API and nothing else."""

from collections.abc import Mapping
from types import MappingProxyType

from veen.selftest import core, fuzz, props, recorder
from veen.selftest.check import Check

ALL = "all"
SUITES: Mapping[str, tuple[Check, ...]] = MappingProxyType(
    {"core": core.CHECKS, "props": props.CHECKS, "fuzz": fuzz.CHECKS, "recorder": recorder.CHECKS}
)


def named(suite: str) -> tuple[tuple[str, Check], ...]:
    """The checks of a suite, each with the name of the suite it is of. Raises `ValueError` for a name there is not."""
    if suite != ALL and suite not in SUITES:
        raise ValueError(f"there is no suite {suite!r}, only {', '.join(SUITES)} and {ALL}")
    return tuple((name, check) for name, checks in SUITES.items() if suite in (name, ALL) for check in checks)
