"""Conformance checks for any running hub, over its public API, with a report as data.

`core` checks scenarios A to D, the admission table, pages and encodings. `history_properties` checks invariants on a
random history. `fuzz` sends damaged input. Every run writes to its own streams under new keys.
"""

from veen.selftest.runner import ALL, SUITES, CheckOutcome, CheckResult, Progress, SelftestReport, run

__all__ = ["ALL", "CheckOutcome", "CheckResult", "Progress", "SUITES", "SelftestReport", "run"]
