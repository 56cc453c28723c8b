"""Encodings: CBOR primitives and the native form of objects and shards."""
