"""The core suite: scenarios A to D, the admission table, pages, encodings and requests."""

from veen.selftest.core import capabilities, log_growth, refusals, request_checks

CHECKS = (
    *request_checks.STATUS_CHECKS,
    *log_growth.CHECKS,
    *capabilities.CHECKS,
    *refusals.CHECKS,
    *request_checks.CHECKS,
    *request_checks.TOOLING_CHECKS,
)
