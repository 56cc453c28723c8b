"""The wire form of existing VEIL nodes: the same objects and shards, written their way."""
