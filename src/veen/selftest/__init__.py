"""Conformance of any running hub, over its public API: claims that are tried, and a report as data.

`core` tries scenarios A to D, the admission table, pages and forms; `props` tries what must hold of any history on a
random one; `fuzz` throws damaged input. Everything is written to streams of its own, under keys made for the run.
"""

from veen.selftest.runner import ALL, SUITES, Progress, run
from veen.selftest.selftest_report import CheckOutcome, CheckResult, SelftestReport

__all__ = ["ALL", "CheckOutcome", "CheckResult", "Progress", "SUITES", "SelftestReport", "run"]
