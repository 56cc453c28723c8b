"""The local API: what programs on the same machine use a node by. JSON over HTTP, events over a WebSocket too."""
