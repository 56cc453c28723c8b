"""Measurements of a hub, run by `veen bench`."""
