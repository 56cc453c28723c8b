"""What a node keeps: ordered tables of bytes, in memory or on disk, changed all at once or not at all."""

from veil.store.disk import DiskStore
from veil.store.tables import MemoryStore, Store, StoreFailed, Table

__all__ = ["DiskStore", "MemoryStore", "Store", "StoreFailed", "Table"]
