"""Conformance of any running hub, over its public API: claims that are tried, and a report as data.

`core` tries scenarios A to D, the admission table, pages and forms; `props` tries what must hold of any history on a
random one; `fuzz` throws damaged input. Everything is written to streams of its own, under keys made for the run.
"""

from veen.selftest.report import Outcome, Report, Result
from veen.selftest.runner import Progress, run
from veen.selftest.suites import ALL, SUITES

__all__ = ["ALL", "Outcome", "Progress", "Report", "Result", "SUITES", "run"]
