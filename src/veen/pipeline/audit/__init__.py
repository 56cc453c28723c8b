"""A whole hub, or several, gone through again: every hash, signature, root, summary, snapshot and checkpoint."""

from veen.pipeline.audit.auditing import Audit, audit
from veen.pipeline.audit.copies import Equivocation, join_here, join_on
from veen.pipeline.audit.page import page_of
from veen.pipeline.audit.report import report_of
from veen.pipeline.audit.running import in_processes, on_spark
from veen.pipeline.audit.statement import Statement, sign

__all__ = [
    "Audit",
    "Equivocation",
    "Statement",
    "audit",
    "in_processes",
    "join_here",
    "join_on",
    "on_spark",
    "page_of",
    "report_of",
    "sign",
]
