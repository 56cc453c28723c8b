"""The local API of a node: JSON over HTTP on loopback, and events over a WebSocket."""
