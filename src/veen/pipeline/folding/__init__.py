"""Fold any overlay over a log of any size: workers summarize runs, a tree merges them, and results are kept."""

from veen.pipeline.folding.table_fold import Folded, fold, summarize

__all__ = ["Folded", "fold", "summarize"]
