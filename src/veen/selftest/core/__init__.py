"""The core suite: scenarios A to D, the admission table, pages, forms and requests."""

from veen.selftest.check import Check
from veen.selftest.core import (
    appending,
    capabilities,
    checkpoints,
    forms,
    order,
    pages,
    refusals,
    requests,
    sharing,
    standing,
    tooling,
)

CHECKS: tuple[Check, ...] = (
    *standing.CHECKS,
    *appending.CHECKS,
    *sharing.CHECKS,
    *checkpoints.CHECKS,
    *capabilities.CHECKS,
    *refusals.CHECKS,
    *order.CHECKS,
    *pages.CHECKS,
    *requests.CHECKS,
    *forms.CHECKS,
    *tooling.CHECKS,
)

__all__ = ["CHECKS"]
