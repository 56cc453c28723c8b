"""From verified entries to what they say: opened with keys that are named and never carried, read by overlay schema."""

from veen.pipeline.decoding.decoder import Decoder, Found, Rows
from veen.pipeline.decoding.keys import Keys
from veen.pipeline.decoding.streams import Stream, streams_of

__all__ = ["Decoder", "Found", "Keys", "Rows", "Stream", "streams_of"]
