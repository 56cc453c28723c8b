"""Audit whole data directories: recheck every hash, signature, root, summary, snapshot and checkpoint."""

from veen.pipeline.audit.audit_report import AuditStatement, page_of, report_of, sign
from veen.pipeline.audit.audit_run import Audit, audit
from veen.pipeline.audit.equivocation import KnownDates

__all__ = ["Audit", "AuditStatement", "KnownDates", "audit", "page_of", "report_of", "sign"]
