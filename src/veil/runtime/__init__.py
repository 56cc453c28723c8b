"""A node as a process: its folder, its keys and contacts, its lanes and its local API, around the core that decides."""
