"""Forward error correction: the field, the code, the hardened transform, and putting objects together again."""
