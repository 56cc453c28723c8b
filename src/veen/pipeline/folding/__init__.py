"""Any overlay's fold over a log of any size: pieces summed up by workers, merged in a tree, kept for the next time."""

from veen.pipeline.folding.table_fold import Folded, fold, sum_up

__all__ = ["Folded", "fold", "sum_up"]
