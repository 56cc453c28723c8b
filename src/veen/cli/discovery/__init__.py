"""`veen discover` and `veen connect`: from a directory to a service that can be called."""
