"""Decode verified entries into typed rows. Workers open them with reader keys that are passed by reference only."""

from veen.pipeline.decoding.decoder import DecodedEntry, DecodedRows, Decoder, Keys, LabelStream, streams_of

__all__ = ["DecodedEntry", "DecodedRows", "Decoder", "Keys", "LabelStream", "streams_of"]
