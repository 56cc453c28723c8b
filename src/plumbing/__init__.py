"""What `veen` and `veil` share: the HTTP server and the command-line kit. Imports nothing of either."""
