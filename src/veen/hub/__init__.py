"""The hub: admits, orders, signs and serves."""
