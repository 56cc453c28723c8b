"""From verified entries to what they say: opened with keys that are named and never carried, read by overlay schema."""

from veen.pipeline.decoding.decoder import DecodedEntry, DecodedRows, Decoder, LabelStream, streams_of
from veen.pipeline.decoding.key_reference import Keys

__all__ = ["DecodedEntry", "DecodedRows", "Decoder", "Keys", "LabelStream", "streams_of"]
