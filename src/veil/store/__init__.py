"""The store of a node: ordered tables of bytes with atomic commits, in memory or on disk."""

from veil.store.disk import DiskStore
from veil.store.tables import MemoryStore, Store, StoreFailed, Table

__all__ = ["DiskStore", "MemoryStore", "Store", "StoreFailed", "Table"]
