"""Shared by all commands: options, hub sessions, state, argument parsers and output."""
