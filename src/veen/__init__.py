"""VEEN: ordered, end-to-end encrypted logs whose every entry can be proved."""

__version__ = "0.0.1"
