"""`veen discover` and `veen connect`: directories of hubs, overlays and services, and connections to services."""
