"""Forward error correction: Reed-Solomon, the hardened transform, and reassembly of objects."""
