"""The core suite: scenarios A to D, the admission table, pages, encodings and requests."""

from veen.selftest.check import Check
from veen.selftest.core import capabilities, checkpoints, log_growth, refusals, request_checks, tooling_checks

CHECKS: tuple[Check, ...] = (
    *tooling_checks.HUB_STATUS_CHECKS,
    *log_growth.APPEND_CHECKS,
    *log_growth.SHARED_LABEL_CHECKS,
    *checkpoints.CHECKS,
    *capabilities.CHECKS,
    *refusals.REFUSAL_CHECKS,
    *refusals.FAULT_ORDER_CHECKS,
    *request_checks.PAGE_CHECKS,
    *request_checks.REQUEST_CHECKS,
    *request_checks.JSON_FORM_CHECKS,
    *tooling_checks.TOOLING_CHECKS,
)

__all__ = ["CHECKS"]
