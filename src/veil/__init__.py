"""VEIL: objects cut into shards of one size, carried through lossy and hostile networks."""
