"""Encryption and signatures: AEAD, private delivery, group keys, object signatures."""
