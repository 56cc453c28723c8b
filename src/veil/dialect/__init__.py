"""The encoding of existing VEIL nodes for the same objects and shards."""
