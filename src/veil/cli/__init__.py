"""The `veil` command."""
