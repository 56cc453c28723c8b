"""Audit whole data directories: recheck every hash, signature, root, summary, snapshot and checkpoint."""

from veen.pipeline.audit.audit_report import AuditStatement, report_of, sign
from veen.pipeline.audit.audit_runner import in_processes, on_spark
from veen.pipeline.audit.equivocation import ConflictingReceipts, join_inline, join_on
from veen.pipeline.audit.report_page import page_of
from veen.pipeline.audit.run import Audit, audit

__all__ = [
    "Audit",
    "AuditStatement",
    "ConflictingReceipts",
    "audit",
    "in_processes",
    "join_inline",
    "join_on",
    "on_spark",
    "page_of",
    "report_of",
    "sign",
]
