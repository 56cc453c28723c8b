"""The data directory of a hub, and a read-only view of it for other processes."""
