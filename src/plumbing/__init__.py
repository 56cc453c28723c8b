"""Shared code of `veen` and `veil`: the HTTP server and the command-line kit. It imports nothing of either."""
