"""A node as a process: data directory, keys, contacts, lanes and sessions around `veil.node`."""
